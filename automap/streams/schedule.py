"""A schedule of all blocks by one of the strategies, and its bound.

A block that a strategy gives up is cut in two (`automap.streams.blocks`). The seconds of a schedule
are the sum of its stages' seconds, as in DOS (section 4.1). The bound of a block is

    its seconds          if no schedule within the limits is faster, which the strategy has proven
    max(longest chain of operators alone, sum of flops / rate of the device)     otherwise

and (seconds - bound) / bound is the plan's gap. Sequential and greedy schedules are priced beside
each, and the best of them and of the search's is returned for each block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from automap.deadline import Deadline
from automap.streams.arrays import PricedOperators
from automap.streams.blocks import Block, cut_blocks, halves
from automap.streams.endings import NO_LIMIT
from automap.streams.strategies import (
    STREAM_STRATEGIES,
    BlockProblem,
    Limits,
    best_simple,
    greedy,
    sequential,
)


Together = Literal["concurrent", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Operators, by number, in groups that run at once, or as one; with its seconds."""

    together: Together
    groups: tuple[tuple[int, ...], ...]
    seconds: float
    block: int


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
    blocks = cut_blocks([op.before for op in priced.operators])
    stages: list[Stage] = []
    bound, simple = 0.0, [0.0, 0.0]
    looked_at, cut = 0, list[int]()
    for number, block in enumerate(blocks):
        on_block(number, len(blocks))
        pieces = list(_solved(priced, block, strategy, limits, deadline))
        made = [
            stage
            for problem, piece, masks, _, _ in pieces
            for stage in _stages(problem, piece, masks, number, strategy)
        ]
        stages += made
        looked_at += sum(count for *_, count in pieces)
        seconds = sum(stage.seconds for stage in made)
        is_proven = len(pieces) == 1 and pieces[0][3]
        bound += seconds if is_proven else _least_seconds(priced, block)
        if len(pieces) > 1:
            cut.append(len(block.members))
        for index, each in enumerate((sequential, greedy)):
            simple[index] += _simple_seconds(priced, block, each, limits, deadline)
    return Schedule(
        stages=tuple(stages),
        seconds=sum(stage.seconds for stage in stages),
        bound_seconds=bound,
        sequential_seconds=simple[0],
        greedy_seconds=simple[1],
        priced=looked_at,
        cut=tuple(cut),
    )


_Piece = tuple[BlockProblem, Block, tuple[int, ...], bool, int]


def _solved(
    priced: PricedOperators, block: Block, strategy: str, limits: Limits, deadline: Deadline
) -> Iterator[_Piece]:
    """A block's stages, or those of its parts if it is too wide: with whether that is proven, and
    how many stages were looked at.
    """
    if len(block.members) <= NO_LIMIT:
        problem = BlockProblem(priced.block(block), priced.machine, limits, deadline)
        # What is left when time is up is at least not worse than the simple schedules.
        if deadline.is_over and strategy not in ("sequential", "greedy"):
            yield problem, block, best_simple(problem), False, 2
            return
        result = STREAM_STRATEGIES[strategy](problem)
        if result.stages is not None:
            yield problem, block, result.stages, result.is_proven, result.priced
            return
    for part in halves(block):
        yield from _solved(priced, part, strategy, limits, deadline)


def _stages(
    problem: BlockProblem, block: Block, masks: Sequence[int], number: int, strategy: str
) -> Iterator[Stage]:
    for mask, (concurrent, merged) in zip(masks, problem.best_seconds(masks), strict=True):
        # The simple schedules merge nothing, as in the papers.
        is_merged = merged < concurrent and strategy not in ("sequential", "greedy")
        groups = _groups(mask, block)
        yield Stage(
            together="merged" if is_merged else "concurrent",
            groups=tuple(tuple(block.members[p] for p in group) for group in groups),
            seconds=float(merged if is_merged else concurrent),
            block=number,
        )


def _groups(mask: int, block: Block) -> list[list[int]]:
    """Places of the operators that depend on each other."""
    groups: list[list[int]] = []
    for place in range(len(block.members)):
        if mask >> place & 1:
            joined, kept = [place], []
            for group in groups:
                if any(block.before[place] >> other & 1 for other in group):
                    joined = group + joined
                else:
                    kept.append(group)
            groups = [*kept, sorted(joined)]
    return sorted(groups)


def _simple_seconds(
    priced: PricedOperators,
    block: Block,
    strategy: Callable[[BlockProblem], object],
    limits: Limits,
    deadline: Deadline,
) -> float:
    if len(block.members) > NO_LIMIT:
        return sum(
            _simple_seconds(priced, part, strategy, limits, deadline) for part in halves(block)
        )
    problem = BlockProblem(priced.block(block), priced.machine, limits, deadline)
    result = strategy(problem)
    return problem.concurrent_seconds(result.stages or ())  # type: ignore[attr-defined]


def _least_seconds(priced: PricedOperators, block: Block) -> float:
    """What no schedule of a block is below."""
    alone, ideal = (priced.columns[name][list(block.members)] for name in ("alone", "ideal"))
    longest = [0.0] * len(block.members)
    for place, mask in enumerate(block.before):
        before = [longest[b] for b in range(place) if mask >> b & 1]
        longest[place] = float(alone[place]) + max(before, default=0.0)
    return max(max(longest), float(ideal.sum()))
