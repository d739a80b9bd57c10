"""What is alive at once, and what is kept rounded: small steps with the answer by hand."""

import jax
from jax import lax, numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.liveness import Places, buffers
from hlo_tools.analyses.phases import Phase, phases
from hlo_tools.analyses.widths import narrow_values, stored_bytes
from hlo_tools.graph import DTYPE_BITS, flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module
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


def _relu_step(weights, x):
    loss, grads = jax.value_and_grad(_relu_chain)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def _relu_step_flat(*arrays):
    return _relu_step(list(arrays[:-1]), arrays[-1])


def _peak_bytes(graph, platform):
    live = buffers(
        graph,
        _kernels(graph, platform),
        phases(graph, {n: n for n in range(len(graph.outputs) - 1)}),
        {},
        _wide(graph),
    )
    values = [graph.values[v] for v in live.value]
    sizes = np.array([np.prod(v.dims, initial=1) * DTYPE_BITS[v.dtype] / 8 for v in values])
    alive = np.zeros(live.n_positions + 1)
    np.add.at(alive, live.birth, sizes)
    np.add.at(alive, live.death + 1, -sizes)
    return alive.cumsum().max()


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_the_peak_does_not_depend_on_how_the_program_is_written_down(platform):
    shapes = [(WIDTH, WIDTH)] * DEPTH
    args = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]
    hlo = jax.jit(_relu_step).lower(args, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"))
    module = hlo.compiler_ir("hlo")
    as_traced = flatten(decode_module(module.as_serialized_hlo_module_proto()))
    # HLO text lists a computation from its root backwards and has lost the order of tracing.
    as_text = flatten(decode_module(text_to_proto(module.as_hlo_text())))
    peak = _peak_bytes(as_traced, platform)
    assert abs(peak - _peak_bytes(as_text, platform)) <= ACTIVATION_BYTES
    stored_per_layer = 1 if platform == "tpu" else 2
    inputs = 4 * DEPTH * WIDTH * WIDTH + ACTIVATION_BYTES
    activations = stored_per_layer * DEPTH * ACTIVATION_BYTES
    # At the turn from forward to backward all activations are alive, and a gradient or two.
    assert inputs + activations <= peak + ACTIVATION_BYTES
    assert peak <= inputs + activations + 3 * ACTIVATION_BYTES


def test_late_updates_keep_every_gradient_until_the_last():
    wide = 512
    graph = step_graph(_relu_step_flat, *[(wide, wide)] * DEPTH, (8, wide))
    kinds = phases(graph, {n: n for n in range(len(graph.outputs) - 1)})
    peaks = []
    for updates in ("early", "late"):
        donated = {i: i for i in range(DEPTH)}
        live = buffers(
            graph, _kernels(graph, "cuda"), kinds, donated, _wide(graph), Places(updates)
        )
        sizes = np.array([graph.values[v].n_bytes for v in live.value])
        alive = np.zeros(live.n_positions + 1)
        np.add.at(alive, live.birth, sizes)
        np.add.at(alive, live.death + 1, -sizes)
        peaks.append(alive.cumsum().max())
    gradient = 4 * wide * wide
    assert peaks[0] < (DEPTH + 3) * gradient
    assert peaks[1] >= 2 * DEPTH * gradient


def _scanned_loss(head, weights, x):
    x = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]
    return ((x @ head) ** 2).sum()


