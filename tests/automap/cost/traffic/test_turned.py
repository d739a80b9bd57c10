"""What is whole, and what is turned, for collectives along each dimension of a product's arrays, in
closed form; the programs that the rule was read from are named in `automap.cost.traffic.turned`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.shardings import Shardings
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import KINDS
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Platform
from tests.steps import mlp, problem_of


BATCH, ROWS, INNER, COLUMNS, DEVICES = 4, 16, 32, 64, 2
TERM = 4 * BATCH * ROWS * COLUMNS


def _product(platform: Platform = "cuda", batch=BATCH, step=lambda w, x: x @ w):
    """Tables of a step, its product's number, and nothing split over one axis of two devices."""
    shapes = [(INNER, COLUMNS), (batch, ROWS, INNER)]
    problem = problem_of(step, tuple(jax.ShapeDtypeStruct(s, "float32") for s in shapes))
    tables = build_tables(problem, platform)
    product = next(i for i, op in enumerate(problem.graph.ops) if op.opcode == "dot")
    sharding = Shardings(
        sizes=(DEVICES,),
        dim_of_axis=np.full((len(tables.value_rows), 1), -1),
        factor_of_axis=np.full((len(tables.op_rows), 1), -1),
        parts_of_value=np.ones(len(tables.value_rows)),
        parts_of_op=np.ones(len(tables.op_rows)),
        is_late_axis=np.full((len(tables.value_rows), 1), False),
    )
    return problem, tables, product, sharding


def _scattered(dim, **options):
    """The collectives of a product that sums over a split dimension, scattered along `dim`."""
    problem, tables, product, sharding = _product(**options)
    op, rule = problem.graph.ops[product], problem.linkage.rules[product]
    sharding.factor_of_axis[tables.row_of_op[product]] = rule.summed_in(0)[0]
    sharding.dim_of_axis[tables.row_of_value[op.outputs[0]]] = dim
    collectives = tables.collectives(sharding)
    assert KINDS.index("reduce-scatter") in collectives.kind
    return collectives


@pytest.mark.parametrize(("dim", "is_turned"), [(0, False), (1, True), (2, False)])
def test_a_sum_is_turned_to_be_scattered_along_what_is_not_the_first_of_its_kind(dim, is_turned):
    collectives = _scattered(dim)
    assert collectives.whole_sums.sum() == TERM
    # Beside the sum and the part that is kept of it, until there is room for two sums.
    assert collectives.copied_results.sum() == (TERM / DEVICES if is_turned else 0)
    assert collectives.held_bytes.sum() == TERM + collectives.copied_results.sum()


def test_a_dimension_of_one_element_is_in_no_ones_way():
    collectives = _scattered(1, batch=1)
    assert collectives.whole_sums.sum() == TERM / BATCH
    assert not collectives.copied_results.any()


@pytest.mark.parametrize(("platform", "held"), [("cpu", 0), ("tpu", TERM)])
def test_other_compilers_turn_nothing(platform, held):
    assert _scattered(1, platform=platform).held_bytes.sum() == held


@pytest.mark.parametrize(("dim", "is_turned"), [(0, False), (1, True), (2, False)])
def test_an_operand_is_turned_if_it_was_gathered_along_what_is_not_the_first_of_its_kind(
    dim, is_turned
):
    problem, tables, product, sharding = _product()
    operand = problem.graph.ops[product].inputs[0]
    dims = problem.graph.values[operand].dims
    assert sorted(dims) == sorted((BATCH, ROWS, INNER))
    sharding.dim_of_axis[tables.row_of_value[operand]] = dim
    collectives = tables.collectives(sharding)
    gathered = 4 * BATCH * ROWS * INNER
    assert collectives.copied.sum() == gathered
    assert collectives.turned_operands.sum() == (gathered if is_turned else 0)


@pytest.mark.parametrize(("dim", "is_turned"), [(0, False), (1, True), (2, False)])
def test_what_is_turned_is_read_and_written_once_more(dim, is_turned):
    collectives = _scattered(dim)
    turned = collectives.turned_bytes
    assert turned.sum() == (TERM if is_turned else 0)
    assert not turned[collectives.kind != KINDS.index("reduce-scatter")].any()


