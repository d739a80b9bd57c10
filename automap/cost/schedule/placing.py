"""Where the collectives of a step stand, at the boundaries between its kernels.

A collective stands where its data is made or its result is needed      -> in: `place`
Those that go as one message (`automap.cost.schedule.merging`) stand where that is, and share what
all of its bytes take                               -> in: `_packed`, `Messages.packed_seconds`
What the scheduler believes of a message            -> in: `Messages.believed_seconds`
Several all-reduces that are one message are one array: a kernel copies what is summed into it, and
others copy the sums out of it (XLA:GPU, all_reduce_contiguous.cc)
                                                    -> in: `_joins`, `Messages.joined_seconds`
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from automap.backends.believed import BelievedSeconds
from automap.cost.collectives import CollectiveCost
from automap.cost.schedule.merging import NO_SUMS, SentSums, together
from automap.cost.schedule.order import Order, Places
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_REDUCE, ALL_TO_ALL
from hlo_tools.analyses.phases import Phase


class Messages(NamedTuple):
    """What collectives are of messages, [entries]: `parts` of a full one, `trip_bytes`, what one of
    the `trips` of the loop around sends, and which of `costs` is its own (`cost`). What XLA's
    scheduler believes of them are the seconds of their `rows` of `believed` (-1: as they are).
    `copy_seconds` are those of kernels by the bytes that they move.
    """

    parts: np.ndarray
    rows: np.ndarray
    trip_bytes: np.ndarray
    trips: np.ndarray
    cost: np.ndarray
    costs: Sequence[CollectiveCost]
    copy_seconds: Callable[[np.ndarray], np.ndarray]
    believed: BelievedSeconds | None = None

    def joined_seconds(
        self, message: np.ndarray, entry: np.ndarray, share: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of a step of the kernels that make one array of all that is in a `message`, and
        of those that take it apart again, [incidences]; 0 of what goes alone.
        """
        together, count = np.unique(message, return_inverse=True, return_counts=True)[1:]
        own = self.trip_bytes[entry] * share
        # Each byte is read and written.
        n_bytes = np.bincount(together, own)
        joining = (self.copy_seconds(2 * n_bytes) / n_bytes)[together] * own
        times = np.where(count[together] > 1, self.trips[entry], 0)
        return joining * times, self.copy_seconds(2 * own) * times

    def packed_seconds(
        self, message: np.ndarray, entry: np.ndarray, share: np.ndarray
    ) -> np.ndarray:
        """Seconds of a step of what goes in messages, [incidences]: those of each `message`,
        divided by bytes. `share` is the part of its entry.
        """
        first, together = np.unique(message, return_index=True, return_inverse=True)[1:]
        own = self.trip_bytes[entry] * share
        n_bytes = np.bincount(together, own)
        cost, whole = self.cost[entry[first]], np.zeros(len(first))
        for number in np.unique(cost).tolist():
            rows = cost == number
            whole[rows] = self.costs[number].seconds(n_bytes[rows])
        return (whole / n_bytes)[together] * own * self.trips[entry]

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


class Sent(NamedTuple):
    """Collectives at boundaries: seconds, what the scheduler takes them to be, and how many full
    messages they are, [boundaries].
    """

    seconds: np.ndarray
    believed: np.ndarray
    parts: np.ndarray


class Taken(NamedTuple):
    """Seconds of a step beside all other collectives of the point, [entries]: of each collective
    with its part of its messages (`sent`), and of the kernels that copy it into an array with
    others, and out of it (`joined`).
    """

    sent: np.ndarray
    joined: np.ndarray


class Placed(NamedTuple):
    """Collectives where they stand: `urgent` are columns of the boundaries where each is ready and
    needed, its seconds and what the scheduler takes them to be. `makes_new` [slots] make what is
    gathered anew.
    """

    backlog: Sent
    renewed: Sent
    prefetch: Sent
    urgent: tuple[np.ndarray, ...]
    sums: SentSums
    taken: Taken
    gathered_at: np.ndarray
    data_at: np.ndarray
    makes_new: np.ndarray


