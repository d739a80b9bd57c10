"""A graph of operators cut into blocks that are scheduled one by one.

An operator that is before or after each other one is in a stage of its own in every schedule of
stages without dependent operators, so what stands before it and what stands after it are scheduled
apart, without loss                                                   -> in: `articulations`

A block that is too wide to be solved is cut in two, where the fewest results cross: that may lose
something, which the bound of the schedule then says (`automap.streams.schedule`)
                                                                                -> in: `halves`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


MOST_OPERATORS = 64
"""Of a block: a set of its operators is the bits of one integer."""


@dataclass(frozen=True, slots=True)
class Block:
    """Operators in an order in which they can run, by number, and for each a mask of places in
    `members` that are before it.
    """

    members: tuple[int, ...]
    before: tuple[int, ...]


def cut_blocks(before: Sequence[frozenset[int]]) -> list[Block]:
    """All blocks in order; `before` of each operator are those that it reads, all lower."""
    runs: list[list[int]] = [[]]
    single = articulations(before)
    for number in range(len(before)):
        if number in single:
            runs += [[number], []]
        else:
            runs[-1].append(number)
    return [make_block(run, before) for run in runs if run]


def articulations(before: Sequence[frozenset[int]]) -> frozenset[int]:
    """Operators that are before or after each other one."""
    count = len(before)
    ancestors = [0] * count
    descendants = [0] * count
    for number in range(count):
        for b in before[number]:
            ancestors[number] |= ancestors[b] | 1 << b
    for number in reversed(range(count)):
        for b in before[number]:
            descendants[b] |= descendants[number] | 1 << number
    return frozenset(
        n
        for n in range(count)
        if ancestors[n].bit_count() + descendants[n].bit_count() == count - 1
    )


def make_block(members: Sequence[int], before: Sequence[frozenset[int]]) -> Block:
    """The block of some operators in order."""
    place = {number: index for index, number in enumerate(members)}
    masks = tuple(sum(1 << place[b] for b in before[number] if b in place) for number in members)
    return Block(tuple(members), masks)


def places(mask: int) -> Iterator[int]:
    """The places that a mask has, lowest first."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def halves(block: Block) -> tuple[Block, Block]:
    """A block cut in two, each of at least a quarter, between which the fewest results cross."""
    count = len(block.members)
    last_use = {b: n for n, mask in enumerate(block.before) for b in range(n) if mask >> b & 1}
    quarter = max(count // 4, 1)
    crossing = {
        cut: sum(1 for b, user in last_use.items() if b < cut <= user)
        for cut in range(quarter, count - quarter + 1)
    }
    # Of equal cuts the one nearest to the middle.
    best = min(crossing, key=lambda cut: (crossing[cut], abs(2 * cut - count), cut))
    low = (1 << best) - 1
    return (
        Block(block.members[:best], tuple(mask & low for mask in block.before[:best])),
        Block(block.members[best:], tuple(mask >> best for mask in block.before[best:])),
    )
