"""Which stage gets what, without running it: traffic at a layer's edge, owners, and unfinished
sums.
"""

import jax
from jax import numpy as jnp

from automap.jaxpr.flatten import flatten
from automap.runtime.pipeline.divide import StagePass
from tests.automap.runtime.pipeline.hybrids import blocks
from tests.automap.runtime.pipeline.running import Running, mlp, record


def layer_ends(step, args) -> list[str]:
    level = flatten(jax.make_jaxpr(step)(*args), {})
    return [e.path for e in level.equations if e.eqn.primitive.name == "tanh"]


def test_one_activation_crosses_an_edge_of_layers_each_way():
    step, args = mlp()
    run = Running(step, args, record((1, 1, 1, 1), layer_ends(step, args)[:3]))
    (sweep,) = run.assembly.programs.sweeps
    numbers = run.assembly.programs.blueprint.numbers
    for stage_pass, loop in sweep.loops.items():
        next_stage = stage_pass.stage + (1 if stage_pass.kind == "forward" else -1)
        sent = [
            numbers.variables[v].aval.shape
            for v, routes in loop.routes.items()
            for stage, _ in routes
            if stage != stage_pass.stage
        ]
        is_end = next_stage in (-1, 4)
        assert sent == ([] if is_end else [(4, 16)])
        assert all(s in (stage_pass.stage, next_stage) for r in loop.routes.values() for s, _ in r)


def test_everything_of_a_layer_is_on_its_stage():
    step, args = mlp()
    run = Running(step, args, record((1, 1, 1, 1), layer_ends(step, args)[:3]))
    stages = [next(iter(stored.parts[0].mesh.devices.flat)).id for stored in run.assembly.inputs]
    count, *state = stages[: -len(args[1])]
    # Momentum and parameters: four layers of a bias and a kernel each.
    assert state == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert count == 0


def test_gradients_are_added_where_they_are_made_and_the_norm_goes_through_one_stage():
    step, args = mlp()
    run = Running(step, args, record((1, 1, 1, 1), layer_ends(step, args)[:3]))
    (sweep,) = run.assembly.programs.sweeps
    sums = {stage_pass: len(loop.program.sums) for stage_pass, loop in sweep.loops.items()}
    assert sums == {
        **{StagePass("backward", stage): 2 for stage in range(4)},
        **{StagePass("forward", stage): int(stage == 3) for stage in range(4)},
    }
    phases = [(update.phase, update.stage) for update, _ in sweep.updates]
    assert phases == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 1), (2, 2), (2, 3)]


def test_a_cut_through_a_layer_leaves_its_weights_in_one_stage():
    """The product is in one stage and its bias in the next: so are their gradients and state."""
    step, args = mlp(depth=2)
    level = flatten(jax.make_jaxpr(step)(*args), {})
    product = next(e.path for e in level.equations if e.eqn.primitive.name == "dot_general")
    run = Running(step, args, record((1, 1), [product]))
    (sweep,) = run.assembly.programs.sweeps
    assert len(sweep.loops[StagePass("backward", 0)].program.sums) == 1
    stages = [next(iter(s.parts[0].mesh.devices.flat)).id for s in run.assembly.inputs]
    assert stages[1:5] == [1, 0, 1, 1]
    assert jnp.size(args[0]["params"][0]["b"]) == 16


def test_a_weight_has_its_gradient_where_it_is_read_though_its_operand_goes_on():
    """The residual that a block begins with is read in the next stage too, which has the gradient
    first.
    """
    step, args = blocks()
    level = flatten(jax.make_jaxpr(step)(*args), {})
    products = [e.path for e in level.equations if e.eqn.primitive.name == "dot_general"]
    run = Running(step, args, record((1, 1), [products[2]]))
    on_first = {
        name: [
            min(d.id for d in s.parts[0].device_set)
            for s in run.assembly.inputs[first : first + 12]
        ]
        for name, first in (("momentum", 0), ("params", 12))
    }
    # Bias, down and up of each block.
    assert on_first["momentum"] == on_first["params"] == [0, 0, 0, 1, 1, 0, *[1] * 6]
