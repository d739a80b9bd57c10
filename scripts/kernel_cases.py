"""Small steps of one kind of kernel each, over sizes: what GPUs are measured at kernel by kernel,
and compilers are asked for.

    products    of rows that are a multiple of 16 bytes and of others: x @ y, x @ y^T, x^T @ y, and
                attention's products of heads of 64
    rows        softmax with and without masks, and its gradients; norms; cross entropies; sums
    columns     sums over rows and volumes, normalization by batch
    scatters    additions to a table, at indices that are all the same, in runs, or drawn
    vectors     element by element, sums, casts, an update, of 2^13 to 2^26 numbers
    outer       sums of what is computed and never stored
    moves       padded arrays, numbers of one byte, and what is sliced, shifted and joined
    convolutions  chains of few and many examples and features

`scripts.measure_kernels` measures the first four, `scripts.compare_kernels` holds predictions
against that; `scripts.compare_tpu_kernels` holds them against the TPU compiler.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax import Array, lax, numpy as jnp
import numpy as np


BF, F32 = jnp.bfloat16, jnp.float32
_NUMBERS: Final = 2**26
_LOGITS: Final = 2**27


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """A step and its arguments; `group` is what it does, and `sizes` of what."""

    group: str
    sizes: str
    step: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As rows are called."""
        return f"{self.group} {self.sizes}"


def kernel_case(group: str, sizes: str, step: Callable[..., Any], *arrays: Any) -> KernelCase:
    """A case of a group and its sizes; `arrays` are (dimensions, type)."""
    args = tuple(jax.ShapeDtypeStruct(*array) for array in arrays)
    return KernelCase(group=group, sizes=sizes, step=step, args=args)


_PRODUCTS: Final = (
    *((4096, 4096, 1024), (4096, 4097, 1024), (4097, 4096, 1024), (4096, 4096, 1025)),
    *((4096, 4098, 1024), (4096, 4100, 1024), (4096, 4104, 1024), (4096, 4096, 1026)),
    *((4096, 4096, 1028), (512, 50257, 768), (512, 50304, 768), (16384, 50257, 768)),
    *((16384, 50304, 768), (1000, 1000, 1000), (1001, 1001, 1001), (8192, 1001, 2048)),
    *((8192, 1000, 2048), (4096, 300, 513), (4096, 304, 512)),
)


def products() -> Iterator[KernelCase]:
    """m x n x k, and positions of attention."""
    for dtype in (BF, F32):
        for m, n, k in _PRODUCTS:
            sizes = f"{m} x {n} x {k} {jnp.dtype(dtype).name}"
            yield kernel_case("x y", sizes, lambda a, b: a @ b, ((m, k), dtype), ((k, n), dtype))
            yield kernel_case(
                "x y^T", sizes, lambda a, b: a @ b.T, ((m, k), dtype), ((n, k), dtype)
            )
            yield kernel_case(
                "x^T y", sizes, lambda a, b: a.T @ b, ((k, m), dtype), ((k, n), dtype)
            )
    for positions in (197, 196, 200, 1500, 1504, 577, 576):
        heads = max(1, 2**26 // positions**2)
        narrow, wide = (((heads, positions, width), BF) for width in (64, positions))
        sizes = f"{heads} x {positions}"
        yield kernel_case(
            "scores", sizes, lambda q, k: jnp.einsum("bqd,bkd->bqk", q, k), narrow, narrow
        )
        yield kernel_case(
            "values", sizes, lambda a, v: jnp.einsum("bqk,bkd->bqd", a, v), wide, narrow
        )


def _softmax(x: Array) -> Array:
    return jax.nn.softmax(x.astype(F32) * 0.125, -1).astype(x.dtype)


def _softmax_gradient(p: Array, g: Array) -> Array:
    wide, g = p.astype(F32), g.astype(F32)
    return (wide * (g - (wide * g).sum(-1, keepdims=True))).astype(p.dtype)


def _softmax_again(x: Array, g: Array) -> Array:
    return jax.vjp(_softmax, x)[1](g)[0]


def _causal(x: Array) -> Array:
    mask = jnp.tril(jnp.ones(x.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, x.astype(F32) * 0.125, -1e30), -1).astype(x.dtype)


def _masked(x: Array, mask: Array) -> Array:
    return jax.nn.softmax(jnp.where(mask, x.astype(F32) * 0.125, -1e30), -1).astype(x.dtype)


def _added(x: Array, bias: Array) -> Array:
    return jax.nn.softmax(x.astype(F32) * 0.125 + bias, -1).astype(x.dtype)


def _causal_and_gradient(x: Array, g: Array) -> tuple[Array, Array]:
    y, gradient = jax.vjp(_causal, x)
    return y, gradient(g)[0]


def _layer_norm(x: Array, scale: Array) -> Array:
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-5) * scale).astype(x.dtype)


