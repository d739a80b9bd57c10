"""The point that a plan stands for, to and from its record (`automap.plan.point`).

record_point(point, layers)    Point -> PointRecord
restore_point(record, ...)      PointRecord -> Point, checked against the space
"""

from typing import Literal

from automap.errors import PlanError
from automap.plan.checks import refuse
from automap.plan.point import PointRecord
from automap.space.point import Point, StorageLevel
from automap.space.space import Space
from automap.topology.mesh import Mesh


def record_point(point: Point, layers: Literal["folded", "apart"]) -> PointRecord:
    """The record of a point."""
    return PointRecord(
        layers=layers,
        compute=point.compute,
        storage=tuple(tuple(int(level) for level in levels) for levels in point.storage),
        last=tuple(sorted(point.last_dim_classes)),
        whole=tuple(sorted(point.small_whole_classes)),
    )


def restore_point(record: PointRecord, space: Space, mesh: Mesh) -> Point:
    """The point of a record. Raises `PlanError` for one that is no point of the space."""
    problem, path = space.problem, "search.point"
    # The file's types and ranges were checked when it was read; here it is held against this step.
    record.check_axes(path, len(mesh.sizes))
    lists = {f"compute[{axis}]": classes for axis, classes in enumerate(record.compute)}
    for name, classes in {**lists, "last": record.last, "whole": record.whole}.items():
        for index, group_class in enumerate(classes):
            # Storage is said by levels: a storage class among the compute classes would split a
            # leaf twice.
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
        storage=tuple(tuple(StorageLevel(level) for level in levels) for levels in record.storage),
        last_dim_classes=frozenset(record.last),
        small_whole_classes=frozenset(record.whole),
    )
    if not space.is_valid(point):
        raise PlanError(
            f"{path}.compute: got classes that this mesh cannot split; "
            "allowed: what `automap plan` writes; plan again"
        )
    return point


def _refuse_class(path: str, got: int, space: Space) -> PlanError:
    problem = space.problem
    regional = f" or {problem.n_split}..{problem.n_classes - 1}" if space.regional else ""
    return refuse(path, got, f"a compute class of this step, 0..{problem.n_compute - 1}{regional}")
