"""What a compiler said of kernels, as corrections of their predicted seconds.

A kernel of local signature x was predicted to take p(x) and compiled to take c(x):

    y(x) = log (c(x) / p(x))

Another kernel of the same algorithm and type, with sizes x' = (b, m, n, k), takes its prediction
times exp(y'), where over all kernels i that were compiled, with d_i = |log x' - log x_i|

    y' = sum_i d_i^-POWER y_i / (r^-POWER + sum_i d_i^-POWER)              -> in: `RatioModel`

(Shepard 1968, with a prediction that is right at the distance r, `price_reach` of
`automap/policy.toml`): exact where it was compiled, and the prediction itself far from it. So a
correction keeps what the roofline knows of other sizes, which seconds by themselves do not.

Kernels that are no contractions are fused by each compiler in its own way: one cannot be told from
the next, only their sums can. They have one ratio for each workload, `other_ratio`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
import math

import numpy as np

from automap.cost.profile.measured import POWER, MeasuredKernels, Models
from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    MatmulSizes,
    matmul_sizes,
)
from automap.plan.checks import check_numbers, refuse, repeated
from automap.policy import default_policy


# The curve that all families of kernels fall back to (`Models.stream_curve`).
_ALL_OTHERS = ("elementwise", "wide float")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledDot:
    """Seconds of one run of a dot, as compiled and as predicted before."""

    signature: DotSignature
    seconds: float
    predicted_seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledConvolution:
    """Seconds of one run of a convolution, as compiled and as predicted before."""

    signature: ConvolutionSignature
    seconds: float
    predicted_seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check(self)


CompiledKernel = CompiledDot | CompiledConvolution


def _check(row: CompiledKernel) -> None:
    check_numbers(row)
    for name in ("seconds", "predicted_seconds"):
        if not getattr(row, name) > 0:
            raise refuse(name, getattr(row, name), "a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class KernelPrices:
    """Corrections of kernels on one kind of device: those of contractions by their signature, and
    `other_ratio` of compiled over predicted seconds of all other kernels of a workload.
    """

    dots: tuple[CompiledDot, ...] = ()
    convolutions: tuple[CompiledConvolution, ...] = ()
    other_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Raise `PlanError` for a signature that stands in a list twice, or a ratio of nothing."""
        check_numbers(self)
        if not self.other_ratio > 0:
            raise refuse("other_ratio", self.other_ratio, "a finite number > 0")
        for name in ("dots", "convolutions"):
            again = repeated(str(row.signature) for row in getattr(self, name))
            if again:
                raise refuse(f"{name}[{again[0]}].signature", again[1], "each signature once")

    def with_kernels(self, rows: Iterable[CompiledKernel]) -> "KernelPrices":
        """These prices and newer ones, which win over those of the same signature."""
        kernels = {row.signature: row for row in (*self.dots, *self.convolutions)}
        kernels |= {row.signature: row for row in rows}
        return replace(
            self,
            dots=tuple(r for r in kernels.values() if isinstance(r, CompiledDot)),
            convolutions=tuple(r for r in kernels.values() if isinstance(r, CompiledConvolution)),
        )


@dataclass(frozen=True)
class RatioModel:
    """Corrections of contractions of one algorithm and type: `log_sizes` [points, 4] of (b, m, n,
    k), `log_ratios` [points], and the distance `reach` at which a prediction weighs as much as one
    kernel that was compiled.
    """

    log_sizes: np.ndarray
    log_ratios: np.ndarray
    reach: float = field(default_factory=lambda: default_policy().price_reach)

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        """Compiled over predicted seconds, float [queries], of contractions of `sizes` [queries,
        4].
        """
        apart = np.log(sizes)[:, None] - self.log_sizes
        distance = np.sqrt((apart**2).sum(axis=2))
        # The smallest distance whose weight is finite: its own kernel then outweighs all others.
        least = np.finfo(float).tiny ** (1 / (2 * POWER))
        weight = np.maximum(distance, least) ** -POWER
        total = self.reach**-POWER + weight.sum(axis=1)
        return np.exp(weight @ self.log_ratios / total)


@dataclass(frozen=True)
class SameRatio:
    """One ratio for kernels of all sizes."""

    ratio: float

    def predict(self, n_bytes: np.ndarray) -> np.ndarray:
        """The ratio of each kernel, float [queries]."""
        return np.full(len(n_bytes), self.ratio)


def correcting_kernels(
    shapes: tuple[KernelShape, ...], op_row: np.ndarray, prices: KernelPrices
) -> MeasuredKernels:
    """What multiplies the predicted seconds of kernels: `override` of ones gives the ratios."""
    return MeasuredKernels(shapes, op_row, Models(_rates(prices), _curves(prices)))


def _rates(prices: KernelPrices) -> Mapping[tuple[str, str], RatioModel]:
    points: dict[tuple[str, str], dict[MatmulSizes, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in (*prices.dots, *prices.convolutions):
        signature = row.signature
        kind = "dot" if isinstance(signature, DotSignature) else signature.kind
        # Convolutions that differ in more than these sizes share them: the mean of their logs.
        ratio = math.log(row.seconds / row.predicted_seconds)
        points[kind, signature.dtype][matmul_sizes(signature)].append(ratio)
    return {
        key: RatioModel(
            np.log(np.array([*by_sizes], float)),
            np.array([math.fsum(ratios) / len(ratios) for ratios in by_sizes.values()]),
        )
        for key, by_sizes in points.items()
    }


def _curves(prices: KernelPrices) -> Mapping[tuple[str, str], SameRatio]:
    return {} if prices.other_ratio == 1.0 else {_ALL_OTHERS: SameRatio(prices.other_ratio)}
