"""The strategies that put a block's operators into stages, behind one protocol.

sequential   one operator a stage
greedy       all operators whose operands are there, up to the limit of groups (Tang et al. 2018)
dos          the dynamic programme over endings              -> in: `automap.streams.endings`
exact        the same stages as an integer programme         -> in: `automap.streams.integer`

What they are asked and answer is one `BlockProblem` and one `BlockSchedule`; all stages are priced
by `automap.streams.costs`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from automap.deadline import Deadline
from automap.streams.costs import Machine, Operators, price_stages
from automap.streams.endings import NO_LIMIT, solve
from automap.streams.integer import MOST_OPERATORS, most_stages_text, solve_integer


MOST_STATES: Final = 2**18
MOST_ENDINGS: Final = 100_000
"""Of one block, well below a second; a block that needs more is cut in two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What stages keep to: groups of a stage, None for any number, and operators of a group."""

    groups: int | None = None
    group_size: int = 1

    @property
    def most_groups(self) -> int:
        """As the compiled functions take it."""
        return NO_LIMIT if self.groups is None else min(self.groups, NO_LIMIT)


@dataclass(frozen=True, slots=True)
class BlockProblem:
    """The operators of a block, the machine and the limits."""

    ops: Operators
    machine: Machine
    limits: Limits
    deadline: Deadline

    @property
    def count(self) -> int:
        """Operators."""
        return len(self.ops.alone)

    def concurrent_seconds(self, stages: Sequence[int]) -> float:
        """A schedule all of whose stages run their operators at once."""
        return float(price_stages(self.ops, _masks(stages), self.machine)[:, 0].sum())

    def best_seconds(self, stages: Sequence[int]) -> np.ndarray:
        """(concurrent, merged) seconds of stages, [stages, 2]."""
        return price_stages(self.ops, _masks(stages), self.machine)


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """Stages as masks in order, and whether no schedule within the limits is faster; `stages` is
    None if the block is too wide. `priced` stages were looked at.
    """

    stages: tuple[int, ...] | None
    is_proven: bool
    priced: int


class Strategy(Protocol):
    """A way to put a block's operators into stages."""

    def __call__(self, problem: BlockProblem) -> BlockSchedule:
        """The stages."""
        ...


def sequential(problem: BlockProblem) -> BlockSchedule:
    """One operator a stage."""
    stages = tuple(1 << place for place in range(problem.count))
    return BlockSchedule(stages, is_proven=problem.count == 1, priced=problem.count)


def greedy(problem: BlockProblem) -> BlockSchedule:
    """All operators whose operands are there, the first ones up to the limit."""
    before = [int(mask) for mask in problem.ops.before]
    done, stages = 0, list[int]()
    while done != (1 << problem.count) - 1:
        ready = [p for p in range(problem.count) if not done >> p & 1 and not before[p] & ~done]
        stages.append(sum(1 << p for p in ready[: problem.limits.most_groups]))
        done |= stages[-1]
    return BlockSchedule(tuple(stages), is_proven=problem.count == 1, priced=len(stages))


def dos(problem: BlockProblem) -> BlockSchedule:
    """The best schedule by the dynamic programme."""
    known = best_simple(problem)
    if problem.count == 1:
        return BlockSchedule(known, is_proven=True, priced=1)
    solved = solve(
        problem.ops,
        problem.machine,
        most_groups=problem.limits.most_groups,
        most_in_group=problem.limits.group_size,
        bound_seconds=float(problem.best_seconds(known).min(axis=1).sum()),
        known=known,
        most_states=MOST_STATES,
        most_endings=MOST_ENDINGS,
    )
    return BlockSchedule(solved.stages, solved.stages is not None, solved.endings)


def exact(problem: BlockProblem) -> BlockSchedule:
    """The best schedule by an integer programme."""
    if problem.count == 1:
        return sequential(problem)
    if problem.count > MOST_OPERATORS:
        return BlockSchedule(None, is_proven=False, priced=0)
    limits = problem.limits
    stages, priced = solve_integer(
        problem.ops,
        problem.machine,
        most_groups=limits.most_groups,
        most_in_group=limits.group_size,
        seconds=problem.deadline.seconds_left,
    )
    return BlockSchedule(stages, stages is not None, priced)


def best_simple(problem: BlockProblem) -> tuple[int, ...]:
    """The better of the sequential and the greedy stages."""
    candidates = (greedy(problem).stages, sequential(problem).stages)
    given = [stages for stages in candidates if stages is not None]
    return min(given, key=lambda stages: problem.best_seconds(stages).min(axis=1).sum())


STREAM_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "auto": dos,
    "dos": dos,
    "exact": exact,
    "greedy": greedy,
    "sequential": sequential,
}
"""By the names that users give (`automap.choices.STREAM_STRATEGIES`)."""

TOO_WIDE: Final = {"exact": most_stages_text()}
"""Why a strategy gives a block up, where it is not its width alone."""


def _masks(stages: Sequence[int]) -> np.ndarray:
    return np.array(stages, np.uint64)
