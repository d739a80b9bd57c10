"""Convolutions that a GPU's library computes as implicit products, on operands whose features lie
beside each other.

A convolution of c features in and n out, with t taps at each of p places of b samples, is a product
of b p x c t and c t x n. What of the matrix units' peak it reaches falls with few features, as
loads are for 64 bytes of neighbours and tiles for many results:

    forward, and the gradient of what is read    e = c / (c + c_0) * n / (n + n_0)
                                                 c_0 = `feature_bytes` over an element's bytes
    gradient of the filter, of b features in     e = g * b / (b + g_0) * n / (n + g_0)
                                             -> in: `forward_share`, `filter_gradient_share`

A gradient of the filter is told by its window, which has more taps than the result has places: what
HLO calls samples are its features then. Tiles are of T x T results, each of one core, whatever is
summed:

    seconds >= 2 c t T^2 / (peak / cores)        but for gradients of filters, whose sums are split
                                                                     -> in: `occupied_flops`

Groups of features are not covered. The numbers are data of the backend, fitted on the float32
convolutions of AlexNet and VGG-19 on one H200 (docs/reports/step_times.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
import math
from typing import TypeAlias, TypeVar

import numpy as np

from automap.backends import ConvolutionNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import core_count
from automap.topology.model import Device
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import CONVOLUTION
from hlo_tools.rules import Rule
from hlo_tools.rules.rule import DimFactors


Numbers = TypeVar("Numbers", float, np.ndarray)
_Sizes: TypeAlias = tuple[int, ...]
_TILE = 128


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution without groups: sizes of its rule's factors, 1 for those that do not count, for
    features in, features out, and samples.
    """

    features: _Sizes
    results: _Sizes
    samples: _Sizes
    taps: int
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
    taps: np.ndarray
    is_filter_gradient: np.ndarray
    item_bytes: np.ndarray

    @classmethod
    def build(cls, each: Sequence[Convolution | None]) -> "Convolutions":
        """Of all kernels, in their order."""
        chosen = [(k, c) for k, c in enumerate(each) if c is not None]
        width = max((len(c.features) for _, c in chosen), default=0)
        sizes = np.ones((3, len(chosen), width + 1), np.int64)
        for row, (_, c) in enumerate(chosen):
            for which, lengths in enumerate((c.features, c.results, c.samples)):
                sizes[which, row, : len(lengths)] = lengths
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            sizes[0],
            sizes[1],
            sizes[2],
            np.array([c.taps for _, c in chosen], float),
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

    def occupied_flops(
        self,
        flops: np.ndarray,
        op_row: np.ndarray,
        sharding: Shardings,
        numbers: ConvolutionNumbers,
        device: Device,
    ) -> np.ndarray:
        """What the matrix units could do in the time that they take for `flops` on a device,
        [those]; `op_row` is of all kernels.
        """
        rows = op_row[self.kernels]
        features, results, samples = (
            FactorSizes(self.kernels, rows, sizes).local(sharding)
            for sizes in (self.features, self.results, self.samples)
        )
        share = np.where(
            self.is_filter_gradient,
            filter_gradient_share(samples, results, numbers),
            forward_share(features, results, self.item_bytes, numbers),
        )
        # Sums of gradients of filters are split among the cores.
        one_tile = np.where(self.is_filter_gradient, 0.0, 2 * features * self.taps * _TILE**2)
        return np.maximum(flops / share, one_tile * core_count(device))


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
    taps = math.prod(w.size for w in attributes.window)
    places = math.prod(result[d] for d in dims.output_spatial)
    return Convolution(
        features=_sizes(rule, rule.operands[1], dims.kernel_input_feature),
        results=_sizes(rule, rule.results[0], dims.output_feature),
        samples=_sizes(rule, rule.operands[0], dims.input_batch),
        taps=taps,
        is_filter_gradient=taps > places,
        item_bytes=DTYPE_BITS[graph.values[op.inputs[0]].dtype] // 8,
    )


def _sizes(rule: Rule, dims: DimFactors, dim: int) -> _Sizes:
    sizes = [1] * len(rule.factors)
    for factor in dims[dim]:
        sizes[factor] = rule.factors[factor].size
    return tuple(sizes)
