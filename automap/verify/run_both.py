"""The planned step beside the single-device step (or, if it holds a `shard_map`, beside itself on
its mesh), on the same inputs, in the compiler's process.

    a = single(x),  b = planned(x),  c = single(x'),  x' = x rounded otherwise
    change_r = r - x_s for a new state leaf (s the input it replaces) where x_s is finite, r for any
               other result
    error    = rms(b - a),   rounding = rms(change_c - change_a)

`rounding` is what the step makes of one rounding error in its inputs: AdamW divides a gradient by
its own size, so where a gradient is nothing but rounding, its update is arbitrary, on one device as
on many.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
from jax import export
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from automap.verify.inputs import BLOCK, make, rounded_otherwise
from automap.verify.messages import SINGLE_FILE, LeafErrors, RunRequest, given_file


# Of the greatest number of a type: from here on a run whose sums are taken in another order may be
# at infinity.
_NEAR_OVERFLOW: Final = 0.5
_KEY_TYPES: Final = ("threefry2x32", "rbg", "unsafe_rbg")


def run_both(
    compiled: jax.stages.Compiled, avals: Sequence[Any], folder: Path, request: RunRequest
) -> tuple[LeafErrors, ...]:
    """Errors of every output leaf. `compiled` is the planned step, `avals` its inputs with
    shardings.
    """
    random = np.random.default_rng(request.seed)
    inputs = [
        _given(folder / given_file(i), aval) if kind == "given" else make(kind, aval, random)
        for i, (kind, aval) in enumerate(zip(request.kinds, avals, strict=True))
    ]
    nudged = [rounded_otherwise(array, request.input_rounding, random) for array in inputs]
    exported = export.deserialize(bytearray((folder / SINGLE_FILE).read_bytes()))
    # Nothing of the single-device step says where it runs: JAX takes the first device.
    single, on = jax.jit(exported.call), None
    if exported.nr_devices > 1:
        # A `shard_map` has its devices; everything else is whole on each.
        on = NamedSharding(avals[0].sharding.mesh, PartitionSpec())
    placed = [
        jax.device_put(as_leaf(x, a, k), a.sharding)
        for x, a, k in zip(inputs, avals, request.kinds, strict=True)
    ]
    b = as_numpy(compiled(*placed))
    a, c = (
        as_numpy(single(*jax.device_put(list(map(as_leaf, arrays, avals, request.kinds)), on)))
        for arrays in (inputs, nudged)
    )
    befores = states_before(request.state, avals, inputs, nudged)
    return tuple(map(leaf_errors, a, b, c, befores))


def states_before(
    state: Sequence[int | None],
    avals: Sequence[Any],
    inputs: Sequence[np.ndarray],
    nudged: Sequence[np.ndarray],
) -> list[tuple[Any, Any]]:
    """For each output the state that it replaces in both runs of the single device, by `state` the
    number of an input; None twice for others, and for keys.
    """
    return [
        (inputs[s], nudged[s]) if s is not None and not is_key(avals[s]) else (None, None)
        for s in state
    ]


def _given(path: Path, aval: Any) -> np.ndarray:
    """The caller's array, saved as bytes as numpy's format has no bfloat16; a key as its words."""
    array = np.load(path, allow_pickle=False)
    return array if is_key(aval) else array.view(aval.dtype).reshape(aval.shape)


def is_key(aval: Any) -> bool:
    """Whether an abstract value is of typed random keys."""
    return jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)


def as_leaf(array: np.ndarray, aval: Any, kind: str) -> Any:
    """What the step is called with."""
    if not is_key(aval):
        return array
    implementation = next(
        name for name in _KEY_TYPES if jax.random.key(0, impl=name).dtype == aval.dtype
    )
    if kind == "given":
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)
    keys = [jax.random.key(int(seed), impl=implementation) for seed in array.ravel()]
    return jax.numpy.stack(keys).reshape(aval.shape)


def as_numpy(results: Sequence[Any]) -> list[np.ndarray]:
    """Results on the host, keys as their words."""
    return [np.asarray(jax.random.key_data(r) if is_key(r) else r) for r in results]


def leaf_errors(a: np.ndarray, b: np.ndarray, c: np.ndarray, before: tuple[Any, Any]) -> LeafErrors:
    """Errors of one leaf; `before` are the state leaves that a and c replace, or None twice."""
    olds = (np.zeros((), a.dtype),) * 2 if before[0] is None else before
    flats = [np.broadcast_to(x, np.shape(a)).reshape(-1) for x in (a, b, c, *olds)]
    edge = _overflow_edge(a.dtype)
    size, finite, clashes, squares = flats[0].size, 0, False, np.zeros(4)
    for begin in range(0, size, BLOCK):
        parts = [_wide(flat[begin : begin + BLOCK]) for flat in flats]
        part_squares, finite_here, clashes_here = _squares(edge, *parts)
        squares += part_squares
        finite += finite_here
        clashes |= clashes_here
    value, change, error, rounding = np.sqrt(squares / max(size, 1)).tolist()
    return LeafErrors(
        value=value,
        change=change,
        # Nearly the largest float64: JSON has no infinity.
        error=1.7e308 if clashes else error,
        rounding=rounding,
        finite=finite / size if size else 1.0,
    )


def _overflow_edge(dtype: np.dtype[Any]) -> float:
    """From what size on a number of a type may be infinite in another run."""
    if not jax.numpy.issubdtype(dtype, jax.numpy.inexact):
        return np.inf
    return float(jax.numpy.finfo(dtype).max) * _NEAR_OVERFLOW


def _squares(
    edge: float,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    old: np.ndarray,
    old_nudged: np.ndarray,
) -> tuple[np.ndarray, int, bool]:
    """Sums of squares of value, change, error and rounding where all is finite; how many numbers
    are; whether some of a and b are not, and differ though one of them is not beyond `edge`.
    """
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    # From infinity, as the least loss before the first step, nothing changes by a number.
    old, old_nudged = (np.where(np.isfinite(x), x, 0.0) for x in (old, old_nudged))
    with np.errstate(invalid="ignore"):
        change = a - old
        compared = (a, change, b - a, (c - old_nudged) - change)
    if finite.all():
        return np.array([np.vdot(x, x).real for x in compared]), finite.size, False
    # Infinite in the same way on both sides is no error, nor is a number that is nearly so beside
    # one that is; otherwise it is the largest there is.
    is_alike = (a == b) | (np.isnan(a) & np.isnan(b)) | _overflows_alike(a, b, edge)
    clash = ~finite & ~is_alike
    counted = [np.where(finite, x, 0.0) for x in compared]
    return np.array([np.vdot(x, x).real for x in counted]), int(finite.sum()), bool(clash.any())


def _overflows_alike(a: np.ndarray, b: np.ndarray, edge: float) -> np.ndarray:
    """Whether both have one sign and are so large that rounding decides which is infinite."""
    return (np.abs(a) >= edge) & (np.abs(b) >= edge) & (np.sign(a) == np.sign(b))


def _wide(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
