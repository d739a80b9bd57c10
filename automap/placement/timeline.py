"""One step of a placement, simulated: seconds, and the peak bytes of every device.

A device does one task at a time, and so does each medium of the machine in each direction; both
take what is ready first (FlexFlow, section 5.1: first in, first out). A tensor is sent once to each
other device that has receivers of it, as soon as its maker ends, state at once:

    ready(task)      = max over its tensors of their arrival on its device
    start(task)      = max(ready, the device is free),      end = start + seconds on its kind
    start(transfer)  = max(maker's end, all media of the route are free)
    end(transfer)    = start + latency + bytes / the least rate of the route

Media of a route are busy to the end of the transfer. Events are taken in the order of their ready
times, so whatever comes later is ready later                              -> in: `run_step`

    peak[device] = max over time of  state and batches stored there
                   + tensors made there, until the last reader there and the last transfer are done
                   + copies, from the start of their transfer to the end of the last reader there
                   + workspace of the task that runs                        -> in: `peak_bytes`
"""

from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
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


class Step(NamedTuple):
    """A problem as arrays: tasks [T], tensors [X], entries of tensors' readers [R].

    Readers of tensor x are entries first_reader[x] .. first_reader[x + 1]; tensors that task t
    makes are made[first_made[t] .. first_made[t + 1]], those of no task come behind.
    `n_waiting` [T] are the tensors of other tasks, or of state, that it receives.
    """

    operator: Array
    seconds: Array
    workspace: Array
    n_waiting: Array
    maker: Array
    home: Array
    moved_bytes: Array
    kept_bytes: Array
    is_result: Array
    first_reader: Array
    reader: Array
    is_receiver: Array
    first_made: Array
    made: Array


class Timeline(NamedTuple):
    """What happens when: ready, start, end [T] of tasks; transfers [N, 3] (tensor, from, to), their
    start and end [N].
    """

    ready: Array
    start: Array
    end: Array
    transfer: Array
    sent_start: Array
    sent_end: Array


@inner
def _origin(step: Step, device: Array, x: int) -> int:
    """The device that a tensor is made or stored on."""
    maker = step.maker[x]
    return device[step.operator[maker]] if maker >= 0 else device[step.home[x]]


@inner
def _send(machine: Machine, free: Array, pair: int, ready: float, taken: float) -> float:
    """When a transfer starts that takes all media of a route, which `free` says from when on."""
    start = ready
    for index in range(machine.first[pair], machine.first[pair + 1]):
        start = max(start, free[machine.media[index]])
    for index in range(machine.first[pair], machine.first[pair + 1]):
        free[machine.media[index]] = start + taken
    return start


@compiled
def run_step(step: Step, machine: Machine, device: Array) -> Timeline:
    """The timeline of a placement.

    Entries of the heap: tasks, then transfers, then state, which is there at once.
    """
    n_tasks, count, room = len(step.operator), len(machine.kind), len(step.reader)
    n_entries = n_tasks + room + len(step.maker)
    ready, start, end = np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks)
    transfer = np.zeros((room, 3), np.int64)
    sent_start, sent_end = np.zeros(room), np.zeros(room)
    waiting = step.n_waiting.copy()
    keys, entries = np.zeros(n_entries), np.zeros(n_entries, np.int64)
    rank = np.arange(n_entries)
    free_device, free_medium = np.zeros(count), np.zeros(machine.n_media)
    sent_to = np.full(count, -1, np.int64)
    queued, sent = 0, 0
    for task in range(n_tasks):
        if waiting[task] == 0:
            queued = push(keys, entries, queued, 0.0, task, rank)
    for x in range(len(step.maker)):
        if step.maker[x] < 0 and step.home[x] >= 0:
            queued = push(keys, entries, queued, 0.0, n_tasks + room + x, rank)
    while queued > 0:
        seconds, entry = keys[0], entries[0]
        queued = pop(keys, entries, queued, rank)
        # What is on device `here` from now on: tensors `first` to `past` of those that tasks make,
        # or tensor `single`.
        first, past, single, here = 0, 1, -1, 0
        if entry < n_tasks:
            here = device[step.operator[entry]]
            start[entry] = max(seconds, free_device[here])
            seconds = start[entry] + step.seconds[machine.kind[here], entry]
            end[entry] = free_device[here] = seconds
            first, past = step.first_made[entry], step.first_made[entry + 1]
        elif entry < n_tasks + room:
            number = entry - n_tasks
            single, here = transfer[number, 0], transfer[number, 2]
            pair = transfer[number, 1] * count + here
            taken = machine.latency[transfer[number, 1], here]
            taken += step.moved_bytes[single] / machine.rate[transfer[number, 1], here]
            sent_start[number] = _send(machine, free_medium, pair, seconds, taken)
            sent_end[number] = seconds = sent_start[number] + taken
        else:
            single = entry - n_tasks - room
            here = device[step.home[single]]
        for index in range(first, past):
            x = single if single >= 0 else step.made[index]
            is_origin = here == _origin(step, device, x)
            for place in range(step.first_reader[x], step.first_reader[x + 1]):
                task = step.reader[place]
                target = device[step.operator[task]]
                if not step.is_receiver[place]:
                    continue
                if target == here:
                    waiting[task] -= 1
                    ready[task] = max(ready[task], seconds)
                    if waiting[task] == 0:
                        queued = push(keys, entries, queued, ready[task], task, rank)
                elif is_origin and sent_to[target] != x:
                    sent_to[target] = x
                    transfer[sent, 0], transfer[sent, 1], transfer[sent, 2] = x, here, target
                    queued = push(keys, entries, queued, seconds, n_tasks + sent, rank)
                    sent += 1
    return Timeline(ready, start, end, transfer[:sent], sent_start[:sent], sent_end[:sent])


