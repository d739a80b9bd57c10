"""Plans near the limit of memory that no compiler was asked about."""

import json
from pathlib import Path
import re

import pytest

from automap.api.plan import Plan
from automap.errors import PlanError


SAMPLE = Path(__file__).with_name("plan_sample.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_margin": 1.5}, "predicted.memory_margin: got 1.5; allowed: a share from 0 to 1"),
        ({"memory_margin": -0.1}, "predicted.memory_margin: got -0.1"),
        ({"unsure": 1}, "predicted.unsure: got 1"),
        (
            {"fits": False, "unsure": True},
            "predicted.unsure: got True; allowed: false for a plan that does not fit",
        ),
    ],
)
def test_what_is_unsure_is_checked(changes, message):
    data = json.loads(SAMPLE.read_text())
    data["predicted"].update(changes)
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(data)


def test_an_unsure_plan_says_so():
    data = json.loads(SAMPLE.read_text())
    assert "fits, unsure: the compiler may need up to 25% more" in Plan.from_json(data).explain()
    data["predicted"]["unsure"] = False
    assert "unsure" not in Plan.from_json(data).explain()