class _Incidences(NamedTuple):
    """Of entries of collectives: the `number` of each among `places`, its entry and its seconds."""

    places: Places
    number: np.ndarray
    entry: np.ndarray
    seconds: np.ndarray

    def take(self, which: np.ndarray) -> "_Incidences":
        columns = (self.number, self.entry, self.seconds)
        return _Incidences(self.places, *(column[which] for column in columns))

    @property
    def share(self) -> np.ndarray:
        return self.places.share[self.number]


def place(
    order: Order, collectives: Collectives, seconds: np.ndarray, messages: Messages | None
) -> Placed:
    """Collectives whose entries take `seconds` of a step [entries]."""
    # Boundary k lies before slot k, and one more behind the last.
    n = len(order.kind) + 1
    backlog, renewed, prefetch = (Sent(*np.zeros((3, n))) for _ in range(3))
    gathered_at, sums = np.full(n - 1, -1), NO_SUMS
    taken = Taken(*np.zeros((2, len(seconds))))
    data_at, makes_new = order.data_at.copy(), np.zeros(n - 1, np.bool_)
    urgent: list[tuple[np.ndarray, ...]] = []
    for on_operand, places in ((True, order.operands), (False, order.results)):
        is_here = (collectives.on_operand == on_operand) & (seconds > 0)
        every = _spread(places, collectives.edge, seconds, is_here)
        # What is combinable is of a parameter or a gradient; all else is of activations.
        is_combinable = collectives.combinable[every.entry]
        own = every.take(~is_combinable)
        alone = _believed(messages, np.arange(len(own.number)), own)
        ready, needed = (column[own.number] for column in (places.ready, places.needed))
        urgent.append((ready, needed, own.seconds, alone))
        np.add.at(taken.sent, own.entry, own.seconds)
        if not on_operand:
            # What reads the result of one is there once the first that does so is.
            after = np.zeros(n, np.int64)
            np.maximum.at(after, ready, needed + 1)
            data_at = np.maximum(data_at, after[order.data_at])
        is_new = _is_new(order, collectives, is_here, on_operand=on_operand)
        old = (prefetch, places.needed) if on_operand else (backlog, places.ready)
        for (into, boundary), wanted in ((old, ~is_new), ((renewed, places.ready), is_new)):
            own = every.take(is_combinable & wanted[every.entry])
            # A point has few kinds of collectives, and numpy on nothing takes time, too.
            if not len(own.number):
                continue
            message, at = np.arange(len(own.number)), boundary[own.number]
            if messages is not None:
                is_first = into is prefetch
                message, at, own = _packed(order, collectives, messages, own, at, is_first=is_first)
            if into is prefetch:
                gathered_at = _gathered_at(n, places.ready[own.number], at)
            elif into is renewed:
                maker = places.maker[own.number]
                makes_new[maker[maker >= 0]] = True
            group = _numbers(at, places.dtype[own.number], collectives.mask[own.entry])
            believed = _believed(messages, group, own)
            if into is backlog:
                joining, slicing = _joins(order, collectives, messages, own, message, at)
                np.add.at(taken.joined, own.entry, joining + slicing)
                is_whole = collectives.kind[own.entry] == ALL_REDUCE
                ends = (places.ready[own.number], at, places.reader[own.number])
                columns = (*ends, own.seconds, believed, slicing)
                sums = SentSums(own.number, message, is_whole, *columns)
            np.add.at(taken.sent, own.entry, own.seconds)
            # Several collectives may stand at one boundary: `.at` adds all of them.
            for column, added in zip(
                into, (own.seconds, believed, _parts(collectives, messages, own)), strict=True
            ):
                np.add.at(column, at, added)
    columns = tuple(np.concatenate(column) for column in zip(*urgent))
    return Placed(backlog, renewed, prefetch, columns, sums, taken, gathered_at, data_at, makes_new)


def _parts(collectives: Collectives, messages: Messages | None, own: _Incidences) -> np.ndarray:
    """How many full messages incidences are."""
    if messages is None:
        return own.share
    return messages.parts[own.entry] * collectives.count[own.entry] * own.share


def _believed(messages: Messages | None, group: np.ndarray, own: _Incidences) -> np.ndarray:
    """`Messages.believed_seconds` of incidences."""
    if messages is None or not len(group):
        return own.seconds
    return messages.believed_seconds(group, own.entry, own.share, own.seconds)


