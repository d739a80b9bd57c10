"""What kernels of products make besides: small steps with the answer by hand."""

import jax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.product_kernels import at_hand, used_at_hand
from hlo_tools.analyses.widths import stored_bytes
from tests.hlo_tools.graphs import step_graph


ROWS, WIDTH = 256, 32


def _kernels(graph, platform):
    n_bytes = stored_bytes(graph, [False] * len(graph.values))
    return kernels(graph, backend_for(platform).fuser, n_bytes)


@pytest.mark.parametrize(("platform", "is_written"), [("tpu", True), ("cuda", False)])
def test_logits_are_widened_in_memory_for_the_look_up_of_their_loss_alone(platform, is_written):
    """As libtpu 0.0.51 does: its kernel of the product writes both, and sums read the narrow."""

    def step(x, w, labels):
        logits = x.astype("bfloat16") @ w.astype("bfloat16")
        wide = logits.astype("float32")
        own = jnp.take_along_axis(wide, labels[:, None].astype("int32"), axis=1)
        return own.sum() - jnp.exp(wide).sum(), logits

    graph = step_graph(step, (ROWS, WIDTH), (WIDTH, WIDTH), (ROWS,))
    kernels = _kernels(graph, platform)
    wide = [
        access.value
        for kernel in kernels
        for access in kernel.writes
        if graph.values[access.value].dims == (ROWS, WIDTH)
        and graph.values[access.value].dtype == "f32"
    ]
    assert len(wide) == is_written
    readers = {graph.ops[k.op].opcode for k in kernels if {a.value for a in k.reads} & {*wide}}
    assert readers == ({"gather"} if is_written else set())
    if is_written:
        (writer,) = [k for k in kernels if wide[0] in {a.value for a in k.writes}]
        assert writer.joins


@pytest.mark.parametrize("is_before", [True, False])
def test_a_product_goes_on_with_what_other_kernels_have_made_before_it(is_before):
    """As libtpu 0.0.51 does in the backward pass of an attention that is computed again."""

    def step(a, b):
        def normalized():
            return jax.nn.softmax(jnp.sin(a) @ b, axis=-1)

        first = normalized() if is_before else None
        product = a @ b
        return (product * (normalized() if first is None else first)).sum(-1)

    graph = step_graph(step, (ROWS, WIDTH), (WIDTH, WIDTH))
    (weighed,) = [k for k in _kernels(graph, "tpu") if graph.ops[k.op].opcode == "multiply"]
    # Behind the softmax the kernel of the product is over: another one has to weigh its result.
    assert weighed.joins == is_before


@pytest.mark.parametrize(
    ("use", "is_written"),
    [
        # The product's kernel sums too, and writes in any order of dimensions.
        (lambda made: made.sum(), False),
        (lambda made: made.T + 1, False),
        # Other kernels read it.
        (lambda made: made.T @ made, True),
        (jnp.sort, True),
        (lambda made: made / made.sum(), True),
    ],
)
def test_a_product_is_written_if_other_kernels_use_it(use, is_written):
    def step(a, b):
        made = a @ b
        return jnp.tanh(made), use(made)

    graph = step_graph(step, (8, 16), (16, 4))
    product = next(op.outputs[0] for op in graph.ops if op.opcode == "dot")
    written = {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}
    assert (product in written) == is_written


@pytest.mark.parametrize("order", ["bgnqk", "bgqnk", "bgkqn"])
def test_scores_of_grouped_queries_are_normalized_by_their_product_in_any_order(order):
    """Four queries read one key, and the scores are put in another order of dimensions."""

    def step(q, k):
        scores = jnp.einsum(f"bqgnc,bkgc->{order}", q, k)
        return jnp.exp(scores - scores.max(-1, keepdims=True)).sum(-1)

    made = _kernels(step_graph(step, (2, 16, 2, 4, 8), (2, 16, 2, 8)), "tpu")
    sums = [kernel for kernel in made if kernel.joins]
    assert sums and all(kernel.product >= 0 for kernel in sums)
    # Maxima, and sums of what is less by them, read nothing: the product has made it.
    assert not any(access.n_bytes for kernel in sums for access in kernel.reads)


@pytest.mark.parametrize("is_held", [True, False])
def test_nothing_is_in_a_products_kernel_over_a_barrier(is_held):
    def step(a, b):
        made = a @ b
        return jnp.tanh(jax.lax.optimization_barrier(made) if is_held else made), made

    made = _kernels(step_graph(step, (8, 16), (16, 4)), "tpu")
    assert [kernel.product >= 0 for kernel in made if kernel.op > 0] == [not is_held]


