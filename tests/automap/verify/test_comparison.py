"""Prediction beside witness: what counts as equal, what differs first, where; and the verdict on
numerics.
"""

import dataclasses
from pathlib import Path

import pytest

from automap.api.plan import Plan
from automap.backends.xla_cpu import XLA_CPU
from automap.backends.xla_gpu import XLA_GPU
from automap.backends.xla_tpu import XLA_TPU
from automap.plan.record import CollectiveRecord
from automap.report.verification import numerics_lines
from automap.verify.comparison import collective_rows, compare
from automap.verify.compiling import _bytes_it_needs, _first_name
from automap.verify.messages import LeafErrors
from automap.verify.numerics import Numerics, _judge
from automap.verify.witness import CompiledRecord
from tests.automap.verify.test_witness import WITNESS


SAMPLE = Plan.load(Path(__file__).parents[1] / "plan" / "plan_sample.json")


def _plan(*collectives):
    records = tuple(
        CollectiveRecord(kind=kind, axes=axes, phase="backward", count=count, bytes=n_bytes)
        for kind, axes, count, n_bytes in collectives
    )
    predicted = dataclasses.replace(SAMPLE.predicted, collectives=records)
    return dataclasses.replace(SAMPLE, predicted=predicted)


def _compiled(kind, axes, count, n_bytes, site=""):
    return CompiledRecord(
        kind=kind, axes=axes, count=count, bytes=n_bytes, site=site, op_name="dot_general"
    )


def test_rows_sum_phases_and_sizes_and_the_largest_difference_comes_first():
    plan = _plan(
        ("all-reduce", ("data",), 3, 300),
        ("all-gather", ("model",), 1, 1000),
        ("all-to-all", ("data", "model"), 2, 20),
    )
    compiled = (
        _compiled("all-reduce", ("data",), 1, 100),
        _compiled("all-reduce", ("data",), 2, 100),
        _compiled("all-gather", ("model",), 1, 600),
    )
    rows = collective_rows(plan, compiled, XLA_TPU)
    assert [(r.kind, r.difference_bytes, r.agrees) for r in rows] == [
        ("all-gather", 400, False),
        ("all-to-all", 20, False),
        ("all-reduce", 0, True),
    ]


def test_what_a_backend_is_known_to_do_is_no_difference():
    plan = _plan(("reduce-scatter", ("data",), 2, 800))
    as_cpu = (_compiled("all-reduce", ("data",), 2, 400),)
    assert collective_rows(plan, as_cpu, XLA_CPU)[0].agrees
    assert not all(row.agrees for row in collective_rows(plan, as_cpu, XLA_TPU))
    as_gpu = (_compiled("reduce-scatter", ("data",), 1, 800),)
    assert collective_rows(plan, as_gpu, XLA_GPU)[0].agrees
    assert not collective_rows(plan, as_gpu, XLA_TPU)[0].agrees


def test_places_are_those_of_the_rows_that_differ_with_their_lines():
    plan = _plan(("all-reduce", ("data",), 1, 64), ("all-gather", ("model",), 1, 8))
    compiled = (
        _compiled("all-reduce", ("data",), 2, 64, site="12"),
        _compiled("all-reduce", ("data",), 1, 4096, site="7"),
        _compiled("all-gather", ("model",), 1, 8, site="9"),
    )
    # Two equations of one line stand together.
    again = _compiled("all-reduce", ("data",), 3, 64, site="13")
    witness = dataclasses.replace(WITNESS, collectives=(*compiled, again))
    comparison = compare(plan, witness, XLA_TPU, {"12": "model.py:3", "13": "model.py:3"})
    places = [(p.bytes, p.count, p.source) for p in comparison.places]
    assert places == [(4096, 1, ""), (64, 5, "model.py:3")]
    predicted = plan.predicted.peak_bytes
    assert comparison.memory_error == pytest.approx((predicted - 1100) / 1100)


def test_what_is_expected_to_stay_on_the_chip_is_not_asked_of_a_compiler():
    def error(on_chip_bytes):
        predicted = dataclasses.replace(SAMPLE.predicted, on_chip_bytes=on_chip_bytes)
        return compare(dataclasses.replace(SAMPLE, predicted=predicted), WITNESS, XLA_TPU, {})

    whole, rest = error(0), error(2**20)
    assert whole.predicted_peak_bytes == SAMPLE.predicted.peak_bytes
    assert rest.predicted_peak_bytes == SAMPLE.predicted.peak_bytes - 2**20
    assert whole.memory_error - rest.memory_error == pytest.approx(2**20 / WITNESS.peak_bytes)


def test_a_refusal_has_no_error_but_what_it_would_need():
    refused = dataclasses.replace(
        WITNESS, fits=False, memory=None, refusal="too large", collectives=None
    )
    comparison = compare(_plan(), refused, XLA_TPU, {})
    assert comparison.memory_error is None and comparison.rows is None
    assert comparison.compiled_peak_bytes == WITNESS.peak_bytes


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm.", 20.5 * 2**30),
        ("memory required for HLO temporaries (47.68G) exceeds available HBM", 47.68 * 2**30),
        ("Used 512.0M of 1G hbm", 2**29),
        ("out of luck", None),
    ],
)
def test_what_a_refused_program_needs_is_read(message, needed):
    assert _bytes_it_needs(message) == (needed if needed is None else round(needed))


@pytest.mark.parametrize(
    ("op_name", "name"),
    [
        ("jit(step)/call_exported/jit(step)/am12~/jvp()/dot", "am12~/jvp()/dot"),
        ("jit(step)/call_exported/jit(step)/(am1~/a/b:am2~/c)", "am1~/a/b"),
        ("jit(step)/call_exported", ""),
        ("", ""),
    ],
)
def test_names_lose_the_wrappers_of_exporting(op_name, name):
    assert _first_name(op_name) == name


def _leaf(value=1.0, change=0.1, error=0.0, rounding=0.0):
    return LeafErrors(value=value, change=change, error=error, rounding=rounding, finite=1.0)


@pytest.mark.parametrize(
    ("dtype", "leaf", "agrees"),
    [
        ("float32", _leaf(error=1e-6), True),
        ("float32", _leaf(error=1e-3), False),
        # As far as one rounding of the inputs moves it: decided by rounding.
        ("float32", _leaf(error=1e-3, rounding=1e-3), True),
        # A small change of a large parameter is lost in the parameter's own rounding.
        ("float32", _leaf(value=1.0, change=1e-9, error=6e-8), True),
        ("bfloat16", _leaf(value=1.0, change=1e-9, error=4e-3), True),
        ("int32", _leaf(), True),
        ("int32", _leaf(error=0.5), False),
        ("key<fry>", _leaf(error=1e9), False),
        ("float32", _leaf(error=1.7e308), False),
    ],
)
def test_a_leaf_agrees_within_what_rounding_explains(dtype, leaf, agrees):
    result = _judge("x", dtype, leaf, 1e-4)
    assert result.agrees is agrees
    (_, said) = numerics_lines(Numerics(leaves=(result,), finite=1.0, skipped=""))
    assert said.startswith("  x: agrees, with " if agrees else "  x: DIFFERS by ")
