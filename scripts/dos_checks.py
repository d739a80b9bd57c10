"""What schedules of streams are held against: counts of kernels and bytes, and the whole graph
simulated without stages (DOS's table 5 and section 5.7).

Table 5 counts a merged stage as the one kernel that it becomes, which reads its operand once and
windows padded to one size                                                      -> in: `totals`

The whole graph: each group of a stage has a stream; an operator begins when its stream is free and
what it reads is done, without waiting for the rest of a stage. Operators that run have equal speed,

    1 / max(1, sum of SM shares, sum of memory shares, sum of L2 shares)

a share being what the operator takes of it by itself, and one that reads another stream's result
waits a launch longer. Behind a barrier it waits for all of the stage before besides, as in the
program that `plan.jit` runs                                             -> in: `whole_seconds`

Random schedules take a random number of the operators that are there for each stage, or draw for
the whole schedule what share of them it takes at once                   -> in: `random_stages`
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod
from typing import Literal

import numpy as np

from automap.streams.arrays import PricedOperators
from automap.streams.operators import Operator
from automap.streams.schedule import Stage
from automap.streams.strategies import Limits


Waiting = Literal["operands", "barrier"]
"""What an operator waits for: what it reads, or the stage before too."""
Drawn = Literal["stage", "schedule"]
"""What a number of operators at once is drawn for."""


@dataclass(frozen=True)
class Totals:
    """Kernels that are launched, bytes that they read and write, and flops of their products."""

    kernels: int
    n_bytes: float
    flops: float


def totals(operators: Sequence[Operator], stages: Iterable[Stage]) -> Totals:
    """Of a step whose merged stages are one operator each; all others are as they are."""
    merged = [
        [operators[n] for n in operator_numbers([stage])]
        for stage in stages
        if stage.together == "merged"
    ]
    alone = [op for op in operators if not any(op is each for group in merged for each in group)]
    kernels = sum(part.runs for op in alone for part in op.parts) + len(merged)
    n_bytes = sum(map(_bytes, alone)) + sum(map(_merged_bytes, merged))
    flops = sum(map(_flops, alone)) + sum(map(_merged_flops, merged))
    return Totals(kernels, n_bytes, flops)


def operator_numbers(stages: Iterable[Stage]) -> list[int]:
    """Of all groups of stages."""
    return [number for stage in stages for group in stage.groups for number in group]


def _bytes(op: Operator) -> float:
    return sum(
        part.runs * (sum(n for _, n in part.reads) + part.written_bytes) for part in op.parts
    )


def _flops(op: Operator) -> float:
    return sum(part.runs * part.product.flops for part in op.parts if part.product is not None)


def _taps(group: Sequence[Operator]) -> int:
    """Of the window that holds those of all."""
    merges = [op.merge for op in group if op.merge is not None]
    sizes = zip(
        map(max, zip(*(m.padding for m in merges), strict=True)),
        map(max, zip(*(m.rest for m in merges), strict=True)),
        strict=True,
    )
    return prod(padding + rest for padding, rest in sizes)


def _merged_flops(group: Sequence[Operator]) -> float:
    return sum(_flops(op) / _taps([op]) for op in group) * _taps(group)


def _merged_bytes(group: Sequence[Operator]) -> float:
    total = 0.0
    for index, op in enumerate(group):
        (part,), merge = op.parts, op.merge
        if merge is None or part.product is None:
            raise ValueError(f"{op.site}: merged, but of no merge class")
        weights = part.product.depth * part.product.columns * merge.weight_bytes
        operand = sum(n for value, n in part.reads if value == merge.operand)
        total += _bytes(op) + weights * (_taps(group) / _taps([op]) - 1)
        # One kernel reads it for all.
        total -= operand if index else 0.0
    return total


def random_stages(
    priced: PricedOperators, limits: Limits, rng: np.random.Generator, drawn: Drawn
) -> list[tuple[int, ...]]:
    """Stages of random numbers of operators, whichever are there to be taken."""
    left, stages = set(range(len(priced.operators))), list[tuple[int, ...]]()
    share = float(rng.random())
    while left:
        ready = [n for n in sorted(left) if not priced.operators[n].before & left]
        most = min(len(ready), limits.most_groups)
        count = int(rng.integers(1, most + 1))
        if drawn == "schedule":
            count = min(max(int(rng.binomial(len(ready), share)), 1), most)
        stage = tuple(sorted(int(n) for n in rng.choice(ready, count, replace=False)))
        stages.append(stage)
        left -= set(stage)
    return stages


def whole_seconds(
    priced: PricedOperators, stages: Sequence[tuple[int, ...]], waiting: Waiting
) -> float:
    """The whole graph simulated; operators of a stage are on streams by their place in it."""
    names = ("alone", "memory", "l2")
    alone, memory, l2 = (priced.columns[name] for name in names)
    work = priced.columns["waves"] * priced.columns["block"]
    shares = np.stack([work, memory, l2]) / np.maximum(alone, 1e-30)
    stream = {number: place for stage in stages for place, number in enumerate(stage)}
    before = [op.before for op in priced.operators]
    if waiting == "barrier":
        for earlier, stage in pairwise(stages):
            for number in stage:
                before[number] = before[number].union(earlier)
    queues: dict[int, list[int]] = {}
    for stage in stages:
        for number in stage:
            queues.setdefault(stream[number], []).append(number)
    done: set[int] = set()
    left: dict[int, float] = {}
    now = 0.0
    while len(done) < len(priced.operators):
        for queue in queues.values():
            if queue and queue[0] not in left and before[queue[0]] <= done:
                number = queue[0]
                waits = any(stream[b] != stream[number] for b in priced.operators[number].before)
                left[number] = float(alone[number]) + waits * priced.machine.launch_seconds
        slowdown = max(1.0, float(shares[:, list(left)].sum(axis=1).max()))
        step = min(left.values())
        now += step * slowdown
        left = {number: rest - step for number, rest in left.items()}
        for number in [n for n, rest in left.items() if rest <= 1e-15]:
            del left[number]
            done.add(number)
            queues[stream[number]].pop(0)
    return now


def order_accuracy(first: Sequence[float], second: Sequence[float]) -> float:
    """The share of pairs that both order in the same way."""
    pairs = list(combinations(range(len(first)), 2))
    same = sum((first[a] < first[b]) == (second[a] < second[b]) for a, b in pairs)
    return same / len(pairs)
