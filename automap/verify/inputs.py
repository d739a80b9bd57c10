"""Inputs for a numerics run: those the caller has, the rest drawn so that a train step is well
conditioned.

    given    the caller's own array
    weight   normal with variance 1 / (first dimensions' product) for two dimensions and more; else
             near 1, so that activations keep their scale and norms scale by about one
    normal   standard normal: batches of numbers
    zeros    optimizer state: a first moment that starts at zero is, after the step, the gradient
             itself
    ones     other state of numbers (running variances must be positive)
    bits     0 or 1: integers and booleans, legal as indices of any table with two rows
    key      a typed random key

`input_kinds` chooses on the planner's side, `make` draws in the compiler's process, with numpy, the
same on every machine for one seed.
"""

from collections.abc import Sequence
import math
from typing import Any, Final

import jax
import numpy as np

from automap.plan.record import LeafRecord
from automap.verify.messages import InputKind


BLOCK: Final = 2**15
"""Numbers that are looked at together where arrays are large: wide copies of them stay in the
processor's cache.
"""

_FLOAT_KINDS: Final[dict[str, InputKind]] = {
    "parameter": "weight",
    "optimizer state": "zeros",
    "other state": "ones",
    "batch": "normal",
    "constant": "normal",
    "rng key": "normal",
}


def input_kinds(leaves: Sequence[LeafRecord], arrays: Sequence[Any]) -> tuple[InputKind, ...]:
    """How each input is made; `arrays` are the caller's arguments, abstract ones or not."""
    return tuple(
        "given" if is_concrete(array) else _kind(leaf)
        for leaf, array in zip(leaves, arrays, strict=True)
    )


def is_concrete(array: Any) -> bool:
    """Whether an argument holds values."""
    return isinstance(array, jax.Array | np.ndarray | np.generic | int | float | complex | bool)


def _kind(leaf: LeafRecord) -> InputKind:
    if leaf.dtype.startswith("key<"):
        return "key"
    if leaf.dtype.startswith(("int", "uint", "bool")):
        return "bits"
    return _FLOAT_KINDS[leaf.role]


def make(kind: InputKind, aval: Any, random: np.random.Generator) -> np.ndarray:
    """An array of an abstract value's shape and dtype; for a key its seed, a scalar per key."""
    shape = tuple(aval.shape)
    if kind == "key":
        return random.integers(0, 2**31, shape)
    if kind == "bits":
        return random.integers(0, 2, shape).astype(aval.dtype)
    if kind in ("zeros", "ones"):
        return np.full(shape, kind == "ones").astype(aval.dtype)
    # Drawn in float32 whatever the type: numpy's generator has no shorter floats.
    drawn = random.standard_normal(shape, np.float32)
    if kind == "weight":
        fan_in = math.prod(shape[:-1])
        drawn = drawn / math.sqrt(max(fan_in, 1)) if len(shape) > 1 else 1 + 0.1 * drawn
    return drawn.astype(aval.dtype)


def rounded_otherwise(
    array: np.ndarray, relative: float, random: np.random.Generator
) -> np.ndarray:
    """A float array with every element moved by `relative` of itself, up or down; others as they
    are.
    """
    # Zeros have no rounding error, and there are as many of them as of parameters, or twice.
    if not jax.numpy.issubdtype(array.dtype, jax.numpy.inexact) or not array.any():
        return array
    flat, moved = array.reshape(-1), np.empty(array.size, array.dtype)
    # Computed wide: one part in 2^24 would be lost in the array's own type.
    wide = np.complex128 if np.iscomplexobj(array) else np.float64
    for begin in range(0, flat.size, BLOCK):
        part = flat[begin : begin + BLOCK].astype(wide)
        # Up or down by a whole rounding error, at random: errors of one sign would add up in sums.
        bits = np.frombuffer(random.bytes(part.size // 8 + 1), np.uint8)
        ups = np.unpackbits(bits, count=part.size)
        part *= 1 + relative * (2.0 * ups - 1)
        with np.errstate(over="ignore"):
            rounded = part.astype(array.dtype)
        # The largest number of a type, as masks have it, has none beyond it.
        moved[begin : begin + BLOCK] = np.where(
            np.isfinite(rounded), rounded, flat[begin : begin + BLOCK]
        )
    return moved.reshape(array.shape)
