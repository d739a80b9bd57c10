"""Explain and diff: what the texts say, and that nothing that differs goes unsaid."""

import dataclasses
from pathlib import Path

from hypothesis import given, strategies as st
import pytest

from automap.api.plan import Plan
from automap.errors import PlanError
from automap.option_values import read_memory_limit
from automap.quantities import bytes_text, gib_at_least, seconds_text


PLAN = Plan.load(Path(__file__).with_name("plan_sample.json"))
# What does not fit cannot be unsure.
SURE = dataclasses.replace(PLAN, predicted=dataclasses.replace(PLAN.predicted, unsure=False))

OVERVIEW = """\
plan for models.mlp:small on v5e:2x4
mesh data=2 x model=4 (8 devices)
  data over ici-x 2; model over ici-y 4
predicted step 12.3 ms = compute 10 ms + collectives 2.3 ms (and 500 us of them beside computation)
  MFU 41.2% of 197 TFLOP/s in bf16 on each device
  512 samples a step: 41.63 k/s, 5.203 k/s on each device
  4,096 tokens a step, counted in [1]['tokens']: 333 k/s, 41.63 k/s on each device
  lost to products below the peak 3 ms (24.4%), collectives 2.3 ms (18.7%), rematerialization 1 ms \
(8.1%), kernels that memory bounds 900 us (7.3%)
  would help: a batch of 1,024 in place of 512: 1.23 times the samples a second (step 20 ms, peak \
4 GiB)
predicted peak 3 GiB of 14.9 GiB on each device: fits, unsure: the compiler may need up to 25% more
  = parameters 1 GiB + optimizer 1 GiB + inputs 1 MiB + activations 512 MiB + temporaries 512 MiB
verified by the TPU compiler (libtpu 0.0.51): peak 1000 B: fits; 2 compiled in all
refined with the TPU compiler, 120 s: 2 plans compiled, then nothing faster is expected
  - greedy on data=8: step predicted 11 ms, expected 11 ms; not compiled: it was not done after 60 s
  * megatron on data=2 x model=4: step predicted 12.3 ms, expected 12.5 ms, compiled 12.9 ms \
(+4.9%); peak predicted 950 B, compiled 1000 B (+5.3%): fits
  preset data-parallel: step 20 ms, peak 31 GiB: does not fit
  preset megatron: step 15 ms, peak 4 GiB: fits
found by greedy in 1.5 s, 200 evaluations, seed 0; at most 25.00% above the proven bound

decisions:
  compute ff: split over model; covers 2 leaves
    because saves 4 ms of matmul for 2.3 ms of all-reduce
  storage w2 of the feed-forward: stored split over data; covers 1 leaf
    because the plan does not fit without it

conflicts:
  ff with batch at dot.3: ff keeps model
    ff keeps model: step 12 ms, peak 3 GiB
    batch keeps model: step 20 ms, peak 31 GiB, does not fit

warnings:
  op 'foo' has no rule and is replicated
"""

W2_DETAIL = """\
mesh data=2 x model=4 (8 devices)

[0]['w2']: parameter, bfloat16[2048,512], spec [model+data, whole]
  compute ff: split over model; covers 2 leaves
    because saves 4 ms of matmul for 2.3 ms of all-reduce
    conflict of ff with batch at dot.3: ff keeps model
      ff keeps model: step 12 ms, peak 3 GiB
      batch keeps model: step 20 ms, peak 31 GiB, does not fit
  storage w2 of the feed-forward: stored split over data; covers 1 leaf
    because the plan does not fit without it
"""

GROUP_DETAIL = """\
mesh data=2 x model=4 (8 devices)

compute ff: split over model; covers 2 leaves
  because saves 4 ms of matmul for 2.3 ms of all-reduce
    [0]['w1']  [whole, model]
    [0]['w2']  [model+data, whole]
    conflict of ff with batch at dot.3: ff keeps model
      ff keeps model: step 12 ms, peak 3 GiB
      batch keeps model: step 20 ms, peak 31 GiB, does not fit
"""


@pytest.mark.parametrize(
    ("what", "text"), [(None, OVERVIEW), ("[0]['w2']", W2_DETAIL), ("ff", GROUP_DETAIL)]
)
def test_explain(what, text):
    assert PLAN.explain(what) == text


def test_a_part_of_a_name_finds_all_that_contain_it():
    text = PLAN.explain("w2")
    assert "[0]['w2']: parameter" in text
    assert "storage w2 of the feed-forward" in text
    assert "['w1']:" not in text