@inner
def last_end(line: Timeline) -> float:
    """When the last task ends."""
    last = 0.0
    for task in range(len(line.end)):
        last = max(last, line.end[task])
    return last


@compiled
def peak_bytes(step: Step, machine: Machine, device: Array, line: Timeline) -> Array:
    """The most bytes on each device, [devices]."""
    count, n_tensors, n_sent = len(machine.kind), len(step.maker), len(line.sent_start)
    last = last_end(line)
    # Twice an interval for each tensor, transfer and task: what is freed first, then what is taken,
    # so that of equal times the free ones come first.
    size = n_tensors + n_sent + len(step.operator)
    times, changes = np.zeros(2 * size), np.zeros(2 * size)
    places = np.zeros(2 * size, np.int64)
    until, now = np.zeros(n_tensors), np.zeros(count)
    used = 0
    for number in range(n_sent):
        x, target = line.transfer[number, 0], line.transfer[number, 2]
        start, end = line.sent_start[number], line.sent_end[number]
        until[x] = max(until[x], end)
        end = _last_reader(step, device, line, x, target, end)
        _take(times, changes, places, used, size, start, end, step.moved_bytes[x], target)
        used += 1
    _add_stored(step, device, now)
    for x in range(n_tensors):
        maker = step.maker[x]
        if maker < 0:
            continue
        here, n_bytes = _origin(step, device, x), step.kept_bytes[x]
        end = _last_reader(step, device, line, x, here, max(line.end[maker], until[x]))
        if step.is_result[x]:
            end = last + 1.0
        _take(times, changes, places, used, size, line.start[maker], end, n_bytes, here)
        used += 1
    for task in range(len(step.operator)):
        here, n_bytes = device[step.operator[task]], step.workspace[task]
        start, end = line.start[task], line.end[task]
        _take(times, changes, places, used, size, start, end, n_bytes, here)
        used += 1
    peak = now.copy()
    keys, entries, rank = np.zeros(2 * size), np.zeros(2 * size, np.int64), np.arange(2 * size)
    queued = 0
    for index in range(2 * size):
        queued = push(keys, entries, queued, times[index], index, rank)
    while queued > 0:
        index = entries[0]
        queued = pop(keys, entries, queued, rank)
        here = places[index]
        now[here] += changes[index]
        peak[here] = max(peak[here], now[here])
    return peak


@inner
def _last_reader(step: Step, device: Array, line: Timeline, x: int, here: int, end: float) -> float:
    """When the last reader of a tensor on a device ends, if that is after `end`."""
    for place in range(step.first_reader[x], step.first_reader[x + 1]):
        task = step.reader[place]
        if device[step.operator[task]] == here:
            end = max(end, line.end[task])
    return end


@inner_making_arrays
def _add_stored(step: Step, device: Array, n_bytes: Array) -> None:
    """State where it is stored, and batches on every device that reads them."""
    counted = np.full(len(n_bytes), -1, np.int64)
    for x in range(len(step.maker)):
        if step.maker[x] >= 0:
            continue
        if step.home[x] >= 0:
            n_bytes[device[step.home[x]]] += step.kept_bytes[x]
            continue
        for place in range(step.first_reader[x], step.first_reader[x + 1]):
            here = device[step.operator[step.reader[place]]]
            if counted[here] != x:
                counted[here] = x
                n_bytes[here] += step.kept_bytes[x]


@inner
def _take(
    times: Array,
    changes: Array,
    places: Array,
    number: int,
    size: int,
    start: float,
    end: float,
    n_bytes: float,
    device: int,
) -> None:
    """An interval: its end in the first half of the arrays, its start in the second."""
    times[number], changes[number], places[number] = end, -n_bytes, device
    times[size + number], changes[size + number] = start, n_bytes
    places[size + number] = device


@compiled
def price(step: Step, machine: Machine, device: Array) -> tuple[float, float]:
    """(seconds, overflow) of a placement: the sum over devices of the share of its memory that is
    missing, 0 if it fits.
    """
    line = run_step(step, machine, device)
    peaks = peak_bytes(step, machine, device, line)
    overflow = 0.0
    for here in range(len(peaks)):
        overflow += max(0.0, peaks[here] / machine.memory_bytes[here] - 1.0)
    return last_end(line), overflow


@compiled
def price_all(step: Step, machine: Machine, devices: Array) -> tuple[Array, Array]:
    """(seconds, overflow) [n] of placements [n, operators]."""
    seconds, overflow = np.zeros(len(devices)), np.zeros(len(devices))
    for row in range(len(devices)):
        seconds[row], overflow[row] = price(step, machine, devices[row])
    return seconds, overflow
