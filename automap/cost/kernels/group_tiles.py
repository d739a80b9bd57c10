"""Convolutions of small groups on a TPU's matrix unit: most of each tile multiplies zeros.

The unit multiplies tiles of T x T. A group has i features in and o out, and there are G. With n of
them in one tile,

    flops = 2 * results of a group and feature * taps * G / n * up(i n / T) up(o / T) T^2        i > 1
            2 * results of a group and feature * taps * up(G / T) o T^2                          i = 1
    n     = max(1, T / 4i)

over the 2 * results of a group and feature * taps * G i o that count; the rounding of G is that of other sizes
(`automap.cost.kernels.roofline`), the rest is                                                -> in: `GroupTiles.flops_per_flop`

(Stride 1, 3 to 7 taps a side, 32 to 1,024 features in groups of 1, 8, 16, 32, 64 and 128, as libtpu 0.0.51 for v5e
schedules them: within 16 % but for 64 to 64, which took 0.7 of it.) A kernel's gradient, where groups are of the batch, takes 0.23 to 0.6
of it for single features. Taps that fall on padding are multiplied as well  -> in: `GroupTiles.of`
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import work_of


@dataclass(frozen=True, slots=True)
class GroupTiles:
    """Features in and out of each kernel's groups, and how many of its flops count; 0 for what has
    no groups, [kernels].
    """

    read: np.ndarray
    made: np.ndarray
    share: np.ndarray

    @classmethod
    def of(
        cls, shapes: Sequence[KernelShape], flops: Sequence[int], gradient_share: float
    ) -> "GroupTiles":
        """Those of kernels by their flops, taps on padding left out; `gradient_share` is of
        `TileNumbers`.
        """
        found = [_group(shape, n, gradient_share) for shape, n in zip(shapes, flops, strict=True)]
        read, made, share = np.array(found, float).reshape(-1, 3).T
        return cls(read, made, share)

    def __getitem__(self, kernels: np.ndarray) -> "GroupTiles":
        """Those of some kernels."""
        return GroupTiles(self.read[kernels], self.made[kernels], self.share[kernels])

    def flops_per_flop(self, tile: int, tile_parts: int) -> np.ndarray:
        """How many flops a matrix unit does for each that counts, but for groups that do not fill
        the last tile.
        """
        read, made = np.maximum(self.read, 1), np.maximum(self.made, 1)
        together = np.maximum(tile // tile_parts // read, 1)
        filled = np.ceil(read * together / tile) * np.ceil(made / tile) * tile**2
        several = filled / (together * read * made)
        return np.where(self.read > 0, self.share * np.where(read > 1, several, tile), 1.0)


def factor_of_single_features(shape: KernelShape) -> int | None:
    """The factor of groups that are rounded up to tiles together; None for what has none."""
    places = shape.places
    if places is None or places.group < 0 or _sizes(shape)[0] != 1:
        return None
    return places.group


def _group(shape: KernelShape, flops: int, gradient_share: float) -> tuple[float, float, float]:
    whole = shape.convolution
    read, made = _sizes(shape)
    if whole is None or not read or not flops:
        return 0, 0, 0
    groups, rows, columns, summed = work_of(whole)
    padded = 2 * groups * rows * columns * summed / flops
    is_gradient = whole.batch_groups > 1 and read == 1
    return read, made, padded * (gradient_share if is_gradient else 1.0)


def _sizes(shape: KernelShape) -> tuple[int, int]:
    """Features in and out of a group, 0 for what has none."""
    whole = shape.convolution
    if whole is None or max(whole.feature_groups, whole.batch_groups) == 1:
        return 0, 0
    made = whole.out_features // max(whole.feature_groups, whole.batch_groups)
    if whole.feature_groups > 1:
        return whole.in_features // whole.feature_groups, made
    return whole.batch // whole.batch_groups, made
