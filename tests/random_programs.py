"""Random programs over all families of rules, as functions of float32 arrays.

A program is a list of steps; a step makes one array from arrays made before. Every family is a
function (random source, shapes so far) -> step, or None where no array suits it. Sizes are small
and awkward.
"""

from collections.abc import Callable
from dataclasses import dataclass
import math
from random import Random
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp


SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
MAX_ELEMENTS = 4096
Shape = tuple[int, ...]
Step = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Program:
    """Shapes of the inputs and the steps; `run` returns the arrays that no step uses."""

    inputs: tuple[Shape, ...]
    steps: tuple[tuple[str, Step], ...]

    def run(self, *inputs):
        arrays = list(inputs)
        for _, step in self.steps:
            # Bounded, so that no chain of products overflows.
            arrays.append(jnp.tanh(step(arrays).astype(jnp.float32)))
        return tuple(arrays[len(inputs) :])

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the steps' families."""
        return tuple(name for name, _ in self.steps)


def random_program(rng: Random, most_steps: int) -> Program:
    """Between 3 and `most_steps` steps."""
    inputs = tuple(_random_shape(rng) for _ in range(rng.randint(2, 4)))
    shapes, steps = list(inputs), []
    for _ in range(rng.randint(3, most_steps)):
        name = rng.choice(sorted(FAMILIES))
        step = FAMILIES[name](rng, shapes)
        if step is None:
            continue
        made = jax.eval_shape(
            lambda *a, step=step: step(list(a)),
            *(jax.ShapeDtypeStruct(s, "float32") for s in shapes),
        )
        if 0 < math.prod(made.shape) <= MAX_ELEMENTS:
            shapes.append(made.shape)
            steps.append((name, step))
    return Program(inputs, tuple(steps))


def _random_shape(rng: Random) -> Shape:
    shape = tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 4)))
    return shape if math.prod(shape) <= MAX_ELEMENTS else shape[:2]


def _pick(rng: Random, shapes: list[Shape], rank: int = 0) -> int | None:
    """The number of some array of at least `rank` dimensions."""
    fitting = [n for n, s in enumerate(shapes) if len(s) >= rank]
    return rng.choice(fitting) if fitting else None


def _on_one(make: Callable[[Random, Shape], Callable[[Any], Any] | None], rank: int = 1):
    """A family of steps on one array."""

    def family(rng: Random, shapes: list[Shape]) -> Step | None:
        n = _pick(rng, shapes, rank)
        apply = None if n is None else make(rng, shapes[n])
        return None if apply is None else lambda arrays: apply(arrays[n])

    return family


def _unary(rng, shape):
    return rng.choice([jnp.sin, jnp.abs, jnp.negative, jnp.square, lax.logistic, jnp.exp])


def _binary(rng: Random, shapes: list[Shape]) -> Step:
    a = _pick(rng, shapes)
    b = rng.choice([n for n, s in enumerate(shapes) if s == shapes[a]])
    op = rng.choice([jnp.add, jnp.multiply, jnp.maximum, lambda x, y: jnp.where(x > y, x, y)])
    return lambda arrays: op(arrays[a], arrays[b])


def _broadcast(rng, shape):
    new = (*shape[:1], rng.choice(SIZES), *shape[1:])
    dims = (0, *range(2, len(new)))
    return lambda x: lax.broadcast_in_dim(x, new, dims)


