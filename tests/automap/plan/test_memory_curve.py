"""The `memory_curve` of a plan file: what is no curve is refused, and what differs is told."""

import copy
import json
from pathlib import Path
import re

import pytest

from automap.api.plan import Plan
from automap.errors import PlanError


SAMPLE_JSON = json.loads(Path(__file__).with_name("plan_sample.json").read_text())
CURVE = {
    "stored": 7,
    "at": [0.0, 0.25, 1.0],
    "activations": [0, 5, 1],
    "temporaries": [2, 0, 3],
    "held": [{"name": "dot f32[8]", "count": 2, "bytes": 5}],
}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("at", [], "memory_curve.at: got 0; allowed: from 1 to 1000 points"),
        ("at", [0.0, 0.5, 0.5], "memory_curve.at: got (0.0, 0.5, 0.5); allowed: increasing"),
        ("at", [0.0, 0.5, 1.5], "memory_curve.at: got (0.0, 0.5, 1.5); allowed: increasing"),
        ("at", [float("nan")] * 3, "memory_curve.at: got (nan, nan, nan); allowed: increasing"),
        ("activations", [1], "memory_curve.activations: got (1,); allowed: 3 entries, as `at`"),
        ("temporaries", [1, -1, 0], "memory_curve.temporaries: got (1, -1, 0); allowed: integers"),
        ("stored", -1, "memory_curve.stored: got -1; allowed: an integer from 0"),
        ("held", CURVE["held"] * 101, "memory_curve.held: got 101; allowed: at most 100 rows"),
    ],
)
def test_a_curve_of_memory_that_is_none_is_refused(field, value, message):
    data = copy.deepcopy(SAMPLE_JSON) | {"memory_curve": CURVE | {field: value}}
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(data)


def test_what_is_alive_at_the_peak_is_told_apart():
    old = Plan.from_json(SAMPLE_JSON | {"memory_curve": CURVE})
    held = [{"name": "dot f32[8]", "count": 3, "bytes": 5}]
    new = Plan.from_json(SAMPLE_JSON | {"memory_curve": CURVE | {"held": held}})
    assert "3 dot f32[8], 5 B" in old.diff(new)
