"""What users hold has the fields of its record, and nothing else."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
import pickle

import pytest

import automap
from automap.api.records import FromRecord
from automap.plan.record import PlanRecord


HELD = [automap.Plan, automap.Simulation, automap.PipelineSimulation, automap.Verification]
SAMPLE = Path(__file__).resolve().parents[1] / "plan" / "plan_sample.json"


@pytest.mark.parametrize("held", HELD, ids=lambda held: held.__name__)
def test_a_class_is_its_record_with_methods(held):
    *bases, record = held.__bases__
    # A verification is made as it is held: no room below hands one over.
    assert bases == ([] if held is automap.Verification else [FromRecord])
    assert record.__name__ == f"{held.__name__}Record"
    assert fields(held) == fields(record)
    assert vars(held)["__slots__"] == ()


def test_a_record_becomes_what_users_hold_once():
    record = PlanRecord.load(SAMPLE)
    plan = automap.Plan.from_record(record)
    assert plan == automap.Plan.load(SAMPLE)
    assert automap.Plan.from_record(plan) is plan
    assert all(getattr(plan, field.name) is getattr(record, field.name) for field in fields(plan))
    assert pickle.loads(pickle.dumps(plan)) == plan
    with pytest.raises(FrozenInstanceError):
        plan.mesh = None  # pyright: ignore
