"""Levers in plan files: read back as they were, and refused where they make no sense."""

from dataclasses import replace
import json
from pathlib import Path

from hypothesis import given, settings, strategies as st
import pytest

from automap.errors import PlanError
from automap.plan.codec import decode, encode
from automap.plan.diff import differences
from automap.plan.explain import overview
from automap.plan.levers import (
    CARRY,
    KeptRecord,
    LeversRecord,
    RematRecord,
    WithoutLeversRecord,
    levers_lines,
)
from automap.plan.record import PlanRecord


SAMPLE = PlanRecord.load(Path(__file__).with_name("plan_sample.json"))
WITHOUT = WithoutLeversRecord(step_seconds=0.5, peak_bytes=3 * 2**34, fits=False)
GROUP = RematRecord(
    kind="layers",
    blocks=("12", "40"),
    equations=28,
    kept=(KeptRecord(at="3:out0", value="dot_general bfloat16[8,64]"),),
)
LEVERS = LeversRecord(remat=(GROUP,), recompute_seconds=0.025, without=WITHOUT)

_counts = st.integers(0, 200)
_sites = st.builds(
    lambda number, inner: f"{number}{inner}", _counts, st.sampled_from(["", ".b0.0", ".b0.7.b0.0"])
)


@settings(max_examples=50)
@given(
    kind=st.sampled_from(["layers", "scan"]),
    blocks=st.lists(_sites, min_size=1, max_size=5, unique=True),
    places=st.lists(st.tuples(_counts, _counts), max_size=5),
    microbatches=st.integers(1, 64),
)
def test_records_are_read_back_as_they_were(kind, blocks, places, microbatches):
    kept = tuple(KeptRecord(at=f"{n}:out{j}", value="x") for n, j in places)
    group = RematRecord(kind=kind, blocks=tuple(blocks), equations=201, kept=kept)
    levers = LeversRecord(
        remat=(group,), microbatches=microbatches, recompute_seconds=1.0, without=WITHOUT
    )
    assert decode(LeversRecord, json.loads(json.dumps(encode(levers))), "levers") == levers
    assert [k.place for k in kept] == places


def test_what_waits_in_host_memory_is_read_back_and_said():
    kept = (
        KeptRecord(at="carry:1", value="carry float32[8,64]", memory="host"),
        KeptRecord(at="3:out0", value="dot_general float32[8,64]", memory="host"),
        KeptRecord(at="4:out0", value="tanh float32[8,64]"),
    )
    group = RematRecord(kind="scan", blocks=("12.b0.0",), equations=28, kept=kept)
    levers = replace(LEVERS, remat=(group,))
    assert decode(LeversRecord, json.loads(json.dumps(encode(levers))), "levers") == levers
    assert [k.place for k in kept] == [(CARRY, 1), (3, 0), (4, 0)]
    lines = "\n".join(levers_lines(levers))
    assert "kept tanh float32[8,64]\n" in lines
    assert (
        "in host memory until the backward pass: carry float32[8,64], dot_general float32[8,64]"
        in lines
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("remat",), [], "levers.remat: got"),
        (("remat", 0, "kind"), "loop", "layers | scan"),
        (("remat", 0, "blocks"), [], "levers.remat[0].blocks: got"),
        (("remat", 0, "blocks"), ["12", "12"], "not in another group"),
        (("remat", 0, "blocks", 0), "12; import os", "blocks[0]: got"),
        (("remat", 0, "equations"), 0, "an integer >= 1"),
        (("remat", 0, "equations"), 3, "kept[0].at: got '3:out0'"),
        (("remat", 0, "kept", 0, "at"), "3", "<n>:out<j>"),
        (("remat", 0, "kept", 0, "at"), "-1:out0", "<n>:out<j>"),
        (("remat", 0, "kept", 0, "at"), "carry:out0", "<n>:out<j>"),
        (("remat", 0, "kept", 0, "at"), "carry:0", "carries are on the device in any case"),
        (("remat", 0, "kept", 0, "memory"), "disk", "device | host"),
        (("remat", 0, "kept", 0, "memory"), "host", "only what a loop stacks"),
        (("microbatches",), 0, "levers.microbatches: got 0"),
        (("microbatches",), 2.5, "levers.microbatches: got"),
        (("recompute_seconds",), -1.0, "levers.recompute_seconds: got"),
        (("without", "peak_bytes"), 2**70, "levers.without.peak_bytes: got"),
        (("without", "step_seconds"), "1", "levers.without.step_seconds: got"),
        (("offload",), ["[0]['p']", "[0]['p']"], "a path that was not there yet"),
        (("offload",), ["[0]; import os"], "role is optimizer state"),
        (("host_bytes",), -1, "levers.host_bytes: got"),
        (("host",), [], "levers.host: unknown field"),
    ],
)
def test_what_makes_no_sense_is_refused(path, value, message):
    data = {**SAMPLE.to_json(), "levers": encode(LEVERS)}
    node = data["levers"]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(PlanError) as error:
        PlanRecord.from_json(data)
    assert message in str(error.value)


def test_a_file_without_levers_is_one_of_none():
    data = SAMPLE.to_json()
    del data["levers"]
    assert PlanRecord.from_json(data).levers is None


def test_people_read_what_is_kept_and_what_it_would_be_without():
    plan = replace(SAMPLE, levers=LEVERS)
    text = overview(plan)
    assert "2 layers of 28 equations: kept dot_general bfloat16[8,64]" in text
    assert "without levers: the smallest plan 500 ms, 48 GiB, does not fit" in text
    assert "25 ms of compute" in text
    assert "levers: none -> rematerialization of 2 layers of 28 equations" in differences(
        SAMPLE, plan
    )


@pytest.mark.parametrize(
    ("without", "text"),
    [
        (replace(WITHOUT, fits=True), "500 ms, 48 GiB, fits"),
        (
            replace(WITHOUT, fastest_seconds=0.25, fastest_bytes=2**36),
            "the fastest plan 250 ms, 64 GiB, the smallest 500 ms, 48 GiB: neither fits",
        ),
        (
            replace(WITHOUT, fastest_seconds=0.5, fastest_bytes=WITHOUT.peak_bytes),
            "the fastest plan and the smallest 500 ms, 48 GiB, does not fit",
        ),
    ],
)
def test_people_read_which_plan_without_levers_is_meant(without, text):
    """The smallest alone may be far slower than one with levers, which would read as a gain."""
    plan = replace(SAMPLE, levers=replace(LEVERS, without=without))
    assert f"    without levers: {text}\n" in f"{overview(plan)}\n"


def test_people_read_of_microbatches():
    in_parts = replace(SAMPLE, levers=replace(LEVERS, remat=(), microbatches=4))
    text = overview(in_parts)
    assert "gradients accumulated over 4 microbatches, one update" in text
    assert "without levers: the smallest plan 500 ms" in text
    assert "computed again" not in text
    assert "levers: none -> 4 microbatches" in differences(SAMPLE, in_parts)


def test_a_file_without_microbatches_is_one_of_a_whole_batch():
    data = {**SAMPLE.to_json(), "levers": encode(LEVERS)}
    del data["levers"]["microbatches"]
    assert PlanRecord.from_json(data).levers == LEVERS
