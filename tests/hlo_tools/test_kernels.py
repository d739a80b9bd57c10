"""What is stored, read and alive: small steps with the answer by hand."""

import jax
from jax import lax, numpy as jnp
import numpy as np
import pytest

from hlo_tools.flatten import flatten
from hlo_tools.graph import DTYPE_BITS
from hlo_tools.kernels import FUSERS, kernels
from hlo_tools.liveness import buffers
from hlo_tools.phases import phases
from hlo_tools.proto import decode_module
from hlo_tools.read import read_bytes


DEPTH, ROWS, WIDTH = 6, 256, 32
ACTIVATION_BYTES = 4 * ROWS * WIDTH


def _lowered(step, *shapes):
    args = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]
    return jax.jit(step, keep_unused=True).lower(*args)


def _graph(step, *shapes):
    proto = _lowered(step, *shapes).compiler_ir("hlo").as_serialized_hlo_module_proto()
    return flatten(decode_module(proto))


def _relu_chain(weights, x):
    for i in range(DEPTH):
        x = jax.nn.relu(x @ weights[i])
    return x.sum()


def _relu_step(weights, x):
    loss, grads = jax.value_and_grad(_relu_chain)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def _scanned(weights, x):
    return lax.scan(lambda c, w: (jax.nn.relu(c @ w), None), x, weights)[0].sum()


@pytest.mark.parametrize(("platform", "stored_per_layer"), [("cpu", 2), ("cuda", 2), ("tpu", 1)])
def test_a_relu_is_stored_where_contractions_load_their_operands(platform, stored_per_layer):
    graph = _graph(_relu_chain, (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    written = [
        a
        for k in kernels(graph, FUSERS[platform])
        for a in k.writes
        if a.n_bytes == ACTIVATION_BYTES
    ]
    # The last relu feeds a sum, which computes it on the way.
    assert len(written) == stored_per_layer * (DEPTH - 1) + 1


def test_a_loop_reads_one_layer_of_its_stack_at_a_time():
    graph = _graph(_scanned, (DEPTH, WIDTH, WIDTH), (ROWS, WIDTH))
    (dot,) = [k for k in kernels(graph, FUSERS["tpu"]) if graph.ops[k.op].opcode == "dot"]
    loop_counter = 4
    assert {a.n_bytes for a in dot.reads} == {ACTIVATION_BYTES, 4 * WIDTH * WIDTH, loop_counter}


def test_a_gather_reads_the_rows_it_returns():
    graph = _graph(lambda table: table[jnp.arange(4) * 2], (1000, WIDTH))
    (gather,) = [k for k in kernels(graph, FUSERS["cpu"]) if graph.ops[k.op].opcode == "gather"]
    assert sum(a.n_bytes for a in gather.reads) <= 4 * WIDTH * 4 + 64


def _peak_bytes(graph, platform):
    live = buffers(
        graph,
        kernels(graph, FUSERS[platform]),
        phases(graph, frozenset(range(len(graph.outputs) - 1))),
        {},
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
    as_text = flatten(read_bytes(module.as_hlo_text().encode(), "text"))
    peak = _peak_bytes(as_traced, platform)
    assert abs(peak - _peak_bytes(as_text, platform)) <= ACTIVATION_BYTES
    stored_per_layer = 1 if platform == "tpu" else 2
    inputs = 4 * DEPTH * WIDTH * WIDTH + ACTIVATION_BYTES
    activations = stored_per_layer * DEPTH * ACTIVATION_BYTES
    # At the turn from forward to backward all activations are alive, and a gradient or two.
    assert inputs + activations <= peak + ACTIVATION_BYTES
    assert peak <= inputs + activations + 3 * ACTIVATION_BYTES