def _rms_norm(x: Array, scale: Array) -> Array:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _cross_entropy(logits: Array, labels: Array) -> Array:
    wide = logits.astype(F32)
    labelled = jnp.take_along_axis(wide, labels[:, None], -1)[:, 0]
    return (jax.nn.logsumexp(wide, -1) - labelled).mean()


def rows() -> Iterator[KernelCase]:
    """Rows of attention's weights, of norms, of vocabularies."""
    for row in (64, 128, 256, 384, 512, 640, 768, 1000, 1024, 1280, 1500, 1536, 2048, 3072, 4096):
        for dtype in (BF, F32):
            sizes, array = f"{row} {jnp.dtype(dtype).name}", ((_NUMBERS // row, row), dtype)
            yield kernel_case("softmax", sizes, _softmax, array)
            yield kernel_case("softmax, gradient", sizes, _softmax_gradient, array, array)
            if dtype is BF:
                yield kernel_case("softmax again, gradient", sizes, _softmax_again, array, array)
    for row in (256, 512, 1000, 1024, 1500, 2048, 4096):
        scores = ((max(1, _NUMBERS // (16 * row * row)), 16, row, row), BF)
        sizes = f"{row}"
        yield kernel_case("softmax of heads, causal", sizes, _causal, scores)
        yield kernel_case(
            "softmax of heads, mask given", sizes, _masked, scores, ((row, row), bool)
        )
        yield kernel_case("softmax of heads, bias", sizes, _added, scores, ((16, row, row), BF))
        yield kernel_case(
            "softmax and gradient, causal", sizes, _causal_and_gradient, scores, scores
        )
    for row in (256, 512, 768, 1024, 1152, 1536, 2048, 2304, 4096, 5120, 8192):
        array, scale = ((_NUMBERS // row, row), BF), ((row,), F32)
        for name, norm in (("layer norm", _layer_norm), ("RMS norm", _rms_norm)):
            yield kernel_case(name, f"{row}", norm, array, scale)
            yield kernel_case(f"{name}, gradient", f"{row}", _gradient(norm), array, scale, array)
    for words in (8192, 16384, 32000, 50257, 51865, 128256, 256128):
        labels = ((_LOGITS // words // 8 * 8,), jnp.int32)
        logits = ((*labels[0], words), BF)
        yield kernel_case("cross entropy", f"{words}", _cross_entropy, logits, labels)
        step = jax.value_and_grad(_cross_entropy)
        yield kernel_case("cross entropy, gradient", f"{words}", step, logits, labels)


def _gradient(norm: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    return lambda x, scale, g: jax.vjp(norm, x, scale)[1](g)


def _batch_norm(x: Array, scale: Array, bias: Array) -> Array:
    wide = x.astype(F32)
    mean = wide.mean((0, 1, 2))
    variance = (wide * wide).mean((0, 1, 2)) - mean * mean
    return jax.nn.relu((wide - mean) * lax.rsqrt(variance + 1e-5) * scale + bias).astype(x.dtype)


def columns() -> Iterator[KernelCase]:
    """Sums over all but the last dimension, and along short ones."""
    for width in (2, 3, 4, 8, 16, 32, 48, 49, 64, 96):
        array = ((_NUMBERS // width, width), F32)
        yield kernel_case("sum of short rows", f"{width}", lambda x: x.sum(-1), array)
    for row in (768, 1024, 2048, 4096):
        array = ((_NUMBERS // row, row), BF)
        yield kernel_case("sum over rows", f"{row}", lambda x: x.astype(F32).sum(0), array)
    for features, side in ((64, 112), (256, 56), (512, 28), (1024, 14)):
        images = ((_NUMBERS // (features * side * side), side, side, features), BF)
        scale, sizes = ((features,), F32), f"{features}"
        yield kernel_case("batch norm", sizes, _batch_norm, images, scale, scale)

        def gradient(x: Array, scale: Array, bias: Array, g: Array) -> Any:
            return jax.vjp(_batch_norm, x, scale, bias)[1](g)

        yield kernel_case("batch norm, gradient", sizes, gradient, images, scale, scale, images)


def adam(p: Array, m: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    """An update of parameters and moments by gradients `g`."""
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.001 * m / (jnp.sqrt(v) + 1e-8), m, v


def vectors() -> Iterator[KernelCase]:
    """Arrays of rows of 256."""
    for numbers in (2**13, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26):
        dims = (numbers // 256, 256)
        for dtype in (F32, BF):
            array, sizes = (dims, dtype), f"{numbers} {jnp.dtype(dtype).name}"
            yield kernel_case("scaled", sizes, lambda x: x * 2 + 1, array)
            yield kernel_case("sum of two", sizes, lambda x, y: x * 2 + y, array, array)
            yield kernel_case("GELU", sizes, jax.nn.gelu, array)
            yield kernel_case("gated", sizes, lambda x, y: jax.nn.silu(x) * y, array, array)
            yield kernel_case("two results", sizes, lambda x: (x * 2 + 1, jnp.tanh(x)), array)
            yield kernel_case("sines", sizes, jnp.sin, array)
            yield kernel_case(
                "exponentials, rows", sizes, lambda x: jnp.exp(_wide(x)).sum(-1), array
            )
            yield kernel_case(
                "exponentials, columns", sizes, lambda x: jnp.exp(_wide(x)).sum(0), array
            )
            yield kernel_case("sum of squares", sizes, lambda x: jnp.square(_wide(x)).sum(), array)
            yield kernel_case("dropout", sizes, _dropout, array, (dims, bool))
        yield kernel_case("Adam", f"{numbers}", adam, *[(dims, F32)] * 4)
        yield kernel_case("cast", f"{numbers}", lambda x: x.astype(BF), (dims, F32))


def _wide(x: Array) -> Array:
    return x.astype(F32)


def _dropout(x: Array, kept: Array) -> Array:
    return jnp.where(kept, x * 1.1, 0).astype(x.dtype)


def outer() -> Iterator[KernelCase]:
    """Of rows and a matrix: [rows, size] and [size, size] numbers, summed over one size."""
    for rows, size in ((16, 128), (16, 256), (64, 256), (64, 512), (128, 512)):
        x, y, sizes = ((rows, size), F32), ((size, size), F32), f"{rows} x {size} x {size}"
        yield kernel_case("sums of outer", sizes, lambda x, y: (x[:, :, None] + y).sum(1), x, y)
        yield kernel_case("maxima of outer", sizes, lambda x, y: (x[:, :, None] + y).max(1), x, y)
        yield kernel_case("log-sums of outer", sizes, _log_sums, x, y)
        yield kernel_case("distances", sizes, lambda x, y: jnp.square(x[:, None] - y).sum(-1), x, y)
        yield kernel_case("counts", sizes, lambda x, y: (x[:, None] < y).sum(-1), x, y)


def _log_sums(x: Array, y: Array) -> Array:
    return jax.nn.logsumexp(x[:, :, None] + y, axis=1)


_PADDED: Final = (
    *((4096, 8, 96), (1024, 17, 256), (1000, 1000), (4096, 1000), (512, 50, 130)),
    *((64, 7, 7, 512), (2048, 4, 64), (4096, 64), (300, 300, 16), (777, 333), (129, 129, 129)),
)


def moves() -> Iterator[KernelCase]:
    """Arrays that do not fill tiles, numbers of one byte, what is sliced, shifted and joined."""
    for dtype in (F32, BF):
        for dims in _PADDED:
            sizes = f"{'x'.join(map(str, dims))} {jnp.dtype(dtype).name}"
            yield kernel_case("padded", sizes, lambda x: x * 2, (dims, dtype))
        for rows, width in ((256, 1024), (512, 384), (128, 2048)):
            array, sizes = ((32, rows, width), dtype), f"{rows}x{width} {jnp.dtype(dtype).name}"
            yield kernel_case("shifted", sizes, lambda x: jnp.roll(x, 1, 1) + x, array)
            yield kernel_case("shifted both ways", sizes, _both_ways, array)
            yield kernel_case("shifted parts", sizes, _shifted_parts, array)
            yield kernel_case("neighbours", sizes, lambda x: x[1:] + x[:-1], array)
            yield kernel_case("quarters", sizes, _quarters, array)
            yield kernel_case("padded and multiplied", sizes, _behind, array)
    for size in (512, 1024, 2048, 4096):
        square = (size, size)
        yield kernel_case("bytes, added", f"{size}", lambda x: x + 1, (square, jnp.int8))
        yield kernel_case("compared", f"{size}", lambda x: x > 0, (square, F32))
        yield kernel_case(
            "one of several", f"{size}", _chosen, ((4, *square), jnp.int8), ((), jnp.int32)
        )


def _both_ways(x: Array) -> Array:
    return jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1) - 2 * x


def _shifted_parts(x: Array) -> Array:
    return jnp.concatenate([jnp.roll(part, 1, 1) for part in jnp.split(x, 2, -1)], -1) * 2


def _quarters(x: Array) -> Array:
    first, second, third, last = jnp.split(x, 4, -1)
    return first * second + third * last


def _behind(x: Array) -> Array:
    return jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0))) * x


def _chosen(x: Array, at: Array) -> Array:
    return x[at]


def convolutions() -> Iterator[KernelCase]:
    """Chains of three with their gradients, of few and many examples and features."""
    for examples in (1, 2, 4, 7, 8, 16, 64):
        for space, features in (((64, 64), 64), ((64, 64), 128), ((2048,), 128), ((32, 32), 256)):
            images = (examples, *space, features), BF
            kernels = [((*(3,) * len(space), features, features), BF)] * 3
            group = "convolutions of few examples" if examples < 8 else "convolutions"
            sizes = f"{examples}x{'x'.join(map(str, space))}x{features}"
            yield kernel_case(group, sizes, _convolved, images, *kernels)


def _convolved(x: Array, *kernels: Array) -> Any:
    space = "HW" if x.ndim == 4 else "W"

    def loss(kernels: tuple[Array, ...]) -> Array:
        y = x
        for kernel in kernels:
            dims, strides = (f"N{space}C", f"{space}IO", f"N{space}C"), (1,) * len(space)
            y = lax.conv_general_dilated(y, kernel, strides, "SAME", dimension_numbers=dims)
            y = jax.nn.relu(y)
        return jnp.square(_wide(y)).sum()

    return jax.grad(loss)(kernels)


_SCATTERS: Final = (
    *((1, 1, 256), (1, 1, 1024), (1, 1, 4096), (1, 1, 16384), (8, 1, 8192), (64, 1, 65536)),
    *((1024, 1, 2**16), (1024, 1, 2**18), (32, 12, 1024), (32, 12, 16384), (32, 64, 4096)),
    *(
        (32, 768, 2048),
        (512, 768, 8192),
        (32000, 768, 8192),
        (32000, 768, 32768),
        (2**20, 1, 2**18),
    ),
)
_MOST_OF_ONE_ROW: Final = 64


def scatters() -> Iterator[KernelCase]:
    """Updates of rows of a table, and gradients of T5's tables of relative positions."""
    for dtype in (BF, F32):
        for table_rows, width, updates in _SCATTERS:
            drawn = {
                "same": np.zeros(updates, np.int32),
                "runs": np.arange(updates) * table_rows // updates,
                "drawn": np.random.default_rng(1).integers(0, table_rows, updates),
            }
            for pattern, indices in drawn.items():
                if pattern == "same" and table_rows > _MOST_OF_ONE_ROW:
                    continue
                yield KernelCase(
                    group=f"scatter, {jnp.dtype(dtype).name}",
                    sizes=f"{updates} x {width} into {table_rows}, {pattern}",
                    step=_scatter(indices),
                    args=(
                        jax.ShapeDtypeStruct((table_rows, width), dtype),
                        jax.ShapeDtypeStruct((updates, width), dtype),
                    ),
                    donated=(0,),
                )
        for length in (128, 256, 512):
            table, scores = ((32, 12), dtype), ((12, length, length), dtype)
            group = f"relative positions, gradient, {jnp.dtype(dtype).name}"
            yield kernel_case(group, f"{length}", _positions(length), table, scores)


def _scatter(indices: np.ndarray) -> Callable[[Array, Array], Array]:
    return lambda table, updates: table.at[jnp.asarray(indices)].add(updates, mode="drop")


def _positions(length: int) -> Callable[[Array, Array], Array]:
    """The gradient of a table by the logarithm of a distance."""
    far = np.arange(length)[None] - np.arange(length)[:, None]
    buckets = np.clip(np.sign(far) * np.log2(np.abs(far) + 1).astype(int) + 16, 0, 31)

    def bias(table: Array) -> Array:
        return table[jnp.asarray(buckets)].transpose(2, 0, 1)

    return lambda table, g: jax.vjp(bias, table)[1](g)[0]


CASES: Final = (*products(), *rows(), *columns(), *scatters())
"""What a GPU was measured at; of the others only the TPU compiler was asked."""
