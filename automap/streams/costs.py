"""What a stage takes on a GPU: operators that run at once, or merged to one.

A kernel of a product [M, K] x [K, N] is thread blocks of tiles m x n, on S multiprocessors (SMs):

    n blocks   ceil(M / m) ceil(N / n) G
    u          the share of an SM that a block can use: an SM has four schedulers, and a block m n /
               512 warps, of 16 results for each thread: u = min(1, warps / 4)
    t          seconds of a block, 2 m n K / (u r), r the device's peak over S times its efficiency
    W          waves, blocks u / S: a wave fills all SMs, so the kernel takes ceil(W) t
    l2         blocks (m + n) K elements / the bandwidth of the L2 cache
                                                                      -> in: `product_seconds`

The library's tile is the one that takes least alone (NVIDIA, "Matrix Multiplication Background
User's Guide": tiles, waves and their quantization). Other kernels are bound by memory. Alone

    a = max(ceil(W) t, l2, bytes / bandwidth, launch), summed over the kernels of an operator

so many blocks give the roofline of `automap.cost`. Operators at once share SMs, L2 and memory:

    max(the slowest group's sum of a, C, sum of l2, bytes / bandwidth) + join
    C      min(ceil(sum of W) t', sum of ceil(W) t), t' the mean of t weighted by W
    bytes  what several read is read from memory once
    join   a launch if there are several groups: their streams wait for each other, which is an
           event in the place of a launch                              -> in: `concurrent_seconds`

A group is operators of the stage that depend on each other, which run one after another. Launches
of different groups overlap. Merged operators are the one product that they become, of the windows
padded to one size (`automap.streams.products`)                        -> in: `merged_seconds`

The same function prices sequential, greedy and searched schedules. What was measured comes first
(`Measured`): a stage that was takes what it took, and another one

    what the model says * (its operators measured alone) / (the model's of them alone) * correction

with a correction for each kind of stage of several operators        -> in: `stage_seconds`
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays


TILE_SIDES: Final = (32, 64, 128, 256)
_WARP_RESULTS: Final = 512
"""Results of a warp: 32 threads of 16 each, as matrix libraries' smaller tiles have."""
_SCHEDULERS: Final = 4
"""Of an SM, each of which issues for one warp at a time (CUDA C++ Programming Guide, compute
capabilities 3.x to 10.x)."""
L2_SPEEDUP: Final = 2.0
"""Bandwidth of the L2 cache over the memory's, as XLA's model of a GPU has it (openxla/xla,
`gpu_performance_model_base.h`, `kL2CacheSpeedup`)."""


class Machine(NamedTuple):
    """A GPU: its SMs, bytes per second of its memory, seconds of a launch."""

    sms: float
    bytes_per_s: float
    launch_seconds: float


class Measured(NamedTuple):
    """What was measured of a block: seconds of each operator `alone` [n], the model's where it was
    not; the masks of stages, `keys` [m] from low to high, with their (at once, merged) `seconds`
    [m, 2], nan for what was not measured; `corrections` [2] of the model's seconds of such stages
    that were not measured; `floor_share` [1], of the model's least seconds what no price is below.
    """

    alone: Array
    keys: Array
    seconds: Array
    corrections: Array
    floor_share: Array


class Operators(NamedTuple):
    """The operators of a block by place, [n] unless said, and its values that several read, [v].

    `alone` seconds by itself, `compute` of them without launch and memory, `waves` W and `block` t
    (seconds of a block, summed over kernels), `memory` and `l2` seconds, those of `memory` without
    the `inputs` [n, m] (values, -1 for none), which take `input_seconds` [v]. `before` and `after`
    are masks of places.

    Of a merge class, [c]: `rows`, `depth` of a tap, `rate` of an SM in flops/s, `size` bytes of an
    element, `image` seconds to read the common operand. `merge` is each operator's class or -1,
    `columns` its N, `padding` and `rest` [n, 3] those of its window, `other` memory seconds beside
    operand and weights. `measured` is what a device said of them.
    """

    alone: Array
    compute: Array
    waves: Array
    block: Array
    memory: Array
    l2: Array
    inputs: Array
    input_seconds: Array
    before: Array
    after: Array
    merge: Array
    columns: Array
    padding: Array
    rest: Array
    other: Array
    rows: Array
    depth: Array
    rate: Array
    size: Array
    image: Array
    measured: Measured


def measured_table(
    alone: Array,
    stages: Mapping[int, tuple[float, float]],
    corrections: tuple[float, float] = (1.0, 1.0),
    floor_share: float = 1.0,
) -> Measured:
    """What was measured, of stages by their masks."""
    keys = np.array(sorted(stages), np.uint64)
    seconds = np.array([stages[mask] for mask in sorted(stages)], float).reshape(-1, 2)
    share = np.array([floor_share])
    return Measured(np.array(alone, float), keys, seconds, np.array(corrections), share)


