"""The strategies that put a block's operators into stages, behind one protocol.

sequential   one operator a stage
greedy       all operators whose operands are there, up to the limit of groups (Tang et al. 2018)
dos          the dynamic programme over endings              -> in: `automap.streams.endings`
exact        the same stages as an integer programme, by HiGHS          -> in: `solve_integer`

What they are asked and answer is one `BlockProblem` and one `BlockSchedule`; all stages are priced
by `automap.streams.costs`.

Of the integer programme A is a set of operators that may be a stage: groups of operators that
depend on each other, each without an operator between its own that it leaves out, and no path from
one group to another                                                    -> in: `possible_stages`

    minimize  sum of c[A] x[A],   x[A] in {0, 1}
    each operator i is in one stage        sum over A with i of x[A] = 1
    the number p[i] of i's stage, for each pair (i, j) of which j reads i:
        s[i, j] = sum over A with i and j of x[A]
        p[j] >= p[i] + 1 - s[i, j]
    for each pair i < j that share some A:
        |p[i] - p[j]| <= n (1 - s[i, j])

It proves the same optimum as the dynamic programme in another way, and takes much longer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
from scipy.sparse import csr_array

from automap.deadline import Deadline
from automap.milp import milp
from automap.streams.blocks import places
from automap.streams.costs import Machine, Operators, price_stages
from automap.streams.endings import NO_LIMIT, solve


# Of the integer programme.
MOST_OPERATORS: Final = 20
MOST_STAGES: Final = 20_000
MOST_STATES: Final = 2**15
MOST_ENDINGS: Final = 10_000_000
"""Of the dynamic programme of one block and of its parts, each of which has its share: a second or
two. A block that needs more is cut in two.
"""


def most_stages_text() -> str:
    """What the integer programme is given up for."""
    return (
        f"the integer programme takes blocks of at most {MOST_OPERATORS} operators with at most "
        f"{MOST_STAGES:,} possible stages"
    )


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
    """The operators of a block, the machine and the limits; `known` are the stages of a schedule
    to be improved, () for none, and at most so many endings are priced.
    """

    ops: Operators
    machine: Machine
    limits: Limits
    deadline: Deadline
    known: tuple[int, ...] = ()
    most_endings: int = MOST_ENDINGS

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
    stages = greedy_stages([int(mask) for mask in problem.ops.before], problem.limits)
    return BlockSchedule(tuple(stages), is_proven=problem.count == 1, priced=len(stages))


def greedy_stages(before: Sequence[int], limits: Limits) -> list[int]:
    """The greedy stages of operators that each have a mask of those that they read."""
    left, done, stages = list(range(len(before))), 0, list[int]()
    while left:
        ready = [place for place in left if not before[place] & ~done][: limits.most_groups]
        stages.append(sum(1 << place for place in ready))
        done |= stages[-1]
        left = [place for place in left if not done >> place & 1]
    return stages


def dos(problem: BlockProblem) -> BlockSchedule:
    """The best schedule by the dynamic programme."""
    known = best_known(problem)
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
        most_endings=problem.most_endings,
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


def best_known(problem: BlockProblem) -> tuple[int, ...]:
    """The best of the sequential, the greedy and the problem's own stages."""
    candidates = (greedy(problem).stages, sequential(problem).stages, problem.known)
    given = [stages for stages in candidates if stages]
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


def solve_integer(
    ops: Operators, machine: Machine, *, most_groups: int, most_in_group: int, seconds: float
) -> tuple[tuple[int, ...] | None, int]:
    """(stages as masks in their order, how many possible stages there were); None for more than
    `MOST_STAGES`, or if there was no proof in time.
    """
    sets: list[int] = []
    for mask in possible_stages([int(m) for m in ops.before], most_groups, most_in_group):
        sets.append(mask)
        if len(sets) > MOST_STAGES:
            return None, len(sets)
    costs = price_stages(ops, np.array(sets, np.uint64), machine).min(axis=1)
    n, m = len(ops.alone), len(sets)
    # HiGHS's tolerances are for numbers around one.
    objective = np.concatenate([costs / costs.max(), np.zeros(n)])
    matrix, low, high = _constraints(sets, [int(b) for b in ops.before], n)
    lower, upper = np.zeros(m + n), np.concatenate([np.ones(m), np.full(n, n - 1.0)])
    result = milp(
        objective,
        constraints=scipy.optimize.LinearConstraint(matrix, low, high),  # type: ignore[arg-type]
        bounds=scipy.optimize.Bounds(lower, upper),  # type: ignore[arg-type]
        integrality=np.concatenate([np.ones(m), np.zeros(n)]),
        options={"mip_rel_gap": 0.0, "time_limit": max(seconds, 0.0)},
    )
    if result.status != 0:
        return None, m
    chosen = [index for index in range(m) if result.x[index] > 0.5]
    place = {index: result.x[m + (sets[index] & -sets[index]).bit_length() - 1] for index in chosen}
    return tuple(sets[index] for index in sorted(chosen, key=lambda index: place[index])), m