def test_turning_takes_a_kernel():
    problem, _, product, sharding = _product()
    device, backend = (machine := get_topology("2xh100")).device, backend_for("cuda")
    evaluator = Evaluator(build_tables(problem, "cuda"), problem.n_classes, machine)
    operand = evaluator.tables.row_of_value[problem.graph.ops[product].inputs[0]]
    seconds = []
    for dim in (0, 1):
        sharding.dim_of_axis[operand] = dim
        seconds.append(evaluator.price(sharding).copying_seconds.sum())
    moved = 2 * 4 * BATCH * ROWS * INNER / (device.hbm_bytes_per_s * device.memory_efficiency)
    kernel = max(moved + backend.launch_gap_seconds, device.launch_seconds)
    assert seconds == [0, pytest.approx(kernel)]


def test_matrices_of_a_batch_may_lie_in_any_order():
    def step(w, x):
        return jnp.einsum("bri,bic->brc", x, jnp.broadcast_to(w, (BATCH, *w.shape)) * x[:, :1, :1])

    for dim in range(3):
        collectives = _scattered(dim, step=step)
        assert not collectives.copied_results.any()


def test_a_sum_is_there_until_the_next_product_that_does_not_need_it():
    def needs(w, x):
        return (jnp.tanh(x @ w) @ w.T).sum()

    def does_not(w, x):
        return (jnp.tanh(x @ w) * jnp.tanh(jnp.cos(x) @ w)).sum()

    for step, is_longer in ((needs, False), (does_not, True)):
        problem, tables, product, _ = _product(step=step)
        edge = np.flatnonzero(tables.results.incidences[:, 2] == product)
        number = len(tables.operands.count) + tables.results.incidences[edge[0], 0]
        copy = np.flatnonzero(tables.buffers.copy_edge == number)
        lasts = tables.buffers.copy_death[copy] - tables.buffers.copy_birth[copy]
        assert (lasts.max() > 0) == is_longer


def _zero_1(platform, *, donated=True):
    """The evaluator, and the price, of a step whose new parameters are gathered."""
    step, args = mlp()
    problem = problem_of(step, args)
    if not donated:
        problem = replace(problem, donated={})
    machine = get_topology("v5e:2x4" if platform == "tpu" else "8xh100")
    evaluator = Evaluator(build_tables(problem, platform), problem.n_classes, machine)
    space = Space(problem)
    (point,) = PRESETS["zero-1"].points(space, Mesh(("data",), (8,)))
    return evaluator, space.split_classes(point)


@pytest.mark.parametrize(
    ("platform", "donated", "is_copied"),
    [("tpu", True, True), ("tpu", False, False), ("cuda", True, False)],
)
def test_state_that_is_gathered_is_there_twice(platform, donated, is_copied):
    evaluator, split_classes = _zero_1(platform, donated=donated)
    collectives = evaluator.collectives(split_classes)
    gathered = ~collectives.on_operand & (collectives.kind == KINDS.index("all-gather"))
    whole = float(collectives.n_bytes[gathered] @ collectives.count[gathered])
    assert whole == 2 * 4 * 32 * 64
    assert collectives.handed_on_bytes @ collectives.count == (whole if is_copied else 0)
    timeline, sharding = evaluator.memory_timeline, evaluator.price_point(split_classes).sharding
    local = evaluator.stored_local(sharding)
    held, is_repeat = collectives.held_bytes, collectives.is_repeat
    first = len(held) - len(collectives.copied_results)
    without = np.where(np.arange(len(held)) < first, held, 0.0)
    # All the time, so at the peak too, wherever that is.
    more = timeline.peak_bytes(local, held, is_repeat)
    more -= timeline.peak_bytes(local, without, is_repeat)
    assert more == (whole if is_copied else 0)


@pytest.mark.parametrize(("on_chip_bytes", "copies"), [(0, 2), (1 << 30, 1)])
def test_state_that_is_gathered_is_copied_at_both_ends_where_the_chip_has_no_room(
    on_chip_bytes, copies
):
    evaluator, split_classes = _zero_1("tpu")
    topology = evaluator.topology
    device = replace(topology.device, on_chip_bytes=on_chip_bytes)
    priced = replace(evaluator, topology=replace(topology, device=device)).price_point(
        split_classes
    )
    moved = 2 * 4 * 32 * 64 / device.memory_bytes_per_s("elementwise")
    kernel = max(moved + evaluator.backend.launch_gap_seconds, device.launch_seconds)
    got = priced.copying_seconds @ priced.collectives.count
    assert got == pytest.approx(2 * copies * kernel)
