"""What is alive at once: small steps with the peak by hand."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.liveness import buffers
from hlo_tools.analyses.narrow import stored_bytes
from hlo_tools.analyses.phases import Phase, phases
from hlo_tools.graph import DTYPE_BITS, flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module
from tests.hlo_tools.graphs import graph_of


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
    graph = graph_of(_relu_step_flat, *[(wide, wide)] * DEPTH, (8, wide))
    kinds = phases(graph, {n: n for n in range(len(graph.outputs) - 1)})
    peaks = []
    for updates in ("early", "late"):
        donated = {i: i for i in range(DEPTH)}
        live = buffers(graph, _kernels(graph, "cuda"), kinds, donated, _wide(graph), updates)
        sizes = np.array([graph.values[v].n_bytes for v in live.value])
        alive = np.zeros(live.n_positions + 1)
        np.add.at(alive, live.birth, sizes)
        np.add.at(alive, live.death + 1, -sizes)
        peaks.append(alive.cumsum().max())
    gradient = 4 * wide * wide
    assert peaks[0] < (DEPTH + 3) * gradient
    assert peaks[1] >= 2 * DEPTH * gradient


@pytest.mark.parametrize(
    ("is_last", "make"), [(True, jnp.exp), (False, jnp.exp), (True, jnp.cumsum)]
)
def test_an_elementwise_kernel_writes_over_what_it_reads_last(is_last, make):
    """Sorts are kernels of their own: what is made of one is in memory, as the next one reads it."""

    def step(x):
        first = jnp.sort(x)
        second = jnp.sort(make(first))
        return second if is_last else second + first

    graph = graph_of(step, (4096,))
    live = buffers(
        graph, _kernels(graph, "cpu"), [Phase.FORWARD] * len(graph.ops), {}, _wide(graph)
    )
    first, second = (op for op in graph.ops if op.opcode == "sort")
    buffer_of = {int(value): b for b, value in enumerate(live.value)}
    read, made = buffer_of[first.outputs[0]], buffer_of[second.inputs[0]]
    overlap = live.death[read] >= live.birth[made]
    assert overlap == (not is_last or make is jnp.cumsum)
