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

The same function prices sequential, greedy and searched schedules.
"""

from typing import Final, NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner


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


class Operators(NamedTuple):
    """The operators of a block by place, [n] unless said, and its values that several read, [v].

    `alone` seconds by itself, `compute` of them without launch and memory, `waves` W and `block` t
    (seconds of a block, summed over kernels), `memory` and `l2` seconds, those of `memory` without
    the `inputs` [n, m] (values, -1 for none), which take `input_seconds` [v]. `before` and `after`
    are masks of places.

    Of a merge class, [c]: `rows`, `depth` of a tap, `rate` of an SM in flops/s, `size` bytes of an
    element, `image` seconds to read the common operand. `merge` is each operator's class or -1,
    `columns` its N, `padding` and `rest` [n, 3] those of its window, `other` memory seconds beside
    operand and weights.
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


@inner
def concurrent_seconds(
    ops: Operators, mask: int, chains: Array, n_groups: int, machine: Machine
) -> float:
    """A stage of the operators of a mask at once; `chains` are the groups' sums of `alone`."""
    longest = 0.0
    for group in range(n_groups):
        longest = max(longest, chains[group])
    if n_groups <= 1:
        return longest
    waves, weighted, compute, memory, l2 = 0.0, 0.0, 0.0, 0.0, 0.0
    seen = np.uint64(0)
    for place in range(len(ops.alone)):
        if not mask >> np.uint64(place) & np.uint64(1):
            continue
        waves += ops.waves[place]
        weighted += ops.waves[place] * ops.block[place]
        compute += ops.compute[place]
        memory += ops.memory[place]
        l2 += ops.l2[place]
        for slot in range(ops.inputs.shape[1]):
            value = ops.inputs[place, slot]
            if value >= 0 and not seen >> np.uint64(value) & np.uint64(1):
                seen |= np.uint64(1) << np.uint64(value)
                memory += ops.input_seconds[value]
    shared = min(np.ceil(waves) * weighted / waves, compute) if waves > 0.0 else 0.0
    return max(max(longest, shared), max(memory, l2)) + machine.launch_seconds


@inner
def merged_seconds(ops: Operators, mask: int, machine: Machine) -> float:
    """A stage of the operators of a mask as one; infinite where they are not of one class."""
    kind, count = -1, 0
    columns, other = 0.0, 0.0
    # Few sets are of one class: the others are told apart before anything is summed.
    for place in range(len(ops.alone)):
        if not mask >> np.uint64(place) & np.uint64(1):
            continue
        if ops.merge[place] < 0 or (count > 0 and ops.merge[place] != kind):
            return np.inf
        kind = ops.merge[place]
        count += 1
        columns += ops.columns[place]
        other += ops.other[place]
    if count < 2:
        return np.inf
    taps = 1.0
    for dim in range(ops.padding.shape[1]):
        padding, rest = 0.0, 0.0
        for place in range(len(ops.alone)):
            if mask >> np.uint64(place) & np.uint64(1):
                padding = max(padding, ops.padding[place, dim])
                rest = max(rest, ops.rest[place, dim])
        taps *= padding + rest
    depth = ops.depth[kind] * taps
    compute, _, _, l2 = product_seconds(
        ops.rows[kind], columns, depth, 1.0, ops.rate[kind], ops.size[kind], machine
    )
    weights = depth * columns * ops.size[kind] / machine.bytes_per_s
    memory = ops.image[kind] + weights + other
    return max(max(compute, l2), max(memory, machine.launch_seconds))


@inner
def find_groups(ops: Operators, mask: int, groups: Array, chains: Array) -> int:
    """How many groups the operators of a mask are; fills in their masks and sums of `alone`."""
    count = 0
    for place in range(len(ops.alone)):
        bit = np.uint64(1) << np.uint64(place)
        if not mask & bit:
            continue
        joined, chain, kept = bit, ops.alone[place], 0
        near = (ops.before[place] | ops.after[place]) & mask
        for group in range(count):
            if groups[group] & near:
                joined |= groups[group]
                chain += chains[group]
            else:
                groups[kept] = groups[group]
                chains[kept] = chains[group]
                kept += 1
        groups[kept] = joined
        chains[kept] = chain
        count = kept + 1
    return count


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
    groups = np.zeros(len(ops.alone), np.uint64)
    chains = np.zeros(len(ops.alone))
    for row in range(len(masks)):
        count = find_groups(ops, masks[row], groups, chains)
        result[row, 0] = concurrent_seconds(ops, masks[row], chains, count, machine)
        result[row, 1] = merged_seconds(ops, masks[row], machine)
    return result
