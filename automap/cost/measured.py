"""Measured seconds in the place of the roofline's, for a whole table of kernels at once.

    contraction   t(b, m, n, k) of its algorithm and type; of its type's convolutions where the algorithm was not
                  measured; the roofline where there is none of them              -> in: `_contractions`
    other kernel  t(bytes) of its family and class of elements, or of elementwise kernels of the class, or of wide
                  floats; the roofline where there is none                        -> in: `_curve_of`

A contraction's local shape depends on which factor each mesh axis splits. So its seconds are kept by (kernel,
mesh, that choice), and an evaluation looks them up.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from automap.cost.interpolate import RateModel, StreamCurve
from automap.cost.kernel_shapes import KernelShape
from automap.cost.profile import KernelProfile
from automap.cost.signatures import ElementClass, Family, Role, Work, work_of


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
            points["dot", row.signature.dtype].append((work_of(row.signature), row.seconds))
        for row in profile.convolutions:
            for kind in (row.signature.kind, _ANY_CONVOLUTION):
                point = (work_of(row.signature), row.seconds)
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
        """Seconds of one run of each kernel [kernels]: `roofline` where nothing like it was measured.

        `factor_of_axis` [op rows, axes] says which factor each mesh axis splits, -1 for none; `sizes` are the
        axes'.
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

    def _of_contractions(self, split: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
        """Seconds of `_contractions`, of which each axis splits the factors `split`."""
        codes = np.zeros(len(split), np.int64)
        for axis in range(len(sizes)):
            codes = codes * (self._width + 1) + split[:, axis] + 1
        keys = [(k, sizes, code) for k, code in enumerate(codes.tolist())]
        missing = [k for k, key in enumerate(keys) if key not in self._known]
        for rate, rows in self._by_model(missing):
            work = np.array([self._work(k, split[k].tolist(), sizes) for k in rows], float)
            for k, seconds in zip(rows, rate.predict(work).tolist(), strict=True):
                self._known[keys[k]] = seconds
        return np.array([self._known[key] for key in keys])

    @cached_property
    def _width(self) -> int:
        return max(len(shape.sizes) for shape in self.shapes)

    def _by_model(self, rows: Sequence[int]) -> Iterator[tuple[RateModel, list[int]]]:
        of_model: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            rate = self._models.rate_of(self.shapes[self._contractions[row]])
            of_model[id(rate)].append(row)
        for rate in self._models.rates.values():
            if id(rate) in of_model:
                yield rate, of_model[id(rate)]

    def _work(self, row: int, split: Sequence[int], sizes: tuple[int, ...]) -> list[int]:
        """(b, m, n, k) of one contraction on a device."""
        shape = self.shapes[self._contractions[row]]
        parts = parts_of(shape, split, sizes)
        work = [1] * len(Role)
        for role, size, part in zip(shape.roles, shape.sizes, parts, strict=True):
            work[role] *= -(-size // part)
        return work


def parts_of(shape: KernelShape, split: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """In how many parts each factor of a contraction is split."""
    parts = [1] * len(shape.roles)
    for factor, size in zip(split, sizes, strict=True):
        if factor >= 0:
            parts[factor] *= size
    return parts
