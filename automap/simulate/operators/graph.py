"""The operator graph of FlexFlow (section 3): what a configuration divides, and the tensors in
between.

An operator is a kernel of the HLO graph (`hlo_tools.analyses.kernels`: fused ops belong to the
kernel that computes them). Its factors are those of its rule that can be split, and one more:

    PASSTHROUGH   sample, attribute or parameter dimensions of the result: each part computes its
                  share
    REDUCTION     each part has a partial sum, to be added up; for the gradient of a weight this is
                  the batch, and adding up is the synchronisation of section 5.1
    REPLICATION   copies, the last factor of every operator: each part does the same (an update that
                  every device of a data-parallel step does for itself)

    seconds of a part = trips * max(flops / (parts * peak),
                                    sum of bytes / (parts of the tensor * bandwidth), launch),
    the roofline of `automap.cost.evaluate`                         -> in: `Operator.part_seconds`

An edge is a tensor on its way, with the factor of the producer and of the consumer along each
dimension. Within a step the consumer waits for it; a weight, or other state, also goes from the
operator that makes its new version to those that read it in the next step, which nothing waits for,
but which takes its time.

A *layer* is what FlexFlow's plans place together: forward, backward and update of one parameter
with all between it and the next one, over all time steps of a recurrent network. (In FlexFlow's
graphs an operator is a layer's at one step, and its backward pass is placed with it.) Here
operators belong to the update of a parameter                       -> in: `graph_layers`

    reader    an operator of the forward or backward pass that reads a parameter of several
              dimensions belongs to what updates it: the edge to the next step says so; of several
              parameters to the largest
    gradient  what makes a tensor of the parameter's size for its update, or a part of such a sum,
              belongs to it
    rest      belongs to the operator whose result most of what it reads is, biases with all that is
              theirs
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
import math
from typing import Final

from hlo_tools.rules import FactorKind


NO_CLASS: Final = -1


@dataclass(frozen=True, slots=True)
class SplitFactor:
    """A factor of an operator that a configuration may split; parts are equal, so degrees divide
    `size`.

    `is_batch`: it is the sample dimension. `group_class`: factors of several operators that are
    linked (the problem's decision class) have the same, `NO_CLASS` is linked to nothing.
    """

    size: int
    kind: FactorKind
    is_batch: bool = False
    group_class: int = NO_CLASS


@dataclass(frozen=True, slots=True)
class Traffic:
    """A tensor that an operator reads or writes: seconds for all of it, and what divides it."""

    seconds: float
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator.

    `compute_seconds`, `traffic` and `launch_seconds` are those of one trip on one whole device;
    `result_bytes` is what it makes in a step and `result_factors` the factors that divide that.
    """

    name: str
    phase: str
    factors: tuple[SplitFactor, ...]
    trips: int
    compute_seconds: float
    traffic: tuple[Traffic, ...]
    launch_seconds: float
    result_bytes: float
    result_factors: tuple[int, ...]

    def part_seconds(self, degrees: tuple[int, ...]) -> float:
        """What one part takes on a device of speed 1, of `degrees` parts along each factor."""
        work = math.prod(degrees[:-1])  # copies divide nothing
        memory = sum(t.seconds / math.prod(degrees[f] for f in t.factors) for t in self.traffic)
        return self.trips * max(self.compute_seconds / work, memory, self.launch_seconds)

    def part_bytes(self, degrees: tuple[int, ...]) -> float:
        """Bytes of one part's result."""
        return self.result_bytes / math.prod(degrees[f] for f in self.result_factors)


class ConsumerStep(Enum):
    """Which execution of the consumer an edge is for."""

    SAME_STEP = "same step"
    NEXT_STEP = "next step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor from operator `source` to operator `target`.

    `dims` has, for each dimension of which a part is a part of a factor, (factor of the source,
    factor of the target), NO_FACTOR where one of them has all of it; `n_bytes` is all that is read
    in a step. `sums` are such pairs of factors along which parts hold partial sums of the whole
    tensor, which are added up later on.
    """

    source: int
    target: int
    n_bytes: float
    dims: tuple[tuple[int, int], ...]
    consumer_step: ConsumerStep
    sums: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order; edges sorted by source."""

    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Numbers of its operators, ascending, and the least size of each class of their factors."""

    operators: tuple[int, ...]
    classes: tuple[tuple[int, int], ...]


def graph_layers(graph: OperatorGraph) -> tuple[Layer, ...]:
    """Every operator in one layer; layers by their first operator."""
    owner = _owners(graph)
    members: dict[int, list[int]] = {}
    for number, update in enumerate(owner):
        members.setdefault(update, []).append(number)
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
            # Sources have smaller numbers, so their layers are known by now.
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
    # Operators are in topological order, so edges by descending target lead from each update back.
    made_for = {update: update for update in owner.values()}
    for edge in sorted(_same_step(graph), key=lambda e: -e.target):
        update = made_for.get(edge.target)
        # A product makes its gradient of other tensors: what it reads is of other layers.
        if update is None or edge.source in owner or operators[edge.target].compute_seconds:
            continue
        if operators[edge.source].result_bytes == operators[edge.target].result_bytes:
            made_for[edge.source] = owner[edge.source] = update


def _same_step(graph: OperatorGraph) -> list[Edge]:
    return [edge for edge in graph.edges if edge.consumer_step is ConsumerStep.SAME_STEP]
