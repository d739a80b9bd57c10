"""Plan: agreement between records, the step it belongs to, and what it says about itself."""

import dataclasses
import json
from pathlib import Path

import pytest

from automap.api.plan import Plan
from automap.errors import PlanError
from automap.plan.record import check_matches_leaves


SAMPLE = Path(__file__).with_name("plan_sample.json")
W1, W2 = "[0]['w1']", "[0]['w2']"


def edited(*edits):
    """The sample's JSON with values replaced: (path of keys, value) each."""
    data = json.loads(SAMPLE.read_text())
    for path, value in edits:
        node = data
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
    return data


def plan(*edits):
    return Plan.from_json(edited(*edits))


def test_attributes_mirror_the_file():
    got = plan()
    assert got.mesh.axes == (("data", 2), ("model", 4))
    assert got.inputs[1].spec == (("model", "data"), None)
    assert got.predicted.memory.activations == 2**29
    assert got.conflicts[0].with_ == "batch"
    assert got.pipeline is None
    assert got.to_json() == edited()
    assert list(got.to_json()) == list(edited()), "the order of the fields is the documented one"
    assert hash(got) == hash(plan())


def test_a_plan_shares_nothing_with_its_source_or_its_json():
    data = edited()
    got = Plan.from_json(data)
    data["topology"]["name"] = "other"
    got.to_json()["topology"]["name"] = "other"
    assert got == plan()


SPEC = ("inputs", 0, "spec")
REFUSALS = {
    "unknown axis": (
        (SPEC, [None, ["modle"]]),
        r"^inputs\[0\]\.spec\[1\]\[0\]: unknown axis 'modle'; mesh has \['data', 'model'\]$",
    ),
    "axis twice in one dimension": (
        (SPEC, [["data", "data"], None]),
        r"^inputs\[0\]\.spec\[0\]\[1\]: axis 'data' is used twice",
    ),
    "axis in two dimensions": (
        (SPEC, [["data"], ["model", "data"]]),
        r"^inputs\[0\]\.spec\[1\]\[1\]: axis 'data' is used twice.*dimension 0",
    ),
    "spec too short": ((SPEC, [None]), r"^inputs\[0\]\.spec: got \(None,\); allowed: 2 entries"),
    "empty list of axes": ((SPEC, [[], None]), r"^inputs\[0\]\.spec\[0\]: got \[\]; .*null"),
    "indivisible": (
        (("inputs", 0, "shape"), [512, 2050]),
        r"^inputs\[0\]\.spec\[1\]: \['model'\] has 4 devices.* 2050; allowed",
    ),
    "product of axes": (
        (("inputs", 1, "shape"), [2044, 512]),
        r"^inputs\[1\]\.spec\[0\]: \['model', 'data'\] has 8 devices.* 2044",
    ),
    "output": ((("outputs", 0, "spec"), [["x"], None]), r"^outputs\[0\]\.spec\[0\]\[0\]: unknown"),
    "constraint": (
        (("constraints", 0, "spec"), [None, ["x"]]),
        r"^constraints\[0\]\.spec\[1\]\[0\]: unknown axis 'x'",
    ),
    "collective": (
        (("predicted", "collectives", 0, "axes"), ["x"]),
        r"^predicted\.collectives\[0\]\.axes\[0\]: unknown axis 'x'",
    ),
    "decision": ((("decisions", 1, "axes"), ["x"]), r"^decisions\[1\]\.axes\[0\]: unknown axis"),
    "level of a compute decision": (
        (("decisions", 0, "level"), "full"),
        r"^decisions\[0\]\.level: got 'full'; allowed: null for a compute decision",
    ),
    "no level of a storage decision": (
        (("decisions", 1, "level"), None),
        r"^decisions\[1\]\.level: got None; allowed: full \| optimizer",
    ),
    "point of another mesh": (
        (("search", "point", "compute"), [[3]]),
        r"^search\.point\.compute: got .*; allowed: 2 lists, one per mesh axis$",
    ),
    "negative class": (
        (("search", "point", "whole"), [4, -1]),
        r"^search\.point\.whole\[1\]: got -1; allowed: the number of a class",
    ),
    "class twice on an axis": (
        (("search", "point", "compute"), [[3], [1, 1]]),
        r"^search\.point\.compute\[1\]\[1\]: got 1; allowed: a class that was not there yet$",
    ),
    "level of storage": (
        (("search", "point", "storage"), [[2, 3], [0, 1]]),
        r"^search\.point\.storage\[0\]\[1\]: got 3; allowed: 0 \| 1 \| 2$",
    ),
    "duplicate mesh axes": (
        (("mesh", "axes"), [["data", 2], ["data", 4]]),
        r"^mesh\.axes\[1\]\[0\]: got 'data'; allowed: a name that differs",
    ),
    "mesh of other devices": (
        (("mesh", "axes"), [["data", 2], ["model", 2]]),
        r"^mesh\.axes: got .*product is 8, the devices of 'v5e:2x4'",
    ),
    "device twice": (
        (("mesh", "devices"), [0, 1, 2, 3, 4, 5, 6, 6]),
        r"^mesh\.devices: got \[0, 1, .*; allowed: null, or each device from 0 to 7 once$",
    ),
    "device that there is none of": (
        (("mesh", "devices"), [8, 1, 2, 3, 4, 5, 6, 7]),
        r"^mesh\.devices: got \[8, 1, .*each device from 0 to 7 once$",
    ),
    "too few devices": ((("mesh", "devices"), [0, 1]), r"^mesh\.devices: got \[0, 1\]; .*0 to 7"),
    "devices of another type": (
        (("mesh", "devices"), [0.0]),
        r"^mesh\.devices\[0\]: got 0\.0; allowed: an integer$",
    ),
    "empty axis": ((("mesh", "axes", 0, 1), 0), r"^mesh\.axes\[0\]\[1\]: got 0; .*>= 1"),
    "path twice": ((("inputs", 1, "path"), W1), r"^inputs\[1\]\.path: got .*not there yet"),
    "role of no input": (
        (("inputs", 0, "role"), "result"),
        r"^inputs\[0\]\.role: got 'result'; allowed: the role of an input",
    ),
    "negative size": ((("inputs", 0, "shape"), [-8, 4]), r"^inputs\[0\]\.shape\[0\]: got -8"),
    "topology": (
        (("topology", "levels", 0, "bytes_per_s"), float("nan")),
        r"^topology\.levels\[0\]\.bytes_per_s: got nan",
    ),
}


