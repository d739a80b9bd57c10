"""Kinds of kernels, and the shares that they have in an error."""

import jax
import jax.numpy as jnp
import pytest

from automap.config import Options
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.kernel_kinds import OTHERS, WAITING, error_shares, kind_of, predicted_seconds
from tests.steps import decoder


@pytest.mark.parametrize(
    ("opcodes", "kind"),
    [
        (["fusion", "parameter", "dot", "reduce"], "products"),
        (["custom-call"], "products"),
        (["fusion", "parameter", "scatter", "reduce"], "look-ups and scatters"),
        # Compilers sum and compute element by element in one kernel.
        (["fusion", "parameter", "multiply", "reduce"], OTHERS),
        (["fusion", "exponential", "dynamic-update-slice"], "stacks of loops, filled"),
        (["fusion", "parameter", "transpose"], "copies and transposes"),
        (["fusion", "constant", "broadcast"], "zeros"),
        (["while"], "zeros"),
        (["fusion", "parameter", "broadcast", "add"], OTHERS),
        (["add"], OTHERS),
    ],
)
def test_a_kernel_is_of_the_first_kind_that_it_belongs_to(opcodes, kind):
    assert kind_of(opcodes) == kind


@pytest.mark.parametrize("topology", ["8xh100", "v5e:2x4"])
def test_kinds_of_a_prediction_add_up_to_its_step(topology):
    step, args = decoder()
    machine = get_topology(topology)
    workload = trace_step(step, args, platform=machine.platform)
    mesh = Mesh(("data",), (8,))
    outcome = find(workload, machine, Options(mesh=mesh, preset="zero-3"))
    seconds = predicted_seconds(outcome)
    assert sum(seconds.values()) == pytest.approx(outcome.best.estimate.step_seconds)
    assert seconds["products"] > 0
    assert seconds[WAITING] == outcome.best.estimate.collective_seconds


def test_a_predicted_kernel_is_what_is_fused_into_it_like_a_compiled_one():
    """One that is named by a conversion computes; one that only converts is a copy."""

    def step(state, x):
        return state, (jnp.exp(x) + 1).astype("bfloat16"), x.astype("float16")

    args = (jax.ShapeDtypeStruct((8,), "float32"), jax.ShapeDtypeStruct((1 << 20,), "float32"))
    workload = trace_step(step, args, platform="cuda")
    mesh = Mesh(("data",), (8,))
    outcome = find(workload, get_topology("8xh100"), Options(mesh=mesh, strategy="greedy"))
    seconds = predicted_seconds(outcome)
    busy = {kind for kind, each in seconds.items() if each > 0 and kind != WAITING}
    assert busy == {OTHERS, "copies and transposes"}


def test_shares_are_of_errors_over_their_steps():
    plans = [
        ({"a": 1.0, "b": 4.0}, {"a": 2.0, "b": 2.0}),  # of a step of 4: 1/4 and 2/4
        ({"a": 10.0}, {"a": 5.0, "c": 5.0}),  # of a step of 10: 5/10 and 5/10
    ]
    shares = error_shares(plans)
    assert shares == pytest.approx({"a": 0.75 / 1.75, "b": 0.5 / 1.75, "c": 0.5 / 1.75})
    assert next(iter(shares)) == "a"
