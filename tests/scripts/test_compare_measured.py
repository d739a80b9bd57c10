"""Measured steps and what is said of them."""

from dataclasses import asdict, replace
import json

import pytest

from scripts.compare_measured import Row, report
from scripts.measure_steps import Kernel, Measured
from scripts.measured_steps import CASES


MEASURED = Measured(
    name=CASES[0].name,
    in_a_row_seconds=3.0,
    span_seconds=2.5,
    kernel_seconds=2.0,
    compiled_bytes=100,
    kernels=(Kernel(name="a", instruction="b", runs=2.0, seconds=1.0),),
)


def test_a_step_is_what_others_disturbed_least():
    assert MEASURED.seconds == 3.0
    assert replace(MEASURED, others_compiled=True).seconds == 2.0
    # A trace without kernels says nothing.
    assert replace(MEASURED, others_compiled=True, kernel_seconds=0.0).seconds == 2.5


def test_a_row_is_read_as_it_was_written():
    assert Measured.from_row(json.loads(json.dumps(asdict(MEASURED)))) == MEASURED


def test_errors_are_of_each_half():
    small = [case for case in CASES if case.group == "small"]
    rows = [
        Row(case=case, measured=MEASURED, predicted_seconds=seconds, predicted_bytes=90.0)
        for half in ("fitted", "judged")
        for case, seconds in zip([c for c in small if c.half == half], (3.0, 3.6, 6.0))
    ]
    errors, _, each = report(rows).partition("\n\n")
    for half in ("fitted", "judged"):
        assert f"| single operations | {half} | 3 | 20% | 2 | 1.00, 2.00 |" in errors
    assert each.count("| 0.90 |") == len(rows)


def test_names_of_cases_are_apart():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.name)
def test_a_case_is_a_step_and_its_shapes(case):
    step, args = case.load()
    assert step.lower and args
