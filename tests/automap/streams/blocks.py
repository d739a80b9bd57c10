"""Random blocks of priced operators, and their schedules by trying all."""

import numpy as np

from automap.streams.costs import (
    Machine,
    Operators,
    measured_table,
    price_products,
    price_stages,
)


MACHINE = Machine(sms=10.0, bytes_per_s=1e11, launch_seconds=2e-6)


def random_block(seed, count, density=0.35, classes=2):
    """Products of random sizes, some of one operand, each before some of the later ones."""
    rng = np.random.default_rng(seed)
    before = [sum(1 << b for b in range(place) if rng.random() < density) for place in range(count)]
    after = [sum(1 << o for o in range(count) if before[o] >> p & 1) for p in range(count)]
    merge = rng.integers(-1, classes, count)
    rows, rate = 64.0 * rng.integers(1, 9, classes), np.full(classes, 1e11)
    columns = 32.0 * rng.integers(1, 9, count)
    products = np.array(
        [
            (rows[kind] if kind >= 0 else 96.0, n, 256.0, 1.0, 1e11, 4.0)
            for kind, n in zip(merge, columns, strict=True)
        ]
    )
    compute, waves, block, l2 = price_products(products, MACHINE).T
    memory = rng.random(count) * 1e-5
    alone = np.maximum(np.maximum(compute, l2), np.maximum(memory, MACHINE.launch_seconds))
    return Operators(
        alone=alone,
        measured=measured_table(alone, {}),
        compute=compute,
        waves=waves,
        block=block,
        memory=memory,
        l2=l2,
        inputs=np.full((count, 1), -1, np.int64),
        input_seconds=np.zeros(1),
        before=np.array(before, np.uint64),
        after=np.array(after, np.uint64),
        merge=merge,
        columns=columns,
        padding=np.zeros((count, 3)),
        rest=np.ones((count, 3)),
        other=memory * 0.5,
        rows=rows,
        depth=np.full(classes, 256.0),
        rate=rate,
        size=np.full(classes, 4.0),
        image=np.zeros(classes),
    )


def components(mask, before):
    """Sizes of the sets of operators of a mask that depend on each other."""
    left = [p for p in range(len(before)) if mask >> p & 1]
    sizes = []
    while left:
        group, grown = {left[0]}, True
        while grown:
            near = {
                p
                for p in left
                if p not in group
                and any(int(before[p]) >> g & 1 or int(before[g]) >> p & 1 for g in group)
            }
            group |= near
            grown = bool(near)
        sizes.append(len(group))
        left = [p for p in left if p not in group]
    return sizes


def least_seconds(ops, most_groups, most_in_group, machine=MACHINE):
    """Of all schedules, by the definition: every set that may come last, of every rest."""
    count, before = len(ops.alone), [int(b) for b in ops.before]
    seconds = price_stages(ops, np.arange(1 << count, dtype=np.uint64), machine).min(axis=1)
    for mask in range(1, 1 << count):
        sizes = components(mask, before)
        if len(sizes) > most_groups or max(sizes) > most_in_group:
            seconds[mask] = np.inf
    reads = [0] * (1 << count)
    for mask in range(1, 1 << count):
        reads[mask] = reads[mask & (mask - 1)] | before[(mask & -mask).bit_length() - 1]
    least = [0.0] * (1 << count)
    for left in range(1, 1 << count):
        best, last = np.inf, left
        while last:
            if not reads[left & ~last] & last:
                best = min(best, seconds[last] + least[left & ~last])
            last = (last - 1) & left
        least[left] = best
    return least[-1]