def test_a_whole_name_goes_before_names_that_contain_it():
    inner = dataclasses.replace(PLAN.inputs[1], path="[0]['w2']['scale']")
    plan = dataclasses.replace(PLAN, inputs=(*PLAN.inputs, inner))
    assert "scale" not in plan.explain("[0]['w2']")
    assert "scale" in plan.explain("[0]['w2'")


def test_leaves_that_are_split_for_the_same_reasons_have_them_once():
    w2 = PLAN.inputs[1]
    moment = dataclasses.replace(w2, path="[1].mu['w2']", role="optimizer state")
    covering = [
        dataclasses.replace(row, covers=(*row.covers, moment.path))
        for row in PLAN.decisions
        if w2.path in row.covers
    ]
    plan = dataclasses.replace(PLAN, inputs=(*PLAN.inputs, moment), decisions=tuple(covering))
    text = plan.explain("['w2']")
    assert text.count("storage w2 of the feed-forward") == 1
    assert (
        "[0]['w2']: parameter, bfloat16[2048,512], spec [model+data, whole]\n"
        "[1].mu['w2']: optimizer state, bfloat16[2048,512], spec [model+data, whole]\n"
        "  compute ff" in text
    )


def test_an_input_that_no_decision_covers():
    assert "[1]: batch, bfloat16[64,512], spec [data, whole]\n  no decision" in PLAN.explain("[1]")


def test_an_unknown_name_is_answered_with_the_closest():
    with pytest.raises(PlanError, match=r"contains \"\[0\]\['w3'\]\"; closest: \[0\]\['w"):
        PLAN.explain("[0]['w3']")
    with pytest.raises(PlanError, match=r"contains 'zzz'; `automap explain` lists groups"):
        PLAN.explain("zzz")


def test_many_matches_are_cut():
    inputs = tuple(dataclasses.replace(PLAN.inputs[1], path=f"[{i}]") for i in range(50))
    plan = dataclasses.replace(PLAN, inputs=inputs)
    text = plan.explain("[")
    assert text.count(": parameter") == 20
    assert "and 30 more" in text


@pytest.mark.parametrize(
    ("peak_bytes", "fits", "text"),
    [
        (2**34, False, "16 GiB of 14.9 GiB on each device: DOES NOT FIT\n"),
        (2**34, True, "DOES NOT FIT THE DEVICE, only the memory limit that was given"),
        (
            2**30,
            False,
            "1 GiB of 14.9 GiB on each device: more than the memory limit that was given",
        ),
    ],
)
def test_a_plan_that_does_not_fit_says_what(peak_bytes, fits, text):
    predicted = dataclasses.replace(PLAN.predicted, peak_bytes=peak_bytes, fits=fits, unsure=False)
    assert text in dataclasses.replace(PLAN, predicted=predicted).explain()


def test_a_memory_limit_is_shown_beside_the_devices():
    search = dataclasses.replace(PLAN.search, memory_limit_bytes=4 * 2**30)
    text = dataclasses.replace(PLAN, search=search).explain()
    assert "of 14.9 GiB on each device, 4 GiB allowed: fits" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (2e-9, "2 ns"), (1e-6, "1 us"), (0.5, "500 ms"), (90.0, "90 s")],
)
def test_seconds_text(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (2**40, "1 TiB")])
def test_bytes_text(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (int(1.08 * 2**20), "0.00106"),
        (int(107.315 * 2**30), "108"),
        (2**33, "8"),
        (2**43 + 1, "8200"),
        (1, "0.000000000932"),
        (999_900_000, "0.932"),
        (int(9.999 * 2**30), "10"),
    ],
)
def test_gib_at_least(count, text):
    assert gib_at_least(count) == text


@given(st.integers(1, 2**62))
def test_a_limit_that_is_offered_is_enough_and_hardly_more(count):
    offered = read_memory_limit(float(gib_at_least(count)))
    assert offered is not None
    assert count <= offered <= count * 1.01 + 1


def test_equal_plans_have_no_differences():
    assert PLAN.diff(PLAN) == "the plans are equal\n"


