"""What is stored and read: small steps with the answer by hand."""

from functools import partial

import jax
from jax import lax, numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels, kernels_apart
from hlo_tools.analyses.widths import stored_bytes
from hlo_tools.opcodes import LOOP_EXIT
from tests.hlo_tools.graphs import step_graph


DEPTH, ROWS, WIDTH = 6, 256, 32
ACTIVATION_BYTES = 4 * ROWS * WIDTH


def _kernels(graph, platform):
    return kernels(graph, backend_for(platform).fuser, stored_bytes(graph, _wide(graph)))


def _wide(graph):
    return [False] * len(graph.values)


def _relu_chain(weights, x):
    for i in range(DEPTH):
        x = jax.nn.relu(x @ weights[i])
    return x.sum()


def _scanned(weights, x):
    return lax.scan(lambda c, w: (jax.nn.relu(c @ w), None), x, weights)[0].sum()


@pytest.mark.parametrize(("platform", "stored_per_layer"), [("cpu", 2), ("cuda", 2), ("tpu", 1)])
def test_a_relu_is_stored_where_contractions_load_their_operands(platform, stored_per_layer):
    graph = step_graph(_relu_chain, (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    written = [
        a for k in _kernels(graph, platform) for a in k.writes if a.n_bytes == ACTIVATION_BYTES
    ]
    # The last relu feeds a sum, which computes it on the way.
    assert len(written) == stored_per_layer * (DEPTH - 1) + 1


@pytest.mark.parametrize(
    ("platform", "dtype", "copies"),
    [("cuda", "complex64", 1), ("cuda", "bfloat16", 1), ("cpu", "bfloat16", 0)],
)
def test_what_is_made_complex_or_narrower_for_a_product_is_written(platform, dtype, copies):
    graph = step_graph(
        lambda w, x: abs((x + 1).astype(dtype) @ w.astype(dtype)).sum(),
        (WIDTH, WIDTH),
        (ROWS, WIDTH),
    )
    converts = {v for op in graph.ops if op.opcode == "convert" for v in op.outputs}
    written = {a.value for k in _kernels(graph, platform) for a in k.writes}
    big = [v for v in converts & written if graph.values[v].dims == (ROWS, WIDTH)]
    assert len(big) == copies


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("is_held", [True, False])
def test_what_passes_a_barrier_is_in_memory(platform, is_held):
    """Rows made of a number each, which are else a part of what reads them."""

    def step(x, y):
        rows = jnp.broadcast_to(x, (ROWS, WIDTH))
        return (lax.optimization_barrier(rows) if is_held else rows) * y

    graph = step_graph(step, (ROWS, 1), (ROWS, WIDTH))
    written = [a.value for k in _kernels(graph, platform) for a in k.writes]
    assert len(written) == (2 if is_held else 1)
    assert len(graph.held) == is_held


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_constant_that_a_step_returns_is_written_behind_a_barrier_too(platform):
    def step(x):
        return x + 1, lax.optimization_barrier(jnp.zeros((ROWS, WIDTH)))

    graph = step_graph(step, (1,))
    written = {a.value for k in _kernels(graph, platform) for a in k.writes}
    assert written == set(graph.outputs)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_what_is_the_same_in_every_step_is_no_kernel(platform):
    """The gradient of a mean over a diagonal is zeros with a number along the diagonal."""

    def loss(x):
        return jnp.mean(jnp.diag(x * x))

    graph = step_graph(jax.grad(loss), (ROWS, ROWS))
    kernels = _kernels(graph, platform)
    assert "scatter" in {op.opcode for op in graph.ops}
    assert [graph.ops[kernel.op].opcode for kernel in kernels] == ["add"]
    assert [access.value for access in kernels[0].reads] == list(graph.inputs)


def test_a_product_that_passes_a_barrier_is_written_as_it_is():
    def step(w, x):
        return jnp.exp(lax.optimization_barrier(x @ w))

    graph = step_graph(step, (WIDTH, WIDTH), (ROWS, WIDTH))
    (product,) = (op for op in graph.ops if op.opcode == "dot")
    assert product.outputs[0] in {a.value for k in _kernels(graph, "tpu") for a in k.writes}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_call_without_operands_is_a_kernel(platform):
    made = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    graph = step_graph(lambda x: x + jax.ffi.ffi_call("constants", made)(), (WIDTH,))
    (call,) = (n for n, op in enumerate(graph.ops) if op.opcode == "custom-call")
    (kernel,) = (k for k in _kernels(graph, platform) if k.op == call)
    assert not kernel.reads
    assert [a.n_bytes for a in kernel.writes] == [4 * WIDTH]


def test_a_loop_reads_one_layer_of_its_stack_at_a_time():
    graph = step_graph(_scanned, (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    (dot,) = [k for k in _kernels(graph, "tpu") if graph.ops[k.op].opcode == "dot"]
    loop_counter = 4
    assert {a.n_bytes for a in dot.reads} == {ACTIVATION_BYTES, 4 * WIDTH * WIDTH, loop_counter}


@pytest.mark.parametrize(("platform", "copies"), [("cuda", 1), ("tpu", 0), ("cpu", 0)])
def test_a_layer_of_a_stack_is_copied_where_products_need_whole_operands(platform, copies):
    graph = step_graph(_scanned, (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    slices = [k for k in _kernels(graph, platform) if graph.ops[k.op].opcode == "dynamic-slice"]
    assert [[a.n_bytes for a in k.writes] for k in slices] == copies * [[4 * WIDTH * WIDTH]]
    assert all(max(a.n_bytes for a in k.reads) == 4 * WIDTH * WIDTH for k in slices)


@pytest.mark.parametrize(
    ("platform", "made", "is_at_hand"),
    [
        ("tpu", lambda x, y: x + y, True),
        ("tpu", lambda x, y: jax.nn.relu(y + 1), True),
        ("tpu", lambda x, y: y - y.mean(-1, keepdims=True), False),
        ("tpu", lambda x, y: y.reshape(2, -1, WIDTH), False),
        ("tpu", lambda x, y: (x + y, (x + y).sum(-1)), False),
        ("tpu", lambda x, y: jnp.tanh(x), False),
        ("cuda", lambda x, y: x + y, False),
    ],
)
def test_what_a_product_makes_is_stacked_without_being_read_on_tpu(platform, made, is_at_hand):
    def step(weights, x):
        def body(x, w):
            y = x @ w
            return jnp.tanh(y), made(x, y)

        return lax.scan(body, x, weights)[1]

    graph = step_graph(step, (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    (stack,) = (
        k
        for k in _kernels(graph, platform)
        if graph.ops[k.op].opcode == "dynamic-update-slice"
        and k.writes[0].n_bytes == ACTIVATION_BYTES
    )
    assert [a.n_bytes for a in stack.writes] == [ACTIVATION_BYTES]
    assert (not stack.reads) == is_at_hand


def test_a_gather_reads_the_rows_it_returns():
    graph = step_graph(lambda table: table[jnp.arange(4) * 2], (1000, WIDTH))
    (gather,) = [k for k in _kernels(graph, "cpu") if graph.ops[k.op].opcode == "gather"]
    assert sum(a.n_bytes for a in gather.reads) <= 4 * WIDTH * 4 + 64


def test_what_is_made_complex_for_a_scatter_is_not_written():
    def rows_added(table, rows):
        return abs(table.astype("complex64").at[::2].add(rows.astype("complex64"))).sum()

    graph = step_graph(rows_added, (2 * ROWS, WIDTH), (ROWS, WIDTH))
    converts = {v for op in graph.ops if op.opcode == "convert" for v in op.outputs}
    written = {a.value for k in _kernels(graph, "cuda") for a in k.writes}
    dims = [graph.values[v].dims for v in converts & written]
    assert converts and (ROWS, WIDTH) not in dims


@pytest.mark.parametrize(("platform", "is_written"), [("cuda", False), ("tpu", True)])
def test_rows_that_are_looked_up_are_part_of_what_sums_them_on_gpus(platform, is_written):
    # Messages along the edges of a graph: of each edge a row of its source.
    def messages(nodes, weights):
        sources = jnp.arange(ROWS) * 7
        return ((nodes[sources + weights.astype(int)[0]] * 2).sum(1) * weights).sum()

    graph = step_graph(messages, (16 * ROWS, WIDTH), (ROWS,))
    rows = [v for op in graph.ops if op.opcode == "gather" for v in op.outputs]
    made = [k for k in _kernels(graph, platform) if {a.value for a in k.writes} & set(rows)]
    assert len(rows) == 1 and bool(made) == is_written
    # Of the table as many rows are read.
    read = [a.n_bytes for k in _kernels(graph, platform) for a in k.reads if a.value == 0]
    assert read == [ACTIVATION_BYTES]


def test_fused_kernels_read_what_they_share_once():
    def step(x):
        y = x * 2
        return y.sum(0), y.sum(1), (y * y).sum()

    graph = step_graph(step, (ROWS, WIDTH))
    read = {
        platform: [sum(a.n_bytes for a in k.reads) for k in _kernels(graph, platform)]
        for platform in ("cpu", "cuda")
    }
    assert read["cpu"] == [ACTIVATION_BYTES] * 3
    # A sum over rows is no kernel with sums along them.
    assert read["cuda"] == [ACTIVATION_BYTES, ACTIVATION_BYTES, 0]


@pytest.mark.parametrize(("platform", "written"), [("cpu", ["dot", "add"]), ("tpu", ["add"])])
def test_what_alone_uses_a_product_is_fused_with_it_on_tpu(platform, written):
    graph = step_graph(lambda a, b, c: a @ b + c, (8, 16), (16, 4), (8, 4))
    made = _kernels(graph, platform)
    assert [graph.ops[k.op].opcode for k in made if k.writes] == written
    read = sum(a.n_bytes for k in made for a in k.reads)
    product = 4 * 8 * 4
    operands = 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert read == operands + (product if platform == "cpu" else 0)


@pytest.mark.parametrize("n_sources", range(1, 6))
@pytest.mark.parametrize("n_users", [2, 3, 4])
def test_a_value_is_made_again_where_all_users_move_less_so(n_sources, n_users):
    """n users that read S bytes each move no more than writing V once and reading it n times."""

    def step(*given):
        value = jnp.tanh(sum(given[1:], start=given[0]))
        # Products of their own end each user's kernel; none shares what it reads with another.
        users = [jnp.exp(value * k) @ jnp.ones((WIDTH, WIDTH)) for k in range(2, 2 + n_users)]
        return users

    graph = step_graph(step, *[(ROWS, WIDTH)] * n_sources)
    (made,) = (op.outputs[0] for op in graph.ops if op.opcode == "tanh")
    assert len(graph.users[made]) == n_users
    own, read = 1, n_sources
    again, kept = n_users * read, read + own + n_users * own
    for platform, is_kept in (("cuda", again > kept), ("cpu", read > 1.5 * own)):
        written = {a.value for k in _kernels(graph, platform) for a in k.writes}
        assert (made in written) == is_kept


def test_zeros_that_a_loop_adds_to_are_written_before_it():
    def step(weights, x):
        def loss(w):
            return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0].sum()

        return jax.grad(loss)(weights)

    graph = step_graph(step, (WIDTH, WIDTH), (ROWS, WIDTH))
    fills = [
        a.n_bytes
        for k in _kernels(graph, "cpu")
        if graph.ops[k.op].opcode == "while"
        for a in k.writes
        if not k.reads
    ]
    assert 4 * WIDTH * WIDTH in fills  # the sum of the weight's gradients
    assert 4 * 3 * ROWS * WIDTH in fills  # a stack of residuals


def _targets(weights, x, *, are_stopped):
    """A loop whose trips keep residuals, for a loss that may have no use for them."""

    def loss(w):
        made = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]
        made = lax.stop_gradient(made) if are_stopped else made
        return ((x @ w - made) ** 2).sum()

    return jax.grad(loss)(weights)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_what_leads_to_no_output_is_not_made(platform):
    stack = 4 * 3 * ROWS * WIDTH
    for are_stopped in (False, True):
        graph = step_graph(
            partial(_targets, are_stopped=are_stopped), (WIDTH, WIDTH), (ROWS, WIDTH)
        )
        made = {v for k in _kernels(graph, platform) for v in (a.value for a in k.writes)}
        stacks = {v for v in made if graph.values[v].n_bytes == stack}
        assert bool(stacks) != are_stopped
        assert not made & graph.unread
        # Both loops are there: the forward one makes the targets.
        assert any(op.opcode == "while" for op in graph.ops)


def test_everything_leads_to_an_output_where_all_is_returned():
    def step(weights, x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ weights), c), x, None, length=3)

    graph = step_graph(step, (WIDTH, WIDTH), (ROWS, WIDTH))
    # But the loop's own end of what it does not change.
    makers = {graph.ops[graph.values[v].producer].opcode for v in graph.unread}
    assert makers <= {LOOP_EXIT}


@pytest.mark.parametrize(
    ("platform", "is_input", "whole"),
    [
        ("tpu", True, {"convert"}),
        ("tpu", False, {"sine"}),
        ("cuda", True, set()),
        ("cpu", True, set()),
    ],
)
def test_a_table_that_is_given_is_converted_whole_before_rows_are_looked_up(
    platform, is_input, whole
):
    """As libtpu 0.0.51 does with embeddings; what a step makes is read through."""

    def step(table):
        table = table if is_input else jnp.sin(table)
        return table.astype("bfloat16")[jnp.arange(8) * 3]

    graph = step_graph(step, (64, WIDTH))
    made = {
        graph.ops[k.op].opcode
        for k in _kernels(graph, platform)
        if any(graph.values[a.value].dims == (64, WIDTH) for a in k.writes)
    }
    assert made == whole


@pytest.mark.parametrize(("platform", "of_its_own"), [("cuda", 0), ("cpu", 1)])
def test_nothing_is_fused_over_what_one_program_leaves_for_another(platform, of_its_own):
    def step(x):
        y = x * 2
        return y.sum(), jnp.exp(y).sum()

    graph = step_graph(step, (ROWS, WIDTH))
    (left,) = [op.outputs[0] for op in graph.ops if op.opcode == "multiply"]
    exponential = next(n for n, op in enumerate(graph.ops) if op.opcode == "exponential")
    is_later = [n >= exponential for n in range(len(graph.ops))]
    fuser, n_bytes = backend_for(platform).fuser, stored_bytes(graph, _wide(graph))
    apart = kernels_apart(graph, fuser, n_bytes, is_later, frozenset((left,)))
    # In one program both sums read x alone.
    assert all(left not in {a.value for a in k.writes} for k in _kernels(graph, platform))
    first = [k for k in apart if not is_later[k.op]]
    (second,) = [k for k in apart if is_later[k.op]]
    assert len(first) == 1 + of_its_own
    # Written once, by the sum's kernel where one kernel has several results, and read once.
    writes = [a.n_bytes for k in first for a in k.writes]
    assert sorted(writes) == [4, ACTIVATION_BYTES]
    assert [(a.value, a.n_bytes) for a in second.reads] == [(left, ACTIVATION_BYTES)]


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_a_program_that_only_leaves_values_has_kernels_for_them(platform):
    graph = step_graph(lambda x: jnp.exp(x * 2).sum(), (ROWS, WIDTH))
    (left,) = [op.outputs[0] for op in graph.ops if op.opcode == "multiply"]
    is_later = [n > graph.values[left].producer for n in range(len(graph.ops))]
    fuser, n_bytes = backend_for(platform).fuser, stored_bytes(graph, _wide(graph))
    first, second = kernels_apart(graph, fuser, n_bytes, is_later, frozenset((left,)))
    assert [a.value for a in first.writes] == [a.value for a in second.reads] == [left]


@pytest.mark.parametrize(("platform", "writes"), [("cuda", 1), ("cpu", 2)])
def test_a_product_that_is_added_to_what_a_loop_carries_is_not_written(platform, writes):
    def step(xs, ys):
        def body(total, xy):
            x, y = xy
            return total + (y.T @ x).T, None

        return lax.scan(body, jnp.zeros((WIDTH, 2 * WIDTH)), (xs, ys))[0]

    graph = step_graph(step, (DEPTH, ROWS, WIDTH), (DEPTH, ROWS, 2 * WIDTH))
    n_bytes = 4 * WIDTH * 2 * WIDTH
    inside = [k for k in _kernels(graph, platform) if graph.ops[k.op].trip_count == DEPTH]
    assert sum(a.n_bytes == n_bytes for k in inside for a in k.writes) == writes


def test_a_product_whose_other_term_is_read_again_is_written():
    def step(x, w, y):
        # What is added is used twice, so a library cannot write over it.
        return jnp.sin(x @ w + y).sum() + jnp.cos(y @ w)

    graph = step_graph(step, (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH))
    products = [k for k in _kernels(graph, "cuda") if graph.ops[k.op].opcode == "dot"]
    assert [bool(k.writes) for k in products] == [True, True]


@pytest.mark.parametrize(("platform", "is_read"), [("cuda", False), ("tpu", False), ("cpu", True)])
def test_a_part_that_is_put_into_a_stack_is_only_written_on_accelerators(platform, is_read):
    def step(x):
        return lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=3)[1]

    graph = step_graph(step, (ROWS, WIDTH))
    (put,) = (
        k for k in _kernels(graph, platform) if graph.ops[k.op].opcode == "dynamic-update-slice"
    )
    stack = graph.ops[put.op].inputs[0]
    assert ({a.value: a.n_bytes for a in put.reads}.get(stack, 0) > 0) == is_read
    assert sum(a.n_bytes for a in put.writes) == ACTIVATION_BYTES
