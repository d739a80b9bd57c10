"""Measured seconds in the place of the roofline's, for a whole table of kernels at once.

    contraction   t(b, m, n, k) of its algorithm and type; of its type's convolutions where the
                  algorithm was not measured; the roofline where there is none of them
                                                                         -> in: `Models.rate_model`
    other kernel  t(bytes) of its family and class of elements, or of elementwise kernels of the
                  class, or of wide floats; the roofline where there is none
                                                                       -> in: `Models.stream_curve`

Contractions (`RateModel`). A measured point i has x_i = log (b, m, n, k) and the rate
r_i = 2 b m n k / t_i. At x, with d_i = |x - x_i| and over the `NEIGHBOURS` nearest points,

    log r(x) = sum_i d_i^-POWER log r_i / sum_i d_i^-POWER,   t(x) = max(2 b m n k / r(x), launch)

(Shepard 1968): exact at measured points, between the least and the greatest rate of the neighbours,
and on a device of one rate that rate. A shape costs at least what any measured shape inside it
costs, and at most what any that contains it does, where the measurements themselves do not
contradict that                                                      -> in: `RateModel._bounded`

Kernels bound by memory (`StreamCurve`). log t is linear in log bytes between measured sizes, made
monotone by the running maximum; t is that of the smallest below it, and grows as bytes do above the
largest.

A product that a compiler makes one with others (`KernelShape.merged_in`) takes its part of the
larger one, if it reads and writes no more than so many bytes on a device
                                                                -> in: `MeasuredKernels._larger`

A contraction's local shape depends on which factor each mesh axis splits. So its seconds are kept
by (kind of kernel, mesh, that choice), and an evaluation looks them up.

What is measured is the user's profile, and for products of a type that it does not have, the
catalogue's measurements of the device (`automap.topology.measured.products`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from automap.cost.profile.record import KernelProfile
from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import (
    ElementClass,
    Family,
    MatmulSizes,
    Role,
    matmul_sizes,
)
from automap.topology.measured.products import measured_products, measured_types
from automap.topology.model import Device
from hlo_tools.graph import DTYPE_BITS


NEIGHBOURS = 8
POWER = 3.0
_ANY_CONVOLUTION = "convolution"
_FALLBACK: tuple[tuple[Family | None, ElementClass | None], ...] = (
    (None, None),
    ("elementwise", None),
    ("elementwise", "wide float"),
)
"""Curves tried one after the other; None is the kernel's own."""