def test_diff():
    alike = tuple(dataclasses.replace(leaf, spec=(None, None)) for leaf in SURE.inputs[:2])
    predicted = dataclasses.replace(
        SURE.predicted, compute_seconds=0.02, peak_bytes=6 * 2**30, fits=False
    )
    other = dataclasses.replace(
        SURE,
        inputs=(*alike, *SURE.inputs[2:]),
        predicted=predicted,
        search=dataclasses.replace(SURE.search, gap=None),
        decisions=SURE.decisions[:1],
    )
    assert (
        SURE.diff(other)
        == """\
fits: yes -> no
peak memory: 3 GiB -> 6 GiB (+100.0%)
compute: 10 ms -> 20 ms (+100.0%)
inputs [whole, model] -> [whole, whole]: 1
    [0]['w1']
inputs [model+data, whole] -> [whole, whole]: 1
    [0]['w2']
decisions:
    - storage w2 of the feed-forward full: data; because the plan does not fit without it
found by: greedy in 1.5 s, 200 evaluations, seed 0; at most 25.00% above the proven bound -> \
greedy in 1.5 s, 200 evaluations, seed 0; no bound proven
"""
    )


def test_a_diff_begins_with_what_decides_and_ends_with_hashes():
    other = dataclasses.replace(
        SURE,
        workload=dataclasses.replace(SURE.workload, hlo_sha256="a" * 64, jaxpr_sha256="b" * 64),
        mesh=dataclasses.replace(SURE.mesh, axes=(("data", 4), ("model", 2))),
        predicted=dataclasses.replace(SURE.predicted, step_seconds=1.0, fits=False),
    )
    names = [line.partition(":")[0] for line in SURE.diff(other).splitlines()]
    assert names == ["fits", "step", "mesh", "hlo", "jaxpr"]
    assert max(map(len, SURE.diff(other).splitlines()[-2:])) < 40


def test_an_order_of_devices_is_explained_and_compared():
    ring = (0, 4, 5, 6, 7, 3, 2, 1)
    whole = dataclasses.replace(PLAN.mesh, axes=(("data", 1), ("model", 8)), devices=ring)
    # Only the mesh is looked at: specs of the sample are of another one.
    other = dataclasses.replace(
        PLAN,
        mesh=whole,
        inputs=tuple(dataclasses.replace(x, spec=(None,) * len(x.shape)) for x in PLAN.inputs),
    )
    assert "order 0 4 5 6 7 3 2 1: model is a ring of neighbours\n" in other.explain()
    by_number = dataclasses.replace(other, mesh=dataclasses.replace(whole, devices=None))
    assert "order" not in by_number.explain().partition("predicted")[0]
    assert by_number.diff(other) == "order of devices: by number -> 0 4 5 6 7 3 2 1\n"
    rows = dataclasses.replace(other, mesh=dataclasses.replace(whole, devices=tuple(range(8))))
    assert "model is a ring of devices at most 4 links apart\n" in rows.explain()


def test_a_plan_has_a_short_repr_that_says_what_it_is():
    text = repr(SURE)
    assert len(text) < 200
    for part in (SURE.workload.target, SURE.topology["name"], "mesh ", "step ", "peak ", "fits"):
        assert part in text
    assert "NOT FIT" in repr(
        dataclasses.replace(SURE, predicted=dataclasses.replace(SURE.predicted, fits=False))
    )


CHANGES = {
    "mesh": {"mesh": dataclasses.replace(PLAN.mesh, axes=(("data", 4), ("model", 2)))},
    "topology": {"topology": {**PLAN.topology, "name": "my slice"}},
    "with other numbers": {
        "topology": {
            **PLAN.topology,
            "device": {**PLAN.topology["device"], "memory_bytes": 2**33},
        }
    },
    "jaxpr": {"workload": dataclasses.replace(PLAN.workload, jaxpr_sha256="a" * 64)},
    "outputs absent": {"outputs": (*PLAN.outputs, dataclasses.replace(PLAN.outputs[1], path="x"))},
    "float16[512,2048] [whole, model]": {
        "inputs": (dataclasses.replace(PLAN.inputs[0], dtype="float16"), *PLAN.inputs[1:])
    },
    "result float32[] [] -> absent": {"outputs": PLAN.outputs[:1]},
    "constraints": {"constraints": ()},
    "presets": {"presets": PLAN.presets[::-1][:1]},
    "conflicts": {"conflicts": ()},
    "warnings": {"warnings": ()},
    "order of entries": {"presets": PLAN.presets[::-1]},
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_named(name):
    text = PLAN.diff(dataclasses.replace(PLAN, **CHANGES[name]))
    assert name in text
    assert "equal" not in text
