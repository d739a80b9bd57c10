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
are in E already, so that each E is built once.

No schedule runs S in less than its longest chain of `alone` seconds, as a merged operator takes no
less than each of its parts. S is not looked at further if that and `tail[S]` are above a bound, the
seconds of a schedule that is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.streams.costs import Machine, Operators, concurrent_seconds, merged_seconds


NO_LIMIT = 64
"""Groups, or operators of a group: as many as a block can have."""


# How the compiled function ends, and the key of an empty place, as numbers that it reads.
_DONE, _FULL, _OUT_OF_WORK = 0, 1, 2
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
    levels = Levels(
        mask=np.zeros(n + 2, np.uint64),
        place=np.zeros(n + 2, np.int64),
        count=np.zeros(n + 2, np.int64),
        groups=np.zeros((n + 2, n + 1), np.uint64),
        chains=np.zeros((n + 2, n + 1)),
    )
    terms = Terms(most_groups, most_in_group, float(bound_seconds), most_states, most_endings)
    end, seconds, masks = solve_block(ops, machine, terms, memo, levels)
    states, endings = (int(count) for count in memo.counts)
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
        counts=np.zeros(2, np.int64),
    )


class Memo(NamedTuple):
    """The sets that are left, in a table of open addressing; `tail` and `choice`, the ending that
    gave it, of each. `following` and `head` are linked lists of the sets of each size, `counts`
    [2] how many sets there are and endings were priced.
    """

    keys: Array
    tail: Array
    choice: Array
    following: Array
    head: Array
    counts: Array


class Levels(NamedTuple):
    """An ending that is being built, by the number of its operators: its `mask`, the `place` to
    look at next, and the masks and sums of `alone` of its groups.
    """

    mask: Array
    place: Array
    count: Array
    groups: Array
    chains: Array


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
    count = 0
    while mask:
        mask &= mask - np.uint64(1)
        count += 1
    return count


@inner
def _last_that_may_be_added(ops: Operators, state: Array, mask: Array, place: int) -> int:
    """The last operator up to a place that nothing left reads, but for the ending; -1 for none."""
    while place >= 0 and (
        not state >> np.uint64(place) & np.uint64(1) or ops.after[place] & state & ~mask
    ):
        place -= 1
    return place


@inner
def _add(ops: Operators, levels: Levels, level: int, place: int) -> int:
    """Build the level above: the groups that read an operator become one with it. How many
    operators that one has.
    """
    joined, chain, count = np.uint64(1) << np.uint64(place), ops.alone[place], 0
    for group in range(levels.count[level]):
        if levels.groups[level, group] & ops.after[place]:
            joined |= levels.groups[level, group]
            chain += levels.chains[level, group]
        else:
            levels.groups[level + 1, count] = levels.groups[level, group]
            levels.chains[level + 1, count] = levels.chains[level, group]
            count += 1
    levels.groups[level + 1, count] = joined
    levels.chains[level + 1, count] = chain
    levels.count[level + 1] = count + 1
    levels.mask[level + 1] = levels.mask[level] | np.uint64(1) << np.uint64(place)
    levels.place[level + 1] = place - 1
    return _bits(joined)


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
    ops: Operators, machine: Machine, memo: Memo, levels: Levels, entry: int, terms: Terms
) -> int:
    """Price all endings of one set."""
    state, behind = memo.keys[entry], memo.tail[entry]
    level = 0
    levels.place[0] = len(ops.alone) - 1
    while level >= 0:
        mask = levels.mask[level]
        place = _last_that_may_be_added(ops, state, mask, levels.place[level])
        if place < 0:
            level -= 1
            continue
        levels.place[level] = place - 1
        # Groups only grow; how many they are may shrink, if one operator joins several.
        is_too_long = _add(ops, levels, level, place) > terms.most_in_group
        count = levels.count[level + 1]
        if is_too_long or count > terms.most_groups * max(terms.most_in_group - 1, 1):
            continue
        level += 1
        if count > terms.most_groups:
            continue
        memo.counts[1] += 1
        if memo.counts[1] > terms.most_endings:
            return _OUT_OF_WORK
        mask = levels.mask[level]
        seconds = concurrent_seconds(ops, mask, levels.chains[level], count, machine)
        seconds = behind + min(seconds, merged_seconds(ops, mask, machine))
        if not _keep(memo, state & ~mask, seconds, mask, terms.most_states):
            return _FULL
    return _DONE


@inner
def _longest_chain(longest: Array, state: Array) -> float:
    """Seconds of the longest chain of a set; `longest` are those up to each operator."""
    seconds = 0.0
    for place in range(len(longest)):
        if state >> np.uint64(place) & np.uint64(1):
            seconds = max(seconds, longest[place])
    return seconds


@inner_making_arrays
def _chains_up_to(ops: Operators) -> Array:
    """Seconds of the longest chain that ends with each operator, [n]."""
    longest = np.zeros(len(ops.alone))
    for place in range(len(longest)):
        for other in range(place):
            if ops.before[place] >> np.uint64(other) & np.uint64(1):
                longest[place] = max(longest[place], longest[other])
        longest[place] += ops.alone[place]
    return longest


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
    ops: Operators, machine: Machine, terms: Terms, memo: Memo, levels: Levels
) -> tuple[int, float, Array]:
    """(how it ended, seconds, masks of the stages in order)."""
    n = len(ops.alone)
    full = np.uint64(0)
    for place in range(n):
        full |= np.uint64(1) << np.uint64(place)
    longest = _chains_up_to(ops)
    _keep(memo, full, 0.0, np.uint64(0), terms.most_states)
    for size in range(n, 0, -1):
        entry = memo.head[size]
        while entry >= 0:
            least = memo.tail[entry] + _longest_chain(longest, memo.keys[entry])
            if least < terms.bound:
                end = _take_endings(ops, machine, memo, levels, entry, terms)
                if end != _DONE:
                    return end, np.inf, memo.choice[:0]
            entry = memo.following[entry]
    last = _slot(memo.keys, np.uint64(0))
    if memo.keys[last] == np.uint64(_NO_SET):
        return _DONE, np.inf, memo.choice[:0]
    return _DONE, memo.tail[last], _stages(memo, full, n)