def possible_stages(before: list[int], most_groups: int, most_in_group: int) -> Iterator[int]:
    """Masks of all sets of operators that may be a stage."""
    reach = _ancestors(before)
    groups = sorted(_groups(before, reach, most_in_group))

    def comparable(a: int, b: int) -> bool:
        return any(reach[p] & b for p in places(a)) or any(reach[p] & a for p in places(b))

    apart = [[not a & b and not comparable(a, b) for b in groups] for a in groups]

    def extend(mask: int, allowed: list[int], count: int) -> Iterator[int]:
        for index, group in enumerate(allowed):
            yield mask | groups[group]
            if count + 1 < most_groups:
                rest = [other for other in allowed[index + 1 :] if apart[group][other]]
                yield from extend(mask | groups[group], rest, count + 1)

    yield from extend(0, list(range(len(groups))), 0)


def _groups(before: list[int], reach: list[int], most: int) -> set[int]:
    """Connected sets of at most so many operators that hold all operators between their own."""
    n = len(before)
    near = [before[i] | sum(1 << j for j in range(n) if before[j] >> i & 1) for i in range(n)]
    grown = {1 << i for i in range(n)}
    connected = set(grown)
    for _ in range(most - 1):
        grown = {
            mask | 1 << j for mask in grown for i in places(mask) for j in places(near[i] & ~mask)
        }
        connected |= grown
    return {mask for mask in connected if _is_convex(mask, reach, n)}


def _is_convex(mask: int, reach: list[int], n: int) -> bool:
    above = 0
    for i in places(mask):
        above |= reach[i]
    # An operator outside of which one inside reads, and that reads one inside.
    return not any(reach[j] & mask for j in places(above & ~mask & ((1 << n) - 1)))


def _ancestors(before: list[int]) -> list[int]:
    reach: list[int] = []
    for mask in before:
        reach.append(mask)
        for i in places(mask):
            reach[-1] |= reach[i]
    return reach


def _constraints(
    sets: list[int], before: list[int], n: int
) -> tuple[csr_array, np.ndarray, np.ndarray]:
    """(matrix, lower, upper) over x, then p."""
    m = len(sets)
    together: dict[tuple[int, int], list[int]] = {}
    rows: list[dict[int, float]] = [{} for _ in range(n)]
    low, high = [1.0] * n, [1.0] * n
    for index, mask in enumerate(sets):
        members = list(places(mask))
        for a, i in enumerate(members):
            rows[i][index] = 1.0
            for j in members[a + 1 :]:
                together.setdefault((i, j), []).append(index)

    def add(entries: dict[int, float], least: float) -> None:
        rows.append(entries)
        low.append(least)
        high.append(np.inf)

    for j, mask in enumerate(before):
        for i in places(mask):
            shared = dict.fromkeys(together.get((i, j), ()), 1.0)
            add({m + j: 1.0, m + i: -1.0, **shared}, 1.0)
    for (i, j), both in together.items():
        shared = dict.fromkeys(both, -float(n))
        add({m + j: 1.0, m + i: -1.0, **shared}, -float(n))
        add({m + i: 1.0, m + j: -1.0, **shared}, -float(n))
    entries = [(r, c, v) for r, row in enumerate(rows) for c, v in row.items()]
    r, c, v = zip(*entries, strict=True)
    matrix = csr_array((v, (r, c)), shape=(len(rows), m + n))
    return matrix, np.array(low), np.array(high)