@dataclass(frozen=True)
class RateModel:
    """Measured contractions of one algorithm and element type: `sizes` [points, 4] (b, m, n, k),
    `seconds` [points].
    """

    sizes: np.ndarray
    seconds: np.ndarray

    @classmethod
    def fit(cls, points: Sequence[tuple[MatmulSizes, float]]) -> "RateModel":
        """The model of measured (sizes, seconds); of equal sizes the mean seconds in logs."""
        sizes, which = np.unique(
            np.array([s for s, _ in points], float), axis=0, return_inverse=True
        )
        logs = np.log([seconds for _, seconds in points])
        each = np.bincount(which.ravel(), logs) / np.bincount(which.ravel())
        return cls(sizes, np.exp(each))

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        """Seconds of contractions, float [queries], of `sizes` [queries, 4]."""
        log_sizes, log_query = np.log(self.sizes), np.log(sizes)
        # Role by role, [queries, points]: one array of [queries, points, 4] would be much larger.
        distance = np.sqrt(
            sum((log_query[:, role, None] - log_sizes[:, role]) ** 2 for role in range(len(Role)))
        )
        count = min(NEIGHBOURS, len(self.sizes))
        near = np.argpartition(distance, count - 1, axis=1)[:, :count]
        weight = np.take_along_axis(distance, near, axis=1)
        # At a measured point d = 0: the smallest d whose weight is still finite, twice over, as
        # weights are added and multiplied. Its seconds are put in exactly at the end.
        weight = np.maximum(weight, np.finfo(float).tiny ** (1 / (2 * POWER))) ** -POWER
        # log (b m n k / t): the factor 2 of both sides cancels.
        log_rate = log_sizes.sum(axis=1) - np.log(self.seconds)
        at = (weight * log_rate[near]).sum(axis=1) / weight.sum(axis=1)
        seconds = self._bounded(sizes, np.exp(log_query.sum(axis=1) - at))
        nearest = distance.argmin(axis=1)
        return np.where((sizes == self.sizes[nearest]).all(axis=1), self.seconds[nearest], seconds)

    def _bounded(self, sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        inside = (self.sizes <= sizes[:, None]).all(axis=2)
        around = (self.sizes >= sizes[:, None]).all(axis=2)
        low = np.where(inside, self.seconds, 0.0).max(axis=1)
        high = np.where(around, self.seconds, np.inf).min(axis=1)
        # Measurements that contradict each other (low > high) bound nothing.
        return np.where(low <= high, np.clip(seconds, low, high), seconds)


@dataclass(frozen=True)
class StreamCurve:
    """Measured streaming kernels: `n_bytes` ascending [points], `seconds` ascending [points]."""

    n_bytes: np.ndarray
    seconds: np.ndarray

    @classmethod
    def fit(cls, points: Sequence[tuple[int, float]]) -> "StreamCurve":
        """The curve of measured (bytes, seconds)."""
        rows = np.array(sorted(points), float)
        return cls(rows[:, 0], np.maximum.accumulate(rows[:, 1]))

    def predict(self, n_bytes: np.ndarray) -> np.ndarray:
        """Seconds of kernels that move `n_bytes`, float [queries]."""
        # `interp` holds the last value beyond the largest size: there seconds grow as bytes do.
        above = np.maximum(n_bytes / self.n_bytes[-1], 1.0)
        log_bytes = np.log(np.maximum(n_bytes, self.n_bytes[0]))
        return np.exp(np.interp(log_bytes, np.log(self.n_bytes), np.log(self.seconds))) * above


class Model(Protocol):
    """What is known of kernels: a number of each, by what they are queried with."""

    def predict(self, queries: np.ndarray, /) -> np.ndarray:
        """One number, mostly seconds, of each query: the sizes of contractions, or bytes."""
        ...


@dataclass(frozen=True)
class Models:
    """What was measured as models: rates by (kind, type), curves by (family, class)."""

    rates: Mapping[tuple[str, str], Model]
    curves: Mapping[tuple[str, str], Model]

    @classmethod
    def fit(cls, profile: KernelProfile | None, device: Device) -> "Models":
        """The models of a profile, and of the catalogue's products where it has none of a type."""
        products: dict[tuple[str, str], Model] = {
            ("dot", dtype): measured_products(device.measured, dtype)
            for dtype in measured_types(device.measured)
        }
        if profile is None:
            return cls(products, {})
        points: dict[tuple[str, str], list[tuple[MatmulSizes, float]]] = defaultdict(list)
        for row in profile.dots:
            points["dot", row.signature.dtype].append((matmul_sizes(row.signature), row.seconds))
        for row in profile.convolutions:
            # Once for its own algorithm, and once for those that were not measured.
            for kind in (row.signature.kind, _ANY_CONVOLUTION):
                point = (matmul_sizes(row.signature), row.seconds)
                points[kind, row.signature.dtype].append(point)
        sizes: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for row in profile.streams:
            s = row.signature
            # A kernel that moves nothing still takes its launch: 1 byte, as curves are in logs.
            sizes[s.family, s.elements].append((max(s.n_bytes, 1), row.seconds))
        return cls(
            products | {key: RateModel.fit(rows) for key, rows in points.items()},
            {key: StreamCurve.fit(rows) for key, rows in sizes.items()},
        )

    def rate_model(self, kind: str, dtype: str) -> Model | None:
        """The model of a contraction, None if nothing like it was measured."""
        kinds = (kind,) if kind == "dot" else (kind, _ANY_CONVOLUTION)
        known = (self.rates[k, dtype] for k in kinds if (k, dtype) in self.rates)
        return next(known, None)

    def stream_curve(self, family: Family, elements: ElementClass) -> Model | None:
        """The model of a kernel bound by memory, None if nothing like it was measured."""
        keys = ((other or family, kind or elements) for other, kind in _FALLBACK)
        return next((self.curves[key] for key in keys if key in self.curves), None)


@dataclass(frozen=True)
class MeasuredKernels:
    """Prices the kernels of a table: `shapes` and `op_row` have an entry per kernel; products of at
    most `merged_bytes` are parts of larger ones.
    """

    shapes: Sequence[KernelShape]
    op_row: np.ndarray
    models: Models
    merged_bytes: int = 0
    # Mesh sizes -> (kind of contraction, which factor each axis splits) as one number -> seconds.
    _known: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict, repr=False)

    def override(
        self,
        roofline: np.ndarray,
        moved_bytes: np.ndarray,
        factor_of_axis: np.ndarray,
        sizes: tuple[int, ...],
    ) -> np.ndarray:
        """Seconds of one run of each kernel [kernels]: `roofline` where nothing like it was
        measured.

        `factor_of_axis` [op rows, axes] says which factor each mesh axis splits, -1 for none;
        `sizes` are the axes'.
        """
        seconds = roofline.copy()
        for curve, kernels in self._streams:
            seconds[kernels] = curve.predict(moved_bytes[kernels])
        if len(self._contractions):
            split = factor_of_axis[self.op_row[self._contractions]]
            seconds[self._contractions] = self._contraction_seconds(split, sizes)
        return seconds

    @cached_property
    def _streams(self) -> list[tuple[Model, np.ndarray]]:
        """Each curve with the kernels it is for."""
        kernels: dict[tuple[Family, ElementClass], list[int]] = defaultdict(list)
        if self.models.curves:
            for index, shape in enumerate(self.shapes):
                if not shape.kind:
                    kernels[shape.family, shape.elements].append(index)
        curves = ((self.models.stream_curve(*key), rows) for key, rows in kernels.items())
        return [(curve, np.array(rows)) for curve, rows in curves if curve is not None]

    @cached_property
    def _rates(self) -> Mapping[tuple[str, str], Model | None]:
        """The rate of each algorithm and type of contraction."""
        pairs = {(shape.kind, shape.dtype) for shape in self.shapes if shape.kind}
        return {pair: self.models.rate_model(*pair) for pair in pairs}

    @cached_property
    def _contractions(self) -> np.ndarray:
        """Kernels that a measured rate is known for."""
        rates = self._rates
        known = [i for i, s in enumerate(self.shapes) if s.kind and rates[s.kind, s.dtype]]
        return np.array(known, np.int64)

    @cached_property
    def _kinds(self) -> tuple[Sequence[KernelShape], np.ndarray]:
        """The different shapes of `_contractions`, and the number of each one's, [contractions]."""
        # By identity: copies of a step share their shapes, and to compare these takes longer.
        numbers: dict[int, int] = {}
        shapes = [self.shapes[i] for i in self._contractions.tolist()]
        kind = [numbers.setdefault(id(shape), len(numbers)) for shape in shapes]
        kinds = {number: shape for number, shape in zip(kind, shapes, strict=True)}
        return list(kinds.values()), np.array(kind, np.int64)

    @cached_property
    def _rate_kinds(self) -> list[tuple[Model, np.ndarray]]:
        """Each rate with the kinds of contractions it is for, as a mask."""
        own = [self._rates[shape.kind, shape.dtype] for shape in self._kinds[0]]
        used = [rate for rate in self.models.rates.values() if any(rate is r for r in own)]
        return [(rate, np.array([rate is r for r in own])) for rate in used]

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """(size, role) of each factor of the kinds, int [kinds, factors]; padded with size 1."""
        shapes = self._kinds[0]
        sizes = np.ones((len(shapes), max(len(shape.sizes) for shape in shapes)), np.int64)
        roles = np.zeros_like(sizes)
        for row, shape in enumerate(shapes):
            sizes[row, : len(shape.sizes)] = shape.sizes
            roles[row, : len(shape.sizes)] = shape.roles
        return sizes, roles

    def _contraction_seconds(self, split: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
        """Seconds of `_contractions`, of which each axis splits the factors `split`."""
        kind, n_factors = self._kinds[1], self._factors[0].shape[1]
        # The kind and the factors of all axes as digits of one number; 0 is of an axis that splits
        # none.
        codes = kind
        for axis in range(len(sizes)):
            codes = codes * (n_factors + 1) + split[:, axis] + 1
        # Few are different: the same layers, and in a batch points that differ in one decision.
        distinct, first, back = np.unique(codes, return_index=True, return_inverse=True)
        known, numbers = self._known.setdefault(sizes, {}), distinct.tolist()
        missing = [at for at, number in enumerate(numbers) if number not in known]
        if missing:
            rows = first[missing]
            local = self._local_sizes(kind[rows], split[rows], sizes)
            larger = self._larger(kind[rows], local)
            for rate, is_its in self._rate_kinds:
                wanted = np.flatnonzero(is_its[kind[rows]])
                if len(wanted):
                    whole = rate.predict((local * larger)[wanted])
                    seconds = (whole / larger[wanted].prod(axis=1)).tolist()
                    known.update(zip(codes[rows[wanted]].tolist(), seconds, strict=True))
        return np.array([known[number] for number in numbers])[back]

    def _larger(self, kind: np.ndarray, local: np.ndarray) -> np.ndarray:
        """How much larger the products are that contractions of these kinds and `local` sizes are
        parts of, [contractions, 4].
        """
        b, m, n, k = local.T
        n_bytes = self._widths[kind] * b * (m * k + k * n + m * n)
        return np.where((n_bytes <= self.merged_bytes)[:, None], self._times[kind], 1.0)

    @cached_property
    def _times(self) -> np.ndarray:
        """`KernelShape.merged_in` of the kinds, [kinds, 4]."""
        times = np.ones((len(self._kinds[0]), len(Role)))
        for row, shape in enumerate(self._kinds[0]):
            if shape.merged_in is not None:
                times[row, shape.merged_in.role] = shape.merged_in.times
        return times

    @cached_property
    def _widths(self) -> np.ndarray:
        """Bytes of an element of the kinds, [kinds]."""
        return np.array([DTYPE_BITS[shape.dtype] / 8 for shape in self._kinds[0]])

    def _local_sizes(
        self, kind: np.ndarray, split: np.ndarray, sizes: tuple[int, ...]
    ) -> np.ndarray:
        """(b, m, n, k) on a device of contractions of these kinds, int [contractions, 4]."""
        whole, roles = self._factors[0][kind], self._factors[1][kind]
        parts = np.ones_like(whole)
        for axis, size in enumerate(sizes):
            rows = np.flatnonzero(split[:, axis] >= 0)
            parts[rows, split[rows, axis]] *= size
        # Parts are rounded up: the largest part is the one that the step waits for.
        local = -(-whole // parts)
        return np.stack([np.where(roles == role, local, 1).prod(axis=1) for role in Role], axis=1)


def measured_kernels(
    shapes: Sequence[KernelShape],
    op_row: np.ndarray,
    profile: KernelProfile | None,
    device: Device,
    merged_bytes: int,
) -> MeasuredKernels | None:
    """What a profile and the catalogue measured on a device; None if nothing was."""
    if profile is None and not device.measured:
        return None
    return MeasuredKernels(shapes, op_row, Models.fit(profile, device), merged_bytes)


def factor_parts(shape: KernelShape, split: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """In how many parts each factor of a contraction is split, an entry for each factor."""
    parts = [1] * len(shape.roles)
    for factor, size in zip(split, sizes, strict=True):
        if factor >= 0:
            parts[factor] *= size
    return parts
