"""One step of a placement, simulated: when each task and each transfer runs.

`chosen` has the choice of each operator (`automap.placement.choices`): degrees of its dimensions,
and the devices of its parts. All parts of a task run at once, as one partitioned program does. A
device does one task at a time, and so does each medium of the machine in each direction; both take
what is ready first (FlexFlow, section 5.1: first in, first out). A tensor goes once to each other
choice that has receivers of it, as soon as its maker ends, state at once; each part is sent what it
has not of what it reads:

    ready(task)      = max over its tensors of their arrival, all parts, at its choice
    start(task)      = max(ready, all of its devices are free)
    end(task)        = start + max over parts of seconds on their kinds + sums
    sums             = messages * latency + bytes / rate of the slowest link round the devices
                                                                         -> in: `task_seconds`
    start(transfer)  = max(maker's end, all media of the route are free)
    end(transfer)    = start + latency + bytes / the least rate of the route
    bytes            = pieces of the tensor, by the overlap of the two parts along each class
                                                          -> in: `automap.placement.choices`

Media of a route are busy to the end of the transfer. Events are taken in the order of their ready
times, so whatever comes later is ready later                              -> in: `run_step`
"""

from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.placement.choices import Choices, sent_share
from automap.simulate.heap import pop, push


class Machine(NamedTuple):
    """A machine's devices and routes, P devices: `kind` [P] (a row of `PlacementProblem.seconds`),
    `memory_bytes` [P]; `rate` bytes per second and `latency` seconds [P, P]; the media of the
    route from a to b are media[first[a P + b] : first[a P + b + 1]], of `n_media`.
    """

    kind: Array
    memory_bytes: Array
    rate: Array
    latency: Array
    first: Array
    media: Array
    n_media: int
    choices: Choices


class Step(NamedTuple):
    """A problem as arrays: tasks [T], tensors [X], entries of tensors' readers [R], pieces [Q].

    Readers of tensor x are entries first_reader[x] .. first_reader[x + 1]; tensors that task t
    makes are made[first_made[t] .. first_made[t + 1]], those of no task come behind.
    `n_waiting` [T] are the tensors of other tasks, or of state, that it receives.

    Pieces of tensor x are first_piece[x] .. first_piece[x + 1], with their bytes, moved and kept,
    and `has_class` [Q, classes]. `seconds` [forms, kinds, tasks] and `workspace` [forms, tasks] are
    of one part. `sum_*` [forms, tasks] are the messages and bytes of what a program of a form sums
    and gathers within; `term_*` are those that one sum with the operators before[first_before[t]
    ..] spares.
    """

    operator: Array
    seconds: Array
    workspace: Array
    sum_messages: Array
    sum_bytes: Array
    term_messages: Array
    term_bytes: Array
    first_before: Array
    before: Array
    n_waiting: Array
    maker: Array
    home: Array
    is_result: Array
    first_piece: Array
    moved_bytes: Array
    kept_bytes: Array
    has_class: Array
    first_reader: Array
    reader: Array
    is_receiver: Array
    first_made: Array
    made: Array


class Timeline(NamedTuple):
    """What happens when: ready, start, end [T] of tasks; transfers [N, 3] (tensor, from, to), their
    bytes, start and end [N].
    """

    ready: Array
    start: Array
    end: Array
    transfer: Array
    sent_bytes: Array
    sent_start: Array
    sent_end: Array


@inner
def origin(step: Step, chosen: Array, x: int) -> int:
    """The choice that a tensor is made or stored with."""
    maker = step.maker[x]
    return chosen[step.operator[maker]] if maker >= 0 else chosen[step.home[x]]


@inner
def task_seconds(step: Step, machine: Machine, chosen: Array, task: int) -> float:
    """What a task takes, its slowest part and its sums."""
    choices, choice = machine.choices, chosen[step.operator[task]]
    form, longest = choices.form[choice], 0.0
    for part in range(choices.n_parts[choice]):
        kind = machine.kind[choices.device[choice, part]]
        longest = max(longest, step.seconds[form, kind, task])
    messages, n_bytes = step.sum_messages[form, task], step.sum_bytes[form, task]
    for index in range(step.first_before[task], step.first_before[task + 1]):
        # What is added up under another choice cannot wait for this one's partial sums.
        if chosen[step.before[index]] != choice:
            messages += step.term_messages[form, task]
            n_bytes += step.term_bytes[form, task]
            break
    return longest + messages * choices.ring_latency[choice] + n_bytes / choices.ring_rate[choice]


