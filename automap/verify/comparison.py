"""The prediction beside the witness: memory, collectives by kind and axes, and where they differ.

    memory        predicted peak against the compiler's; error = (predicted - compiled) / compiled
    collectives   per kind and axes, tensors and bytes of one step on both sides, after what the
                  backend is known to do differently (`Backend.compiled`)
                                                                        -> in: `collective_rows`
    places        the largest compiled tensors of the rows that differ, with the line of the user's
                  code that they were made for                          -> in: `differing_places`

Bytes agree if they are equal to `TOLERANCE`: a compiler may send a few scalars more.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from automap.backends import Backend
from automap.plan.record import PlanRecord
from automap.verify.witness import CompiledRecord, Witness


TOLERANCE: Final = 0.01
_PLACES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One kind over the same axes: tensors and bytes per step, predicted and compiled."""

    kind: str
    axes: tuple[str, ...]
    predicted_count: int
    predicted_bytes: int
    compiled_count: int
    compiled_bytes: int
    agrees: bool

    @property
    def difference_bytes(self) -> int:
        """Predicted minus compiled."""
        return self.predicted_bytes - self.compiled_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A compiled collective of a row that differs: `at` is XLA's name, `source` the line of the
    user's code.

    `source` is "" where the compiler forgot.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    at: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both sides of a plan. `memory_error` is None where the compiler does not say what it needs;
    what it is expected to keep on the chip is not in `predicted_peak_bytes`.

    `rows` is None where the partitioned program cannot be read; the largest difference comes first.
    """

    predicted_step_seconds: float
    predicted_peak_bytes: int
    compiled_peak_bytes: int | None
    memory_error: float | None
    rows: tuple[CollectiveRow, ...] | None
    places: tuple[Place, ...]


def compare(
    plan: PlanRecord, witness: Witness, backend: Backend, sources: Mapping[str, str]
) -> Comparison:
    """Hold a plan's prediction against a witness; `sources` are lines of code by site."""
    predicted, compiled = plan.predicted.expected_bytes, witness.peak_bytes
    rows = (
        None if witness.collectives is None else collective_rows(plan, witness.collectives, backend)
    )
    places = () if rows is None else differing_places(rows, witness.collectives or (), sources)
    return Comparison(
        predicted_step_seconds=plan.predicted.step_seconds,
        predicted_peak_bytes=predicted,
        compiled_peak_bytes=compiled,
        memory_error=(
            None
            if compiled is None or witness.memory is None
            else (predicted - compiled) / max(compiled, 1)
        ),
        rows=rows,
        places=places,
    )


def collective_rows(
    plan: PlanRecord, compiled: tuple[CompiledRecord, ...], backend: Backend
) -> tuple[CollectiveRow, ...]:
    """Collectives on both sides, the largest difference in bytes first."""
    # By kind and axes: predicted tensors and bytes, compiled tensors and bytes.
    counts: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    sizes = dict(plan.mesh.axes)
    for record in plan.predicted.collectives:
        # XLA's groups say nothing of axes of size one.
        axes = tuple(axis for axis in record.axes if sizes[axis] > 1)
        entry = counts[backend.compiled.runs_as.get(record.kind, record.kind), axes]
        entry[0] += record.count
        entry[1] += record.bytes
    for collective in compiled:
        entry = counts[collective.kind, collective.axes]
        entry[2] += collective.count
        entry[3] += collective.count * collective.bytes
    rows = (
        CollectiveRow(
            kind=kind,
            axes=axes,
            predicted_count=c[0],
            predicted_bytes=c[1],
            compiled_count=c[2],
            compiled_bytes=c[3],
            agrees=_agrees(c, backend),
        )
        for (kind, axes), c in counts.items()
    )
    return tuple(sorted(rows, key=lambda r: (-abs(r.difference_bytes), r.kind, r.axes)))


def _agrees(counts: list[int], backend: Backend) -> bool:
    n_predicted, predicted, n_compiled, compiled = counts
    # A backend that merges tensors into buffers sends the same bytes in fewer of them.
    is_near = abs(predicted - compiled) <= TOLERANCE * max(predicted, compiled)
    return is_near and (n_predicted == n_compiled or backend.compiled.merges == "into buffers")


def differing_places(
    rows: tuple[CollectiveRow, ...],
    compiled: tuple[CompiledRecord, ...],
    sources: Mapping[str, str],
) -> tuple[Place, ...]:
    """The largest compiled collectives of the rows that differ, one place for a line of code."""
    # Rows say how much differs, places where it is in the user's code.
    differing = {(row.kind, row.axes) for row in rows if not row.agrees}
    counts: Counter[tuple[str, tuple[str, ...], int, str, str]] = Counter()
    for c in compiled:
        if (c.kind, c.axes) in differing:
            counts[c.kind, c.axes, c.bytes, c.op_name, sources.get(c.site, "")] += c.count
    places = (
        Place(kind=kind, axes=axes, bytes=n_bytes, count=count, at=at, source=source)
        for (kind, axes, n_bytes, at, source), count in counts.items()
    )
    return tuple(sorted(places, key=lambda p: -p.bytes * p.count)[:_PLACES])