@inner
def _row(keys: Array, mask: Array) -> int:
    """Where a mask is among sorted ones, -1 if it is not: by halves, as most are not."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < mask:
            low = middle + 1
        else:
            high = middle
    return low if low < len(keys) and keys[low] == mask else -1


@inner
def product_seconds(
    rows: float,
    columns: float,
    depth: float,
    groups: float,
    rate: float,
    size: float,
    machine: Machine,
) -> tuple[float, float, float, float]:
    """(compute seconds, W, t, L2 seconds) of a product with the tile that takes least."""
    least = np.inf
    best = (0.0, 0.0, 0.0, 0.0)
    for m in TILE_SIDES:
        for n in TILE_SIDES:
            share = min(1.0, m * n / _WARP_RESULTS / _SCHEDULERS)
            blocks = np.ceil(rows / m) * np.ceil(columns / n) * groups
            block = 2.0 * m * n * depth / (share * rate)
            waves = blocks * share / machine.sms
            compute = np.ceil(waves) * block
            l2 = blocks * (m + n) * depth * size / (machine.bytes_per_s * L2_SPEEDUP)
            if max(compute, l2) < least:
                least = max(compute, l2)
                best = (compute, waves, block, l2)
    return best


class Growth(NamedTuple):
    """A stage that grows by one operator a level, from the last operator to the first, [levels]
    unless said.

    Its `mask`, the masks `groups` [levels, n + 1] of operators that depend on each other, `chains`
    their sums of `alone`, and how many there are, `count`; `sums` [levels, 10] by the numbers
    below, the values that are `read`; of a merged one the class `kind`, -1 if there is none and
    -2 before the first operator, and its `window` [levels, 2, dims] of paddings and rests.
    """

    mask: Array
    groups: Array
    chains: Array
    count: Array
    sums: Array
    read: Array
    kind: Array
    window: Array


# Places in `Growth.sums`: of groups, of what runs at once, and of what is merged.
_LONGEST, _WAVES, _WEIGHTED, _COMPUTE, _MEMORY, _L2, _COLUMNS, _OTHER, _MODEL, _MEASURED = range(10)
_NO_CLASS, _NO_OPERATOR = -1, -2


@inner_making_arrays
def new_growth(n: int, dims: int) -> Growth:
    """Room for a stage of n operators, of windows of so many dims; nothing is in it yet."""
    return Growth(
        np.zeros(n + 1, np.uint64),
        np.zeros((n + 1, n + 1), np.uint64),
        np.zeros((n + 1, n + 1)),
        np.zeros(n + 1, np.int64),
        np.zeros((n + 1, 10)),
        np.zeros(n + 1, np.uint64),
        np.full(n + 1, _NO_OPERATOR, np.int64),
        np.zeros((n + 1, 2, dims)),
    )


@inner
def add_to_groups(ops: Operators, stage: Growth, level: int, place: int) -> Array:
    """Make the level above with one operator more, which is before all that are there: the groups
    that read it become one with it. The mask of that one.
    """
    joined, chain, count = np.uint64(1) << np.uint64(place), ops.alone[place], 0
    for group in range(stage.count[level]):
        if stage.groups[level, group] & ops.after[place]:
            joined |= stage.groups[level, group]
            chain += stage.chains[level, group]
        else:
            stage.groups[level + 1, count] = stage.groups[level, group]
            stage.chains[level + 1, count] = stage.chains[level, group]
            count += 1
    stage.groups[level + 1, count] = joined
    stage.chains[level + 1, count] = chain
    stage.count[level + 1] = count + 1
    stage.mask[level + 1] = stage.mask[level] | np.uint64(1) << np.uint64(place)
    # Chains only grow: one that was joined is in a longer one.
    stage.sums[level + 1, _LONGEST] = max(stage.sums[level, _LONGEST], chain)
    return joined


@inner
def add_to_sums(ops: Operators, stage: Growth, level: int, place: int) -> None:
    """What the operator adds to the sums of the level above."""
    old, new = stage.sums[level], stage.sums[level + 1]
    new[_WAVES] = old[_WAVES] + ops.waves[place]
    new[_WEIGHTED] = old[_WEIGHTED] + ops.waves[place] * ops.block[place]
    new[_COMPUTE] = old[_COMPUTE] + ops.compute[place]
    new[_L2] = old[_L2] + ops.l2[place]
    new[_MODEL] = old[_MODEL] + ops.alone[place]
    new[_MEASURED] = old[_MEASURED] + ops.measured.alone[place]
    memory, read = old[_MEMORY] + ops.memory[place], stage.read[level]
    for slot in range(ops.inputs.shape[1]):
        value = ops.inputs[place, slot]
        if value >= 0 and not read >> np.uint64(value) & np.uint64(1):
            read |= np.uint64(1) << np.uint64(value)
            memory += ops.input_seconds[value]
    new[_MEMORY] = memory
    stage.read[level + 1] = read
    kind = stage.kind[level]
    stage.kind[level + 1] = _NO_CLASS
    if ops.merge[place] >= 0 and (kind == _NO_OPERATOR or kind == ops.merge[place]):
        stage.kind[level + 1] = ops.merge[place]
        new[_COLUMNS] = old[_COLUMNS] + ops.columns[place]
        new[_OTHER] = old[_OTHER] + ops.other[place]
        for dim in range(ops.padding.shape[1]):
            window, wider = stage.window[level], stage.window[level + 1]
            wider[0, dim] = max(window[0, dim], ops.padding[place, dim])
            wider[1, dim] = max(window[1, dim], ops.rest[place, dim])


@inner
def concurrent_seconds(stage: Growth, level: int, machine: Machine) -> float:
    """The stage of a level with its operators at once."""
    sums = stage.sums[level]
    if stage.count[level] <= 1:
        return sums[_LONGEST]
    waves, shared = sums[_WAVES], 0.0
    if waves > 0.0:
        shared = min(np.ceil(waves) * sums[_WEIGHTED] / waves, sums[_COMPUTE])
    busy = max(sums[_MEMORY], sums[_L2])
    return max(max(sums[_LONGEST], shared), busy) + machine.launch_seconds


@inner
def merged_seconds(ops: Operators, stage: Growth, level: int, machine: Machine) -> float:
    """The stage of a level with its operators as one; infinite where they are not of one class."""
    kind = stage.kind[level]
    if kind < 0 or stage.count[level] < 2:
        return np.inf
    taps = 1.0
    for dim in range(ops.padding.shape[1]):
        taps *= stage.window[level, 0, dim] + stage.window[level, 1, dim]
    columns, depth = stage.sums[level, _COLUMNS], ops.depth[kind] * taps
    compute, _, _, l2 = product_seconds(
        ops.rows[kind], columns, depth, 1.0, ops.rate[kind], ops.size[kind], machine
    )
    weights = depth * columns * ops.size[kind] / machine.bytes_per_s
    memory = ops.image[kind] + weights + stage.sums[level, _OTHER]
    return max(max(compute, l2), max(memory, machine.launch_seconds))


@inner
def stage_seconds(
    ops: Operators, stage: Growth, level: int, machine: Machine
) -> tuple[float, float]:
    """(at once, merged) seconds of the stage of a level: as measured, else as corrected."""
    measured, sums = ops.measured, stage.sums[level]
    share = sums[_MEASURED] / sums[_MODEL] if sums[_MODEL] > 0.0 else 1.0
    concurrent = concurrent_seconds(stage, level, machine) * share
    merged = merged_seconds(ops, stage, level, machine) * share * measured.corrections[1]
    if stage.count[level] > 1:
        concurrent *= measured.corrections[0]
    row = _row(measured.keys, stage.mask[level])
    if row >= 0:
        at_once, as_one = measured.seconds[row, 0], measured.seconds[row, 1]
        concurrent = concurrent if np.isnan(at_once) else at_once
        merged = merged if np.isnan(as_one) else as_one
    return concurrent, merged


@compiled
def price_products(products: Array, machine: Machine) -> Array:
    """(compute seconds, W, t, L2 seconds) [n, 4] of rows (M, N, K, G, rate, size)."""
    result = np.zeros((len(products), 4))
    for row in range(len(products)):
        m, n, k, g, rate, size = products[row]
        compute, waves, block, l2 = product_seconds(m, n, k, g, rate, size, machine)
        result[row, 0] = compute
        result[row, 1] = waves
        result[row, 2] = block
        result[row, 3] = l2
    return result


@compiled
def price_stages(ops: Operators, masks: Array, machine: Machine) -> Array:
    """(concurrent, merged) seconds [stages, 2] of the stages that masks are, inf where not."""
    result = np.zeros((len(masks), 2))
    stage = new_growth(len(ops.alone), ops.padding.shape[1])
    for row in range(len(masks)):
        level = 0
        for place in range(len(ops.alone) - 1, -1, -1):
            if masks[row] >> np.uint64(place) & np.uint64(1):
                add_to_groups(ops, stage, level, place)
                add_to_sums(ops, stage, level, place)
                level += 1
        concurrent, merged = stage_seconds(ops, stage, level, machine)
        result[row, 0] = concurrent
        result[row, 1] = merged
    return result
