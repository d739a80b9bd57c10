"""The JSON Schema of the plan file: it takes every valid plan, and what it refuses is refused."""

import copy

from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator
import pytest

from automap.api.plan import Plan
from automap.errors import PlanError
from automap.plan.record import plan_schema
from tests.automap.broken_json import ACTIONS, changed
from tests.automap.plan.test_codec import JUNK, PLACES, SAMPLE_JSON, plans


IS_VALID = Draft202012Validator(plan_schema()).is_valid


@settings(max_examples=20, deadline=None)
@given(plans())
def test_every_valid_plan_is_valid(data):
    assert IS_VALID(data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(ACTIONS), JUNK)
def test_a_changed_file_that_is_read_is_valid(path, action, junk):
    """The other way round does not hold: the records refuse values that have the right type."""
    data = changed(SAMPLE_JSON, path, action, junk)
    try:
        Plan.from_json(data)
    except PlanError:
        return
    assert IS_VALID(data)


@pytest.mark.parametrize(
    ("path", "junk"),
    [
        (("version",), 2),
        (("mesh", "axes", 0), ["data"]),
        (("predicted", "fits"), "yes"),
        (("predicted", "step_seconds"), "1 ms"),
        (("predicted", "speed"), 1.0),
        (("inputs", 0, "role"), "weights"),
        (("inputs", 0, "spec", 0), "data"),
    ],
)
def test_the_schema_refuses_other_types_and_fields(path, junk):
    Draft202012Validator.check_schema(plan_schema())
    assert IS_VALID(SAMPLE_JSON)
    data = copy.deepcopy(SAMPLE_JSON)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = junk
    assert not IS_VALID(data)
    with pytest.raises(PlanError):
        Plan.from_json(data)
