"""What decides how long a kernel runs: its signature, and how it follows from a sharding.

FlexFlow's assumption A1 (Jia et al. 2019, section 5): the time of an op depends on its shapes and
its device only. So kernels of one signature are measured once.

    dot           b products [m, k] x [k, n]: 2 b m n k operations
    convolution   the product of each of b groups with k = its input features times taps, n = its
                  output features and m = batch times result positions     -> in: `matmul_sizes`
    other kernels family of the opcode, class of element type, bytes read and written

Operand layouts are no part of a signature: a library's transposed products run at nearly the same
rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
import math
from typing import Final, Literal

from automap.plan.checks import check_numbers, refuse
from automap.topology.dtypes import DTYPE_FALLBACK
from hlo_tools.graph import DTYPE_BITS


Family = Literal[
    "elementwise", "reduce", "gather", "scatter", "window", "select-and-scatter", "sort"
]
ElementClass = Literal["wide float", "narrow float", "integer"]

_NARROW_BITS: Final = 16
# A window of more taps than this slides a kernel's gradient over an image.
_MAX_TAPS: Final = 16
# Products of four sizes stay far from the largest float.
_MAX_SIZE: Final = 2**40


class Role(IntEnum):
    """What a factor of a contraction is; indexes `MatmulSizes`."""

    BATCH = 0
    M = 1
    N = 2
    K = 3


MatmulSizes = tuple[int, int, int, int]
"""(b, m, n, k): b products of [m, k] and [k, n]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DotSignature:
    """b products [m, k] x [k, n]; `dtype` is HLO's name of the wider operand's type."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check_contraction(self.dtype, (self.batch, self.m, self.n, self.k))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spatial:
    """One spatial dimension: elements read and made, and the window that slides over it."""

    read: int
    made: int
    taps: int
    stride: int
    padding_low: int
    window_dilation: int
    base_dilation: int

    @property
    def padding_high(self) -> int:
        """The padding after the last element with which the window makes `made` results."""
        # Dilation spreads the taps, or the elements, with gaps between them.
        window = (self.taps - 1) * self.window_dilation + 1
        extent = (self.read - 1) * self.base_dilation + 1
        return (self.made - 1) * self.stride + window - extent - self.padding_low

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        positive = (
            self.read,
            self.made,
            self.taps,
            self.stride,
            self.window_dilation,
            self.base_dilation,
        )
        _check_sizes("spatial", positive)
        if abs(self.padding_low) > _MAX_SIZE:
            raise refuse("padding_low", self.padding_low, f"at most {_MAX_SIZE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSignature:
    """A convolution: `batch` and features of the input as one device sees them."""

    dtype: str
    batch: int
    in_features: int
    out_features: int
    feature_groups: int
    batch_groups: int
    spatial: tuple[Spatial, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        sizes = (self.batch, self.in_features, self.out_features)
        _check_contraction(self.dtype, (*sizes, self.feature_groups, self.batch_groups))
        groups = self.feature_groups * self.batch_groups
        if self.in_features % self.feature_groups or self.out_features % groups:
            raise refuse("in_features", self.in_features, "multiples of the groups")
        if self.batch % self.batch_groups:
            raise refuse("batch", self.batch, "a multiple of batch_groups")

    @property
    def kind(self) -> str:
        """What else than b, m, n and k a library chooses its algorithm by."""
        taps = [str(s.taps) if s.taps <= _MAX_TAPS else "image" for s in self.spatial]
        steps = [f"{s.stride}/{s.window_dilation}/{s.base_dilation}" for s in self.spatial]
        groups = f"{self.feature_groups > 1}/{self.batch_groups > 1}"
        return " ".join(("convolution", *taps, *steps, groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSignature:
    """A kernel bound by memory: `n_bytes` are read and written in all."""

    family: Family
    elements: ElementClass
    n_bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        check_numbers(self)


Signature = DotSignature | ConvolutionSignature | StreamSignature


def _check_contraction(dtype: str, sizes: Sequence[int]) -> None:
    if dtype not in DTYPE_FALLBACK:
        raise refuse("dtype", dtype, f"one of {', '.join(sorted(DTYPE_FALLBACK))}")
    _check_sizes("sizes", sizes)


def _check_sizes(field: str, sizes: Sequence[int]) -> None:
    if not 1 <= min(sizes) <= max(sizes) <= _MAX_SIZE:
        raise refuse(field, tuple(sizes), f"integers from 1 to {_MAX_SIZE}")


def matmul_sizes(signature: DotSignature | ConvolutionSignature) -> MatmulSizes:
    """(b, m, n, k) of a contraction."""
    if isinstance(signature, DotSignature):
        return signature.batch, signature.m, signature.n, signature.k
    s = signature
    # One of both is 1: JAX and XLA allow groups of features or of the batch, not of both.
    groups = max(s.feature_groups, s.batch_groups)
    return (
        groups,
        s.batch // s.batch_groups * math.prod(d.made for d in s.spatial),
        s.out_features // groups,
        s.in_features // s.feature_groups * math.prod(d.taps for d in s.spatial),
    )


def element_class(dtype: str) -> ElementClass:
    """The class of an HLO element type."""
    # HLO's floats are f32, bf16, f8e4m3 and the like, its complex numbers c64 and c128.
    if dtype[0] not in ("f", "b", "c"):
        return "integer"
    return "narrow float" if DTYPE_BITS[dtype] <= _NARROW_BITS else "wide float"
