"""What a device does in a step: its kernels slot by slot, and its collectives at the boundaries
between them.

The collectives and kernels of a plan are put where it wants them (`device_work`): those that go as
one message (`automap.cost.schedule.merging`) to where that is.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from automap.cost.schedule.merging import (
    NO_SUMS,
    LoopSums,
    Messages,
    SentSums,
    loop_sums,
    together,
)
from automap.cost.schedule.order import LATE, SPARE, Order, Places
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_REDUCE
from hlo_tools.analyses.phases import Phase


class Work(NamedTuple):
    """What a device does in a step: [slots] of kernels, [slots + 1] at boundaries, urgent
    collectives one by one.

    `kind`, `seconds` [slots] as in `Order`, but several slots that are one product are the last of
    them; `expected` [slots] is what the scheduler takes `seconds` to be. `data_at` and `read_at`
    [slots] too, but for what reads the result of a collective. `gathered_at` [slots] is the
    boundary at which the gather of what a kernel makes is needed, -1 for none. Seconds of kernels
    (`spare`, `late`, where their data is there; of the late ones `makers` make what is gathered
    anew, of the others `brief` are no work to the scheduler) and of collectives (`backlog` and
    `renewed` where they are ready, `prefetch` where it is needed) at boundaries; `_believed` is
    what the scheduler takes them to be, `renewed_one` and `renewed_believed` are of one message.
    The urgent ones are sorted by where they are needed. `sums` are those of the backlog that are in
    loops, message by message.
    """

    kind: np.ndarray
    seconds: np.ndarray
    expected: np.ndarray
    data_at: np.ndarray
    read_at: np.ndarray
    gathered_at: np.ndarray
    spare: np.ndarray
    late: np.ndarray
    brief: np.ndarray
    makers: np.ndarray
    backlog: np.ndarray
    backlog_believed: np.ndarray
    renewed: np.ndarray
    renewed_one: np.ndarray
    renewed_believed: np.ndarray
    prefetch: np.ndarray
    prefetch_believed: np.ndarray
    urgent_ready: np.ndarray
    urgent_needed: np.ndarray
    urgent_seconds: np.ndarray
    urgent_believed: np.ndarray
    sums: LoopSums

    def apart(self, n: int) -> Iterator["Work"]:
        """The work of each of n programs, of which this is that of all (`copied_order`)."""
        n_slots = len(self.kind) // n
        columns = {}
        for name, column in self._asdict().items():
            if name.startswith("urgent_") or name == "sums":
                continue
            # The slot behind each program is none of it; its boundary is the last one.
            own = column[: n * n_slots].reshape(n, n_slots)
            if name in _BOUNDARIES:
                own = np.maximum(own - n_slots * np.arange(n)[:, None], -1)
            columns[name] = own[:, :-1] if len(column) == len(self.kind) else own
        ends = np.searchsorted(self.urgent_needed, n_slots * np.arange(n + 1)).tolist()
        for number, sums in enumerate(self.sums.apart(n, n_slots)):
            own = slice(ends[number], ends[number + 1])
            yield Work(
                **{name: column[number] for name, column in columns.items()},
                urgent_ready=self.urgent_ready[own] - n_slots * number,
                urgent_needed=self.urgent_needed[own] - n_slots * number,
                urgent_seconds=self.urgent_seconds[own],
                urgent_believed=self.urgent_believed[own],
                sums=sums,
            )


# Columns of `Work` that are numbers of boundaries.
_BOUNDARIES = {"data_at", "read_at", "gathered_at"}


def copied_order(order: Order, n: int, n_rows: int) -> Order:
    """n such programs one after the other, each with a slot behind it in which nothing is done: so
    a program has as many slots as boundaries. Of kernels each has `n_rows`.
    """
    last = len(order.kind)

    def slots(column: np.ndarray, behind: int, step: int) -> np.ndarray:
        return _shifted(np.append(column, behind), n, step)

    return Order(
        kind=slots(order.kind, LATE, 0),
        op=slots(order.op, -1, 0),
        row=slots(order.row, -1, n_rows),
        trips=slots(order.trips, 1, 0),
        data_at=slots(order.data_at, last, last + 1),
        read_at=slots(order.read_at, last, last + 1),
        merged=slots(order.merged, last, last + 1),
        loop=np.append(_shifted(order.loop, n, last + 1), -1),
        first=np.append(_shifted(order.first, n, last + 1), n * (last + 1)),
        operands=_copied_places(order.operands, n, last + 1),
        results=_copied_places(order.results, n, last + 1),
    )


def _copied_places(places: Places, n: int, n_slots: int) -> Places:
    """Those of n programs, each so many slots behind the one before it."""
    first, last = places.first[:-1], len(places.ready)
    return Places(
        first=np.append(_shifted(first, n, last), n * last),
        incidences=np.tile(places.incidences, (n, 1)),
        ready=_shifted(places.ready, n, n_slots),
        needed=_shifted(places.needed, n, n_slots),
        share=np.tile(places.share, n),
        rank=np.tile(places.rank, n),
        dtype=np.tile(places.dtype, n),
        maker=_shifted(places.maker, n, n_slots),
        reader=_shifted(places.reader, n, n_slots),
    )


def _shifted(column: np.ndarray, n: int, step: int) -> np.ndarray:
    """n copies of a column of numbers, each `step` more than the one before; -1 stays."""
    shifted = column + step * np.arange(n)[:, None]
    return np.where(column >= 0, shifted, column).ravel()


def step_work(
    order: Order,
    kernel_seconds: np.ndarray,
    collectives: Collectives,
    collective_seconds: np.ndarray,
    messages: Messages | None = None,
    unseen_seconds: float = 0.0,
) -> Work:
    """`device_work` of kernels and collectives that take so long in one run, `kernel_seconds`
    [kernel rows] and `collective_seconds` [entries of `collectives`].

    In one trip of a loop sums, and gathers, are one message as long as their `messages` [entries],
    what each is of a full one, are at most 1; if None each goes by itself. Of a kernel that takes
    no longer than `unseen_seconds` the scheduler thinks that it takes no time.
    """
    # Slots of loops have no kernel (row -1): whatever that index reads is thrown away.
    each = np.where(order.row >= 0, kernel_seconds[order.row], 0.0)
    seconds = each * order.trips
    expected = np.where(each > unseen_seconds, seconds, 0.0)
    collective_seconds = collective_seconds * collectives.count
    return device_work(order, seconds, expected, collectives, collective_seconds, messages)


def device_work(
    order: Order,
    slot_seconds: np.ndarray,
    expected_seconds: np.ndarray,
    collectives: Collectives,
    seconds: np.ndarray,
    messages: Messages | None = None,
) -> Work:
    """What is to be done where: `slot_seconds` [slots], which the scheduler takes to be
    `expected_seconds` [slots], and `seconds` [entries of `collectives`] are of a whole step.
    """
    # Several slots that are one product are its last.
    slot_seconds, expected_seconds = (
        np.bincount(order.merged, seconds, len(order.kind))
        for seconds in (slot_seconds, expected_seconds)
    )
    placed = _placed(order, collectives, seconds, messages)
    backlog, renewed, prefetch = placed.backlog, placed.renewed, placed.prefetch
    ready, needed, each, alone = placed.urgent
    # Stable, so that the order of equal ones, and with it each sum of floats, is reproducible.
    by_need = np.argsort(needed, kind="stable")
    spare, late, brief, makers = _put_off(order, slot_seconds, expected_seconds, placed.makes_new)
    n_messages = np.maximum(np.ceil(renewed.parts), 1.0)
    return Work(
        kind=order.kind,
        seconds=slot_seconds,
        expected=expected_seconds,
        data_at=placed.data_at,
        read_at=order.read_at,
        gathered_at=placed.gathered_at,
        spare=spare,
        late=late,
        brief=brief,
        makers=makers,
        backlog=backlog.seconds,
        backlog_believed=backlog.believed,
        renewed=renewed.seconds,
        renewed_one=renewed.seconds / n_messages,
        renewed_believed=renewed.believed / n_messages,
        prefetch=prefetch.seconds,
        prefetch_believed=prefetch.believed,
        urgent_ready=ready[by_need],
        urgent_needed=needed[by_need],
        urgent_seconds=each[by_need],
        urgent_believed=alone[by_need],
        sums=loop_sums(order, placed.sums),
    )


class _Sent(NamedTuple):
    """Collectives at boundaries: seconds, what the scheduler takes them to be, and how many full
    messages they are, [boundaries].
    """

    seconds: np.ndarray
    believed: np.ndarray
    parts: np.ndarray


class _Placed(NamedTuple):
    """Collectives where they stand: `urgent` are columns of the boundaries where each is ready and
    needed, its seconds and what the scheduler takes them to be. `makes_new` [slots] make what is
    gathered anew.
    """

    backlog: _Sent
    renewed: _Sent
    prefetch: _Sent
    urgent: tuple[np.ndarray, ...]
    sums: SentSums
    gathered_at: np.ndarray
    data_at: np.ndarray
    makes_new: np.ndarray


def _placed(
    order: Order, collectives: Collectives, seconds: np.ndarray, messages: Messages | None
) -> _Placed:
    # Boundary k lies before slot k, and one more behind the last.
    n = len(order.kind) + 1
    backlog, renewed, prefetch = (_Sent(*np.zeros((3, n))) for _ in range(3))
    gathered_at, sums = np.full(n - 1, -1), NO_SUMS
    data_at, makes_new = order.data_at.copy(), np.zeros(n - 1, np.bool_)
    urgent: list[tuple[np.ndarray, ...]] = []
    for on_operand, places in ((True, order.operands), (False, order.results)):
        is_here = (collectives.on_operand == on_operand) & (seconds > 0)
        # What is combinable is of a parameter or a gradient; all else is of activations.
        entry, every, shares = _spread(places, collectives.edge, seconds, is_here)
        is_combinable = collectives.combinable[entry]
        at, each = every[~is_combinable], shares[~is_combinable]
        alone = _believed(messages, np.arange(len(at)), entry[~is_combinable], places, at, each)
        urgent.append((places.ready[at], places.needed[at], each, alone))
        if not on_operand:
            # What reads the result of one is there once the first that does so is.
            after = np.zeros(n, np.int64)
            np.maximum.at(after, places.ready[at], places.needed[at] + 1)
            data_at = np.maximum(data_at, after[order.data_at])
        is_new = _is_new(order, collectives, is_here, on_operand=on_operand)
        old = (prefetch, places.needed) if on_operand else (backlog, places.ready)
        for (into, boundary), wanted in ((old, ~is_new), ((renewed, places.ready), is_new)):
            chosen = is_combinable & wanted[entry]
            at, each, rows = every[chosen], shares[chosen], entry[chosen]
            message = np.arange(len(at))
            if messages is not None and len(at):
                columns = (messages.parts, collectives.kind, collectives.mask)
                parts = np.stack([column[rows] for column in columns])
                message, boundary = _merged(
                    order, places, at, boundary, parts, is_first=into is prefetch
                )
            if into is prefetch:
                gathered_at = _gathered_at(n, places.ready[at], boundary[at])
            elif into is renewed:
                maker = places.maker[at]
                makes_new[maker[maker >= 0]] = True
            group = _numbers(boundary[at], places.dtype[at], collectives.mask[rows])
            full = 1.0 if messages is None else messages.parts[rows] * collectives.count[rows]
            believed = _believed(messages, group, rows, places, at, each)
            if into is backlog:
                is_whole = collectives.kind[rows] == ALL_REDUCE
                ends = (places.ready[at], boundary[at], places.reader[at])
                sums = SentSums(at, message, is_whole, *ends, each, believed)
            # Several collectives may stand at one boundary: `.at` adds all of them.
            for column, added in zip(into, (each, believed, full * places.share[at]), strict=True):
                np.add.at(column, boundary[at], added)
    columns = tuple(np.concatenate(column) for column in zip(*urgent))
    return _Placed(backlog, renewed, prefetch, columns, sums, gathered_at, data_at, makes_new)


def _believed(
    messages: Messages | None,
    group: np.ndarray,
    entry: np.ndarray,
    places: Places,
    at: np.ndarray,
    seconds: np.ndarray,
) -> np.ndarray:
    """`Messages.believed_seconds` of incidences `at` their places."""
    if messages is None:
        return seconds
    return messages.believed_seconds(group, entry, places.share[at], seconds)


def _numbers(*columns: np.ndarray) -> np.ndarray:
    """One number for each row of columns of small ones."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        number = number * (column.max(initial=0) + 1) + column
    return number