@pytest.mark.parametrize(("edit", "match"), REFUSALS.values(), ids=REFUSALS)
def test_refuses_records_that_do_not_agree(edit, match):
    with pytest.raises(PlanError, match=match):
        plan(edit)


def test_a_plan_built_in_python_is_checked_too():
    with pytest.raises(PlanError, match=r"^seconds: got inf; allowed: a finite number >= 0"):
        dataclasses.replace(plan().search, seconds=float("inf"))
    # Finite, and its sum with another is not.
    with pytest.raises(PlanError, match=r"^seconds: got 1e\+308; allowed: a number from 0 to 1e"):
        dataclasses.replace(plan().search, seconds=1e308)
    with pytest.raises(PlanError, match=r"^inputs\[0\]\.spec: got \(\); allowed: 2 entries"):
        first = dataclasses.replace(plan().inputs[0], spec=())
        dataclasses.replace(plan(), inputs=(first,))


GIVEN = [(leaf.path, leaf.shape, leaf.dtype) for leaf in plan().inputs]


def test_the_planned_inputs_match():
    check_matches_leaves(plan(), "inputs", GIVEN)


MISMATCHES = {
    "missing": (GIVEN[1:], r"\[0\]\['w1'\]: missing, the plan has bfloat16\[512,2048\]"),
    "extra": ([*GIVEN, ("[2]", (3,), "int32")], r"\[2\]: int32\[3\] is not in the plan"),
    "shape": (
        [(W1, (512, 4096), "bfloat16"), *GIVEN[1:]],
        r"\['w1'\]: got bfloat16\[512,4096\], the plan has bfloat16\[512,2048\]",
    ),
    "dtype": (
        [(W1, (512, 2048), "float32"), *GIVEN[1:]],
        r"\['w1'\]: got float32\[512,2048\], the plan has bfloat16",
    ),
    "order": (
        [GIVEN[1], GIVEN[0], *GIVEN[2:]],
        r"\['w2'\]: stands where the plan has \[0\]\['w1'\]",
    ),
    "many": ([(f"[{i}]", (), "int32") for i in range(9)], r"and 7 more"),
}


@pytest.mark.parametrize(("inputs", "match"), MISMATCHES.values(), ids=MISMATCHES)
def test_refuses_a_step_with_other_inputs(inputs, match):
    with pytest.raises(PlanError, match=match) as caught:
        check_matches_leaves(plan(), "inputs", inputs)
    assert "plan again with `automap plan models.mlp:small --topology v5e:2x4`" in str(caught.value)


def test_refuses_a_step_with_other_outputs():
    """Finding D6: a plan with an output too few failed in JAX, one of another shape was applied."""
    given = [(leaf.path, leaf.shape, leaf.dtype) for leaf in plan().outputs]
    check_matches_leaves(plan(), "outputs", given)
    with pytest.raises(PlanError, match="the step's outputs are not those of the plan"):
        check_matches_leaves(plan(), "outputs", given[1:])
