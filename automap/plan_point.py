"""The point of the space that a plan stands for, as the plan file keeps it.

With it a plan can be priced again without a search. Classes are numbers, which only mean something beside the
problem they were counted in: the same step, lowered for the plan's platform, with `layers` as then.

    recorded(point, layers)   Point -> PointRecord
    restored(record, ...)     PointRecord -> Point, checked against the space
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from automap.errors import PlanError
from automap.plan_checks import refuse, repeated


if TYPE_CHECKING:
    from automap.space.point import Mesh, Point
    from automap.space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    """`automap.space.point.Point` as numbers.

    `compute` lists the classes of each mesh axis in order of precedence, `storage` the level of each leaf class
    on each axis: 0 whole, 1 optimizer state split, 2 parameter too. `last` and `whole` are those of the point.
    """

    layers: Literal["folded", "apart"]
    compute: tuple[tuple[int, ...], ...]
    storage: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]
    whole: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for a negative or repeated class, or a level that there is none of."""
        lists = {f"compute[{axis}]": classes for axis, classes in enumerate(self.compute)}
        for name, classes in {**lists, "last": self.last, "whole": self.whole}.items():
            for index, group_class in enumerate(classes):
                if group_class < 0:
                    raise refuse(f"{name}[{index}]", group_class, "the number of a class, from 0")
            again = repeated(map(str, classes))
            if again is not None:
                raise refuse(f"{name}[{again[0]}]", int(again[1]), "a class that was not there yet")
        for axis, levels in enumerate(self.storage):
            for leaf, level in enumerate(levels):
                if level not in (0, 1, 2):
                    raise refuse(f"storage[{axis}][{leaf}]", level, "0 | 1 | 2")

    def check_axes(self, path: str, count: int) -> None:
        """Raise `PlanError` unless there is one list for each of the mesh's `count` axes."""
        for name, lists in (("compute", self.compute), ("storage", self.storage)):
            if len(lists) != count:
                raise refuse(f"{path}.{name}", lists, f"{count} lists, one per mesh axis")


def recorded(point: "Point", layers: Literal["folded", "apart"]) -> PointRecord:
    """The record of a point."""
    return PointRecord(
        layers=layers,
        compute=point.compute,
        storage=tuple(tuple(int(level) for level in levels) for levels in point.storage),
        last=tuple(sorted(point.last)),
        whole=tuple(sorted(point.whole)),
    )


def restored(record: PointRecord, space: "Space", mesh: "Mesh") -> "Point":
    """The point of a record. Raises `PlanError` for one that is no point of the space."""
    # Reading a plan file needs no problem, and what a problem needs.
    from automap.space.point import Level, Point

    problem, path = space.problem, "search.point"
    record.check_axes(path, len(mesh.sizes))
    lists = {f"compute[{axis}]": classes for axis, classes in enumerate(record.compute)}
    for name, classes in {**lists, "last": record.last, "whole": record.whole}.items():
        for index, group_class in enumerate(classes):
            is_storage = problem.n_compute <= group_class < problem.n_split
            if is_storage or group_class >= problem.n_classes:
                raise _refuse_class(f"{path}.{name}[{index}]", group_class, space)
    for axis, levels in enumerate(record.storage):
        if len(levels) != len(space.leaves):
            raise refuse(
                f"{path}.storage[{axis}]", levels, f"{len(space.leaves)} levels, one per leaf class"
            )
    point = Point(
        mesh=mesh,
        compute=record.compute,
        storage=tuple(tuple(Level(level) for level in levels) for levels in record.storage),
        last=frozenset(record.last),
        whole=frozenset(record.whole),
    )
    if not space.is_valid(point):
        raise PlanError(
            f"{path}.compute: got classes that this mesh cannot split; "
            "allowed: what `automap plan` writes; plan again"
        )
    return point


def _refuse_class(path: str, got: int, space: "Space") -> PlanError:
    problem = space.problem
    regional = f" or {problem.n_split}..{problem.n_classes - 1}" if space.regional else ""
    return refuse(path, got, f"a compute class of this step, 0..{problem.n_compute - 1}{regional}")
