"""Where the kernels and collectives of a real plan are put."""

from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.schedule.merging import SentSums, loop_sums, together
from automap.cost.schedule.order import ENTER, EXIT, KERNEL, SPARE
from automap.cost.schedule.work import copied_order, device_work, step_work
from automap.cost.tables import build_tables
from automap.program.trace import trace_step
from hlo_tools.analyses.phases import Phase
from models import gpt
from tests.automap.cost.schedule.programs import priced_on_gpus, sent_messages


def _gradients_in_loop(order, graph, in_loop):
    """The slots of products by the operand that they share with others, None for those alone."""
    inputs = [set(graph.ops[op].inputs) for op in order.op[in_loop]]
    shared = [
        next((v for v in mine if sum(v in each for each in inputs) > 1), None) for mine in inputs
    ]
    return dict(zip(in_loop.tolist(), shared, strict=True))


def test_in_a_loop_products_come_before_their_sums_and_what_stacks_these_after():
    step, args = gpt.gpt(replace(gpt.TINY, depth=4, layers="scanned"), batch=16, seq=16).target
    problem = trace_step(step, args, platform="cuda").problem
    order, priced = priced_on_gpus(problem, "data-parallel")
    collectives = priced.collectives
    seconds = np.where(order.row >= 0, priced.kernel_seconds[order.row], 0.0) * order.trips
    # A message each, so that every sum stays where it is ready.
    work, _ = device_work(
        order,
        seconds,
        seconds,
        collectives,
        priced.collective_seconds * collectives.count,
        messages=sent_messages(np.ones(len(collectives.kind))),
    )
    opcodes = np.array([problem.graph.ops[op].opcode for op in order.op])
    sums = work.sums
    summed = np.flatnonzero(sums.makes >= 0)
    assert (order.loop[summed] >= 0).all()
    # Beside products only sums over rows, that of a bias with the residual stream.
    assert set(opcodes[summed]) == {"dot", "add", "reduce"}
    in_loop = summed[opcodes[summed] == "dot"]
    # Queries, keys, values, and the three other weights of a layer.
    assert len(in_loop) == 6
    # Those of queries, keys and values read the same activations and are one product: all of them
    # come before the first of their sums.
    shared = _gradients_in_loop(order, problem.graph, in_loop)
    together = [slot for slot, value in shared.items() if value is not None]
    assert len(together) == 3 and len({shared[slot] for slot in together}) == 1
    assert np.ptp(together) == 2
    last = [max(together) if slot in together else slot for slot in in_loop.tolist()]
    assert sums.ready[sums.makes[in_loop]].tolist() == (np.array(last) + 1).tolist()
    assert len(set(work.data_at[together])) == 1
    assert (work.backlog[np.array(last) + 1] > 0).all()
    # What reads one of these stacks its sum: nothing else of the loop waits for it.
    stacks = np.isin(order.data_at, in_loop + 1) & (order.kind == SPARE)
    assert stacks.any()
    assert set(sums.ready[sums.reads[stacks]]) == set(sums.ready[sums.makes[in_loop]])
    # Before a sum begins only spare kernels make it, from data that is there before.
    made_from = sums.made_from[sums.makes[in_loop]]
    assert (made_from == work.data_at[in_loop]).all()
    assert (made_from < sums.ready[sums.makes[in_loop]]).all()


def test_a_sum_over_rows_is_ready_with_the_last_kernel_that_reads_its_rows():
    """The gradient of a bias sums what the residual stream is added to afterwards."""

    def layer(h, w):
        return h + jnp.tanh(h @ w["up"]) @ w["down"] + w["bias"], None

    def step(weights, x):
        gradients = jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    stack = jax.ShapeDtypeStruct((3, 32, 32), "float32")
    bias = jax.ShapeDtypeStruct((3, 32), "float32")
    args = ({"up": stack, "down": stack, "bias": bias}, jax.ShapeDtypeStruct((64, 32), "float32"))
    problem = trace_step(step, args, platform="cuda").problem
    order, graph = build_tables(problem, "cuda").order, problem.graph
    opcodes = np.array([graph.ops[op].opcode for op in order.op])
    in_loop = np.flatnonzero(order.loop[:-1] >= 0)
    first, again = (int(slot) for slot in in_loop if opcodes[slot] == "reduce")
    (rows,) = {
        v for v in graph.ops[int(order.op[first])].inputs if graph.values[v].dims == (64, 32)
    }
    # The residual stream of the layer before: the only other that reads it, but for products.
    stream = int(order.merged[first])
    assert opcodes[stream] == "add" and rows in graph.ops[int(order.op[stream])].inputs
    # It waits for the product that goes back through both weights, and the sum does with it.
    back = [slot for slot in in_loop if opcodes[slot] == "dot" and order.kind[slot] != SPARE]
    assert order.data_at[first] == order.data_at[stream] == max(back) + 1 <= first
    # Over dimensions of one element it is summed again, which is no later.
    assert order.merged[again] == stream
    assert order.kind[first] == order.kind[stream]


