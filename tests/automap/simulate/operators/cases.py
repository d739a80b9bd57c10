"""Random operator graphs, machines and task graphs with whole numbers for times, so that many are
equal.
"""

import numpy as np

from automap.simulate.operators.graph import (
    ConsumerStep,
    Edge,
    Operator,
    OperatorGraph,
    SplitFactor,
)
from automap.simulate.operators.network import DeviceNetwork
from automap.simulate.tasks import Tasks
from hlo_tools.rules import FactorKind


_COPIES = SplitFactor(1 << 62, FactorKind.REPLICATION)


def _operator(rng, number):
    factors = [
        SplitFactor(int(rng.choice([8, 64, 96])), FactorKind.PASSTHROUGH, is_batch=f == 0)
        for f in range(int(rng.integers(1, 4)))
    ]
    in_result = tuple(range(len(factors)))
    if rng.random() < 0.4:
        factors.append(SplitFactor(64, FactorKind.REDUCTION))
    return Operator(
        name=f"operator {number}",
        phase="forward",
        factors=(*factors, _COPIES),
        trips=1,
        compute_seconds=0.0,
        traffic=(),
        launch_seconds=float(rng.integers(0, 4)),
        result_bytes=float(rng.choice([0, 4096])),
        result_factors=in_result,
    )


def random_graph(seed, n_operators=24):
    """Operators that each read up to three earlier ones, some without taking any time."""
    rng = np.random.default_rng(seed)
    operators = [_operator(rng, n) for n in range(n_operators)]
    edges = []

    def edge(source, target, when):
        dims = []
        for f in operators[source].result_factors:
            own = len(operators[target].factors) - 1
            dims.append((f, int(rng.integers(-1, own))))
        targets = [g for _, g in dims]
        dims = [(f, g if targets.index(g) == i else -1) for i, (f, g) in enumerate(dims)]
        n_bytes = float(rng.choice([0, 4096]))
        n_sums = int(rng.random() < 0.2)
        edges.append(
            Edge(
                source=source,
                target=target,
                n_bytes=n_bytes,
                dims=tuple(dims[n_sums:]),
                consumer_step=when,
                sums=tuple(dims[:n_sums]),
            )
        )

    for target in range(1, n_operators):
        for source in rng.choice(target, min(int(rng.integers(1, 4)), target), replace=False):
            edge(int(source), target, ConsumerStep.SAME_STEP)
    for target in range(2):
        edge(n_operators - 1 - target, target, ConsumerStep.NEXT_STEP)
    return OperatorGraph(tuple(operators), tuple(sorted(edges, key=lambda e: (e.source, e.target))))


def random_network(seed, n_devices):
    """Media of different speed, that a few pairs of devices share, some pairs with one and some
    with two; times of whole seconds for 4096 bytes and their halves, quarters, ...
    """
    rng = np.random.default_rng(seed)
    shape = (n_devices, n_devices)
    first = rng.integers(0, 3 * n_devices, shape)
    # The second is another one, or none.
    second = np.where(rng.random(shape) < 0.3, -1, (first + 1) % (3 * n_devices))
    return DeviceNetwork(
        bytes_per_s=rng.choice([1024.0, 4096.0], shape),
        latency_seconds=rng.integers(0, 2, shape).astype(float),
        media=np.stack([first, second], axis=-1),
        speed=rng.choice([1.0, 2.0], n_devices),
    )


def random_tasks(seed, n_tasks, n_resources, *, least_seconds=0):
    """Tasks that wait for up to three of those shortly before them."""
    rng = np.random.default_rng(seed)
    before = [
        np.unique(rng.integers(max(0, t - 8), t, int(rng.integers(0, 4))))
        if t
        else np.empty(0, int)
        for t in range(n_tasks)
    ]
    return Tasks(
        seconds=rng.integers(least_seconds, 4, n_tasks).astype(float),
        resource=rng.integers(0, n_resources, n_tasks).astype(np.int32),
        first_predecessor=np.cumsum([0, *map(len, before)]),
        predecessors=np.concatenate(before).astype(np.int32),
    )
