"""Which item of the forward pass each op of the backward pass belongs to.

A backward op runs in the stage that its gradients come to, or in an earlier one that has what else
it reads:

    at(o)      = min of c and, over what it reads of the forward pass, r(v)      -> in: `_place`
    c          = least at() of the gradients it reads, the last item without any
    r(v)       = the last of the items that make or read v that is not after c

So the gradient of a weight, and that of what the weight is multiplied with, belong to the product
itself, also for a weight that several items read. Recomputed ops (remat) read no gradient, and come
to the items whose parameters they read. A backward loop whose trips read slices that an unrolled
forward loop stacked is that loop's *twin*: its trips are the forward loop's, in reverse
                                                                                  -> in: `_twin`

Where gradients of weights are a pass of their own (`automap.pipeline.schedules.zero_bubble`), an op
is of that pass if nothing is made of it for an earlier item but through sums over the examples:

    reached(v)  = least item of the ops that v gets to through values that hold examples
    o is of the weight pass  iff  reached of what it makes is not before at(o)
                                                                          -> in: `weight_ops`

Ops of one equation of the step stay together, so what an opaque one makes for both (a loop over the
layers, a part that is made again) is of the backward pass whole.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap.jaxpr.sites import parse_site
from automap.pipeline.profile.flow import Flow, trips_per_entry
from automap.pipeline.profile.items import Items, Loop, Span
from automap.program.problem import Problem
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER, STRUCTURAL


@dataclass(frozen=True)
class Backward:
    """`span` of every backward op, and for the op that enters a twin its forward loop."""

    span: Mapping[int, Span]
    twin: Mapping[int, Loop]


def backward_items(problem: Problem, flow: Flow, items: Items) -> Backward:
    """The items of all ops of the backward phase."""
    graph, phases = problem.graph, problem.phases
    touched = _touched(problem, flow, items)
    stacked = {v: loop for loop in items.loops for v in graph.ops[loop.leave].outputs}
    at: dict[int, int] = {}
    span: dict[int, Span] = {}
    twin: dict[int, Loop] = {}
    # `leaving` is where the loop ends that the op is in: its whole body has one span.
    leaving, current = -1, (0, 0)
    for index, op in enumerate(graph.ops):
        if phases[index] is not Phase.BACKWARD and index > leaving:
            continue
        if index > leaving:
            place = _place(op.inputs, at, touched, len(items) - 1)
            current = (place, place)
            if op.opcode == LOOP_ENTER:
                leaving = graph.exit_by_entry[index]
                loop = _twin(graph, index, stacked)
                if loop is not None:
                    twin[index] = loop
                    current = loop.span
        span[index] = current
        # A twin's gradients leave it where its first trip of the forward pass began.
        for value in op.outputs:
            at[value] = current[0]
    return Backward(span, twin)


def weight_ops(problem: Problem, backward: Backward, holds: np.ndarray) -> frozenset[int]:
    """The backward ops of the weight pass; `holds` says of values whether they hold examples,
    [values].
    """
    graph, span = problem.graph, backward.span
    reached: dict[int, int] = {}
    # By equation, or by op where there are no sites: whether a gradient goes on from there.
    goes_on: dict[str | int, bool] = {}
    for index in sorted(span, reverse=True):
        op = graph.ops[index]
        here = span[index][0]
        least = min((reached[v] for v in op.outputs if holds[v] and v in reached), default=here)
        # A loop's equation makes gradients for what is before it as well: it cannot be parted.
        part = outermost_equation(op.op_name) or index
        goes_on[part] = goes_on.get(part, False) or least < here or op.opcode in STRUCTURAL
        for value in op.inputs:
            reached[value] = min(reached.get(value, least), least)
    return frozenset(
        index
        for index in span
        if not goes_on[outermost_equation(graph.ops[index].op_name) or index]
    )


def outermost_equation(op_name: str) -> str | None:
    """The step's own equation that an op is of, by its name; None without a site."""
    site = parse_site(op_name)
    return site and site.partition(".")[0]


def _place(
    inputs: Sequence[int], at: Mapping[int, int], touched: Mapping[int, Sequence[int]], last: int
) -> int:
    """at(o) of an op that reads `inputs`."""
    bound = min((at[v] for v in inputs if v in at), default=last)
    place = bound
    for value in inputs:
        if value not in at and value in touched:
            before = bisect_right(touched[value], bound)
            if before:
                place = min(place, touched[value][before - 1])
    return place


def _touched(problem: Problem, flow: Flow, items: Items) -> Mapping[int, Sequence[int]]:
    """For each value of the forward pass, the items that make or read it, ascending.

    What does not depend on the batch is read by the items that read what is made of it.
    """
    graph, phases = problem.graph, problem.phases
    touched: dict[int, set[int]] = {}
    # From the last op back, so that what reads a value is known before what makes it.
    for index in range(len(graph.ops) - 1, -1, -1):
        if phases[index] is not Phase.FORWARD:
            continue
        op = graph.ops[index]
        if any(flow.batched[v] for v in op.outputs):
            places = set(items.span(index))
            for value in op.outputs:
                touched.setdefault(value, set()).update(places)
        else:
            places = set[int]().union(*(touched.get(v, ()) for v in op.outputs))
        for value in op.inputs:
            # A constant can be made anywhere, so that it draws no op to a stage.
            if graph.varies[value]:
                touched.setdefault(value, set()).update(places)
    return {value: sorted(places) for value, places in touched.items()}


def _twin(graph: Graph, enter: int, stacked: Mapping[int, Loop]) -> Loop | None:
    trips = trips_per_entry(graph, enter)
    for value in graph.ops[enter].inputs:
        loop = stacked.get(value)
        if loop is not None and 1 < loop.trips == trips:
            return loop
    return None
