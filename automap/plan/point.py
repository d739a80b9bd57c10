"""The point of the space that a plan stands for, as the plan file keeps it.

With it a plan can be priced again without a search. Classes are numbers, which only mean something
beside the problem they were counted in: the same step, lowered for the plan's platform, with
`layers` as then.
"""

from dataclasses import dataclass
from typing import Literal

from automap.plan.checks import refuse, repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    """`automap.space.point.Point` as numbers: of a mesh with A axes, a problem with L leaf classes.

    - `layers`: whether equal layers share their decisions, which the numbers of classes depend on.
    - `compute`: [A] lists of the classes that an axis splits, in order of precedence.
    - `storage`: [A][L] levels: 0 whole, 1 gradients and optimizer state split, 2 the parameter too.
    - `last`: classes that split the last of a tensor's dimensions that hold them, not the first.
    - `whole`: classes whose small tensors are left whole.
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
            # The order of classes is their precedence: one that stands twice would have two.
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
