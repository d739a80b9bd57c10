"""A fixed number of the fuzzer's inputs; `make fuzz` tries ten thousand of each format."""

import json
from random import Random

import pytest
import tomli_w


pytest.importorskip("torch")  # the agents' checkpoints are one of the formats

from tests.fuzz import seeds, worker
from tests.fuzz.__main__ import Result, page, row, rows_of_page
from tests.fuzz.formats import FORMATS, one_parser
from tests.fuzz.mutations import _fields, _serialized


SEEDS = {
    "HLO text": lambda: [text.encode() for text in seeds.hlo_texts()],
    "HLO proto": seeds.protos,
    "StableHLO text": lambda: [text.encode() for text in seeds.stablehlo_texts()],
    "StableHLO bytecode": seeds.stablehlo_bytecodes,
    "plan": lambda: [json.dumps(plan).encode() for plan in seeds.plans()],
    "topology": lambda: [tomli_w.dumps(dict(table)).encode() for table in seeds.topologies()],
    "profile": lambda: [json.dumps(value).encode() for value in seeds.profiles()],
    "agent's weights": seeds.weights,
    "checkpoint": seeds.checkpoints,
    "witness": lambda: [json.dumps(value).encode() for value in seeds.witnesses()],
    "answer of stages": lambda: [json.dumps(value).encode() for value in seeds.answers()],
    "prices of kernels": lambda: [json.dumps(value).encode() for value in seeds.kernel_prices()],
    "prices of machines": lambda: [text.encode() for text in seeds.MACHINE_PRICES],
    "degrees": lambda: [text.encode() for text in seeds.DEGREES],
}
# Of each format, which takes a second or two.
INPUTS = {"HLO proto": 40, "plan": 60, "command line": 15, "topology": 40, "profile": 40}


class _First(Random):
    """Takes the first of all choices, and so reads a program without planning it."""

    def randrange(self, *_):
        return 1

    def choice(self, choices):
        return choices[0]


@pytest.mark.parametrize("name", SEEDS)
def test_what_is_not_changed_is_accepted(name, tmp_path):
    with one_parser():
        for number, content in enumerate(SEEDS[name]()):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "input").write_bytes(content)
            assert FORMATS[name].use(folder / "input", _First()) == "accepted"


@pytest.mark.parametrize("name", FORMATS)
def test_changed_inputs_are_refused_or_used(name, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_say", lambda tried: None)
    with one_parser():
        found = list(worker.try_inputs(name, INPUTS.get(name, 20), 7, tmp_path))
    assert len(found) >= INPUTS.get(name, 20) and [t.failure for t in found if t.failure] == []


def test_a_failure_is_told_from_a_refusal(tmp_path, monkeypatch):
    """The fuzzer sees what it looks for."""
    monkeypatch.setattr(worker, "_say", lambda tried: None)
    broken = FORMATS["witness"].__class__(lambda random: b"x", lambda path, random: 1 // 0)
    monkeypatch.setitem(FORMATS, "broken", broken)
    (first, *_) = worker.try_inputs("broken", 1, 0, tmp_path)
    assert first.outcome == "failed" and "ZeroDivisionError" in first.failure
    assert [f.read_bytes() for f in tmp_path.glob("failed-*")] == [b"x"]


def test_protos_are_taken_apart_and_put_together_without_a_change():
    for proto in seeds.protos():
        assert _serialized(_fields(proto) or []) == proto


def test_rows_of_formats_that_are_not_tried_stay_on_the_page():
    first, second = list(FORMATS)[:2]
    made = {name: row(Result(name, [worker.Tried("refused", 0.5, "")])) for name in FORMATS}
    older = rows_of_page(page(made))
    assert older == made
    newer = rows_of_page(page(older | {second: row(Result(second))}))
    assert newer[first] == made[first] and "| 0 | 0 | 0 |" in newer[second]
