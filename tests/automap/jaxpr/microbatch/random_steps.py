"""Random train steps: a few operations, each on values made before, then a loss of the last ones.

A program is a list of (operation, operand, operand). An operation that does not fit its operands'
shapes gives its first operand back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax, numpy as jnp

from tests.automap.jaxpr.microbatch.small_steps import WIDTH


Instruction = tuple[str, int, int]


def _scan_layers(a, b, w, y):
    body = jax.checkpoint(lambda h, s: (jnp.tanh(h @ w * s), h.sum(-1)))
    last, sums = lax.scan(body, a, jnp.arange(1.0, 3.0))
    return last + sums[0][..., None] + b


def _scan_first(a, b, w, y):
    return lax.scan(lambda h, row: (h + row, h * row), jnp.zeros(a.shape[1:]), a)[1]


def _two_branches(a, b, w, y):
    return lax.cond(w[0, 0] > 0, lambda: a * 2 + b, lambda: jnp.sin(a))


def _random_mask(a, b, w, y):
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, a.shape), a, b)


# Each takes values a and b, the parameters w [6, 6] and the labels y [batch].
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, w, y: a + b,
    "argmax": lambda a, b, w, y: jax.nn.one_hot(a.argmax(-1), WIDTH) * b,
    "average": lambda a, b, w, y: b + a.mean(0),
    "centre": lambda a, b, w, y: a - a.mean(-1, keepdims=True),
    "centre first": lambda a, b, w, y: a - a.mean(0, keepdims=True),
    "columns": lambda a, b, w, y: jnp.concatenate([a[..., :2], b[..., 2:]], -1),
    "cumsum": lambda a, b, w, y: jnp.cumsum(a, -1),
    "cumsum first": lambda a, b, w, y: jnp.cumsum(a, 0),
    "cut": lambda a, b, w, y: a[: b.shape[0]],
    "divide by sum": lambda a, b, w, y: a / (1 + (b * b).sum()),
    "double": lambda a, b, w, y: jnp.concatenate([a, b], 0),
    "embed": lambda a, b, w, y: a + w[y],
    "embed by mask": lambda a, b, w, y: w[(a > 0).sum(-1) % WIDTH] * b,
    "expand": lambda a, b, w, y: a[:, None],
    "flip": lambda a, b, w, y: a[:, ::-1],
    "flip first": lambda a, b, w, y: a[::-1],
    "half": lambda a, b, w, y: a[: a.shape[0] // 2],
    "interleave": lambda a, b, w, y: jnp.stack([a, b], 1).reshape(-1, *a.shape[1:]),
    "join": lambda a, b, w, y: a.reshape(-1, *a.shape[2:]),
    "largest": lambda a, b, w, y: a * (b == b.max(-1, keepdims=True)),
    "matmul": lambda a, b, w, y: a @ w,
    "matmul first": lambda a, b, w, y: jnp.tensordot(a, b, ((0,), (0,))),
    "multiply": lambda a, b, w, y: a * b,
    "number": lambda a, b, w, y: (
        a * jnp.arange(1.0, 1 + a.shape[0]).reshape(-1, *[1] * (a.ndim - 1))
    ),
    "outer": lambda a, b, w, y: jnp.tanh(a @ b.T),
    "outer inside": lambda a, b, w, y: jnp.einsum("bi,bj->bij", a, b),
    "own label": lambda a, b, w, y: a * a[jnp.arange(a.shape[0]), y][:, None],
    "own row": lambda a, b, w, y: b * a[jnp.arange(a.shape[0])],
    "label": lambda a, b, w, y: jnp.take_along_axis(a, y[:, None], 1) * b,
    "row by label": lambda a, b, w, y: a[y] * b,
    "pad": lambda a, b, w, y: jnp.pad(a, ((1, 0), *[(0, 0)] * (a.ndim - 1)))[:-1],
    "pairs": lambda a, b, w, y: a.reshape(2, -1, *a.shape[1:]),
    "pairs inside": lambda a, b, w, y: a.reshape(-1, 2, *a.shape[1:]),
    "random mask": _random_mask,
    "roll": lambda a, b, w, y: jnp.roll(a, 1, -1),
    "roll first": lambda a, b, w, y: jnp.roll(a, 1, 0),
    "scale by sum": lambda a, b, w, y: a * b.mean(),
    "scan first": _scan_first,
    "scan layers": _scan_layers,
    "smallest": lambda a, b, w, y: jnp.minimum(a, b),
    "softmax": lambda a, b, w, y: jax.nn.softmax(a),
    "softmax first": lambda a, b, w, y: jax.nn.softmax(a, 0),
    "sort": lambda a, b, w, y: jnp.sort(a, -1),
    "sort first": lambda a, b, w, y: jnp.sort(a, 0),
    "split": lambda a, b, w, y: jnp.multiply(*jnp.split(a, 2)),
    "stack": lambda a, b, w, y: jnp.stack([a, b]),
    "sum": lambda a, b, w, y: a * jnp.tanh(b.sum(-1, keepdims=True)),
    "swap": lambda a, b, w, y: jnp.swapaxes(a, 0, 1),
    "tanh": lambda a, b, w, y: jnp.tanh(a),
    "two branches": _two_branches,
    "unstack": lambda a, b, w, y: a[0],
    "write": lambda a, b, w, y: jnp.zeros_like(a).at[y].add(a) * b,
    "write column": lambda a, b, w, y: a.at[:, 1].set(b[:, 0]),
    "write own": lambda a, b, w, y: (
        jnp.zeros_like(a).at[jnp.arange(a.shape[0]), y].add(a[:, 0]) + b
    ),
    "write table": lambda a, b, w, y: b @ jnp.zeros_like(w).at[y].add(a),
}  # fmt: skip
LARGEST = 2000


def random_step(program: Sequence[Instruction]) -> Callable[..., Any]:
    """The step `(w, x, y) -> (w, outputs)` of a program."""

    def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        values = [x, jnp.tanh(x @ w)]
        for name, first, second in program:
            a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
            values.append(_applied(name, a, b, w, y))
        return sum(jnp.tanh(v).mean() for v in values[-2:]), (values[-1], values[-2].sum())

    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        (value, outputs), gradient = jax.value_and_grad(loss, has_aux=True)(w, x, y)
        return w - gradient, (value, outputs)

    return step


def _applied(name: str, a: jax.Array, b: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
    try:
        result = OPERATIONS[name](a, b, w, y)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return a
    return result if 0 < result.size <= LARGEST and result.ndim else a
