"""Convolutions that a GPU's library computes as implicit products.

A convolution of c features in and n out, with t taps at each of p places of b samples, is a product
of b p x c t and c t x n.

On matrix units, whose operands' features lie beside each other, what it reaches of their peak falls
with few features, as loads are for 64 bytes of neighbours and tiles for many results:

    forward, and the gradient of what is read    e = c / (c + c_0) * n / (n + n_0)
                                                 c_0 = `feature_bytes` over an element's bytes
    gradient of the filter, of b features in     e = g * b / (b + g_0) * n / (n + g_0)
                                             -> in: `forward_share`, `filter_gradient_share`

A gradient of the filter is told by its window, which has more taps than the result has places: what
HLO calls samples are its features then. Tiles are of T x T results, each of one core, whatever is
summed:

    seconds >= 2 c t T^2 / (peak / cores)        but for gradients of filters, whose sums are split
                                                                     -> in: `_occupied_flops`

In types without matrix units (`automap.topology.gpu_devices.has_matrix_units`) features and taps
are one sum, and a convolution takes the shorter of two times, P the rate that products reach:

    implicit product    2 c t * whole tiles of 128 x 64 results * (c t + k_0) / c t / (s P)
                        in waves of as many tiles as there are cores; of gradients of filters, whose
                        long sums are split among the cores, without waves and k_0
    Winograd's          of 3 x 3 taps beside each other: 36 products of c and n over the T tiles of
                        4 x 4 places, each of which is read from and written to memory
                        reading and writing (c + n) (b p + 36 T), and then the longer of
                        2 * 36 T c n / P and (c + n) 36 T over the memory's rate
                                             -> in: `vector_seconds`, `winograd_tiles`

k_0 is `vector_narrow_sum`, s is `vector_share`; such tiles are in the names of cuDNN's kernels; the
second way is F(4 x 4, 3 x 3) of Lavin and Gray (arXiv 1509.09308), which cuDNN has since version
5.1. Processors have no second way here.

Groups of features are not covered. The numbers are data of the backend, fitted on the float32
convolutions of AlexNet and VGG-19 on one H200 (docs/reports/step_times.md), those without matrix
units on steps of one K80 (docs/reports/flexflow.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
import math
from typing import Final, TypeAlias, TypeVar

import numpy as np

from automap.backends import ConvolutionNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import core_count, is_processor
from automap.topology.model import Device
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.module import WindowDim
from hlo_tools.opcodes import CONVOLUTION
from hlo_tools.rules import Rule
from hlo_tools.rules.rule import DimFactors


Numbers = TypeVar("Numbers", float, np.ndarray)
_Sizes: TypeAlias = tuple[int, ...]
_TILE = 128
# Of vector units: results of one block of threads.
_ROWS, _COLUMNS = 128, 64
# Of F(4 x 4, 3 x 3): places along a side of a tile, and the products of each tile.
_TILE_SIDE, _TILE_PRODUCTS = 4, 36
LEAST_WINOGRAD_FLOPS: Final = 1 / 4
"""Flops that Winograd's way takes at least for each of the implicit product."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution without groups: sizes of its rule's factors, 1 for those that do not count, for
    features in, features out, samples, and what divides places.

    `places` is how many there are, `tiles` those of Winograd's way over an image, 0 without it.
    """

    features: _Sizes
    results: _Sizes
    samples: _Sizes
    space: _Sizes
    places: int
    taps: int
    tiles: int
    is_filter_gradient: bool
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Convolutions:
    """Those of some kernels, [those]: `kernels` are their numbers, ascending; sizes are [those,
    factors + 1], with a last column of no factor.
    """

    kernels: np.ndarray
    features: np.ndarray
    results: np.ndarray
    samples: np.ndarray
    space: np.ndarray
    places: np.ndarray
    taps: np.ndarray
    tiles: np.ndarray
    is_filter_gradient: np.ndarray
    item_bytes: np.ndarray

    @classmethod
    def build(cls, each: Sequence[Convolution | None]) -> "Convolutions":
        """Of all kernels, in their order."""
        chosen = [(k, c) for k, c in enumerate(each) if c is not None]
        width = max((len(c.features) for _, c in chosen), default=0)
        sizes = np.ones((4, len(chosen), width + 1), np.int64)
        for row, (_, c) in enumerate(chosen):
            for which, lengths in enumerate((c.features, c.results, c.samples, c.space)):
                sizes[which, row, : len(lengths)] = lengths
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            sizes[0],
            sizes[1],
            sizes[2],
            sizes[3],
            np.array([c.places for _, c in chosen], float),
            np.array([c.taps for _, c in chosen], float),
            np.array([c.tiles for _, c in chosen], float),
            np.array([c.is_filter_gradient for _, c in chosen], bool),
            np.array([c.item_bytes for _, c in chosen], float),
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "Convolutions":
        """Those of copied kernels, of which `which` [copies] says of which of `n_kernels` each
        is.
        """
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        others = (getattr(self, field.name)[row] for field in fields(self)[1:])
        return Convolutions(copied, *others)

    def local_sizes(self, op_row: np.ndarray, sharding: Shardings) -> "LocalSizes":
        """Of each on a device; `op_row` is of all kernels."""
        rows = op_row[self.kernels]
        features, results, samples, space = (
            FactorSizes(self.kernels, rows, sizes).local(sharding)
            for sizes in (self.features, self.results, self.samples, self.space)
        )
        return LocalSizes(
            features=features,
            results=results,
            samples=samples,
            places=self.places * space / self.space.prod(axis=1),
            taps=self.taps,
            tile_share=self.tiles / np.where(self.is_filter_gradient, self.taps, self.places),
            is_filter_gradient=self.is_filter_gradient,
            item_bytes=self.item_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSizes:
    """Sizes of convolutions on one device, [those]; `tile_share` is how many tiles Winograd's way
    has for each place of an image, 0 where it has none.
    """

    features: np.ndarray
    results: np.ndarray
    samples: np.ndarray
    places: np.ndarray
    taps: np.ndarray
    tile_share: np.ndarray
    is_filter_gradient: np.ndarray
    item_bytes: np.ndarray


def library_flops(
    flops: np.ndarray,
    sizes: LocalSizes,
    on_vectors: np.ndarray,
    numbers: ConvolutionNumbers,
    device: Device,
    flops_per_s: np.ndarray,
) -> np.ndarray:
    """What products could do in the time of convolutions, at the rate that they reach, [those];
    `on_vectors` is whether each is of a type without matrix units.
    """
    if not on_vectors.any():
        return _occupied_flops(flops, sizes, numbers, device) * device.matmul_efficiency
    on_vector_units = vector_seconds(flops, sizes, numbers, device, flops_per_s) * flops_per_s
    if on_vectors.all():
        return on_vector_units
    occupied = _occupied_flops(flops, sizes, numbers, device) * device.matmul_efficiency
    return np.where(on_vectors, on_vector_units, occupied)


def _occupied_flops(
    flops: np.ndarray, sizes: LocalSizes, numbers: ConvolutionNumbers, device: Device
) -> np.ndarray:
    """What the matrix units could do at their peak."""
    share = np.where(
        sizes.is_filter_gradient,
        filter_gradient_share(sizes.samples, sizes.results, numbers),
        forward_share(sizes.features, sizes.results, sizes.item_bytes, numbers),
    )
    # Sums of gradients of filters are split among the cores.
    one_tile = 2 * sizes.features * sizes.taps * _TILE**2
    least = np.where(sizes.is_filter_gradient, 0.0, one_tile)
    return np.maximum(flops / share, least * core_count(device))


def vector_seconds(
    flops: np.ndarray,
    sizes: LocalSizes,
    numbers: ConvolutionNumbers,
    device: Device,
    flops_per_s: np.ndarray,
) -> np.ndarray:
    """Of convolutions in types without matrix units, of which products reach `flops_per_s`."""
    rows, columns = sizes.samples * sizes.places, sizes.results
    # Less than features times taps where taps fall on padding.
    summed = flops / (2 * rows * columns)
    blocks = np.ceil(rows / _ROWS) * np.ceil(columns / _COLUMNS)
    cores = core_count(device)
    taken = np.where(sizes.is_filter_gradient, blocks, np.ceil(blocks / cores) * cores)
    ready = np.where(
        sizes.is_filter_gradient,
        1.0,
        1 + numbers.vector_narrow_sum / (sizes.features * sizes.taps),
    )
    product = 2 * summed * taken * _ROWS * _COLUMNS * ready / numbers.vector_share / flops_per_s
    if is_processor(device):
        return product
    winograd = _winograd_seconds(rows, summed, sizes, numbers, device, flops_per_s)
    return np.where(sizes.tile_share > 0, np.minimum(product, winograd), product)


def _winograd_seconds(
    rows: np.ndarray,
    summed: np.ndarray,
    sizes: LocalSizes,
    numbers: ConvolutionNumbers,
    device: Device,
    flops_per_s: np.ndarray,
) -> np.ndarray:
    is_gradient, columns = sizes.is_filter_gradient, sizes.results
    # Over places of all images; a gradient of a filter sums over them.
    places = np.where(is_gradient, summed, rows)
    wide = np.where(is_gradient, sizes.samples, sizes.features)
    tiles = _TILE_PRODUCTS * places * sizes.tile_share
    filters = _TILE_PRODUCTS * wide * columns
    read_anew = ((wide + columns) * tiles + filters) * sizes.item_bytes
    moved = (wide + columns) * places * sizes.item_bytes + read_anew
    # What is filled of the tiles of results, and of sums: the products fill the cores together.
    left = np.where(is_gradient, wide, np.maximum(places * sizes.tile_share, 1.0))
    filled = np.ceil(left / _ROWS) * _ROWS / left * np.ceil(columns / _COLUMNS) * _COLUMNS
    ready = np.where(is_gradient, 1.0, 1 + numbers.vector_narrow_sum / wide)
    multiplied = 2 * tiles * wide * filled * ready / flops_per_s
    bytes_per_s = device.memory_bytes_per_s("product")
    return moved / bytes_per_s + np.maximum(multiplied, read_anew / bytes_per_s)


def winograd_tiles(taps: Sequence[int], places: Sequence[int], windows: Sequence[WindowDim]) -> int:
    """How many tiles an image has, 0 where Winograd's way is not for a filter of such taps."""
    is_dense = all(w.stride == w.base_dilation == w.window_dilation == 1 for w in windows)
    if not is_dense or tuple(taps) != (3, 3):
        return 0
    return math.prod(-(-size // _TILE_SIDE) for size in places)


def forward_share(
    features: Numbers, results: Numbers, item_bytes: Numbers, numbers: ConvolutionNumbers
) -> Numbers:
    """Of a convolution, or the gradient of what it reads."""
    narrow = numbers.feature_bytes / item_bytes
    return features / (features + narrow) * results / (results + numbers.narrow_results)


def filter_gradient_share(
    features: Numbers, results: Numbers, numbers: ConvolutionNumbers
) -> Numbers:
    """Of the gradient of a filter."""
    narrow = numbers.gradient_narrow_features
    each = features / (features + narrow) * results / (results + narrow)
    return numbers.gradient_share * each


def library_convolution(graph: Graph, op: Op, rule: Rule) -> Convolution | None:
    """What `op` is; None for what is no convolution, has groups, or multiplies nothing."""
    attributes = op.instruction.attributes
    dims = attributes.conv
    if op.opcode != CONVOLUTION or dims is None:
        return None
    if attributes.feature_group_count > 1 or attributes.batch_group_count > 1:
        return None
    result = graph.values[op.outputs[0]].dims
    if 0 in (*result, *(size for v in op.inputs for size in graph.values[v].dims)):
        return None
    taps = [w.size for w in attributes.window]
    places = [result[d] for d in dims.output_spatial]
    is_filter_gradient = math.prod(taps) > math.prod(places)
    # Of a filter's gradient the places are the filter's taps.
    sides = (places, taps) if is_filter_gradient else (taps, places)
    return Convolution(
        features=_sizes(rule, rule.operands[1], dims.kernel_input_feature),
        results=_sizes(rule, rule.results[0], dims.output_feature),
        samples=_sizes(rule, rule.operands[0], dims.input_batch),
        space=_sizes(rule, rule.results[0], *dims.output_spatial),
        places=math.prod(places),
        taps=math.prod(taps),
        tiles=winograd_tiles(*sides, attributes.window),
        is_filter_gradient=is_filter_gradient,
        item_bytes=DTYPE_BITS[graph.values[op.inputs[0]].dtype] // 8,
    )


def _sizes(rule: Rule, dims: DimFactors, *of: int) -> _Sizes:
    sizes = [1] * len(rule.factors)
    for factor in (factor for dim in of for factor in dims[dim]):
        sizes[factor] = rule.factors[factor].size
    return tuple(sizes)
