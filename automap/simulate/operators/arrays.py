"""Operator graph, configurations and timeline as arrays, for the compiled simulators.

Symbols: O operators, E edges, P devices, F factors (the most that any operator has), K dimensions
of an edge. Tasks have *slots* in the arrays of `TaskSlots`:

    o P + k                   part k of operator o
    (O + o) P + k             what part k receives in its operator's all-reduce
    first_slot[e] + ...       transfers of edge e (`automap.simulate.operators.implicit`): each is
                              sent over one medium, and received over another if there are two

Each task has an *id*, by which ties are broken. Ids follow the operators, and within one: its
parts, its all-reduce, the edges that leave it, so predecessors have smaller ids; they depend on the
graph and P alone, so a task keeps its id whatever else changes  -> in: `operator_wiring`
"""

from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array
from automap.simulate.operators.graph import ConsumerStep, OperatorGraph
from automap.simulate.operators.network import DeviceNetwork
from hlo_tools.rules import FactorKind


# In `TaskSlots.resource` of a slot without a task, and in `TaskSlots.edge` of one that is no
# transfer.
NONE = -1


class Wiring(NamedTuple):
    """What no configuration changes.

    `dim_factors[e, d]` are (source's, target's) factor, F where there is none. Of the `n_dims[e]`
    pairs the first `n_shared[e]` are dimensions, the others partial sums, which move whole. Edges
    that leave o are first_out[o] .. first_out[o + 1]; those that come in are into[first_in[o]
    .. first_in[o + 1]]. `loose_from[e, f]`: factor f of the source is no dimension of the edge, so
    parts along it hold the same; `loose_to` the same of the target. `adds[o, f]`: parts along f
    hold partial sums. `is_awaited[e]`: the target waits for the edge, within the step.
    """

    source: Array
    target: Array
    is_awaited: Array
    n_bytes: Array
    n_dims: Array
    n_shared: Array
    dim_factors: Array
    loose_from: Array
    loose_to: Array
    adds: Array
    first_out: Array
    first_in: Array
    into: Array
    part_id: Array
    edge_id: Array


class Links(NamedTuple):
    """The machine: the arrays of `automap.simulate.operators.network`."""

    bytes_per_s: Array
    latency_seconds: Array
    media: Array
    speed: Array


class Placement(NamedTuple):
    """The configurations: degree, stride [O, F + 1]; digit [O, P, F + 1]; device, part_on [O, P].

    `n_adding[o]` parts add up to one result. `n_waiting[slot]` predecessors each part waits for.
    `first_slot`, `per_part` [E]: where an edge's transfers are, and how many slots each target part
    has, first those of what is sent and then as many of what is received; `room` [E]: how many
    slots from `first_slot` on are the edge's. `is_local` [E]: every part
    k reads part k alone, on its own device, as nearly everywhere in a data-parallel step; such an
    edge has no slots.
    """

    degree: Array
    stride: Array
    digit: Array
    n_parts: Array
    n_adding: Array
    device: Array
    part_on: Array
    n_waiting: Array
    first_slot: Array
    per_part: Array
    room: Array
    is_local: Array


class TaskSlots(NamedTuple):
    """Tasks by slot, and the timeline: ready, end in seconds; before, after on the same resource,
    which is d for device d and P + m for medium m.

    `first`, `last` [P + media] are the ends of each resource's list.
    """

    seconds: Array
    resource: Array
    ident: Array
    edge: Array
    ready: Array
    end: Array
    before: Array
    after: Array
    first: Array
    last: Array


