"""Windows: which elements of its neighbours a device needs, and the ops that slide a window.

Position o of the result reads positions o s - p + k d (k = 0 .. w - 1) of the input, whose n
elements lie b apart (s stride, p low padding, w window, d and b its dilation and the input's). When
both are cut into P parts of equal share, device i makes results from i m / P and holds input from i
n / P, so with D = n b - m s it reads beyond its part by

    low   p + i D / P                            -> in: `Halo.low` + i `Halo.drift` / P
    high  (w - 1) d + 1 - s - p - (i + 1) D / P  -> in: `Halo.high` - (i + 1) `Halo.drift` / P

positions; every device receives as many elements as the one that needs most   -> in: `neighbours`
and keeps what its window covers                                               -> in: `overlap`
The same holds if not o but k is cut, as in the gradient of a kernel, with (m, s) and (w, d)
exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hlo_tools.module import Instruction, WindowDim
from hlo_tools.rules.rule import FactorKind, Halo, Rule, RuleBuilder


Dims = tuple[int, ...]


def result_halo(window: WindowDim, read: int, made: int) -> Halo:
    """The halo where the `read` elements of the input and the `made` results are cut alike."""
    reach = (window.size - 1) * window.window_dilation + 1 - window.stride
    return Halo(
        low=window.padding_low,
        high=reach - window.padding_low,
        drift=read * window.base_dilation - made * window.stride,
        step=window.base_dilation,
    )


def window_halo(window: WindowDim, read: int, made: int) -> Halo:
    """The halo where the `read` elements of the input and the window itself are cut alike."""
    reach = (made - 1) * window.stride + 1 - window.window_dilation
    return Halo(
        low=window.padding_low,
        high=reach - window.padding_low,
        drift=read * window.base_dilation - window.size * window.window_dilation,
        step=window.base_dilation,
    )


def neighbours(halos: "Halos", parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Elements that each of `parts` > 1 devices receives from those before it, and from those after
    it.
    """
    drift = halos.drift
    # What device i needs is linear in i, so the first or the last device needs most.
    before = halos.low + np.maximum(drift * (parts - 1), drift) / parts
    after = halos.high + np.maximum(-drift, -drift * (parts - 1)) / parts
    return (
        # The elements before a part lie 1, 2, ... steps before its start, those after it 0, 1, ...
        # steps past its end.
        np.floor(np.maximum(before, 0) / halos.step).astype(np.int64),
        np.ceil(np.maximum(after, 0) / halos.step).astype(np.int64),
    )


def overlap(halos: "Halos", parts: np.ndarray) -> np.ndarray:
    """Elements of the input that a device's windows cover, less those of its part."""
    return (halos.low + halos.high - halos.drift / parts) / halos.step


@dataclass(frozen=True)
class Halos:
    """Many halos, as arrays of the fields of `Halo`."""

    low: np.ndarray
    high: np.ndarray
    drift: np.ndarray
    step: np.ndarray


def halos(each: Sequence[Halo]) -> Halos:
    """`each` as arrays."""
    rows = np.array([(h.low, h.high, h.drift, h.step) for h in each], np.int64).reshape(-1, 4)
    return Halos(*rows.T)


def reduce_window(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Pools pass with a halo; a window as long as its dimension (a cumulative sum) needs all before
    it.
    """
    builder = RuleBuilder(operands, results)
    arrays = range(len(operands) // 2)
    for dim, window in enumerate(instruction.attributes.window):
        places = [(n, dim) for n in arrays]
        places += [(builder.result(n), dim) for n in range(len(results))]
        _slide(builder, places, window, operands[0][dim], results[0][dim])
    return builder.build()


def select_and_scatter(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """The gradient of a pool: (input, gradient of the output, initial) -> gradient of the input.

    Windows that overlap need neighbours of both, which no partitioner exchanges well: all is
    gathered.
    """
    builder = RuleBuilder(operands, results)
    for dim, window in enumerate(instruction.attributes.window):
        places = [(0, dim), (1, dim), (builder.result(), dim)]
        read, made = operands[0][dim], operands[1][dim]
        around = result_halo(window, read, made)
        # Windows that do not overlap: a part of the gradient is made of the same part of both
        # inputs.
        if _is_alone(around):
            slide(builder, places, read, around)
        else:
            builder.add(*places, size=max(read, made), kind=FactorKind.PERMUTATION)
    return builder.build()


def _slide(
    builder: RuleBuilder, places: list[tuple[int, int]], window: WindowDim, read: int, made: int
) -> None:
    if window.size >= read > 1:
        builder.add(*places, size=max(read, made), kind=FactorKind.PERMUTATION)
    else:
        slide(builder, places, max(read, made), result_halo(window, read, made))


def slide(builder: RuleBuilder, places: list[tuple[int, int]], size: int, halo: Halo) -> None:
    """Add the factor of a dimension that a window slides along."""
    kind = FactorKind.PASSTHROUGH if _is_alone(halo) else FactorKind.PERMUTATION
    builder.add(*places, size=size, kind=kind, halo=halo)


def _is_alone(halo: Halo) -> bool:
    return halo.low <= 0 and halo.high <= 0 and halo.drift == 0