class _Events(NamedTuple):
    """What is to happen: a heap of entries, tasks (0 .. T - 1), then state, which is there at once,
    then transfers. `waiting` [T] are the tensors that a task still waits for.

    A *delivery* is a tensor on its way to a choice: `delivery` [N, 2] (tensor, choice), there at
    `arrival` when `n_left` transfers of it are 0; `its_delivery` [N] the transfers'. `sent_to` [G]
    is the last tensor that was sent to a choice.
    """

    keys: Array
    entries: Array
    rank: Array
    waiting: Array
    sent_to: Array
    delivery: Array
    its_delivery: Array
    n_left: Array
    arrival: Array
    free_device: Array
    free_medium: Array


@inner
def _run_task(
    step: Step, machine: Machine, chosen: Array, e: _Events, line: Timeline, t: int
) -> None:
    """Run a task on all of its devices, as soon as these are free."""
    choices, here = machine.choices, chosen[step.operator[t]]
    seconds = line.ready[t]
    for part in range(choices.n_parts[here]):
        seconds = max(seconds, e.free_device[choices.device[here, part]])
    line.start[t] = seconds
    line.end[t] = seconds + task_seconds(step, machine, chosen, t)
    for part in range(choices.n_parts[here]):
        e.free_device[choices.device[here, part]] = line.end[t]


@inner
def _run_transfer(machine: Machine, e: _Events, line: Timeline, number: int, ready: float) -> bool:
    """Send as soon as all media of the route are free; whether its delivery is complete."""
    a, b, way = line.transfer[number, 1], line.transfer[number, 2], e.its_delivery[number]
    taken = machine.latency[a, b] + line.sent_bytes[number] / machine.rate[a, b]
    pair, start = a * len(machine.kind) + b, ready
    for index in range(machine.first[pair], machine.first[pair + 1]):
        start = max(start, e.free_medium[machine.media[index]])
    for index in range(machine.first[pair], machine.first[pair + 1]):
        e.free_medium[machine.media[index]] = start + taken
    line.sent_start[number], line.sent_end[number] = start, start + taken
    e.arrival[way] = max(e.arrival[way], start + taken)
    e.n_left[way] -= 1
    return e.n_left[way] == 0


@inner
def _part_bytes(
    step: Step, choices: Choices, x: int, here: int, a: int, target: int, b: int
) -> float:
    """What part b of one choice is sent of a tensor by part a of another, -1 for nothing."""
    is_sent, n_bytes = False, 0.0
    for piece in range(step.first_piece[x], step.first_piece[x + 1]):
        share = sent_share(choices, step.has_class[piece], here, a, target, b)
        is_sent = is_sent or share > 0.0
        n_bytes += share * step.moved_bytes[piece]
    is_sent = is_sent and choices.device[here, a] != choices.device[target, b]
    return n_bytes if is_sent else -1.0


@inner
def _cut(
    step: Step, choices: Choices, line: Timeline, x: int, here: int, target: int, sent: int
) -> int:
    """List what the parts of a choice are sent of a tensor; returns the transfers there are."""
    for b in range(choices.n_parts[target]):
        for a in range(choices.n_parts[here]):
            n_bytes = _part_bytes(step, choices, x, here, a, target, b)
            if n_bytes >= 0.0:
                line.transfer[sent, 0], line.transfer[sent, 1] = x, choices.device[here, a]
                line.transfer[sent, 2], line.sent_bytes[sent] = choices.device[target, b], n_bytes
                sent += 1
    return sent


@inner
def longest_part(step: Step, machine: Machine, x: int, here: int, target: int) -> float:
    """The longest transfer of a tensor from one choice to another, if nothing else is sent."""
    choices, longest = machine.choices, 0.0
    for b in range(choices.n_parts[target]):
        for a in range(choices.n_parts[here]):
            source, receiver = choices.device[here, a], choices.device[target, b]
            n_bytes = _part_bytes(step, choices, x, here, a, target, b)
            if n_bytes >= 0.0:
                taken = machine.latency[source, receiver] + n_bytes / machine.rate[source, receiver]
                longest = max(longest, taken)
    return longest


@inner
def _arrive(
    step: Step, chosen: Array, e: _Events, line: Timeline, x: int, here: int, at: float, queued: int
) -> int:
    """Let those readers that have a choice know that a tensor is there; returns the entries."""
    for place in range(step.first_reader[x], step.first_reader[x + 1]):
        task = step.reader[place]
        if step.is_receiver[place] and chosen[step.operator[task]] == here:
            e.waiting[task] -= 1
            line.ready[task] = max(line.ready[task], at)
            if e.waiting[task] == 0:
                queued = push(e.keys, e.entries, queued, line.ready[task], task, e.rank)
    return queued


