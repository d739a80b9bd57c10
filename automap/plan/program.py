"""The `program` field of a plan: what one device does in a step, so that a plan is simulated
without its step.

Columns of equal length: entry i of each is of task i. Tasks stand in program order, those of a
loop's body behind it, and what a task waits for stands before it; so the tasks are a tree of loops,
and no plan file can make a circle of them. What they are called is said by numbers in `texts`,
where each text stands once.
"""

from dataclasses import dataclass, fields
import math
from typing import Final, Literal

from automap.plan.checks import MAX_INTEGER, refuse


TaskKind = Literal["kernel", "spare", "collective", "urgent", "loop"]
"""`spare` is a kernel that can wait, `urgent` a collective that kernels of importance wait for."""

OUTSIDE: Final = -1
"""`within` of a task that is in no loop."""

_TEXTS: Final = ("op", "tensor", "op_name", "source", "phase", "axes")
_PHASES: Final = ("forward", "backward", "update")
# Far more than any step has; what walks the tree calls itself once for each level.
_MOST_LOOPS_DEEP: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskText:
    """What a task is called.

    - `op`: an opcode, or the kind of a collective.
    - `tensor`: type and dimensions of its result on one device.
    - `op_name`: the path of its equation.
    - `source`: the line of code that it comes from, "" if that is not known.
    - `phase`: forward, backward or update.
    - `axes`: of a collective the mesh axes, joined by +.
    """

    op: str
    tensor: str
    op_name: str
    source: str
    phase: str
    axes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """The program of one device: columns of equal length, an entry for each task.

    - `texts`: each text that tasks are called by, once.
    - `kind`: what the task is.
    - `within`: the number of the loop that it is in, -1 for none.
    - `after`: numbers of the tasks of the same loop that it waits for, all before it.
    - `seconds`: of one run; those of a loop are those of its tasks.
    - `trips`: of a loop, 1 for others.
    - `slot`: orders tasks that are ready at the same time (`automap.simulate.region`).
    - `bytes`: of a collective, 0 for others.
    - `op`, `tensor`, `op_name`, `source`, `phase`, `axes`: numbers in `texts`: of the opcode or
      kind of collective, the type and dimensions of the result on one device, the path of the
      equation, the line of code ("" if not known), the phase, and a collective's axes joined by +.
    """

    texts: tuple[str, ...]
    kind: tuple[TaskKind, ...]
    within: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    trips: tuple[int, ...]
    slot: tuple[int, ...]
    bytes: tuple[float, ...]
    op: tuple[int, ...]
    tensor: tuple[int, ...]
    op_name: tuple[int, ...]
    source: tuple[int, ...]
    phase: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for columns of unequal length, numbers out of range, and waits that are
        not for what came before.
        """
        count = len(self.kind)
        for field in fields(self)[1:]:
            column = getattr(self, field.name)
            if len(column) != count:
                raise refuse(field.name, column, f"{count} entries, as `kind` has")
        for name in _TEXTS:
            for task, number in enumerate(getattr(self, name)):
                if not 0 <= number < len(self.texts):
                    raise refuse(f"{name}[{task}]", number, f"0..{len(self.texts) - 1}, a text")
        for name in ("seconds", "bytes"):
            for task, value in enumerate(getattr(self, name)):
                if not (math.isfinite(value) and value >= 0):
                    raise refuse(f"{name}[{task}]", value, "a finite number >= 0")
        for task, trips in enumerate(self.trips):
            if not 0 <= trips <= MAX_INTEGER:
                raise refuse(f"trips[{task}]", trips, f"an integer from 0 to {MAX_INTEGER}")
        for task, number in enumerate(self.phase):
            if self.texts[number] not in _PHASES:
                raise refuse(f"phase[{task}]", self.texts[number], " | ".join(_PHASES))
        self._check_tree()

    def _check_tree(self) -> None:
        depth: list[int] = []
        runs: list[float] = []
        # Depth and runs of each task so far: a task stands behind its loop, so one pass is enough.
        total_seconds = 0.0
        for task, loop in enumerate(self.within):
            if loop != OUTSIDE and not (0 <= loop < task and self.kind[loop] == "loop"):
                raise refuse(f"within[{task}]", loop, "-1, or the number of a loop before it")
            depth.append(0 if loop == OUTSIDE else depth[loop] + 1)
            runs.append(1.0 if loop == OUTSIDE else runs[loop] * self.trips[loop])
            if depth[task] > _MOST_LOOPS_DEEP:
                raise refuse(f"within[{task}]", loop, f"at most {_MOST_LOOPS_DEEP} loops deep")
            total_seconds += runs[task] * self.seconds[task]
            # Trips multiply from loop to loop, so finite numbers may have an infinite product.
            if not math.isfinite(total_seconds):
                raise refuse(f"seconds[{task}]", self.seconds[task], "a step of finite length")
            for index, before in enumerate(self.after[task]):
                # Only to what stands before: the tasks cannot wait for each other in a circle.
                if not (0 <= before < task and self.within[before] == loop):
                    allowed = "a task before it that is in the same loop"
                    raise refuse(f"after[{task}][{index}]", before, allowed)

    def text(self, task: int) -> TaskText:
        """What a task is called."""
        return TaskText(**{name: self.texts[getattr(self, name)[task]] for name in _TEXTS})
