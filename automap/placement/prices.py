"""What a placement costs: the seconds of its simulated step, and the peak bytes of every device.

    peak[device] = max over time of  state and batches stored there
                   + tensors made there, until the last reader there and the last transfer are done
                   + copies, from the start of their transfer to the end of the last reader there
                   + workspace of the task that runs                        -> in: `peak_bytes`

of each tensor the share that the device's part has.

    serial              = all tasks and all tensors on their way, one after the other, as OptCNN
                          (Jia et al., ICML 2018) takes a step         -> in: `serial_seconds`
"""

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.placement.choices import Choices, part_share
from automap.placement.timeline import (
    Machine,
    Step,
    Timeline,
    longest_part,
    origin,
    run_step,
    task_seconds,
)
from automap.simulate.heap import pop, push


@inner
def last_end(line: Timeline) -> float:
    """When the last task ends."""
    last = 0.0
    for task in range(len(line.end)):
        last = max(last, line.end[task])
    return last


@compiled
def peak_bytes(step: Step, machine: Machine, chosen: Array, line: Timeline) -> Array:
    """The most bytes on each device, [devices]."""
    choices, n_tensors, n_sent = machine.choices, len(step.maker), len(line.sent_start)
    last = last_end(line)
    # Twice an interval for each transfer, each part of a tensor and of a task: what is freed first,
    # then what is taken, so that of equal times the free ones come first.
    size = n_sent
    for x in range(n_tensors):
        size += choices.n_parts[origin(step, chosen, x)] if step.maker[x] >= 0 else 0
    for task in range(len(step.operator)):
        size += choices.n_parts[chosen[step.operator[task]]]
    times, changes = np.zeros(2 * size), np.zeros(2 * size)
    places = np.zeros(2 * size, np.int64)
    until, now = np.zeros(n_tensors), np.zeros(len(machine.kind))
    used = 0
    for number in range(n_sent):
        x, target = line.transfer[number, 0], line.transfer[number, 2]
        start, end = line.sent_start[number], line.sent_end[number]
        until[x] = max(until[x], end)
        end = _last_reader(step, choices, chosen, line, x, target, end)
        _take(times, changes, places, used, size, start, end, line.sent_bytes[number], target)
        used += 1
    _add_stored(step, choices, chosen, now)
    for x in range(n_tensors):
        maker = step.maker[x]
        if maker < 0:
            continue
        choice = origin(step, chosen, x)
        n_bytes = _kept_bytes(step, choices, choice, x)
        for part in range(choices.n_parts[choice]):
            here = choices.device[choice, part]
            end = max(line.end[maker], until[x])
            end = _last_reader(step, choices, chosen, line, x, here, end)
            if step.is_result[x]:
                end = last + 1.0
            _take(times, changes, places, used, size, line.start[maker], end, n_bytes, here)
            used += 1
    for task in range(len(step.operator)):
        choice = chosen[step.operator[task]]
        n_bytes = step.workspace[choices.form[choice], task]
        start, end = line.start[task], line.end[task]
        for part in range(choices.n_parts[choice]):
            here = choices.device[choice, part]
            _take(times, changes, places, used, size, start, end, n_bytes, here)
            used += 1
    return _highest(times, changes, places, now)


@inner_making_arrays
def _highest(times: Array, changes: Array, places: Array, now: Array) -> Array:
    """The most bytes on each device after changes at times; `now` at the beginning."""
    peak, size = now.copy(), len(times)
    keys, entries, rank = np.zeros(size), np.zeros(size, np.int64), np.arange(size)
    queued = 0
    for index in range(size):
        queued = push(keys, entries, queued, times[index], index, rank)
    while queued > 0:
        index = entries[0]
        queued = pop(keys, entries, queued, rank)
        here = places[index]
        now[here] += changes[index]
        peak[here] = max(peak[here], now[here])
    return peak


@inner
def _kept_bytes(step: Step, choices: Choices, choice: int, x: int) -> float:
    """What each part of a choice keeps of a tensor."""
    n_bytes = 0.0
    for piece in range(step.first_piece[x], step.first_piece[x + 1]):
        n_bytes += part_share(choices, step.has_class[piece], choice) * step.kept_bytes[piece]
    return n_bytes


@inner
def _last_reader(
    step: Step, choices: Choices, chosen: Array, line: Timeline, x: int, here: int, end: float
) -> float:
    """When the last reader of a tensor on a device ends, if that is after `end`."""
    for place in range(step.first_reader[x], step.first_reader[x + 1]):
        task = step.reader[place]
        if choices.part_on[chosen[step.operator[task]], here] >= 0:
            end = max(end, line.end[task])
    return end


@inner_making_arrays
def _add_stored(step: Step, choices: Choices, chosen: Array, n_bytes: Array) -> None:
    """State where it is stored, and batches on every device that reads them: the most that one of
    its readers has there.
    """
    counted, had = np.full(len(n_bytes), -1, np.int64), np.zeros(len(n_bytes))
    for x in range(len(step.maker)):
        if step.maker[x] >= 0:
            continue
        if step.home[x] >= 0:
            choice = chosen[step.home[x]]
            for part in range(choices.n_parts[choice]):
                n_bytes[choices.device[choice, part]] += _kept_bytes(step, choices, choice, x)
            continue
        for place in range(step.first_reader[x], step.first_reader[x + 1]):
            choice = chosen[step.operator[step.reader[place]]]
            read = _kept_bytes(step, choices, choice, x)
            for part in range(choices.n_parts[choice]):
                here = choices.device[choice, part]
                if counted[here] != x:
                    counted[here], had[here] = x, 0.0
                n_bytes[here] += max(read - had[here], 0.0)
                had[here] = max(read, had[here])


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
def serial_seconds(step: Step, machine: Machine, chosen: Array) -> float:
    """What a placement takes if nothing runs at once: all tasks with their sums, and the longest
    part of each tensor on its way to each other choice.
    """
    total, sent_to = 0.0, np.full(len(machine.choices.n_parts), -1, np.int64)
    for task in range(len(step.operator)):
        total += task_seconds(step, machine, chosen, task)
    for x in range(len(step.maker)):
        if step.maker[x] < 0 and step.home[x] < 0:
            continue
        here = origin(step, chosen, x)
        for place in range(step.first_reader[x], step.first_reader[x + 1]):
            target = chosen[step.operator[step.reader[place]]]
            if step.is_receiver[place] and target != here and sent_to[target] != x:
                sent_to[target] = x
                total += longest_part(step, machine, x, here, target)
    return total


@compiled
def price(step: Step, machine: Machine, chosen: Array) -> tuple[float, float]:
    """(seconds, overflow) of a placement: the sum over devices of the share of its memory that is
    missing, 0 if it fits.
    """
    line = run_step(step, machine, chosen)
    peaks = peak_bytes(step, machine, chosen, line)
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