def test_a_sum_over_rows_that_is_a_kernel_by_itself_waits_in_no_line():
    """What a bias's gradient sums is read by products only."""

    def layer(h, w):
        return jnp.tanh(h @ w["weight"] + w["bias"]), None

    def step(weights, x):
        gradients = jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    args = (
        {
            "weight": jax.ShapeDtypeStruct((4, 32, 32), "float32"),
            "bias": jax.ShapeDtypeStruct((4, 32), "float32"),
        },
        jax.ShapeDtypeStruct((64, 32), "float32"),
    )
    problem = trace_step(step, args, platform="cuda").problem
    order = build_tables(problem, "cuda").order
    # Over rows, and once more over dimensions of one element.
    sums = [
        slot
        for slot in np.flatnonzero(order.loop[:-1] >= 0).tolist()
        if problem.graph.ops[order.op[slot]].opcode == "reduce"
    ]
    assert len(sums) == 2 and order.merged[sums].tolist() == sums
    assert order.kind[sums].tolist() == [SPARE, SPARE]


def test_a_product_is_merged_with_those_of_one_operand_only():
    """Of four weights' gradients two read `h`, and three, one of these among them, what `y` gives
    back.
    """

    def layer(h, w):
        y = h @ w["h"] + jnp.sin(h) @ w["sin"] + jnp.cos(h) @ w["cos"]
        # Transposed first, so that the two of `h` are found first.
        return y + jnp.tanh(h @ w["tanh"]), None

    def step(weights, x):
        gradients = jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    stack = jax.ShapeDtypeStruct((3, 32, 32), "float32")
    args = (
        dict.fromkeys(("h", "sin", "cos", "tanh"), stack),
        jax.ShapeDtypeStruct((64, 32), "float32"),
    )
    problem = trace_step(step, args, platform="cuda").problem
    order = build_tables(problem, "cuda").order
    products = [
        slot
        for slot, op in enumerate(order.op)
        if order.kind[slot] == SPARE and problem.graph.ops[op].opcode == "dot"
    ]
    assert len(products) == 4
    assert sorted(np.unique(order.merged[products], return_counts=True)[1]) == [2, 2]


def test_what_the_update_gathers_of_what_was_made_is_behind_the_passes():
    def step(weights, x):
        return weights - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(weights)

    args = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 256), (4096, 256)))
    problem = trace_step(step, args, platform="cuda").problem
    order, priced = priced_on_gpus(problem, "zero-3")
    collectives = priced.collectives
    gathered = (priced.collective_seconds * collectives.count)[collectives.on_operand].sum()
    assert gathered > 0

    def gathers(phase, ready):
        """Seconds of gathers of parameters (before they are needed, behind all kernels)."""
        work, _ = device_work(
            replace(order, operands=replace(order.operands, ready=ready)),
            *np.zeros((2, len(order.kind))),
            replace(collectives, phase=np.full(len(collectives.kind), phase)),
            np.where(collectives.on_operand, priced.collective_seconds * collectives.count, 0.0),
        )
        return work.prefetch.sum(), work.renewed.sum()

    input_is_there = np.zeros_like(order.operands.ready)
    assert gathers(Phase.FORWARD, input_is_there + 1) == (gathered, 0.0)
    assert gathers(Phase.UPDATE, input_is_there) == (gathered, 0.0)
    assert gathers(Phase.UPDATE, input_is_there + 1) == (0.0, gathered)


def _sums(*rows):
    """Sums as (result, message, is_whole, ready, begun, reader, seconds)."""
    columns = (np.array(column) for column in zip(*rows))
    return SentSums(*columns, np.ones(len(rows)), 2.0 ** np.arange(-len(rows), 0))


