"""Seconds of a matrix product on one GPU, by its sizes and element type, as they were measured.

A product [b, m, k] x [b, k, n] was measured on a grid of sizes. Its roofline, with P the peak of
its element type, W the memory's bytes per second, e and e' the bytes of a number that is read and
written,

    R(b, m, n, k) = max(2 b m n k / P, b (e (m k + k n) + e' m n) / W) + F      -> in: `_roofline`

follows the measurements over three orders of magnitude, and what is left, the ratio r = t / R, is
smooth: F is a short kernel's time beside its work, of which r says what it really is. So

    t(b, m, n, k) = r(b, m, n, k) R(b, m, n, k)                                 -> in: `predict`

with log r interpolated linearly over the logarithms of the four sizes, and held beyond the grid's
ends: a product that is larger than any measured runs at the largest one's share of the roofline,
and one that is smaller takes as long as its roofline and the smallest one's ratio say.

The file has every second point of the grid. A point between has the mean of its neighbours along
each dimension that has two of them, or of those there are                   -> in: `_filled`

Interpolated and measured seconds of the other half are held against each other in
`tests/automap/topology/measured`, and in docs/reports/gpu_measurements.md.
"""

from collections.abc import Iterator, Mapping, Sequence
import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from itertools import product
from typing import Final

import numpy as np


_FILE: Final = "products.csv"
_SIZES: Final = ("batch", "m", "n", "k")
# F: about what a kernel takes between its launch and its end that does nothing.
_EMPTY_KERNEL_SECONDS: Final = 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a roofline is made of, for one element type on one GPU."""

    flops_per_s: float
    memory_bytes_per_s: float
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, eq=False)
class MeasuredProducts:
    """Measured products of one GPU and one element type.

    `log_sizes` are the grid's points along batch, m, n and k, and `log_ratios` an array over them.
    """

    rates: Rates
    log_sizes: tuple[np.ndarray, ...]
    log_ratios: np.ndarray

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        """Seconds of products whose (batch, m, n, k) are the rows of `sizes`, each at least 1."""
        roofline = _roofline(self.rates, sizes.astype(float).T)
        return np.exp(self._interpolated(np.log(sizes))) * roofline

    def _interpolated(self, log_sizes: np.ndarray) -> np.ndarray:
        """The mean of the 16 corners of each row's cell, by how near they are."""
        places = [self._place(axis, log_sizes[:, axis]) for axis in range(len(_SIZES))]
        total = np.zeros(len(log_sizes))
        for corner in product((0, 1), repeat=len(_SIZES)):
            at = tuple(place.below + side for place, side in zip(places, corner, strict=True))
            weights = [
                place.share if side else 1 - place.share
                for place, side in zip(places, corner, strict=True)
            ]
            total += np.prod(weights, axis=0) * self.log_ratios[at]
        return total

    def _place(self, axis: int, logs: np.ndarray) -> "_Place":
        grid = self.log_sizes[axis]
        below = np.clip(np.searchsorted(grid, logs, side="right") - 1, 0, len(grid) - 2)
        share = (logs - grid[below]) / (grid[below + 1] - grid[below])
        return _Place(below=below, share=np.clip(share, 0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The grid point below each number, and how far it is on the way to the next."""

    below: np.ndarray
    share: np.ndarray


_H100: Final = 3.35e12
_B200: Final = 8e12
# Peaks of dense products and of memory are those of the catalogue (NVIDIA's datasheets); products
# of 8-bit numbers write bfloat16.
_RATES: Final[Mapping[tuple[str, str], Rates]] = {
    (device, dtype): Rates(
        flops_per_s=flops * 1e12,
        memory_bytes_per_s=memory,
        read_bytes=read,
        written_bytes=written,
    )
    for device, dtype, flops, memory, read, written in (
        ("h100", "bf16", 989.4, _H100, 2, 2),
        ("h100", "f32", 494.7, _H100, 4, 4),
        ("h100", "f8", 1978.9, _H100, 1, 2),
        ("b200", "bf16", 2250, _B200, 2, 2),
        ("b200", "f32", 1100, _B200, 4, 4),
        ("b200", "f8", 4500, _B200, 1, 2),
    )
}


PRODUCT_TABLES: Final = ("h100", "b200")
"""The GPUs whose products were measured."""

# Types that run on the same units at the same rate as one that was measured.
_LIKE: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("bf16", "f16"),
    "f32": ("f32",),
    "f8": ("f8e4m3fn", "f8e5m2", "f8e4m3", "f8e4m3fnuz", "f8e5m2fnuz"),
}


def measured_types(device: str) -> tuple[str, ...]:
    """The HLO element types whose products a GPU's measurements stand for; none for others."""
    return tuple(like for name, dtype in _RATES if name == device for like in _LIKE[dtype])


def measured_products(device: str, dtype: str) -> MeasuredProducts:
    """The measurements of a GPU for an HLO type of `measured_types`; `KeyError` for others."""
    return _table(device, next((name for name, like in _LIKE.items() if dtype in like), dtype))


@cache
def _table(device: str, dtype: str) -> MeasuredProducts:
    rates = _RATES[device, dtype]
    text = files("automap.topology.measured").joinpath(_FILE).read_text("utf-8")
    rows = [
        row
        for row in csv.DictReader(StringIO(text))
        if (row["device"], row["dtype"]) == (device, dtype)
    ]
    points = {tuple(int(row[size]) for size in _SIZES): float(row["seconds"]) for row in rows}
    grids = [sorted({point[axis] for point in points}) for axis in range(len(_SIZES))]
    ratios = np.full([len(grid) for grid in grids], np.nan)
    for point, seconds in points.items():
        at = tuple(grid.index(size) for grid, size in zip(grids, point, strict=True))
        ratios[at] = np.log(seconds / _roofline(rates, np.array(point, float)))
    return MeasuredProducts(rates, tuple(np.log(grid) for grid in grids), _filled(ratios))


def _roofline(rates: Rates, sizes: np.ndarray) -> np.ndarray:
    batch, m, n, k = sizes
    flops = 2 * batch * m * n * k
    moved = batch * (rates.read_bytes * (m * k + k * n) + rates.written_bytes * m * n)
    work = np.maximum(flops / rates.flops_per_s, moved / rates.memory_bytes_per_s)
    return work + _EMPTY_KERNEL_SECONDS


def _filled(known: np.ndarray) -> np.ndarray:
    """The grid with a number at every point; nan stands for what is not known."""
    filled = known.copy()
    for point in zip(*np.nonzero(np.isnan(known)), strict=True):
        pairs = [pair for pair in _neighbours(known, point) if pair]
        both = [pair for pair in pairs if len(pair) > 1]
        filled[point] = np.mean([np.mean(pair) for pair in both or pairs])
    return filled


def _neighbours(known: np.ndarray, point: Sequence[int]) -> Iterator[list[float]]:
    """The known numbers beside a point, along one dimension after the other."""
    for axis, place in enumerate(point):
        beside = [at for at in (place - 1, place + 1) if 0 <= at < known.shape[axis]]
        numbers = [known[(*point[:axis], at, *point[axis + 1 :])] for at in beside]
        yield [number for number in numbers if not np.isnan(number)]
