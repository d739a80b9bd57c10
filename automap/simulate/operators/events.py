"""The timeline of a `Simulator` as events of a trace: what each task is, by its id
(`automap.simulate.operators.arrays`).
"""

from collections.abc import Iterator

import numpy as np

from automap.simulate.operators.graph import ConsumerStep, OperatorGraph
from automap.simulate.operators.simulator import Placement, Simulator
from automap.simulate.trace import Event, Lane


def events_of(simulator: Simulator) -> Iterator[Event]:
    """One event per task, by ascending id."""
    graph, n = simulator.graph, simulator.network.n_devices
    placement: Placement = simulator.placement()
    n_out = np.bincount([edge.source for edge in graph.edges], minlength=len(graph.operators))
    first_id = np.concatenate([[0], np.cumsum(2 * n + n_out * n * n)])
    first_out = np.concatenate([[0], np.cumsum(n_out)])
    for ident, resource, start, end in zip(
        placement.ident.tolist(),
        placement.resource.tolist(),
        placement.start_seconds.tolist(),
        placement.end_seconds.tolist(),
        strict=True,
    ):
        o = int(np.searchsorted(first_id, ident, side="right")) - 1
        edge, within = divmod(ident - int(first_id[o]) - 2 * n, n * n)
        lane = _lane(resource, n)
        if edge >= 0:
            yield _transfer(graph, int(first_out[o]) + edge, divmod(within, n), lane, start, end)
            continue
        operator, part = graph.operators[o], (ident - int(first_id[o])) % n
        is_sum = ident - int(first_id[o]) >= n
        yield Event(
            lane=lane,
            name=f"sum of {operator.name}" if is_sum else operator.name,
            category="all-reduce" if is_sum else operator.phase,
            start_seconds=start,
            seconds=end - start,
            details={"operator": o, "part": part},
        )


def _lane(resource: int, n: int) -> Lane:
    if resource < n:
        return Lane(device=resource, name="compute")
    source, target = divmod(resource - n, n)
    return Lane(device=source, name=f"link to device {target}")


def _transfer(
    graph: OperatorGraph, e: int, parts: tuple[int, int], lane: Lane, start: float, end: float
) -> Event:
    edge = graph.edges[e]
    source, target = graph.operators[edge.source], graph.operators[edge.target]
    return Event(
        lane=lane,
        name=f"{source.name} to {target.name}",
        category="transfer"
        if edge.consumer_step is ConsumerStep.SAME_STEP
        else "transfer for the next step",
        start_seconds=start,
        seconds=end - start,
        details={
            "from_operator": edge.source,
            "from_part": parts[0],
            "to_operator": edge.target,
            "to_part": parts[1],
        },
    )