@inner
def _hand_on(
    step: Step,
    machine: Machine,
    chosen: Array,
    e: _Events,
    line: Timeline,
    x: int,
    seconds: float,
    counts: tuple[int, int, int],
) -> tuple[int, int, int]:
    """Give a tensor that has just been made to the readers of its choice, and send it to others;
    `counts` are the entries of the heap, the transfers and the deliveries.
    """
    queued, sent, deliveries = counts
    choices, here = machine.choices, origin(step, chosen, x)
    queued = _arrive(step, chosen, e, line, x, here, seconds, queued)
    for place in range(step.first_reader[x], step.first_reader[x + 1]):
        target = chosen[step.operator[step.reader[place]]]
        if not step.is_receiver[place] or target == here or e.sent_to[target] == x:
            continue
        e.sent_to[target] = x
        before = sent
        sent = _cut(step, choices, line, x, here, target, sent)
        e.n_left[deliveries] = sent - before
        e.delivery[deliveries, 0], e.delivery[deliveries, 1] = x, target
        for number in range(before, sent):
            e.its_delivery[number] = deliveries
            entry = len(step.operator) + len(step.maker) + number
            queued = push(e.keys, e.entries, queued, seconds, entry, e.rank)
        # Where all parts have what they read already, nothing is sent.
        if sent == before:
            queued = _arrive(step, chosen, e, line, x, target, seconds, queued)
        deliveries += 1
    return queued, sent, deliveries


@inner
def _most_transfers(step: Step, machine: Machine, chosen: Array, sent_to: Array) -> int:
    """At least as many transfers as a step has."""
    most, n_parts = 1, machine.choices.n_parts
    for x in range(len(step.maker)):
        if step.maker[x] < 0 and step.home[x] < 0:
            continue
        here = origin(step, chosen, x)
        for place in range(step.first_reader[x], step.first_reader[x + 1]):
            target = chosen[step.operator[step.reader[place]]]
            if step.is_receiver[place] and target != here and sent_to[target] != x:
                sent_to[target] = x
                most += n_parts[here] * n_parts[target]
    return most


@compiled
def run_step(step: Step, machine: Machine, chosen: Array) -> Timeline:
    """The timeline of a placement, `chosen` [operators]."""
    n_tasks, choices = len(step.operator), machine.choices
    first_transfer = n_tasks + len(step.maker)
    sent_to = np.full(len(choices.n_parts), -1, np.int64)
    room = _most_transfers(step, machine, chosen, sent_to)
    sent_to[:] = -1
    line = Timeline(
        np.zeros(n_tasks),
        np.zeros(n_tasks),
        np.zeros(n_tasks),
        np.zeros((room, 3), np.int64),
        np.zeros(room),
        np.zeros(room),
        np.zeros(room),
    )
    e = _Events(
        np.zeros(first_transfer + room),
        np.zeros(first_transfer + room, np.int64),
        np.arange(first_transfer + room),
        step.n_waiting.copy(),
        sent_to,
        np.zeros((room, 2), np.int64),
        np.zeros(room, np.int64),
        np.zeros(room, np.int64),
        np.zeros(room),
        np.zeros(len(machine.kind)),
        np.zeros(machine.n_media),
    )
    queued, sent, deliveries = 0, 0, 0
    for task in range(n_tasks):
        if e.waiting[task] == 0:
            queued = push(e.keys, e.entries, queued, 0.0, task, e.rank)
    for x in range(len(step.maker)):
        if step.maker[x] < 0 and step.home[x] >= 0:
            queued = push(e.keys, e.entries, queued, 0.0, n_tasks + x, e.rank)
    while queued > 0:
        seconds, entry = e.keys[0], e.entries[0]
        queued = pop(e.keys, e.entries, queued, e.rank)
        if entry >= first_transfer:
            if _run_transfer(machine, e, line, entry - first_transfer, seconds):
                way = e.its_delivery[entry - first_transfer]
                x, here, at = e.delivery[way, 0], e.delivery[way, 1], e.arrival[way]
                queued = _arrive(step, chosen, e, line, x, here, at, queued)
            continue
        # What there is from now on: tensors `first` to `past` of those that tasks make, or `state`.
        first, past, state = 0, 1, entry - n_tasks
        if entry < n_tasks:
            _run_task(step, machine, chosen, e, line, entry)
            first, past = step.first_made[entry], step.first_made[entry + 1]
            seconds = line.end[entry]
        for index in range(first, past):
            x = step.made[index] if entry < n_tasks else state
            counts = (queued, sent, deliveries)
            queued, sent, deliveries = _hand_on(step, machine, chosen, e, line, x, seconds, counts)
    return Timeline(
        line.ready,
        line.start,
        line.end,
        line.transfer[:sent],
        line.sent_bytes[:sent],
        line.sent_start[:sent],
        line.sent_end[:sent],
    )
