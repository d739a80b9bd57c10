"""Predicted collectives beside the compiled ones.

Both sides are multisets of (kind, mesh axes, bytes), one element per tensor and execution; bytes
are the full buffer on one device (`automap.cost.collectives`). What a backend is known to do
differently (`Backend.compiled`) is applied to the prediction.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

from automap.backends import Backend
from automap.cost.traffic.flows import KINDS
from automap.planner.records import Outcome
from automap.topology.mesh import Mesh
from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.module import Groups
from hlo_tools.read.proto import decode_module


OTHER_DEVICES = ("?",)
"""Axes of a collective whose groups are no set of mesh axes."""


@dataclass(frozen=True, slots=True, order=True)
class Transfer:
    """One tensor moved by a collective over `axes`."""

    kind: str
    axes: tuple[str, ...]
    n_bytes: int


def predicted_transfers(outcome: Outcome, backend: Backend) -> Counter[Transfer]:
    """The collectives of a search's best plan, as a backend runs them."""
    split_classes = outcome.context.space.split_classes(outcome.best.point)
    collectives = outcome.context.evaluator.collectives(split_classes)
    names = split_classes.mesh.names
    # Bytes are floats in the cost model (shares of a tensor), whole numbers in a program.
    result: Counter[Transfer] = Counter()
    rows = zip(
        collectives.kind, collectives.mask, collectives.n_bytes, collectives.count, strict=True
    )
    for kind, mask, n_bytes, count in rows:
        name = KINDS[kind].value
        axes = tuple(n for a, n in enumerate(names) if mask >> a & 1)
        result[Transfer(backend.compiled.runs_as.get(name, name), axes, round(n_bytes))] += int(
            count
        )
    return result


def compiled_transfers(text: str, mesh: Mesh) -> Counter[Transfer]:
    """Those of the HLO text of what XLA compiled in this process; `mesh` lies row-major on its
    partitions.

    Raises `HloError` for text that is no HLO.
    """
    module = decode_module(text_to_proto(text))
    result: Counter[Transfer] = Counter()
    for c in compiled_collectives(module):
        joined = joined_axes(c.groups, mesh.axes, is_pairs=c.kind == "collective-permute")
        result[Transfer(c.kind, joined, c.n_bytes)] += c.count
    return result


@cache
def joined_axes(
    groups: Groups | None, axes: tuple[tuple[str, int], ...], *, is_pairs: bool
) -> tuple[str, ...]:
    """The mesh axes that a collective's groups join; `OTHER_DEVICES` if they are no set of axes."""
    names = tuple(name for name, size in axes if size > 1)
    if groups is None:
        return names
    # Partition d is device d of the mesh, row-major: the last axis varies fastest.
    coordinates = list(product(*(range(size) for _, size in axes)))
    if not all(0 <= device < len(coordinates) for group in groups for device in group):
        return OTHER_DEVICES
    # A permutation has pairs (source, target) where others have groups: it runs over the axes along
    # which any pair moves.
    if is_pairs:
        moved = {
            name
            for source, target in groups
            for (name, _), a, b in zip(axes, coordinates[source], coordinates[target])
            if a != b
        }
        return tuple(name for name in names if name in moved)
    # The fewest axes first: axes of size 1 may join any set of axes without changing its groups.
    wanted = {frozenset(group) for group in groups}
    for count in range(len(axes) + 1):
        for chosen in combinations(range(len(axes)), count):
            if _groups_over(chosen, coordinates) == wanted:
                return tuple(axes[a][0] for a in chosen if axes[a][1] > 1)
    return OTHER_DEVICES


def _groups_over(
    chosen: Sequence[int], coordinates: Sequence[tuple[int, ...]]
) -> set[frozenset[int]]:
    groups: dict[tuple[int, ...], set[int]] = {}
    for device, place in enumerate(coordinates):
        rest = tuple(c for a, c in enumerate(place) if a not in chosen)
        groups.setdefault(rest, set()).add(device)
    return {frozenset(group) for group in groups.values()}
