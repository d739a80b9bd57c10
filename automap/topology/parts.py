"""Parts of a machine: neighbouring devices that are a smaller machine of the same levels.

With p_l devices in one place of level l, `count` devices are m = count / p_l neighbouring places of
the level in which they end, and whole places of all levels inside it, so 1 <= m <= n_l and m is
whole. A ring of which only a part is taken is a line.
"""

from dataclasses import replace

from automap.topology.model import Level, Topology


def sub_topology(topology: Topology, count: int) -> Topology | None:
    """`count` neighbours as a machine of their own; None if they would take an uneven part of a
    level.
    """
    levels: list[Level] = []
    inner = 1  # devices in one place of the level: p_l
    for level in topology.levels:
        if inner == count:
            break
        places = min(count // inner, level.size)
        # Inside the level places may be any number, to go further out all of them are taken.
        if count % (inner * places):
            return None
        # A part of a ring does not close.
        kind = "line" if level.kind == "ring" and places < level.size else level.kind
        levels.append(replace(level, size=places, kind=kind, shared_by=min(level.shared_by, count)))
        inner *= places
        if places < level.size:
            break
    if inner != count:
        return None
    return replace(topology, name=f"{count} of {topology.name}", levels=tuple(levels))


def may_begin(topology: Topology, count: int, first: int) -> bool:
    """Whether devices first .. first + count - 1 lie as `sub_topology` says."""
    if sub_topology(topology, count) is None or first + count > topology.device_count:
        return False
    inner = 1
    for level in topology.levels:
        outer = inner * level.size
        # They begin with a place of the level in which they end, and do not go beyond its end.
        if count <= outer:
            return first % inner == 0 and first % outer + count <= outer
        inner = outer
    return first == 0
