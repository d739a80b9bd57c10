"""Measured seconds in the place of the roofline's, for a whole table of kernels at once.

    contraction   t(b, m, n, k) of its algorithm and type; of its type's convolutions where the algorithm was not
                  measured; the roofline where there is none of them              -> in: `_contractions`
    other kernel  t(bytes) of its family and class of elements, or of elementwise kernels of the class, or of wide
                  floats; the roofline where there is none                        -> in: `_curve_of`

A contraction's local shape depends on which factor each mesh axis splits. So its seconds are kept
by (kernel, mesh, that choice), and an evaluation looks them up.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from automap.cost.profile.interpolate import RateModel, StreamCurve
from automap.cost.profile.record import KernelProfile
from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import ElementClass, Family, Role, Work, matmul_sizes


_ANY_CONVOLUTION = "convolution"
_FALLBACK: tuple[tuple[Family | None, ElementClass | None], ...] = (
    (None, None),
    ("elementwise", None),
    ("elementwise", "wide float"),
)
"""Curves tried one after the other; None is the kernel's own."""


@dataclass(frozen=True)
class Models:
    """A profile as models: rates by (kind, type), curves by (family, class)."""

    rates: Mapping[tuple[str, str], RateModel]
    curves: Mapping[tuple[str, str], StreamCurve]

    @classmethod
    def of(cls, profile: KernelProfile) -> "Models":
        """The models of a profile."""
        points: dict[tuple[str, str], list[tuple[Work, float]]] = defaultdict(list)
        for row in profile.dots:
            points["dot", row.signature.dtype].append((matmul_sizes(row.signature), row.seconds))
        for row in profile.convolutions:
            for kind in (row.signature.kind, _ANY_CONVOLUTION):
                point = (matmul_sizes(row.signature), row.seconds)
                points[kind, row.signature.dtype].append(point)
        sizes: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for row in profile.streams:
            s = row.signature
            sizes[s.family, s.elements].append((max(s.n_bytes, 1), row.seconds))
        return cls(
            {key: RateModel.of(rows) for key, rows in points.items()},
            {key: StreamCurve.of(rows) for key, rows in sizes.items()},
        )

    def rate_of(self, shape: KernelShape) -> RateModel | None:
        """The model of a contraction, None if nothing like it was measured."""
        kinds = (shape.kind,) if shape.kind == "dot" else (shape.kind, _ANY_CONVOLUTION)
        found = (self.rates[k, shape.dtype] for k in kinds if (k, shape.dtype) in self.rates)
        return next(found, None)

    def curve_of(self, shape: KernelShape) -> StreamCurve | None:
        """The model of a kernel bound by memory, None if nothing like it was measured."""
        keys = ((family or shape.family, kind or shape.elements) for family, kind in _FALLBACK)
        return next((self.curves[key] for key in keys if key in self.curves), None)


@dataclass(frozen=True)
class MeasuredKernels:
    """Prices the kernels of a table: `shapes` and `op_row` have an entry per kernel."""

    shapes: Sequence[KernelShape]
    op_row: np.ndarray
    profile: KernelProfile
    _known: dict[tuple[int, tuple[int, ...], int], float] = field(default_factory=dict, repr=False)

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
            seconds[self._contractions] = self._of_contractions(split, sizes)
        return seconds

    @cached_property
    def _models(self) -> Models:
        return Models.of(self.profile)

    @cached_property
    def _streams(self) -> list[tuple[StreamCurve, np.ndarray]]:
        """Each curve with the kernels it is for."""
        kernels: dict[int, list[int]] = defaultdict(list)
        curves: dict[int, StreamCurve] = {}
        for index, shape in enumerate(self.shapes):
            curve = None if shape.kind else self._models.curve_of(shape)
            if curve is not None:
                kernels[id(curve)].append(index)
                curves[id(curve)] = curve
        return [(curves[key], np.array(rows)) for key, rows in kernels.items()]

    @cached_property
    def _contractions(self) -> np.ndarray:
        """Kernels that a measured rate is known for."""
        found = [i for i, s in enumerate(self.shapes) if s.kind and self._models.rate_of(s)]
        return np.array(found, np.int64)

    @cached_property
    def _rows_of_rate(self) -> list[tuple[RateModel, np.ndarray]]:
        """Each rate with the contractions it is for, as a mask over `_contractions`."""
        rates = [self._models.rate_of(self.shapes[i]) for i in self._contractions]
        used = [rate for rate in self._models.rates.values() if any(rate is r for r in rates)]
        return [(rate, np.array([rate is r for r in rates])) for rate in used]

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """(size, role) of each factor of `_contractions`, int [contractions, factors]; padded with
        size 1.
        """
        shapes = [self.shapes[i] for i in self._contractions]
        sizes = np.ones((len(shapes), max(len(shape.sizes) for shape in shapes)), np.int64)
        roles = np.zeros_like(sizes)
        for row, shape in enumerate(shapes):
            sizes[row, : len(shape.sizes)] = shape.sizes
            roles[row, : len(shape.sizes)] = shape.roles
        return sizes, roles

    def _of_contractions(self, split: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
        """Seconds of `_contractions`, of which each axis splits the factors `split`."""
        width = self._factors[0].shape[1] + 1
        codes = np.zeros(len(split), np.int64)
        for axis in range(len(sizes)):
            codes = codes * width + split[:, axis] + 1
        keys = [(row, sizes, code) for row, code in enumerate(codes.tolist())]
        missing = np.array([key not in self._known for key in keys])
        if missing.any():
            work = self._work(split, sizes)
            for rate, rows in self._rows_of_rate:
                wanted = np.flatnonzero(rows & missing)
                if len(wanted):
                    found = rate.predict(work[wanted]).tolist()
                    self._known.update(zip((keys[row] for row in wanted), found, strict=True))
        return np.array([self._known[key] for key in keys])

    def _work(self, split: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
        """(b, m, n, k) of `_contractions` on a device, int [contractions, 4]."""
        whole, roles = self._factors
        parts = np.ones_like(whole)
        for axis, size in enumerate(sizes):
            rows = np.flatnonzero(split[:, axis] >= 0)
            parts[rows, split[rows, axis]] *= size
        local = -(-whole // parts)
        return np.stack([np.where(roles == role, local, 1).prod(axis=1) for role in Role], axis=1)


def factor_parts(shape: KernelShape, split: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """In how many parts each factor of a contraction is split."""
    parts = [1] * len(shape.roles)
    for factor, size in zip(split, sizes, strict=True):
        if factor >= 0:
            parts[factor] *= size
    return parts
