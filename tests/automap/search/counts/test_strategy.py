"""Auto-MAP's two strategies as a user asks for them."""

import pytest


pytest.importorskip("torch")

import automap  # noqa: E402
from automap.errors import InputError  # noqa: E402
from models import t5  # noqa: E402
from tests.steps import mlp  # noqa: E402


def tiny_t5():
    return t5.t5(t5.TINY, batch=16, seq=16).target


def specs(plan, role):
    return {leaf.path: leaf.spec for leaf in plan.inputs if leaf.role == role}


def test_operator_partitioning_is_megatrons_plan_without_a_batch():
    plan = automap.plan(*tiny_t5(), topology="4xh100", strategy="opp", layers="apart")
    assert plan.warnings[-1].startswith("35 of 82 dimensions of variables are split, 35 can be")
    split = {p: s for p, s in specs(plan, "parameter").items() if any(s)}
    # Of each encoder layer q, k, v, o and two kernels, of each decoder layer four more, the
    # embedding and two tables of positions.
    assert len(split) == 2 * (6 + 10) + 3
    assert all(s == (None, None) for s in specs(plan, "batch").values())


def test_auto_data_parallelism_splits_the_batch_alone():
    plan = automap.plan(*tiny_t5(), topology="4xh100", strategy="adp")
    axis = plan.mesh.axes[0][0]
    assert all(s == ((axis,), None) for s in specs(plan, "batch").values())
    assert not any(any(s) for s in specs(plan, "parameter").values())
    assert "3 of 6 input tensors are split, 3 can be" in plan.warnings[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "opp"}, "plan with --layers apart"),
        ({"strategy": "adp", "mesh": {"data": 2, "model": 2}}, "--mesh model=4"),
    ],
)
def test_what_they_cannot_do_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        automap.plan(*mlp(), topology="4xh100", **options)
