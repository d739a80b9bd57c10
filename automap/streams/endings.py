"""DOS: the dynamic programme over endings, compiled.

S is the set of operators that are left, an ending E of S a set that no operator of S - E reads. The
least seconds of a block are (Algorithm 1 of DOS; groups as in IOS)

    cost[{}] = 0,   cost[S] = min over endings E of S of cost[S - E] + stage(E)
    stage(E) = min(concurrent(E), merged(E))                        -> in: `automap.streams.costs`

E is at most `most_groups` groups of at most `most_in_group` operators that depend on each other
(IOS's pruning; 1 in a group is what DOS's paper prints). Each S is reached from the whole block by
taking endings off, so `tail[S]`, the least seconds of the stages behind S, is found by going
through all S from the largest to the smallest and trying each ending of each once: the same
recurrence from the other side, and the same memo of one entry for each S   -> in: `solve_block`

Endings are built from the last operator to the first; one is added if all that read it and are left
are in E already, so that each E is built once, and its seconds from those of the smaller one.

No schedule runs S in less than its longest chain of `alone` seconds, as a merged operator takes no
less than each of its parts, nor than its work on all SMs, nor its own bytes over the memory
                                                                   -> in: `_least_seconds`
Of what was measured it is a share that no price is below (`automap.streams.costs.Measured`).
S is not looked at further if that and `tail[S]` are above a bound, the seconds of a schedule that
is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.streams.costs import (
    Growth,
    Machine,
    Operators,
    add_to_groups,
    add_to_sums,
    new_growth,
    stage_seconds,
)


NO_LIMIT = 64
"""Groups, or operators of a group: as many as a block can have."""


# How the compiled function ends, as numbers that it reads.
_DONE, _FULL, _OUT_OF_WORK = 0, 1, 2
# The key of an empty place.
_NO_SET: Final = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Solved:
    """The best stages of a block, as masks in their order; `stages` is None if the memo or the work
    was not enough. `endings` were priced, `states` looked at.
    """

    stages: tuple[int, ...] | None
    seconds: float
    states: int
    endings: int


def solve(
    ops: Operators,
    machine: Machine,
    *,
    most_groups: int,
    most_in_group: int,
    bound_seconds: float,
    known: Sequence[int],
    most_states: int,
    most_endings: int,
) -> Solved:
    """The best schedule of a block; `known` are the stages of one that takes `bound_seconds`."""
    n = len(ops.alone)
    memo = _empty_memo(n, most_states)
    terms = Terms(most_groups, most_in_group, float(bound_seconds), most_states, most_endings)
    end, seconds, masks = solve_block(ops, machine, terms, memo)
    states, endings, _ = (int(count) for count in memo.counts)
    if end != _DONE:
        return Solved(None, np.inf, states, endings)
    # Nothing below the bound: the known schedule is a best one.
    if not seconds < bound_seconds:
        return Solved(tuple(known), bound_seconds, states, endings)
    return Solved(tuple(int(m) for m in masks), seconds, states, endings)


def _empty_memo(n: int, most_states: int) -> "Memo":
    # At most half full, so that a set is found in a few steps.
    size = 64
    while size < 2 * min(most_states, 1 << n):
        size *= 2
    return Memo(
        keys=np.full(size, _NO_SET, np.uint64),
        tail=np.full(size, np.inf),
        choice=np.zeros(size, np.uint64),
        following=np.full(size, -1, np.int64),
        head=np.full(n + 1, -1, np.int64),
        counts=np.zeros(3, np.int64),
    )


class Memo(NamedTuple):
    """The sets that are left, in a table of open addressing; `tail` and `choice`, the ending that
    gave it, of each. `following` and `head` are linked lists of the sets of each size, `counts`
    [3] how many sets there are, endings were priced, and sets of too many groups were grown.
    """

    keys: Array
    tail: Array
    choice: Array
    following: Array
    head: Array
    counts: Array


class Terms(NamedTuple):
    """Limits of a stage, the bound of the seconds, and those of memo and work."""

    most_groups: int
    most_in_group: int
    bound: float
    most_states: int
    most_endings: int


@inner
def _slot(keys: Array, state: Array) -> Array:
    """Where a set is in the table, or would be; no set is all ones."""
    mixed = (state ^ (state >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    place = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(len(keys) - 1))
    while keys[place] != state and keys[place] != np.uint64(_NO_SET):
        place = (place + 1) & (len(keys) - 1)
    return place


@inner
def _bits(mask: Array) -> int:
    """How many there are, by sums of two, four and eight side by side."""
    mask = mask - (mask >> np.uint64(1) & np.uint64(0x5555555555555555))
    twos = np.uint64(0x3333333333333333)
    mask = (mask & twos) + (mask >> np.uint64(2) & twos)
    mask = mask + (mask >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    count: int = np.int64(mask * np.uint64(0x0101010101010101) >> np.uint64(56))  # type: ignore[assignment]
    return count


@inner
def _lowest(mask: Array) -> int:
    """The place of the lowest bit of a mask that has one."""
    return _bits((mask & (~mask + np.uint64(1))) - np.uint64(1))


@inner
def _highest(mask: Array) -> int:
    """The place of the highest bit of a mask that has one."""
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    return _bits(mask) - 1


@inner
def _unread(ops: Operators, state: Array) -> Array:
    """The operators of a set that none of it reads."""
    result, left = np.uint64(0), state
    while left:
        place = _lowest(left)
        left &= left - np.uint64(1)
        if not ops.after[place] & state:
            result |= np.uint64(1) << np.uint64(place)
    return result


@inner
def _freed(ops: Operators, rest: Array, place: int) -> Array:
    """The operators that one reads, and none of the rest."""
    result, left = np.uint64(0), ops.before[place]
    while left:
        other = _lowest(left)
        left &= left - np.uint64(1)
        if not ops.after[other] & rest:
            result |= np.uint64(1) << np.uint64(other)
    return result


@inner
def _keep(memo: Memo, rest: Array, seconds: float, mask: Array, most_states: int) -> bool:
    """Note an ending that leaves a rest, if it is the best one; whether there was room."""
    place = _slot(memo.keys, rest)
    if memo.keys[place] == np.uint64(_NO_SET):
        if memo.counts[0] >= most_states:
            return False
        memo.keys[place] = rest
        memo.counts[0] += 1
        size = _bits(rest)
        memo.following[place] = memo.head[size]
        memo.head[size] = place
    if seconds < memo.tail[place]:
        memo.tail[place] = seconds
        memo.choice[place] = mask
    return True


@inner
def _take_endings(
    ops: Operators,
    machine: Machine,
    memo: Memo,
    stage: Growth,
    addable: Array,
    entry: int,
    terms: Terms,
) -> int:
    """Price all endings of one set; `addable` [levels] are masks of what may be added next."""
    state, behind = memo.keys[entry], memo.tail[entry]
    level = 0
    addable[0] = _unread(ops, state)
    while level >= 0:
        if not addable[level]:
            level -= 1
            continue
        place = _highest(addable[level])
        addable[level] &= ~(np.uint64(1) << np.uint64(place))
        # Groups only grow; how many they are may shrink, if one operator joins several.
        size = _bits(add_to_groups(ops, stage, level, place))
        count = stage.count[level + 1]
        if size > terms.most_in_group or count > terms.most_groups * max(
            terms.most_in_group - 1, 1
        ):
            continue
        add_to_sums(ops, stage, level, place)
        level += 1
        rest = state & ~stage.mask[level]
        addable[level] = addable[level - 1] | _freed(ops, rest, place)
        # One of too many groups is no ending, but work: wide blocks have more of them than endings.
        kind = 2 if count > terms.most_groups else 1
        memo.counts[kind] += 1
        if memo.counts[kind] > terms.most_endings:
            return _OUT_OF_WORK
        if kind == 2:
            continue
        concurrent, merged = stage_seconds(ops, stage, level, machine)
        seconds = behind + min(concurrent, merged)
        if not _keep(memo, rest, seconds, stage.mask[level], terms.most_states):
            return _FULL
    return _DONE


@inner_making_arrays
def _floors(ops: Operators, machine: Machine) -> Array:
    """What each operator adds at least to a schedule, [n, 3]: the longest chain that ends with it
    (not to be summed), work of the SMs and memory seconds.
    """
    floors = np.zeros((len(ops.alone), 3))
    for place in range(len(floors)):
        for other in range(place):
            if ops.before[place] >> np.uint64(other) & np.uint64(1):
                floors[place, 0] = max(floors[place, 0], floors[other, 0])
        floors[place, 0] += ops.alone[place]
        kind = ops.merge[place]
        floors[place, 1] = ops.waves[place] * ops.block[place]
        floors[place, 2] = ops.memory[place]
        if kind >= 0:
            depth = ops.depth[kind]
            for dim in range(ops.padding.shape[1]):
                depth *= ops.padding[place, dim] + ops.rest[place, dim]
            flops = 2.0 * ops.rows[kind] * ops.columns[place] * depth
            floors[place, 1] = min(floors[place, 1], flops / (machine.sms * ops.rate[kind]))
            weights = depth * ops.columns[place] * ops.size[kind] / machine.bytes_per_s
            floors[place, 2] = min(floors[place, 2], weights + ops.other[place])
    return floors


@inner
def _least_seconds(floors: Array, state: Array) -> float:
    """What no schedule of a set is below: its longest chain, the sum of its work, its memory."""
    chain, work, memory = 0.0, 0.0, 0.0
    while state:
        place = _lowest(state)
        state &= state - np.uint64(1)
        chain = max(chain, floors[place, 0])
        work += floors[place, 1]
        memory += floors[place, 2]
    return max(chain, max(work, memory))


@inner_making_arrays
def _stages(memo: Memo, full: Array, count: int) -> Array:
    """The masks of the best stages, first to last."""
    stages = np.zeros(count, np.uint64)
    used, state = 0, np.uint64(0)
    while state != full:
        stages[used] = memo.choice[_slot(memo.keys, state)]
        state |= stages[used]
        used += 1
    return stages[:used]


@compiled
def solve_block(
    ops: Operators, machine: Machine, terms: Terms, memo: Memo
) -> tuple[int, float, Array]:
    """(how it ended, seconds, masks of the stages in order)."""
    n = len(ops.alone)
    full = np.uint64(0)
    for place in range(n):
        full |= np.uint64(1) << np.uint64(place)
    floors = _floors(ops, machine)
    stage, addable = new_growth(n, ops.padding.shape[1]), np.zeros(n + 1, np.uint64)
    _keep(memo, full, 0.0, np.uint64(0), terms.most_states)
    for size in range(n, 0, -1):
        entry = memo.head[size]
        while entry >= 0:
            least = _least_seconds(floors, memo.keys[entry]) * ops.measured.floor_share[0]
            least += memo.tail[entry]
            if least < terms.bound:
                end = _take_endings(ops, machine, memo, stage, addable, entry, terms)
                if end != _DONE:
                    return end, np.inf, memo.choice[:0]
            entry = memo.following[entry]
    last = _slot(memo.keys, np.uint64(0))
    if memo.keys[last] == np.uint64(_NO_SET):
        return _DONE, np.inf, memo.choice[:0]
    return _DONE, memo.tail[last], _stages(memo, full, n)
