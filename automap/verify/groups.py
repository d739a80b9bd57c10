"""Groups of partitions, as a compiled program has them, as axes of the plan's mesh."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from typing import Final

from hlo_tools.module import Groups


OTHER_DEVICES: Final = ("?",)
"""Axes of a collective whose groups are no set of mesh axes."""


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