def operator_wiring(graph: OperatorGraph, n_devices: int) -> Wiring:
    """The arrays of an operator graph on P devices."""
    n_operators, n_edges = len(graph.operators), len(graph.edges)
    n_factors = max((len(o.factors) for o in graph.operators), default=1)
    n_dims = np.array([len(edge.dims) + len(edge.sums) for edge in graph.edges], np.int64)
    # Column F stands for no factor. Every operator has one part along it, so compiled code reads
    # its degree 1, stride 1 and place 0 without asking whether there is a factor.
    dim_factors = np.full((n_edges, max(int(n_dims.max(initial=0)), 1), 2), n_factors, np.int64)
    loose = np.ones((2, n_edges, n_factors + 1), np.bool_)
    adds = np.zeros((n_operators, n_factors + 1), np.bool_)
    for o, operator in enumerate(graph.operators):
        for f, factor in enumerate(operator.factors):
            adds[o, f] = factor.kind is FactorKind.REDUCTION
    for e, edge in enumerate(graph.edges):
        for d, pair in enumerate((*edge.dims, *edge.sums)):
            for side, factor in enumerate(pair):
                if factor >= 0:
                    dim_factors[e, d, side] = factor
                    loose[side, e, factor] = False
    # Edges are sorted by source, so those that leave an operator are neighbours. Those that come in
    # are reached through `into`.
    source = np.array([edge.source for edge in graph.edges], np.int64)
    target = np.array([edge.target for edge in graph.edges], np.int64)
    first_out = np.searchsorted(source, np.arange(n_operators + 1))
    into = np.argsort(target, kind="stable")
    # Each operator takes 2 P ids (parts, all-reduce) and each edge 2 P P (a pair of parts, sent and
    # received), whether they are used or not.
    part_id = 2 * n_devices * (np.arange(n_operators) + first_out[:-1] * n_devices)
    edge_id = 2 * n_devices * (source + 1 + np.arange(n_edges) * n_devices)
    return Wiring(
        source=source,
        target=target,
        is_awaited=np.array(
            [edge.consumer_step is ConsumerStep.SAME_STEP for edge in graph.edges], np.bool_
        ),
        n_bytes=np.array([edge.n_bytes for edge in graph.edges], np.float64),
        n_dims=n_dims,
        n_shared=np.array([len(edge.dims) for edge in graph.edges], np.int64),
        dim_factors=dim_factors,
        loose_from=loose[0],
        loose_to=loose[1],
        adds=adds,
        first_out=first_out,
        first_in=np.searchsorted(target[into], np.arange(n_operators + 1)),
        into=into,
        part_id=part_id,
        edge_id=edge_id,
    )


def device_links(network: DeviceNetwork) -> Links:
    """The machine's arrays as the compiled code wants them."""
    return Links(
        bytes_per_s=np.ascontiguousarray(network.bytes_per_s, np.float64),
        latency_seconds=np.ascontiguousarray(network.latency_seconds, np.float64),
        media=np.ascontiguousarray(network.media, np.int64),
        speed=np.ascontiguousarray(network.speed, np.float64),
    )


def empty_placement(wiring: Wiring, n_devices: int) -> Placement:
    """Configurations to be filled in: one part for each operator, nowhere."""
    n_operators, width = wiring.adds.shape
    n_edges = len(wiring.source)
    return Placement(
        degree=np.ones((n_operators, width), np.int64),
        stride=np.ones((n_operators, width), np.int64),
        digit=np.zeros((n_operators, n_devices, width), np.int64),
        n_parts=np.zeros(n_operators, np.int64),
        n_adding=np.ones(n_operators, np.int64),
        device=np.full((n_operators, n_devices), NONE, np.int64),
        part_on=np.full((n_operators, n_devices), NONE, np.int64),
        n_waiting=np.zeros(2 * n_operators * n_devices, np.int32),
        first_slot=np.zeros(n_edges, np.int64),
        per_part=np.zeros(n_edges, np.int64),
        room=np.zeros(n_edges, np.int64),
        is_local=np.zeros(n_edges, np.bool_),
    )


def empty_slots(n_slots: int, n_resources: int) -> TaskSlots:
    """Slots without tasks."""
    return TaskSlots(
        seconds=np.zeros(n_slots),
        resource=np.full(n_slots, NONE, np.int32),
        ident=np.zeros(n_slots, np.int64),
        edge=np.full(n_slots, NONE, np.int32),
        ready=np.zeros(n_slots),
        end=np.zeros(n_slots),
        before=np.full(n_slots, NONE, np.int32),
        after=np.full(n_slots, NONE, np.int32),
        first=np.full(n_resources, NONE, np.int32),
        last=np.full(n_resources, NONE, np.int32),
    )
