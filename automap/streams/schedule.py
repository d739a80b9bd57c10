"""A schedule of all blocks by one of the strategies, and its bound.

A block that a strategy gives up is cut in two (`automap.streams.blocks`), and the stages around
each cut are searched again as one block, so that operators may cross it         -> in: `rejoined`

The seconds of a schedule
are the sum of its stages' seconds, as in DOS (section 4.1). The bound of a block is

    its seconds          if no schedule within the limits is faster, which the strategy has proven
    max(longest chain of operators alone, least work of the SMs)                 otherwise

and (seconds - bound) / bound is the plan's gap. Sequential and greedy schedules are priced beside
each, and the best of them and of the search's is returned for each block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from automap.deadline import Deadline
from automap.streams.arrays import PricedOperators
from automap.streams.blocks import Block, cut_blocks, halves, make_block, places
from automap.streams.endings import NO_LIMIT
from automap.streams.operators import Operator
from automap.streams.strategies import (
    MOST_ENDINGS,
    STREAM_STRATEGIES,
    BlockProblem,
    Limits,
    best_known,
    dos,
    greedy_stages,
)


WINDOW_OPERATORS: Final = 20
"""Of the stages around a cut that are searched again."""


Together = Literal["concurrent", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Operators, by number, in groups that run at once, or as one; with its seconds."""

    together: Together
    groups: tuple[tuple[int, ...], ...]
    seconds: float
    block: int

    @property
    def members(self) -> tuple[int, ...]:
        """The operators of all groups, in order."""
        return tuple(sorted(number for group in self.groups for number in group))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All stages in order, what they and the simple schedules take, and what none takes less than.

    `cut` are the sizes of blocks that were too wide, `priced` stages were looked at.
    """

    stages: tuple[Stage, ...]
    seconds: float
    bound_seconds: float
    sequential_seconds: float
    greedy_seconds: float
    priced: int
    cut: tuple[int, ...]


def find_schedule(
    priced: PricedOperators,
    strategy: str,
    limits: Limits,
    deadline: Deadline,
    on_block: Callable[[int, int], None] = lambda done, of: None,
) -> Schedule:
    """The schedule of a strategy; when the deadline is over, of the better simple one."""
    search = _Search(priced, strategy, limits, deadline)
    blocks = cut_blocks(search.before)
    stages: list[Stage] = []
    bound, simple = 0.0, [0.0, 0.0]
    cut = list[int]()
    for number, block in enumerate(blocks):
        on_block(number, len(blocks))
        each, greedy = search.simple_schedules(block)
        simple[0] += search.concurrent_seconds(each)
        simple[1] += search.concurrent_seconds(greedy)
        parts, is_proven = search.parts(block) if not search.is_simple else ([], False)
        if len(parts) > 1:
            cut.append(len(block.members))
            parts = search.rejoined(parts)
        schedules = [[s for part in parts for s in part], each, greedy]
        if search.is_simple:
            schedules = [each if strategy == "sequential" else greedy]
        best = min((s for s in schedules if s), key=search.seconds)
        stages += search.stages(best, number)
        bound += search.seconds(best) if is_proven else _least_seconds(priced, block)
    return Schedule(
        stages=tuple(stages),
        seconds=sum(stage.seconds for stage in stages),
        bound_seconds=bound,
        sequential_seconds=simple[0],
        greedy_seconds=simple[1],
        priced=search.priced_stages,
        cut=tuple(cut),
    )


_Members = tuple[int, ...]
"""Of a stage: numbers of operators in order."""


@dataclass
class _Search:
    """What the blocks of a step are searched with."""

    priced: PricedOperators
    strategy: str
    limits: Limits
    deadline: Deadline
    priced_stages: int = 0
    _seconds: dict[_Members, tuple[float, float]] = field(default_factory=dict)

    @property
    def is_simple(self) -> bool:
        """Whether the strategy searches nothing, and merges nothing, as in the papers."""
        return self.strategy in ("sequential", "greedy")

    @property
    def before(self) -> list[frozenset[int]]:
        """The operators that each reads."""
        return [op.before for op in self.priced.operators]

    def both_seconds(self, stage: _Members) -> tuple[float, float]:
        """(concurrent, merged) seconds of a stage."""
        if stage not in self._seconds:
            self._seconds[stage] = self.priced.stage_seconds(stage)
        return self._seconds[stage]

    def concurrent_seconds(self, stages: Sequence[_Members]) -> float:
        """Of stages none of which is merged."""
        return sum(self.both_seconds(stage)[0] for stage in stages)

    def seconds(self, stages: Sequence[_Members]) -> float:
        """Of stages that are merged where that is faster."""
        if self.is_simple:
            return self.concurrent_seconds(stages)
        return sum(min(self.both_seconds(stage)) for stage in stages)

    def simple_schedules(self, block: Block) -> tuple[list[_Members], list[_Members]]:
        """(sequential, greedy) stages."""
        masks = greedy_stages(block.before, self.limits)
        return [(n,) for n in block.members], [_members(block, mask) for mask in masks]

    def parts(self, block: Block, work: int = MOST_ENDINGS) -> tuple[list[list[_Members]], bool]:
        """The stages of a block, or of each of its parts if it is too wide, and whether they are
        proven; each part has its share of the work.
        """
        if len(block.members) <= NO_LIMIT:
            result = self._solved(block, (), work)
            if result is not None:
                return [result[0]], result[1]
        parts = halves(block)
        shares = [work * len(part.members) // len(block.members) for part in parts]
        return [
            stages
            for part, share in zip(parts, shares, strict=True)
            for stages in self.parts(part, share)[0]
        ], False

    def rejoined(self, parts: Sequence[list[_Members]]) -> list[list[_Members]]:
        """Parts whose stages around each cut are searched again, as one block."""
        if STREAM_STRATEGIES[self.strategy] is not dos:
            return list(parts)
        total = sum(len(stage) for part in parts for stage in part)
        stages = list(parts[0])
        for part in parts[1:]:
            low, high = _window(stages, part)
            if low == len(stages) or high == 0:
                # A stage beside the cut is larger than the window.
                stages += part
                continue
            known = stages[low:] + part[:high]
            members = sorted(n for stage in known for n in stage)
            block = make_block(members, self.before)
            work = MOST_ENDINGS * len(members) // total
            result = self._solved(block, known, work)
            stages[low:] = known if result is None else result[0]
            stages += part[high:]
        return [stages]

    def _solved(
        self, block: Block, known: Sequence[_Members], work: int
    ) -> tuple[list[_Members], bool] | None:
        """Stages of a block and whether they are proven; None if it is too wide."""
        place = {number: index for index, number in enumerate(block.members)}
        problem = BlockProblem(
            self.priced.block(block),
            self.priced.machine,
            self.limits,
            self.deadline,
            known=tuple(sum(1 << place[n] for n in stage) for stage in known),
            most_endings=work,
        )
        # What is left when time is up is at least not worse than the simple schedules.
        if self.deadline.is_over:
            return [_members(block, mask) for mask in best_known(problem)], False
        result = STREAM_STRATEGIES[self.strategy](problem)
        self.priced_stages += result.priced
        if result.stages is None:
            return None
        return [_members(block, mask) for mask in result.stages], result.is_proven

    def stages(self, schedule: Sequence[_Members], number: int) -> Iterator[Stage]:
        """The stages of a block with their groups and seconds."""
        for members in schedule:
            concurrent, merged = self.both_seconds(members)
            is_merged = merged < concurrent and not self.is_simple
            yield Stage(
                together="merged" if is_merged else "concurrent",
                groups=tuple(map(tuple, _groups(members, self.priced.operators))),
                seconds=merged if is_merged else concurrent,
                block=number,
            )


def _members(block: Block, mask: int) -> _Members:
    return tuple(block.members[place] for place in places(mask))


def _window(before: Sequence[_Members], after: Sequence[_Members]) -> tuple[int, int]:
    """(first stage before a cut, how many stages after it) of a window that grows on both sides,
    by whole stages, up to its size.
    """
    low, high, count, is_grown = len(before), 0, 0, True
    while is_grown:
        is_grown = False
        if low > 0 and count + len(before[low - 1]) <= WINDOW_OPERATORS:
            low, count, is_grown = low - 1, count + len(before[low - 1]), True
        if high < len(after) and count + len(after[high]) <= WINDOW_OPERATORS:
            high, count, is_grown = high + 1, count + len(after[high]), True
    return low, high


def _groups(members: _Members, operators: Sequence[Operator]) -> list[list[int]]:
    """The operators that depend on each other."""
    groups: list[list[int]] = []
    for number in members:
        joined, kept = [number], []
        for group in groups:
            if operators[number].before & set(group):
                joined = group + joined
            else:
                kept.append(group)
        groups = [*kept, sorted(joined)]
    return sorted(groups)


def _least_seconds(priced: PricedOperators, block: Block) -> float:
    """What no schedule of a block is below."""
    members = list(block.members)
    alone = priced.columns["alone"][members]
    longest = [0.0] * len(members)
    for place, mask in enumerate(block.before):
        longest[place] = float(alone[place]) + max(
            (longest[other] for other in places(mask)), default=0.0
        )
    return max(max(longest), float(priced.least_work[members].sum()))
