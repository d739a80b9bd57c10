"""What is written before it is joined, cut or handed to a call, as libtpu 0.0.51 does for v5e."""

from jax import lax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.widths import stored_bytes
from hlo_tools.opcodes import SLICE
from tests.hlo_tools.graphs import step_graph, text_graph


ROWS, WIDTH = 256, 512


def _written(graph, platform="tpu"):
    """What is written and no result."""
    n_bytes = stored_bytes(graph, [False] * len(graph.values))
    every = kernels(graph, backend_for(platform).fuser, n_bytes)
    return {a.value for kernel in every for a in kernel.writes} - set(graph.outputs)


def _opcodes(graph, platform="tpu"):
    written = _written(graph, platform)
    return sorted(graph.ops[graph.values[value].producer].opcode for value in written)


def _rotary(x, y):
    a, b = jnp.split(jnp.exp(x), 2, -1)
    c, s = y[:, : WIDTH // 2], y[:, WIDTH // 2 :]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def _rotated(x, y):
    a, b = jnp.split(jnp.exp(x), 2, -1)
    return jnp.exp(x) * y + jnp.concatenate([-b, a], -1)


def _join(x, y):
    return jnp.concatenate([jnp.tanh(x), jnp.exp(y)], -1)


def _spaced(x):
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 1, 1), (0, 0, 0)])


def _ends_off(x, low, high):
    return lax.pad(x, jnp.zeros((), x.dtype), [(-low, -high, 0), (0, 0, 0)])


@pytest.mark.parametrize(
    ("step", "written"),
    [
        pytest.param(_join, ["exponential", "tanh"], id="joined"),
        pytest.param(lambda x, y: jnp.tanh(_join(x, y)), ["exponential", "tanh"], id="and used"),
        pytest.param(
            lambda x, y: jnp.concatenate([jnp.tanh(x), y], 0), ["tanh"], id="joined with an input"
        ),
        pytest.param(lambda x, y: jnp.concatenate([x, y], 1), [], id="inputs"),
        pytest.param(lambda x, y: _join(x, y).sum(-1), [], id="joined and summed"),
        pytest.param(
            lambda x, y: jnp.pad(jnp.tanh(x), ((0, 0), (1, 1))) * 2, ["tanh"], id="padded"
        ),
        pytest.param(lambda x, y: jnp.tanh(x)[::-1] * 2, ["tanh"], id="reversed"),
        pytest.param(lambda x, y: jnp.tanh(x)[:, 1:] * 2, [], id="cut once"),
        pytest.param(
            lambda x, y: (lambda z: z[:, 1:] - z[:, :-1])(jnp.tanh(x)), ["tanh"], id="cut twice"
        ),
        pytest.param(
            lambda x, y: (lambda z: z[:, 1:] - z[:, :-1])(x), [], id="an input that is cut"
        ),
        pytest.param(
            lambda x, y: _spaced(jnp.tanh(x)) + _spaced(y), ["pad", "pad", "tanh"], id="spaced"
        ),
        pytest.param(
            lambda x, y: _spaced(jnp.concatenate([x, y])) * 2,
            ["concatenate", "pad"],
            id="joined, then spaced",
        ),
        pytest.param(lambda x, y: x[1:][::2] * y[:128], [], id="skipped through"),
        pytest.param(
            lambda x, y: x[1:][::2] * x[:-1][::2] + y[:128], ["slice", "slice"], id="twins"
        ),
        pytest.param(
            lambda x, y: _ends_off(x, 1, 0)[::2] * _ends_off(x, 0, 1)[::2] + y[:128],
            ["pad", "pad"],
            id="twins of gradients",
        ),
        pytest.param(lambda x, y: x[2:][::2] * x[:-3][::2] + y[:127], [], id="of two sizes"),
        pytest.param(lambda x, y: x[1:] * x[:-1] + y[1:], [], id="used whole"),
        pytest.param(lambda x, y: x[1:][:9] * x[:-1][:9] + y[:9], [], id="ends of ends"),
        pytest.param(lambda x, y: x * jnp.exp(y[0]), ["exponential"], id="a row for all rows"),
        pytest.param(lambda x, y: x * (1 + y[:, 0])[:, None], ["add"], id="a number of each row"),
        pytest.param(
            lambda x, y: x - y.mean(-1, keepdims=True), ["divide", "reduce"], id="means of rows"
        ),
        pytest.param(lambda x, y: x * y[:, :1], [], id="nothing computed"),
        pytest.param(lambda x, y: x * jnp.exp(y[0, 0]), [], id="a scalar"),
        pytest.param(lambda x, y: x * jnp.exp(jnp.arange(1.0, 513.0)), [], id="the same always"),
        pytest.param(_rotary, ["add", "exponential", "subtract"], id="rotary embeddings"),
        pytest.param(_rotated, ["exponential", "negate", "slice"], id="rotated halves"),
    ],
)
def test_what_is_moved_is_written_first(step, written):
    graph = step_graph(step, (ROWS, WIDTH), (ROWS, WIDTH))
    assert _opcodes(graph) == written


def test_on_a_gpu_what_is_joined_is_computed_where_it_is():
    graph = step_graph(_rotary, (ROWS, WIDTH), (ROWS, WIDTH))
    assert SLICE not in _opcodes(graph, "cuda")
    assert "subtract" not in _opcodes(graph, "cuda")


CALL = """
ENTRY main {
  x = f32[256,128] parameter(0)
  y = bf16[8,256] parameter(1)
  sum = f32[8,256] convert(y)
  wide = f32[8,256,512] broadcast(sum), dimensions={0,1}
  turned = f32[128,256] transpose(x), dimensions={1,0}
  flat = f32[32768] reshape(x)
  ROOT call = f32[8,256] custom-call(wide, turned, flat), custom_call_target="attention"
}
"""


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_calls_are_given_arrays(platform):
    """Statistics of rows that a kernel of the user's wants 512 times side by side, and heads that
    it wants in another order, are written; a reshape is the same array.
    """
    # What is computed of statistics before they are repeated is made once on TPUs.
    once = ["convert"] if platform == "tpu" else []
    assert _opcodes(text_graph(CALL), platform) == sorted(["broadcast", "transpose", *once])
