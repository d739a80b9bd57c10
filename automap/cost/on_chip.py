"""The memory on a TPU's chip, beside the arithmetic: what a compiler keeps there is not in the
device's memory, and moves no bytes to it.

What a kernel writes is kept for those that read it, unless others that want the room are read
sooner. The compiler gives the room to what lives shortly first, so an array v has as rivals, while
it is there, all that is there with it and lives no longer (itself, too):

    rivals(v)   = most over p in life(v) of sum of bytes of u alive at p, life(u) <= life(v)
                                                                   -> in: `chip_rivals`
    out(v)      = log2(rivals(v) / (i C)) / log2(j / i), within 0 and 1
                                          -> in: `automap.backends.TileNumbers.crowded_out`

A life is as long as what is moved between the kernel that writes an array and the last one that
reads it. Which are rivals is known of the whole step, as if all arrays were cut in as many parts.
Of all that a step holds at its peak there is less on the chip than of single arrays:

    off(b)      = log2(b / (k C)) / log2(l / k), within 0 and 1
                                                  -> in: `automap.backends.TileNumbers.off_chip`
    kept(p)     = crowded(p) min(r C, sum of b (1 - off(b)) over what is alive at p, and neither an
                  input nor a result)                           -> in: `ChipRoom.kept_bytes`
    crowded(p)  = log2(h C / live(p)) / log2(h / g), within 0 and 1

    b       bytes of an array on a device
    C       bytes of the memory on the chip
    i, j    `rivals_kept` and `rivals_spilled`: from all of an array to nothing of it
    k, l    `kept_share` and `spilled_share`: the same, by its own bytes
    r       `chip_room`: what is left to arrays beside what kernels need themselves
    g, h    `chip_crowded`: where a step holds more, less of the room is left to what lives until
            then, as it serves what is read sooner, or gets what is fetched ahead
    p       a position of the schedule, where live(p) bytes are on a device and its chip

What is kept is the compiler's choice, so whether a plan fits never depends on it: only what is
expected of the compiler does.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import math

import numpy as np

from automap.backends import TileNumbers
from automap.program.problem import Problem
from automap.topology.model import Device
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.opcodes import (
    CONTRACTIONS,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    LOOP_ENTER,
    LOOP_EXIT,
    REDUCTIONS,
    STRUCTURAL,
)


# In times its own bytes: more do not matter for arrays as small as that, and where layers are alike
# the table has a row for each number of rivals, which is rounded to doublings for the same reason.
_MOST_RIVALS = 16.0


def chip_rivals(
    problem: Problem, kernels: Sequence[Kernel], n_bytes: Sequence[int], loop_claim: float
) -> list[int]:
    """Of each value, in memory with `n_bytes` [values], the bytes of its rivals for the memory on
    the chip, with its own, [values]; 0 for what has no place there.

    What a loop reads in every trip has `loop_claim` (of `TileNumbers`) claims instead of one.
    """
    graph = problem.graph
    moved = [
        graph.ops[k.op].trip_count * sum(a.n_bytes for a in (*k.reads, *k.writes)) for k in kernels
    ]
    clock = np.concatenate([[0], np.cumsum(np.array(moved, float))])
    birth, death = dict[int, int](), dict[int, int]()
    for position, kernel in enumerate(kernels):
        for access in kernel.writes:
            birth.setdefault(access.value, position)
        for access in (*kernel.reads, *kernel.writes):
            death[access.value] = position
    claims = _claims(problem, kernels, loop_claim)
    wanting = [v for v in birth if claims[v] and n_bytes[v]]
    lives = {v: max(float(clock[death[v]] - clock[birth[v] + 1]), 0.0) for v in wanting}
    ordered = sorted(wanting, key=lives.__getitem__)
    ends = [lives[v] for v in ordered]
    live, rivals, entered = np.zeros(len(kernels)), [0] * len(graph.values), 0
    for value in ordered:
        last = bisect_right(ends, lives[value])
        for other in ordered[entered:last]:
            live[birth[other] : death[other] + 1] += n_bytes[other]
        entered = last
        times = float(live[birth[value] : death[value] + 1].max()) / n_bytes[value]
        rounded = 2 ** round(math.log2(min(times, _MOST_RIVALS)))
        rivals[value] = round(n_bytes[value] * rounded / claims[value])
    return rivals


def _claims(problem: Problem, kernels: Sequence[Kernel], loop_claim: float) -> list[float]:
    """For each value its claims to the memory on the chip, [values].

    1 for what is made and read, `loop_claim` if a loop reads the whole of it in every trip, 0 for
    inputs, results, what goes on elsewhere through a structural operation, and stacks that a loop
    fills or takes apart: each trip touches one slice, and the whole does not have to be near.
    """
    graph = problem.graph
    claims = [float(value.producer >= 0) for value in graph.values]
    for op in graph.ops:
        carried = op.outputs if op.opcode == LOOP_ENTER else op.inputs
        for value in carried if op.opcode in (LOOP_ENTER, LOOP_EXIT) else ():
            claims[value] *= loop_claim
    without = list(graph.outputs)
    for op in graph.ops:
        if op.opcode in STRUCTURAL and op.opcode != LOOP_EXIT:
            without += op.inputs
        elif op.opcode == DYNAMIC_UPDATE_SLICE:
            without += (op.inputs[0], op.outputs[0])
        elif op.opcode == DYNAMIC_SLICE:
            without.append(op.inputs[0])
    for value in (*without, *_only_summed(problem, kernels)):
        claims[value] = 0.0
    return claims


def _only_summed(problem: Problem, kernels: Sequence[Kernel]) -> Iterator[int]:
    """What products' kernels make and sum themselves, and do not store: it is written here, as it
    takes as long as if it were, on the chip or not.
    """
    graph = problem.graph
    products = {kernel.op: kernel.product for kernel in kernels}
    for kernel in kernels:
        is_product = graph.ops[kernel.op].opcode in CONTRACTIONS
        product = kernel.op if is_product else kernel.product
        for access in kernel.writes if product >= 0 else ():
            users = graph.users[access.value]
            is_sum = (
                products.get(u) == product and graph.ops[u].opcode in REDUCTIONS for u in users
            )
            if users and all(is_sum):
                yield access.value


@dataclass(frozen=True, slots=True)
class ChipRoom:
    """The room that temporaries have on the chip of a device."""

    capacity_bytes: int
    numbers: TileNumbers

    def kept_bytes(self, live: np.ndarray, may_stay: np.ndarray) -> np.ndarray:
        """What is kept of the bytes that `may_stay` beside others that are `live`; [positions]."""
        least, most = self.numbers.chip_crowded
        share = np.maximum(live, 1.0) / self.capacity_bytes
        crowded = np.clip(np.log2(most / share) / np.log2(most / least), 0.0, 1.0)
        return crowded * np.minimum(may_stay, self.numbers.chip_room * self.capacity_bytes)

    def may_stay(self, n_bytes: np.ndarray) -> np.ndarray:
        """Of each array the bytes that may be on the chip."""
        return n_bytes * (1.0 - self.numbers.off_chip(n_bytes / self.capacity_bytes))


def chip_room(device: Device, numbers: TileNumbers) -> ChipRoom | None:
    """The room on the chip of a device; None where there is no memory."""
    return ChipRoom(device.on_chip_bytes, numbers) if device.on_chip_bytes else None
