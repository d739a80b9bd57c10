"""Layers of an operator graph: operators that share a parameter, which FlexFlow's plans place
together.

    reader    an operator of the forward or backward pass that reads a parameter of several dimensions belongs to
              what updates it: the edge to the next step says so; of several parameters to the largest
    gradient  what makes a tensor of the parameter's size for its update, or a part of such a sum, belongs to it
    rest      belongs to the operator whose result most of what it reads is, biases with all that is theirs

A layer is thus forward, backward and update of one parameter with all between it and the next one,
over all time steps of a recurrent network. (In FlexFlow's graphs an operator is a layer's at one
step, and its backward pass is placed with it.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from automap.simulate.operators.graph import NO_CLASS, ConsumerStep, Edge, OperatorGraph


@dataclass(frozen=True, slots=True)
class Layer:
    """Numbers of its operators, ascending, and the least size that each class of their factors has."""

    operators: tuple[int, ...]
    classes: tuple[tuple[int, int], ...]


def graph_layers(graph: OperatorGraph) -> tuple[Layer, ...]:
    """Every operator in one layer; layers by their first operator."""
    owner = _owners(graph)
    members: dict[int, list[int]] = {}
    for number, of in enumerate(owner):
        members.setdefault(of, []).append(number)
    layers = (Layer(tuple(numbers), _classes(graph, numbers)) for numbers in members.values())
    return tuple(sorted(layers, key=lambda layer: layer.operators))


def _classes(graph: OperatorGraph, operators: Sequence[int]) -> tuple[tuple[int, int], ...]:
    sizes: dict[int, int] = {}
    for number in operators:
        for factor in graph.operators[number].factors:
            if factor.group_class != NO_CLASS:
                known = sizes.get(factor.group_class, factor.size)
                sizes[factor.group_class] = min(known, factor.size)
    return tuple(sorted(sizes.items()))


def _owners(graph: OperatorGraph) -> list[int]:
    """For each operator the one that its layer is called after: an update, else itself."""
    owner: dict[int, int] = {}
    for number, edge in _largest_parameters(graph).items():
        owner[number] = owner[edge.source] = edge.source
    _own_gradients(graph, owner)
    inputs: dict[int, list[Edge]] = {}
    for edge in _same_step(graph):
        inputs.setdefault(edge.target, []).append(edge)
    for number in range(len(graph.operators)):
        if number not in owner:
            sources = inputs.get(number, [])
            read = max(sources, key=lambda e: (e.n_bytes, -e.source), default=None)
            owner[number] = number if read is None else owner[read.source]
    return [owner[number] for number in range(len(graph.operators))]


def _largest_parameters(graph: OperatorGraph) -> dict[int, Edge]:
    """The largest parameter that each operator but updates reads, as the edge from what makes its
    new version.
    """
    largest: dict[int, Edge] = {}
    for edge in graph.edges:
        known = largest.get(edge.target)
        is_read = (
            edge.consumer_step is ConsumerStep.NEXT_STEP
            and graph.operators[edge.target].phase != "update"
        )
        if is_read and len(edge.dims) > 1 and (known is None or edge.n_bytes > known.n_bytes):
            largest[edge.target] = edge
    return largest


def _own_gradients(graph: OperatorGraph, owner: dict[int, int]) -> None:
    """From each update back along moments and the sums of its gradient, as far as contractions."""
    operators = graph.operators
    made_for = {of: of for of in owner.values()}
    for edge in sorted(_same_step(graph), key=lambda e: -e.target):
        of = made_for.get(edge.target)
        if of is None or edge.source in owner or operators[edge.target].compute_seconds:
            continue
        if operators[edge.source].result_bytes == operators[edge.target].result_bytes:
            made_for[edge.source] = owner[edge.source] = of


def _same_step(graph: OperatorGraph) -> list[Edge]:
    return [edge for edge in graph.edges if edge.consumer_step is ConsumerStep.SAME_STEP]