def test_late_gradients_of_weights_come_after_the_products_that_others_wait_for():
    """The head's behind the loop, a layer's behind the gradient that goes on to the layer before;
    early ones as soon as what they are made of is there.
    """

    def step(head, weights, x):
        grads = jax.grad(_scanned_loss, argnums=(0, 1))(head, weights, x)
        return head - grads[0], weights - grads[1]

    wide = 64
    graph = step_graph(step, (WIDTH, wide), (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    kinds = phases(graph, {0: 0, 1: 1})
    by_dims = {
        graph.values[op.outputs[0]].dims: index
        for index, op in enumerate(graph.ops)
        if op.opcode == "dot" and kinds[index] is Phase.BACKWARD
    }
    (loop,) = (end for enter, end in graph.exit_by_entry.items() if kinds[enter] is Phase.BACKWARD)
    in_loop = {dims: n for dims, n in by_dims.items() if graph.outermost_region.get(n) is not None}
    (head,) = (n for dims, n in by_dims.items() if wide in dims)
    going_on, weights = in_loop[ROWS, WIDTH], in_loop[WIDTH, WIDTH]
    for updates in ("early", "late"):
        live = buffers(graph, _kernels(graph, "cuda"), kinds, {}, _wide(graph), Places(updates))
        at = live.position_of_op
        assert (at[head] > at[loop]) == (updates == "late")
        assert at[going_on] < at[loop]
        assert at[weights] < at[loop]
    assert at[weights] > at[going_on]


def test_what_reads_an_array_and_its_sums_writes_over_it_only_where_told():
    def step(x):
        first = jnp.sort(x)
        return jnp.sort(first / first.sum(0))

    graph = step_graph(step, (64, 64))
    first = next(op for op in graph.ops if op.opcode == "sort").outputs[0]
    (divided,) = (op.outputs[0] for op in graph.ops if op.opcode == "divide")
    for beside in ("in place", "anew"):
        kinds = [Phase.FORWARD] * len(graph.ops)
        places = Places(beside_sums=beside)
        live = buffers(graph, _kernels(graph, "cuda"), kinds, {}, _wide(graph), places)
        number = {int(value): b for b, value in enumerate(live.value)}
        overlap = live.death[number[first]] >= live.birth[number[divided]]
        assert overlap == (beside == "anew")


@pytest.mark.parametrize(
    ("is_last", "make"), [(True, jnp.exp), (False, jnp.exp), (True, jnp.cumsum)]
)
def test_an_elementwise_kernel_writes_over_what_it_reads_last(is_last, make):
    """Sorts are kernels of their own: what is made of one is in memory, as the next reads it."""

    def step(x):
        first = jnp.sort(x)
        second = jnp.sort(make(first))
        return second if is_last else second + first

    graph = step_graph(step, (4096,))
    live = buffers(
        graph, _kernels(graph, "cpu"), [Phase.FORWARD] * len(graph.ops), {}, _wide(graph)
    )
    first, second = (op for op in graph.ops if op.opcode == "sort")
    buffer_by_value = {int(value): b for b, value in enumerate(live.value)}
    read, made = buffer_by_value[first.outputs[0]], buffer_by_value[second.inputs[0]]
    overlap = live.death[read] >= live.birth[made]
    assert overlap == (not is_last or make is jnp.cumsum)


def _narrow_inside(graph, opcode):
    narrow = narrow_values(graph)
    return [narrow[v] for op in graph.ops if op.opcode == opcode for v in op.outputs]


def test_what_only_products_read_is_narrow():
    graph = step_graph(lambda a, b: jnp.tanh(jnp.sin(a) @ b.T), (8, 16), (8, 16))
    assert _narrow_inside(graph, "sine") == [True]
    assert _narrow_inside(graph, "dot") == [False]  # tanh reads it
    assert _narrow_inside(graph, "tanh") == [False]  # a result of the step


def test_products_of_high_precision_read_whole_floats():
    graph = step_graph(
        lambda a, b: jnp.matmul(jnp.sin(a), b, precision="highest"), (8, 16), (16, 8)
    )
    assert _narrow_inside(graph, "sine") == [False]


def test_what_begins_to_arrive_early_is_in_memory_from_then_on():
    graph = step_graph(_relu_step_flat, *[(WIDTH, WIDTH)] * DEPTH, (ROWS, WIDTH))
    given = (graph, _kernels(graph, "cuda"), phases(graph, {}), {}, _wide(graph))
    plain = buffers(*given)
    made = int(plain.value[plain.birth.argmax()])
    early = buffers(*given, early={made: 0})
    assert plain.birth[plain.value == made] > 0
    assert early.birth[early.value == made] == plain.position_of_op[0]


def test_residuals_of_products_are_stacked_narrow_and_others_are_not():
    def loss(weights, x):
        def layer(c, w):
            # Of the sine the weight's gradient needs the value, a product; its own gradient the
            # cosine, as it is.
            return jnp.sin(c) @ w + c, None

        return lax.scan(layer, x, weights)[0].sum()

    shapes = [(DEPTH, WIDTH, WIDTH), (ROWS, WIDTH)]
    graph = step_graph(lambda w, x: jax.grad(loss)(w, x), *shapes)
    narrow = narrow_values(graph)
    stacks = [
        narrow[op.outputs[0]]
        for op in graph.ops
        if op.opcode == "dynamic-update-slice"
        and graph.values[op.outputs[0]].dims == (DEPTH, ROWS, WIDTH)
    ]
    assert sorted(stacks) == [False, True]


def test_a_loop_that_multiplies_what_it_does_not_change_has_a_rounded_copy():
    def step(weights, x):
        grown = lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ weights), x)
        return grown, weights * 2

    graph = step_graph(step, (WIDTH, WIDTH), (ROWS, WIDTH))
    narrow = narrow_values(graph)
    sizes = stored_bytes(graph, narrow)
    live = buffers(
        graph, kernels(graph, backend_for("tpu").fuser, sizes), phases(graph, {}), {}, narrow
    )
    stored = sorted(sizes[v] for v in live.value if graph.values[v].dims == (WIDTH, WIDTH))
    whole = 4 * WIDTH * WIDTH
    assert stored == [whole // 2, whole, whole]  # the copy, the input, the result


def test_narrow_values_are_a_fixed_point_that_no_value_could_join():
    graph = step_graph(_relu_step_flat, *[(WIDTH, WIDTH)] * DEPTH, (ROWS, WIDTH))
    narrow = narrow_values(graph)
    for value, users in enumerate(graph.users):
        if narrow[value]:
            assert graph.values[value].dtype == "f32" and value not in graph.outputs
            for user in (graph.ops[u] for u in users):
                assert user.opcode == "dot" or any(narrow[v] for v in user.outputs)
