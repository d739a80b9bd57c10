"""Tiles of a matrix unit: it multiplies T x T numbers at once, whatever part of them counts.

Products. What a product sums over, and the columns of its result, are rounded up to tiles
                                                                    -> in: `FactorSizes.local`
Convolutions without groups, of i features in and o out (of a gradient of filters, which sums over
batch and space, those that it is given) with t taps, and b examples: features lie along the tile's
sides, or examples along one of them, whichever takes less        -> in: `Sides.flops_per_flop`

    flops = ... * min(up_t(i) up(o) / (i o), up(b) / b min(up_t(i) / i, up(o) / o))
    up(f)   = up(f / T) T
    up_t(f) = up(f) for f > T / 4, else up(f t) / t: taps stand side by side in a tile

Convolutions of groups, of which there are G, each of i features in and o out: with n groups in one
tile, the unit does

    flops = 2 * results of a group and feature * taps * G / n * up(i n / T) up(o / T) T^2    i > 1
            2 * results of a group and feature * taps * up(G / T) o T^2                      i = 1
    n     = max(1, T / p i), p the backend's `group_tile_parts`

over the 2 * results of a group and feature * taps * G i o that count. Of these the rounding of G is
that of other sizes, the rest is                                -> in: `GroupTiles.flops_per_flop`
A kernel's gradient, where groups are of the batch, takes `group_gradient_share` of it for single
features. Taps that fall on padding are multiplied as well      -> in: `GroupTiles.build`

What the two numbers were fitted on stands in the backend's data file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

import numpy as np

from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import matmul_sizes
from automap.cost.shardings import Shardings, n_parts
from hlo_tools.graph import Op
from hlo_tools.rules import FactorKind, Rule


TiledSides: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The factors of each side of `Sides`."""

# Up to this part of a tile's side features of several taps stand side by side.
_PARTS_OF_TAPS: Final = 4


@dataclass(frozen=True, slots=True)
class FactorSizes:
    """Of the kernels that have any, sizes of factors that are rounded up to tiles together,
    [kernels, factors + 1].

    The last column is of no factor: what axes that split none find.
    """

    kernels: np.ndarray
    op_row: np.ndarray
    sizes: np.ndarray

    @classmethod
    def build(cls, sizes: np.ndarray, op_row: np.ndarray) -> "FactorSizes":
        """`sizes` [all kernels, factors] and `op_row` [all kernels]."""
        kernels = np.flatnonzero((sizes > 1).any(axis=1))
        alone = np.ones((len(kernels), 1), sizes.dtype)
        return cls(kernels, op_row[kernels], np.hstack([sizes[kernels], alone]))

    def local(self, sharding: Shardings | None) -> np.ndarray:
        """Their products on a device, or of the whole, [kernels]."""
        if sharding is None:
            return self.sizes.prod(axis=1)
        # Factor -1 of an axis that splits nothing reads the last column.
        factor = sharding.factor_of_axis[self.op_row]
        is_split = np.take_along_axis(self.sizes, factor, axis=1) > 1 if len(factor) else factor > 0
        return self.sizes.prod(axis=1) / n_parts(is_split, sharding.sizes)


def rows_of_copies(
    kernels: np.ndarray, which: np.ndarray, n_kernels: int
) -> tuple[np.ndarray, np.ndarray]:
    """(copies of some `kernels`, the place of each one's original among them); `which` [copies]
    says of which of `n_kernels` each copy is.
    """
    place = np.full(n_kernels, -1)
    place[kernels] = np.arange(len(kernels))
    copied = np.flatnonzero(place[which] >= 0)
    return copied, place[which[copied]]


def padding(size: np.ndarray, tile: int, taps: int | np.ndarray = 1) -> np.ndarray:
    """By how much tiles are larger than `size`; 1 where nothing is multiplied. Few features stand
    side by side with those of other `taps`.
    """
    size = np.where(size * _PARTS_OF_TAPS <= tile, size * taps, size)
    return np.where(size > 1, np.ceil(size / tile) * tile / size, 1.0)


@dataclass(frozen=True, slots=True)
class ConvolutionSides:
    """Of a convolution without groups the factors of the features on both sides of its products
    and of its examples, -1 for one, and how many `taps` those of the first side have.
    """

    summed: int = -1
    made: int = -1
    examples: int = -1
    taps: int = 1

    @classmethod
    def build(cls, shape: KernelShape) -> "ConvolutionSides":
        """Those of a kernel; of no other than such a convolution there are any."""
        whole, places = shape.convolution, shape.places
        if whole is None or places is None or max(whole.feature_groups, whole.batch_groups) > 1:
            return cls()
        taps, made = (prod(getattr(s, name) for s in whole.spatial) for name in ("taps", "made"))
        # Of a gradient of filters the window is an image: its batch are the features that are
        # given, and its features the examples.
        if taps > made:
            return cls(places.batch, places.out_features, places.in_features, made)
        return cls(places.in_features, places.out_features, places.batch, taps)