def _put_off(
    order: Order, seconds: np.ndarray, expected: np.ndarray, makes_new: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`Work.spare`, `late`, `brief` and `makers`, where `makes_new` [slots] make what is gathered
    anew.
    """
    is_late = order.kind == LATE
    is_brief = is_late & (expected == 0) & ~makes_new
    spare, late, brief, makers = (  # of no numbers numpy counts integers
        np.bincount(order.data_at[chosen], seconds[chosen], len(seconds) + 1).astype(float)
        for chosen in (order.kind == SPARE, is_late, is_brief, is_late & makes_new)
    )
    return spare, late, brief, makers


def _merged(
    order: Order,
    places: Places,
    at: np.ndarray,
    boundary: np.ndarray,
    rows: np.ndarray,
    *,
    is_first: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the messages of incidences `at`, and `boundary` [incidences], but for those
    where their messages are; `rows` [3, those] are the part of a full message that each is, its
    kind and its axes.
    """
    moved, loop = boundary.copy(), order.loop[boundary[at]]
    group = np.stack((loop, rows[1], rows[2], places.dtype[at])).astype(np.int64)
    message, moved[at] = together(group, places.rank[at], boundary[at], rows[0], is_first=is_first)
    return message, moved


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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the entries that are `is_here`, with their `edge` and `seconds` [entries]: the entry, the
    number and the seconds of each incidence.
    """
    entry = np.flatnonzero(is_here)
    own = edge[entry]
    first = places.first[own]
    count = places.first[own + 1] - first
    entry = np.repeat(entry, count)
    # The ranges first[i] .. first[i] + count[i] one after the other, without a loop.
    at = np.repeat(first + count - np.cumsum(count), count)
    at += np.arange(len(at))
    return entry, at, seconds[entry] * places.share[at]