def test_a_product_that_is_a_result_is_written_though_one_op_uses_it():
    def step(a, b):
        made = a @ b
        return made, jnp.tanh(made)

    graph = step_graph(step, (8, 16), (16, 4))
    written = {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}
    assert written == {*graph.outputs}


def test_matrices_are_written_as_such_whatever_they_are_read_as():
    """As libtpu 0.0.51 does with eight heads of 24 features (v5e, 2026-12-01)."""

    def step(weights, values, w):
        made = jnp.einsum("nhqk,nkhc->nqhc", weights, values)
        return made.reshape(4, 6, 16) @ w

    graph = step_graph(step, (4, 2, 6, 6), (4, 6, 2, 8), (16, 16))
    written = {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}
    dims = [graph.values[value].dims for value in written - {*graph.outputs}]
    # In the order in which they are read, and not as rows of both heads.
    assert dims == [(4, 6, 2, 8)]


@pytest.mark.parametrize("order", ["bgnqk", "bgqnk"])
def test_scores_are_not_written_in_any_order_where_their_exponentials_are(order):
    """As libtpu 0.0.51 does with four layers of grouped queries (v5e, 2026-12-01)."""

    def step(q, k):
        scores = jnp.einsum(f"bqgnc,bkgc->{order}", q.astype("bfloat16"), k.astype("bfloat16"))
        return jax.nn.softmax(scores.astype("float32") / 8)

    graph = step_graph(step, (2, 16, 2, 4, 8), (2, 16, 2, 8))
    written = {access.value for kernel in _kernels(graph, "tpu") for access in kernel.writes}
    types = [graph.values[value].dtype for value in written if len(graph.values[value].dims) == 5]
    # The exponentials, and what divides them by their sums.
    assert "bf16" not in types and types.count("f32") >= 2


@pytest.mark.parametrize(("is_turned", "is_part"), [(False, True), (True, False)])
def test_a_stack_in_another_order_is_filled_by_a_kernel_of_its_own(is_turned, is_part):
    def step(x, weights):
        def layer(h, w):
            made = h @ w + 1
            return jnp.tanh(h), made.T if is_turned else made

        return jax.lax.scan(layer, x, weights)[1]

    graph = step_graph(step, (ROWS, WIDTH), (3, WIDTH, WIDTH))
    (stack,) = [
        kernel
        for kernel in _kernels(graph, "tpu")
        if graph.ops[kernel.op].opcode == "dynamic-update-slice"
    ]
    assert (stack.product >= 0) == stack.joins == is_part


def test_what_is_used_twice_again_and_again_is_looked_at_once():
    """Each line doubles the ways from the product to its result; all of them would take years."""

    def step(a, b):
        made = a @ b
        for _ in range(60):
            made = jnp.sin(made) * jnp.cos(made)
        return made

    graph = step_graph(step, (8, 16), (16, 4))
    product = next(op.outputs[0] for op in graph.ops if op.opcode == "dot")
    # Nothing is stored but the result, so that all ways are open.
    stored = [value in graph.outputs for value in range(len(graph.values))]
    products = at_hand(graph, backend_for("tpu").fuser)
    assert [*used_at_hand(graph, stored, products, {})] == [product]


def test_a_product_that_is_summed_alone_takes_as_long_as_if_it_were_written():
    def step(a, b):
        made = a @ b
        return made.max(), (made * made).sum()

    graph = step_graph(step, (8, 16), (16, 4))
    product = next(op.outputs[0] for op in graph.ops if op.opcode == "dot")
    assert product in [a.value for kernel in _kernels(graph, "tpu") for a in kernel.writes]


@pytest.mark.parametrize(
    ("weigh", "dtype", "goes_on"),
    [
        pytest.param(jax.nn.softmax, "float32", True, id="softmax"),
        pytest.param(jax.nn.softmax, "bfloat16", False, id="of narrower numbers"),
        pytest.param(lambda x: jax.nn.softmax(x / 8), "bfloat16", True, id="of scaled numbers"),
        pytest.param(jax.nn.logsumexp, "float32", False, id="asks whether maxima are finite"),
    ],
)
def test_sums_of_exponentials_are_in_the_kernel_of_wide_scores(weigh, dtype, goes_on):
    """As libtpu 0.0.51 does with [8, 8, 512, 128] and [8, 8, 128, 512] numbers."""

    def step(x, w):
        return weigh((x.astype(dtype) @ w.astype(dtype)).astype("float32"))

    graph = step_graph(step, (ROWS, WIDTH), (WIDTH, ROWS))
    products = at_hand(graph, backend_for("tpu").fuser)
    exponentials = [v for op in graph.ops if op.opcode == "exponential" for v in op.outputs]
    assert exponentials and all((v in products) == goes_on for v in exponentials)