@dataclass(frozen=True, slots=True)
class Sides:
    """What lies along the sides of tiles: what products sum over, or features that convolutions
    are given, with how many `taps` [kernels]; columns or features that are made; and examples of
    convolutions.
    """

    summed: FactorSizes
    made: FactorSizes
    examples: FactorSizes
    taps: np.ndarray

    def flops_per_flop(self, sharding: Shardings | None, tile: int) -> np.ndarray:
        """How many flops a matrix unit does for each that counts, on a device or of the whole,
        [kernels].
        """
        summed, made, examples = np.ones((3, len(self.taps)))
        which = self.summed.kernels
        summed[which] = padding(self.summed.local(sharding), tile, self.taps[which])
        made[self.made.kernels] = padding(self.made.local(sharding), tile)
        count = self.examples.local(sharding)
        examples[self.examples.kernels] = np.ceil(count / tile) * tile / count
        has_examples = np.isin(np.arange(len(self.taps)), self.examples.kernels)
        beside = examples * np.minimum(summed, made)
        return np.where(has_examples, np.minimum(summed * made, beside), summed * made)


@dataclass(frozen=True, slots=True)
class GroupTiles:
    """Features in and out of each kernel's groups, and how many of its flops count; 0 for what has
    no groups, [kernels].
    """

    read: np.ndarray
    made: np.ndarray
    share: np.ndarray

    @classmethod
    def build(
        cls, shapes: Sequence[KernelShape], flops: Sequence[int], gradient_share: float
    ) -> "GroupTiles":
        """Those of kernels by their flops, taps on padding left out; `gradient_share` is of
        `TileNumbers`.
        """
        rows = [_group(shape, n, gradient_share) for shape, n in zip(shapes, flops, strict=True)]
        read, made, share = np.array(rows, float).reshape(-1, 3).T
        return cls(read, made, share)

    def __getitem__(self, kernels: np.ndarray) -> "GroupTiles":
        """Those of some kernels."""
        return GroupTiles(self.read[kernels], self.made[kernels], self.share[kernels])

    def flops_per_flop(self, tile: int, tile_parts: int) -> np.ndarray:
        """How many flops a matrix unit does for each that counts, but for groups that do not fill
        the last tile.
        """
        # At least 1, so that kernels without groups do not divide by 0; they are 1.0 in the end.
        read, made = np.maximum(self.read, 1), np.maximum(self.made, 1)
        together = np.maximum(tile // tile_parts // read, 1)
        filled = np.ceil(read * together / tile) * np.ceil(made / tile) * tile**2
        several = filled / (together * read * made)
        # Single features lie along the tile's side, one group beside the other: of T^2 numbers T
        # count.
        return np.where(self.read > 0, self.share * np.where(read > 1, several, tile), 1.0)


def single_feature_factor(shape: KernelShape) -> int | None:
    """The factor of groups that are rounded up to tiles together; None for what has none."""
    places = shape.places
    if places is None or places.group < 0 or _group_features(shape)[0] != 1:
        return None
    return places.group


def _group(shape: KernelShape, flops: int, gradient_share: float) -> tuple[float, float, float]:
    whole = shape.convolution
    read, made = _group_features(shape)
    if whole is None or not read or not flops:
        return 0, 0, 0
    groups, rows, columns, summed = matmul_sizes(whole)
    # `flops` leaves out the taps that fall on padding; the unit multiplies them too.
    padded = 2 * groups * rows * columns * summed / flops
    is_gradient = whole.batch_groups > 1 and read == 1
    return read, made, padded * (gradient_share if is_gradient else 1.0)


def _group_features(shape: KernelShape) -> tuple[int, int]:
    """Features in and out of a group, 0 for what has none."""
    whole = shape.convolution
    if whole is None or max(whole.feature_groups, whole.batch_groups) == 1:
        return 0, 0
    made = whole.out_features // max(whole.feature_groups, whole.batch_groups)
    if whole.feature_groups > 1:
        return whole.in_features // whole.feature_groups, made
    # Of a kernel's gradient the groups are of the batch, which it sums over.
    return whole.batch // whole.batch_groups, made


def tiled_sides(op: Op, rule: Rule, shape: KernelShape) -> TiledSides:
    """Factors that a dot sums over, and those of the operand that brings the result's last
    dimension.

    Of a convolution those of its features and examples, or that of groups of single features; none
    of other kernels.
    """
    if op.opcode != "dot":
        group, own = single_feature_factor(shape), ConvolutionSides.build(shape)
        first = own.summed if group is None else group
        summed, made, examples = (
            () if factor < 0 else (factor,) for factor in (first, own.made, own.examples)
        )
        return summed, made, examples
    summed = tuple(f for f, x in enumerate(rule.factors) if x.kind is FactorKind.REDUCTION)
    by_operand = [frozenset(f for dim in dims for f in dim) for dims in rule.operands[:2]]
    last = next((dim[0] for dim in reversed(rule.results[0]) if dim), -1)
    beside = next((o for o in by_operand if last in o), frozenset[int]())
    # Only factors of one operand stand beside the last dimension: those of both are batches.
    other = by_operand[0] ^ by_operand[1]
    return summed, tuple(sorted((beside & other) - frozenset(summed))), ()