def test_sums_of_one_message_are_added_and_the_second_stage_of_one_waits_for_the_first():
    """A loop of the slots 0 to 7: the message 4 adds up further what the messages 0 and 2 have."""
    order = SimpleNamespace(
        kind=np.array([ENTER, KERNEL, SPARE, KERNEL, SPARE, SPARE, SPARE, EXIT]),
        loop=np.array([-1, *[0] * 7, -1]),
        first=np.zeros(9, np.int64),
        data_at=np.array([0, 1, 1, 1, 4, 3, 4, 7]),
        merged=np.arange(8),
    )
    sums = _sums(
        (0, 0, False, 3, 3, 5, 1.0),
        (1, 0, False, 2, 3, 4, 2.0),
        (2, 2, False, 5, 5, 6, 4.0),
        (3, 3, True, 8, 8, 8, 8.0),  # of no loop
        (0, 4, True, 3, 3, 5, 16.0),
        (2, 4, True, 5, 3, 6, 32.0),
    )
    got = loop_sums(order, sums)
    # Numbered as they are ready: that of two stages is when the last of the first stages is.
    assert got.ready.tolist() == [3, 5, 5]
    assert got.seconds.tolist() == [3.0, 4.0, 48.0]
    assert got.believed.tolist() == [2.0, 1.0, 2.0]
    assert got.then.tolist() == [2, 2, -1]
    assert got.parts.tolist() == [2, 1, 2]
    assert got.is_sliced.tolist() == [False, False, True]
    # Terms that spare kernels make are none of what must run before.
    assert got.made_from.tolist() == [2, 4, 4]
    assert got.makes.tolist() == [-1, -1, 0, -1, 1, -1, -1, -1]
    # What reads a result comes after both of its sums.
    assert got.reads.tolist() == [-1, -1, -1, -1, 0, 2, 2, -1]


def test_the_work_of_copies_is_that_of_each_program():
    step, args = gpt.gpt(replace(gpt.TINY, depth=4, layers="scanned"), batch=16, seq=16).target
    problem = trace_step(step, args, platform="cuda").problem
    alone = [priced_on_gpus(problem, preset) for preset in ("zero-3", "data-parallel", "megatron")]
    order, n_rows = alone[0][0], len(alone[0][1].kernel_seconds)
    n_edges = [len(places.first) - 1 for places in (order.results, order.operands)]
    each = [priced.collectives for _, priced in alone]
    joint = replace(
        each[0],
        edge=np.concatenate(
            [c.edge + k * np.array(n_edges)[c.on_operand.astype(int)] for k, c in enumerate(each)]
        ),
        **{
            name: np.concatenate([getattr(c, name) for c in each])
            for name in ("kind", "mask", "n_bytes", "count", "phase", "combinable", "on_operand")
        },
    )
    kernel_seconds = np.concatenate([priced.kernel_seconds for _, priced in alone])
    seconds = np.concatenate([priced.collective_seconds for _, priced in alone])
    # Three are one message, so that sums are together.
    most, apart = [], []
    parts = np.full(len(seconds), 1 / 3)
    joint_work, taken = step_work(
        copied_order(order, 3, n_rows),
        kernel_seconds,
        joint,
        seconds,
        sent_messages(parts),
    )
    for work, (_, priced) in zip(joint_work.apart(3), alone, strict=True):
        n = len(priced.collective_seconds)
        own, own_taken = step_work(
            order,
            priced.kernel_seconds,
            priced.collectives,
            priced.collective_seconds,
            sent_messages(parts[:n]),
        )
        most.append(own.sums.parts.max(initial=0))
        apart.append(np.array(own_taken))
        columns = [*own._replace(sums=()), *own.sums], [*work._replace(sums=()), *work.sums]
        for mine, column in zip(*columns, strict=True):
            assert np.array(column).tolist() == np.array(mine).tolist()
    assert max(most) > 1
    assert np.concatenate(apart, axis=1) == pytest.approx(np.array(taken))


messages_of_loops = st.lists(
    st.tuples(
        st.integers(-1, 3),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, 20),
        st.integers(0, 20),
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5]),
    ),
    max_size=12,
)


@given(messages_of_loops, st.booleans())
@settings(max_examples=200, deadline=None)
def test_what_goes_together_is_where_the_first_or_the_last_of_a_message_is(rows, is_first):
    """Against a walk through each loop that begins a message where one more would be too much."""
    loop, kind, axes, dtype, rank, place, part = (
        (np.array(column) for column in zip(*rows)) if rows else np.zeros((7, 0))
    )
    rank, place = rank.astype(int), place.astype(int)
    group = np.stack((loop, kind, axes, dtype)).astype(int)
    message, got = together(group, rank, place, part.astype(float), is_first=is_first)
    expected, first = place.copy(), np.arange(len(rows))
    groups = [tuple(column) for column in group.T.tolist()]
    for each in {g for g in groups if g[0] >= 0}:
        here = [i for i in range(len(rows)) if groups[i] == each and part[i] <= 1]
        messages = [[]]
        for i in sorted(here, key=lambda i: rank[i]):
            if sum(part[j] for j in messages[-1]) + part[i] > 1:
                messages.append([])
            messages[-1].append(i)
        for members in filter(None, messages):
            expected[members] = (min if is_first else max)(place[members])
            first[members] = members[0]
    assert message.tolist() == first.tolist()
    assert got.tolist() == expected.tolist()
