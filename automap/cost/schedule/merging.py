"""Which collectives are one message, and what XLA's scheduler takes messages to be.

In one trip of a loop sums of gradients, and gathers of parameters, go as messages: XLA merges them
in the order of the program as long as they are at most a full one          -> in: `together`

The scheduler puts each message of sums by itself where it is hidden best, also those that are ready
at one boundary (`automap.cost.schedule.closed_loops`). A gradient that is summed over more axes
than it is sharded over goes in two: it is reduce-scattered and then all-reduced over the rest, and
the second cannot begin before the first is done             -> in: `loop_sums`, `_stages`
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from automap.cost.schedule.order import SPARE, Order
from automap.numba_jit import compiled


def together(
    group: np.ndarray,
    rank: np.ndarray,
    place: np.ndarray,
    messages: np.ndarray,
    *,
    is_first: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The messages that collectives go in, [collectives]: the number of the collective that begins
    it, and where it is, at the first or the last place of those that are one.

    `group` [4, collectives] is the loop around each, -1 for none, its kind, the axes that it is
    over, and `Places.dtype`: those that differ in one are never merged. `place` is its boundary;
    they are merged in the order of `rank`; `messages` is the part of a full message that each is.
    What is more than one goes alone (collective_combiner_utils.h, CombineInstructionsByKey).
    """
    first = _first_of_message(group, messages, np.lexsort((rank, *group[::-1])))
    moved = place.copy()
    (np.minimum if is_first else np.maximum).at(moved, first, place)
    return first, moved[first]


@compiled
def _first_of_message(group: np.ndarray, messages: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The collective that begins the message of each, itself if it goes alone; `order` lists them
    by group and rank.
    """
    first = np.arange(len(order))
    # The message that is being filled: how full it is, and the one that begins it.
    full, begin = 0.0, -1
    for each in order:
        if group[0, each] < 0 or messages[each] > 1:
            continue
        is_other = begin < 0 or (group[:, each] != group[:, begin]).any()
        if is_other or full + messages[each] > 1:
            begin, full = each, 0.0
        first[each] = begin
        full += messages[each]
    return first


class SentSums(NamedTuple):
    """Sums that are sent, [sums], in the order in which those of one result follow each other.

    `result` is the incidence that is summed, `message` the number of the message, which is an
    all-reduce or, if not `is_whole`, a reduce-scatter; `ready` is the boundary at which the terms
    are made, `begun` the one at which the message can begin, `reader` the slot that reads the
    result; `seconds` are its own, `believed` what the scheduler takes them to be; `sliced` are
    those of the kernel that copies it out of its message.
    """

    result: np.ndarray
    message: np.ndarray
    is_whole: np.ndarray
    ready: np.ndarray
    begun: np.ndarray
    reader: np.ndarray
    seconds: np.ndarray
    believed: np.ndarray
    sliced: np.ndarray


NO_SUMS = SentSums(*np.zeros((6, 0), np.int64), *np.zeros((3, 0)))


class LoopSums(NamedTuple):
    """The messages of sums in loops, sorted by where they can begin, and those of one boundary so
    that none comes before one that it waits for.

    [messages]: the boundary at which each is `ready`, its `seconds` and what the scheduler takes
    them to be (`believed`); `made_from` is the boundary from which on only spare kernels make its
    terms, and `then` the first message that adds up further what this one has, -1 for none. `parts`
    is the number of its sums, and it `is_sliced` if they are one array, as an all-reduce of several
    is in the programs of XLA:GPU; `slices` are seconds of the kernels that copy them out of it.
    [slots]: the messages that a spare kernel `makes` terms of and
    that a kernel `reads`, -1 for none.
    """

    ready: np.ndarray
    seconds: np.ndarray
    believed: np.ndarray
    made_from: np.ndarray
    then: np.ndarray
    parts: np.ndarray
    is_sliced: np.ndarray
    slices: np.ndarray
    makes: np.ndarray
    reads: np.ndarray

    def apart(self, n: int, n_slots: int) -> Iterator["LoopSums"]:
        """Those of each of n programs, whose slots with the one behind are `n_slots`."""
        ends = np.searchsorted(self.ready, n_slots * np.arange(n + 1)).tolist()
        for number in range(n):
            own = slice(ends[number], ends[number + 1])
            first, last = number * n_slots, (number + 1) * n_slots - 1
            then, makes, reads = (
                np.maximum(column - ends[number], -1)
                for column in (self.then[own], self.makes[first:last], self.reads[first:last])
            )
            yield LoopSums(
                ready=self.ready[own] - first,
                seconds=self.seconds[own],
                believed=self.believed[own],
                made_from=self.made_from[own] - first,
                then=then,
                parts=self.parts[own],
                is_sliced=self.is_sliced[own],
                slices=self.slices[own],
                makes=makes,
                reads=reads,
            )


def loop_sums(order: Order, sums: SentSums) -> LoopSums:
    """Those of the sums that are in loops."""
    sums = SentSums(*(column[order.loop[sums.begun] >= 0] for column in sums))
    first, message = np.unique(sums.message, return_index=True, return_inverse=True)[1:]
    n = len(first)
    ready, stage, (before, after) = _stages(sums, message, n)
    by_ready = np.lexsort((stage, ready))
    place = np.argsort(by_ready)
    message, before, after = place[message], place[before], place[after]
    then = np.full(n, n)
    parts = np.bincount(message, minlength=n)
    is_later = before < after
    np.minimum.at(then, before[is_later], after[is_later])
    makers = sums.ready - 1
    is_spare = (sums.ready > order.first[sums.ready]) & (order.kind[makers] == SPARE)
    # A spare kernel may run until its sum begins, what its data is made of before.
    made_from = order.first[ready[by_ready]]
    np.maximum.at(made_from, message, np.where(is_spare, order.data_at[makers], sums.ready))
    makes = np.full(len(order.kind), n)
    np.minimum.at(makes, makers[is_spare], message[is_spare])
    # What reads a result comes after the last of its sums.
    reads = np.full(len(order.kind) + 1, -1)
    reads[sums.reader] = message
    return LoopSums(
        ready=ready[by_ready],
        seconds=np.bincount(message, sums.seconds, n),
        believed=np.bincount(message, sums.believed, n),
        made_from=made_from,
        then=np.where(then < n, then, -1),
        parts=parts,
        is_sliced=(parts > 1) & (np.bincount(message, sums.is_whole, n) > 0),
        slices=np.bincount(message, sums.sliced, n),
        # Several that are one product make what all their sums add up.
        makes=np.where(makes < n, makes, -1)[order.merged],
        reads=reads[:-1],
    )


def _stages(
    sums: SentSums, message: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """When each of n messages is ready and how many it comes after, and the pairs of messages of
    which the second adds up further what the first has; `message` [sums] numbers them.
    """
    by_result = np.argsort(sums.result, kind="stable")
    is_first = np.diff(sums.result[by_result], prepend=-1) != 0
    # How many sums of the same result come before each.
    number = np.arange(len(by_result))
    before = number - np.maximum.accumulate(np.where(is_first, number, 0))
    pairs = message[by_result[np.flatnonzero(~is_first) - 1]], message[by_result[~is_first]]
    stage, ready = np.zeros((2, n), np.int64)
    np.maximum.at(stage, message[by_result], before)
    np.maximum.at(ready, message, sums.begun)
    for _ in range(int(stage.max(initial=0))):
        np.maximum.at(ready, pairs[1], ready[pairs[0]])
    return ready, stage, pairs
