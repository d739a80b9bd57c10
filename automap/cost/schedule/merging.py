"""Which collectives are one message, and what XLA's scheduler takes messages to be.

In one trip of a loop sums of gradients, and gathers of parameters, go as messages: XLA merges them
in the order of the program as long as they are at most a full one          -> in: `together`
What the scheduler believes of a message                    -> in: `Messages.believed_seconds`
"""

from typing import NamedTuple

import numpy as np

from automap.backends.believed import BelievedSeconds
from automap.numba_jit import compiled


class Messages(NamedTuple):
    """What collectives are of messages, [entries]: `parts` of a full one, and what XLA's scheduler
    believes of them, whose seconds are those of their `rows` of `believed` (-1: as they are) for
    `trip_bytes`, what one of the `trips` of the loop around sends.
    """

    parts: np.ndarray
    rows: np.ndarray
    trip_bytes: np.ndarray
    trips: np.ndarray
    believed: BelievedSeconds | None = None

    def believed_seconds(
        self, group: np.ndarray, entry: np.ndarray, share: np.ndarray, seconds: np.ndarray
    ) -> np.ndarray:
        """What the scheduler takes the `seconds` of a step to be, [incidences]: those of one
        `group`, kind and number of devices are one message. `share` is the part of its entry.
        """
        rows = self.rows[entry]
        if self.believed is None or (rows < 0).all():
            return seconds
        key = group * (rows.max() + 2) + rows + 1
        first, together = np.unique(key, return_index=True, return_inverse=True)[1:]
        n_bytes = np.bincount(together, self.trip_bytes[entry] * share)
        whole = self.believed.lookup(rows[first], n_bytes) * self.trips[entry[first]]
        own = seconds / np.bincount(together, seconds)[together]
        return np.where(rows >= 0, whole[together] * own, seconds)


def together(
    group: np.ndarray,
    rank: np.ndarray,
    place: np.ndarray,
    messages: np.ndarray,
    *,
    is_first: bool,
) -> np.ndarray:
    """Where the messages are that collectives go in, [collectives]: at the first or the last place
    of those that are one.

    `group` [4, collectives] is the loop around each, -1 for none, its kind, the axes that it is
    over, and `Places.dtype`: those that differ in one are never merged. `place` is its boundary;
    they are merged in the order of `rank`; `messages` is the part of a full message that each is.
    What is more than one goes alone (collective_combiner_utils.h, CombineInstructionsByKey).
    """
    first = _first_of_message(group, messages, np.lexsort((rank, *group[::-1])))
    moved = place.copy()
    (np.minimum if is_first else np.maximum).at(moved, first, place)
    return moved[first]


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
