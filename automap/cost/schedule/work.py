"""What a device does in a step: its kernels slot by slot, and its collectives at the boundaries
between them.

The collectives and kernels of a plan are put where it wants them (`device_work`,
`automap.cost.schedule.placing`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from automap.cost.schedule.merging import LoopSums, loop_sums
from automap.cost.schedule.order import LATE, SPARE, Order, Places
from automap.cost.schedule.placing import Messages, Taken, place
from automap.cost.traffic import Collectives


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
) -> tuple[Work, Taken]:
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
) -> tuple[Work, Taken]:
    """What is to be done where: `slot_seconds` [slots], which the scheduler takes to be
    `expected_seconds` [slots], and `seconds` [entries of `collectives`] are of a whole step.
    """
    # Several slots that are one product are its last.
    slot_seconds, expected_seconds = (
        np.bincount(order.merged, seconds, len(order.kind))
        for seconds in (slot_seconds, expected_seconds)
    )
    placed = place(order, collectives, seconds, messages)
    backlog, renewed, prefetch = placed.backlog, placed.renewed, placed.prefetch
    ready, needed, each, alone = placed.urgent
    # Stable, so that the order of equal ones, and with it each sum of floats, is reproducible.
    by_need = np.argsort(needed, kind="stable")
    spare, late, brief, makers = _put_off(order, slot_seconds, expected_seconds, placed.makes_new)
    n_messages = np.maximum(np.ceil(renewed.parts), 1.0)
    work = Work(
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
    return work, placed.taken


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
