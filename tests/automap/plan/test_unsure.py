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
            {"on_chip_bytes": 10**15},
            "predicted.on_chip_bytes: got 1000000000000000; allowed: up to",
        ),
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


def test_a_plan_says_what_a_compiler_is_expected_to_keep_on_the_chip():
    data = json.loads(SAMPLE.read_text())
    assert "on the chip" not in Plan.from_json(data).explain()
    data["predicted"]["on_chip_bytes"] = 2**20
    plan = Plan.from_json(data)
    assert "1 MiB of it are expected to stay on the chip" in plan.explain()
    assert plan.predicted.expected_bytes == plan.predicted.peak_bytes - 2**20