def _reshape(rng, shape):
    if len(shape) > 1 and rng.random() < 0.6:
        at = rng.randrange(len(shape) - 1)
        new = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    else:
        at = rng.randrange(len(shape))
        part = rng.choice([d for d in range(1, shape[at] + 1) if shape[at] % d == 0])
        new = (*shape[:at], part, shape[at] // part, *shape[at + 1 :])
    return lambda x: x.reshape(new)


def _transpose(rng, shape):
    order = rng.sample(range(len(shape)), len(shape))
    return lambda x: x.transpose(order)


def _matmul(rng: Random, shapes: list[Shape]) -> Step | None:
    pairs = [
        (a, i, b, j)
        for a, s in enumerate(shapes)
        for b, t in enumerate(shapes)
        for i, n in enumerate(s)
        for j, m in enumerate(t)
        if n == m and math.prod(s) * math.prod(t) // (n * m) <= MAX_ELEMENTS
    ]
    if not pairs:
        return None
    a, i, b, j = rng.choice(pairs)
    rest = [(k, m) for k in range(len(shapes[a])) for m in range(len(shapes[b]))]
    rest = [(k, m) for k, m in rest if k != i and m != j and shapes[a][k] == shapes[b][m]]
    batch = rng.choice(rest) if rest and rng.random() < 0.4 else None
    lhs_batch, rhs_batch = ([], []) if batch is None else ([batch[0]], [batch[1]])
    numbers = (([i], [j]), (lhs_batch, rhs_batch))
    return lambda arrays: lax.dot_general(arrays[a], arrays[b], numbers)


def _convolution(rng: Random, shapes: list[Shape]) -> Step | None:
    n = _pick(rng, shapes, 3)
    if n is None or len(shapes[n]) != 3:
        return None
    batch, length, features = shapes[n]
    size, groups = rng.choice([1, 2, 3]), rng.choice([1, features])
    out = rng.choice([2, 4, 8]) * groups
    options = {
        "window_strides": (rng.choice([1, 2]),),
        "padding": rng.choice(["SAME", "VALID"]),
        "feature_group_count": groups,
        "dimension_numbers": ("NWC", "WIO", "NWC"),
    }
    if length < size or out > 64:
        return None

    def step(arrays):
        # A kernel that depends on the data, and on no other array's shape.
        scale = arrays[n].mean()
        kernel = jnp.cos(jnp.arange(size * features // groups * out, dtype=jnp.float32))
        kernel = kernel.reshape(size, features // groups, out) * scale
        return lax.conv_general_dilated(arrays[n], kernel, **options)

    return step


def _reduce(rng, shape):
    axes = tuple(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    op = rng.choice([jnp.sum, jnp.max, jnp.min, jnp.prod])
    return lambda x: op(x, axis=axes)


def _argmax(rng, shape):
    axis = rng.randrange(len(shape))
    # In coarse steps: the last bits of a sum say nothing about which of two equal values is larger.
    return lambda x: jnp.argmax(jnp.floor(x * 8 + 0.37), axis=axis)


def _cumulative(rng, shape):
    axis = rng.randrange(len(shape))
    op = rng.choice([lax.cumsum, lax.cummax])
    return lambda x: op(x, axis)


def _pool(rng, shape):
    axis = rng.randrange(len(shape))
    size, stride = rng.choice([(2, 2), (3, 1), (3, 2), (2, 1)])
    if shape[axis] < size:
        return None
    window = tuple(size if d == axis else 1 for d in range(len(shape)))
    strides = tuple(stride if d == axis else 1 for d in range(len(shape)))
    padding = rng.choice(["SAME", "VALID"])

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    if rng.random() < 0.5:
        return pool
    return lambda x: jax.grad(lambda y: jnp.sin(pool(y)).sum())(x)


def _number(x: Any) -> Any:
    """A small number that depends on the data, not on the order in which a device adds it up."""
    return jnp.floor(jnp.abs(x.mean() * 50 + 0.37)).astype(jnp.int32)


def _indices(rng: Random, arrays_shape: Shape, rows: int) -> Callable[[Any], Any]:
    """Indices below `rows` that depend on the data."""
    count = rng.choice([2, 3, 4, 8])

    def make(x):
        return (_number(x) + jnp.arange(count, dtype=jnp.int32) * 7) % rows

    return make


def _take(rng, shape):
    axis = rng.randrange(len(shape))
    indices = _indices(rng, shape, shape[axis])
    mode = rng.choice(["clip", "fill"])
    return lambda x: jnp.take(x, indices(x), axis=axis, mode=mode)


def _scatter(rng, shape):
    indices, is_set = _indices(rng, shape, shape[0]), rng.random() < 0.3

    def step(x):
        # Unequal indices, or which of two values is set last is not defined.
        where = jnp.arange(1, dtype=jnp.int32) + indices(x)[:1] if is_set else indices(x)
        at = x.at[where % shape[0]]
        return at.set(2.0) if is_set else at.add(jnp.take(x, where % shape[0], axis=0) / 2)

    return step


def _slice(rng, shape):
    axis = rng.randrange(len(shape))
    start = rng.randrange(shape[axis])
    stop, stride = rng.randint(start + 1, shape[axis]), rng.choice([1, 1, 2])
    return lambda x: lax.slice_in_dim(x, start, stop, stride, axis)


def _dynamic_slice(rng, shape):
    axis = rng.randrange(len(shape))
    size = rng.randint(1, shape[axis])
    index = _indices(rng, shape, shape[axis])
    is_update = rng.random() < 0.5

    def step(x):
        start = index(x)[0]
        part = lax.dynamic_slice_in_dim(x, start, size, axis)
        return lax.dynamic_update_slice_in_dim(x, part * 2, start // 2, axis) if is_update else part

    return step


def _concatenate(rng: Random, shapes: list[Shape]) -> Step:
    a = _pick(rng, shapes, 1)
    axis = rng.randrange(len(shapes[a]))

    def alike(shape):
        return len(shape) == len(shapes[a]) and all(
            n == m for d, (n, m) in enumerate(zip(shape, shapes[a])) if d != axis
        )

    b = rng.choice([n for n, s in enumerate(shapes) if alike(s)])
    return lambda arrays: jnp.concatenate([arrays[a], arrays[b]], axis)


def _pad(rng, shape):
    widths = [(rng.randrange(3), rng.randrange(3), rng.randrange(2)) for _ in shape]
    return lambda x: lax.pad(x, 0.5, widths)


def _reverse(rng, shape):
    axis = rng.randrange(len(shape))
    return lambda x: lax.rev(x, (axis,))


def _sort(rng, shape):
    axis = rng.randrange(len(shape))
    return lambda x: jnp.sort(x, axis=axis)


def _top_k(rng, shape):
    k = rng.randint(1, shape[-1])
    return lambda x: lax.top_k(x, k)[0]


def _fft(rng, shape):
    return lambda x: jnp.fft.fft(x).real


def _cholesky(rng, shape):
    if shape[-1] > 8:
        return None
    n = shape[-2]

    def step(x):
        a = jnp.einsum("...ik,...jk->...ij", x, x) + n * jnp.eye(n)
        return lax.linalg.triangular_solve(lax.linalg.cholesky(a), x, left_side=True, lower=True)

    return step


def _branch(rng, shape):
    return lambda x: lax.cond(x.mean() > 0.01, jnp.sin, lambda y: y * 2, x)


def _loop(rng, shape):
    trips = rng.randint(1, 4)
    if rng.random() < 0.5:
        return lambda x: lax.fori_loop(0, trips, lambda i, c: jnp.sin(c) + x / 2, x)
    return lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c * y), x[0], x)[1]


def _random_bits(rng, shape):
    seed = rng.randrange(100)

    def step(x):
        key = jax.random.fold_in(jax.random.key(seed), _number(x))
        return x * jax.random.uniform(key, shape)

    return step


def _barrier(rng, shape):
    return lambda x: lax.optimization_barrier(x) + 1


FAMILIES: dict[str, Callable[[Random, list[Shape]], Step | None]] = {
    "unary": _on_one(_unary),
    "binary": _binary,
    "broadcast": _on_one(_broadcast),
    "reshape": _on_one(_reshape),
    "transpose": _on_one(_transpose, 2),
    "matmul": _matmul,
    "convolution": _convolution,
    "reduce": _on_one(_reduce),
    "argmax": _on_one(_argmax),
    "cumulative": _on_one(_cumulative),
    "pool": _on_one(_pool),
    "take": _on_one(_take),
    "scatter": _on_one(_scatter),
    "slice": _on_one(_slice),
    "dynamic slice": _on_one(_dynamic_slice),
    "concatenate": _concatenate,
    "pad": _on_one(_pad),
    "reverse": _on_one(_reverse),
    "sort": _on_one(_sort),
    "top k": _on_one(_top_k),
    "fft": _on_one(_fft),
    "cholesky": _on_one(_cholesky, 2),
    "branch": _on_one(_branch),
    "loop": _on_one(_loop),
    "random bits": _on_one(_random_bits),
    "barrier": _on_one(_barrier),
}