def _numbers(*columns: np.ndarray) -> np.ndarray:
    """One number for each row of columns of small ones."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        number = number * (column.max(initial=0) + 1) + column
    return number


def _packed(
    order: Order,
    collectives: Collectives,
    messages: Messages,
    own: _Incidences,
    boundary: np.ndarray,
    *,
    is_first: bool,
) -> tuple[np.ndarray, np.ndarray, _Incidences]:
    """The number of the message of each incidence, where that is, and the incidences with their
    part of its seconds; `boundary` is where each is by itself. Outside of loops it stays alone.
    """
    loop, places = order.loop[boundary], own.places
    kind, mask = collectives.kind[own.entry], collectives.mask[own.entry]
    # No compiler merges exchanges.
    is_merged = (loop >= 0) & (kind != ALL_TO_ALL)
    group = np.stack((np.where(is_merged, loop, -1), kind, mask, places.dtype[own.number]))
    message, boundary = together(
        group.astype(np.int64),
        places.rank[own.number],
        boundary,
        messages.parts[own.entry],
        is_first=is_first,
    )
    seconds, inside = own.seconds.copy(), np.flatnonzero(is_merged)
    packed = own.take(inside)
    # Never less than each takes by itself, which searches take for a bound.
    seconds[inside] = np.maximum(
        packed.seconds, messages.packed_seconds(message[inside], packed.entry, packed.share)
    )
    return message, boundary, own._replace(seconds=seconds)


def _joins(
    order: Order,
    collectives: Collectives,
    messages: Messages | None,
    own: _Incidences,
    message: np.ndarray,
    boundary: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """`Messages.joined_seconds` of sums, 0 of those that are no all-reduces. Outside of loops those
    of one phase, type and axes are taken for one message, but for what is a whole one by itself.
    """
    joining, slicing = np.zeros((2, len(boundary)))
    if messages is None:
        return joining, slicing
    is_outside = order.loop[boundary] < 0
    is_joined = (collectives.kind[own.entry] == ALL_REDUCE) & (
        ~is_outside | (messages.parts[own.entry] <= 1)
    )
    # Where a program begins tells several apart.
    kinds = (collectives.mask[own.entry], collectives.phase[own.entry])
    group = _numbers(order.first[boundary], own.places.dtype[own.number], *kinds)
    key = np.where(is_outside, -1 - group, message)[is_joined]
    joined = own.take(is_joined)
    joining[is_joined], slicing[is_joined] = messages.joined_seconds(
        key, joined.entry, joined.share
    )
    return joining, slicing


def _gathered_at(n: int, ready: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """`Work.gathered_at` of gathers whose data is `ready`, at one of `n` boundaries."""
    gathered_at = np.full(n - 1, -1)
    is_made = ready > 0
    np.maximum.at(gathered_at, ready[is_made] - 1, needed[is_made])
    return gathered_at


def _is_new(
    order: Order, collectives: Collectives, is_here: np.ndarray, *, on_operand: bool
) -> np.ndarray:
    """Which of the collectives `is_here` are of what the update makes, [entries]: that is not there
    beside the passes whose sums it is made of.

    What an operation of a loop reads is left with the gathers of the loop.
    """
    is_late = is_here & (collectives.phase == Phase.UPDATE)
    if not on_operand:
        return is_late
    rows, places = np.flatnonzero(is_late), order.operands
    ready = places.ready[places.first[collectives.edge[rows]]]
    is_late[rows] = (ready > order.first[ready]) & (order.loop[ready] < 0)
    return is_late


def _spread(
    places: Places, edge: np.ndarray, seconds: np.ndarray, is_here: np.ndarray
) -> _Incidences:
    """Those of the entries that are `is_here`, with their `edge` and `seconds` [entries]."""
    entry = np.flatnonzero(is_here)
    own = edge[entry]
    first = places.first[own]
    count = places.first[own + 1] - first
    entry = np.repeat(entry, count)
    # The ranges first[i] .. first[i] + count[i] one after the other, without a loop.
    at = np.repeat(first + count - np.cumsum(count), count)
    at += np.arange(len(at))
    return _Incidences(places, at, entry, seconds[entry] * places.share[at])
