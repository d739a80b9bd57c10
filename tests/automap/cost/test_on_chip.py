"""What stays on the chip, by the numbers of libtpu and on steps."""

from dataclasses import replace
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.on_chip import ChipRoom, chip_rivals
from automap.cost.tables import build_tables
from automap.space.point import SplitClasses
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.opcodes import DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE, LOOP_ENTER
from tests.steps import problem_of


NUMBERS = backend_for("tpu").tile_numbers
WHOLE = SplitClasses(Mesh(("all",), (1,)), ((),))
MIB = 2**20
ROOM = ChipRoom(128 * MIB, NUMBERS)


def test_small_arrays_stay_and_large_ones_leave():
    sizes = np.array([0.0, NUMBERS.kept_share, NUMBERS.spilled_share, 1.0])
    np.testing.assert_allclose(NUMBERS.off_chip(sizes), [0.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(ROOM.may_stay(np.array([8.0, 64.0]) * MIB), [8 * MIB, 0.0])


def test_an_array_is_there_as_long_as_it_has_few_rivals():
    sizes = np.array([0.0, NUMBERS.rivals_kept, NUMBERS.rivals_spilled, 2.0])
    np.testing.assert_allclose(NUMBERS.crowded_out(sizes), [0.0, 0.0, 1.0, 1.0])
    middle = np.array([math.sqrt(NUMBERS.rivals_kept * NUMBERS.rivals_spilled)])
    np.testing.assert_allclose(NUMBERS.crowded_out(middle), 0.5)


def test_the_room_is_less_where_a_step_holds_more():
    live, may_stay = np.array([1.0, 2.0, 3.0, 4.0, 8.0]) * 128 * MIB, np.full(5, 120.0 * MIB)
    kept = ROOM.kept_bytes(live, may_stay)
    np.testing.assert_allclose(kept[[0, 1, 3, 4]], np.array([96, 96, 0, 0]) * MIB)
    assert 0 < kept[2] < 96 * MIB
    np.testing.assert_allclose(ROOM.kept_bytes(live[:1], may_stay[:1] / 4), 30 * MIB)
    # Half of it where a step holds as many times more than the least as the most holds than it.
    wide = replace(ROOM, numbers=replace(NUMBERS, chip_crowded=(1.0, 16.0)))
    np.testing.assert_allclose(wide.kept_bytes(live[3:4], may_stay[:1]), 48 * MIB)


def _step(x, w):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x.sum()


def _handing_on(x, w):
    # The first result takes the place of `x`, the second has one of its own.
    return x, _step(x, w) + x @ w


@pytest.mark.parametrize(
    ("step", "topology", "expected"),
    [
        # Inputs alone are in the device's memory, and results that replace none.
        (_step, "v5e:2x4", 4 * (1024 * 512 + 512 * 512)),
        (_handing_on, "v5e:2x4", 4 * (2 * 1024 * 512 + 512 * 512)),
        (_step, "8xh100", None),
    ],
)
def test_a_small_step_needs_little_beside_its_inputs_and_results(step, topology, expected):
    x, w = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((1024, 512), (512, 512)))
    machine, problem = get_topology(topology), problem_of(step, (x, w))
    evaluator = Evaluator(build_tables(problem, machine.platform), problem.n_classes, machine)
    memory = evaluator.memory(WHOLE)
    # Whether it fits does not depend on the chip.
    assert evaluator.evaluate(WHOLE).peak_bytes == memory.peak_bytes
    if expected is None:
        assert memory.on_chip_bytes == 0
        return
    assert memory.on_chip_bytes > 0
    assert memory.peak_bytes - memory.on_chip_bytes == pytest.approx(expected, rel=1e-6)


def _gradients(x, w):
    return jax.grad(lambda w: _step(x, w))(w)


def _residuals(x, w):
    kept = jnp.cumsum(x, 0)
    for _ in range(3):
        x = jnp.cumsum(jnp.sin(x) @ w, 0) + kept
    return x, w


def _looped(x, w):
    kept = jnp.cumsum(x, 0)
    looped = jax.lax.fori_loop(0, 50, lambda i, c: jnp.tanh(c @ w), x)
    other = jnp.cumsum(looped, 0)
    # The life of the first has fewer kernels than that of the other, but fifty trips of one.
    result = jnp.cumsum(kept * other, 0)
    for _ in range(4):
        result = jnp.cumsum(jnp.sin(result) @ w, 0)
    return x, result + other


def _many(x, w):
    arrays = [jnp.cumsum(x + i, 0) for i in range(40)]
    total = arrays[0]
    for array in arrays[1:]:
        total = jnp.cumsum(total * array, 0)
    return x, total @ w


@pytest.mark.parametrize("step", [_step, _gradients, _residuals, _looped, _many])
def test_rivals_are_those_that_live_no_longer(step):
    """Against the definition, value by value."""
    args = [jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((1024, 512), (512, 512))]
    problem = problem_of(step, args)
    graph, kernels = problem.graph, build_tables(problem, "tpu").program.kernels
    n_bytes = [value.n_bytes for value in graph.values]
    rivals = chip_rivals(problem, kernels, n_bytes, 1.0)
    written = {a.value for kernel in kernels for a in kernel.writes}
    touched = {
        v: [k for k, one in enumerate(kernels) if v in {a.value for a in (*one.reads, *one.writes)}]
        for v in written
    }
    moved = [
        graph.ops[kernel.op].trip_count * sum(a.n_bytes for a in (*kernel.reads, *kernel.writes))
        for kernel in kernels
    ]

    def life(value):
        return sum(moved[touched[value][0] + 1 : touched[value][-1]])

    wanting = [v for v in written if rivals[v]]
    assert len(wanting) > 1
    for value in wanting:
        alive = range(touched[value][0], touched[value][-1] + 1)
        nearer = [v for v in wanting if life(v) <= life(value)]
        most = max(
            sum(n_bytes[v] for v in nearer if touched[v][0] <= k <= touched[v][-1]) for k in alive
        )
        doublings = round(math.log2(min(most / n_bytes[value], 16)))
        assert rivals[value] == n_bytes[value] * 2**doublings
    # Inputs and results have a place of their own.
    assert not any(rivals[v] for v in graph.outputs)
    assert not any(rivals[v] for v, value in enumerate(graph.values) if value.producer < 0)


def test_stacks_of_loops_and_what_they_begin_with_have_no_place():
    def step(x, weights):
        def filled(carry, weight):
            # The stack of weights is rounded before the loop, as only products read it there.
            carry = jnp.tanh(carry @ weight)
            return carry, jnp.sin(carry)

        end, stack = jax.lax.scan(filled, jnp.cumsum(x, 0), weights)
        return x, jnp.cumsum(end, 0) @ stack[0].T, weights * 2

    args = [jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((1024, 512), (5, 512, 512))]
    problem = problem_of(step, args)
    graph, kernels = problem.graph, build_tables(problem, "tpu").program.kernels
    rivals = chip_rivals(problem, kernels, [value.n_bytes for value in graph.values], 1.0)
    written = {a.value for kernel in kernels for a in kernel.writes}
    for values in (
        {v for op in graph.ops if op.opcode == LOOP_ENTER for v in op.inputs},
        {op.outputs[0] for op in graph.ops if op.opcode == DYNAMIC_UPDATE_SLICE},
        {op.inputs[0] for op in graph.ops if op.opcode == DYNAMIC_SLICE},
    ):
        assert written & values and not any(rivals[v] for v in values)
    assert any(rivals)


def test_what_is_only_summed_is_written_nowhere():
    def summed(x, w):
        return x, ((x @ w) ** 2).sum(0)

    def kept(x, w):
        product = x @ w
        return x, (product**2).sum(0), jnp.sin(product) @ w

    args = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 2
    for step, expected in ((summed, False), (kept, True)):
        problem = problem_of(step, args)
        kernels = build_tables(problem, "tpu").program.kernels
        n_bytes = [value.n_bytes for value in problem.graph.values]
        assert any(chip_rivals(problem, kernels, n_bytes, 1.0)) is expected
