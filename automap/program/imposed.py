"""Shardings that the user imposes: the step's own code on inner values, inputs and outputs, and
pins on inputs.

A constraint y = constrain(x) is an op of the graph that runs in one way only: its factors are split
as its spec says, whatever the classes of its dimensions do elsewhere. What the plan has otherwise
before or after it is resharded there, and priced like any other move
                                                                     -> in: `Imposed.specs_by_op`
Its result, an input and an output have the spec as their own sharding, and so have the values tied
to them (carries of loops), unless another spec is imposed on one of those, and what loops keep of
them (`_follow_stacks`). The result of a constraint that goes on as an input's
carry, or is the new version of an input, is kept as that input is.  -> in: `Imposed.specs_by_value`

What a loop keeps of a constrained tensor for its backward pass is split as the tensor is:

    v -> [1, v]                    a reshape
    [1, v] -> [.., v, ..]          written into a stack that the loop carries along
    [.., v, ..] -> [1, v] -> v     read from it

Each of these values has the spec of v, nothing on the dimension of the stack, and the ops between
them run so                                                          -> in: `_follow_stacks`

`shard_map` imposes its operands' and its results' shardings in the same way
(`automap.jaxpr.manual`); what it runs on each device's parts has none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from automap.step.own_shardings import ImposedEnds
from automap.step.specs import ImposedSpec, read_spec
from automap.topology.mesh import Mesh
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    BROADCAST,
    CONSTRAINT,
    CONSTRAINT_TARGET,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    MANUAL_ENTER,
    MANUAL_EXIT,
    RESHAPE,
)


@dataclass(frozen=True)
class Imposed:
    """Specs by op and by value of a graph; `specs_by_stack_op` are those of ops on stacks, of their
    first operand.
    """

    specs_by_op: Mapping[int, ImposedSpec] = field(default_factory=dict)
    specs_by_stack_op: Mapping[int, ImposedSpec] = field(default_factory=dict)
    specs_by_value: Mapping[int, ImposedSpec] = field(default_factory=dict)

    def running_spec(self, op: int, value: int) -> ImposedSpec | None:
        """How an op has one of its operands or results as it runs; None if that is the plan's."""
        if op in self.specs_by_stack_op:
            return self.specs_by_value.get(value)
        return self.specs_by_op.get(op)


def imposed(graph: Graph, ends: ImposedEnds, state_map: Mapping[int, int]) -> Imposed:
    """What a step imposes; `state_map` (output index -> input index) agrees with `ends`, see
    `agreed`.
    """
    specs_by_op = {
        # The only trace that a constraint of the user's leaves in HLO is the name of its custom
        # call.
        index: read_spec(op.instruction.attributes.custom_call_target[len(CONSTRAINT_TARGET) :])
        for index, op in enumerate(graph.ops)
        if op.opcode == CONSTRAINT
    }
    if not (specs_by_op or ends.inputs or ends.outputs):
        return Imposed()
    # Two, since inputs and outputs go first: an inner constraint never decides how a leaf is
    # stored.
    ends_known, inner = _Specs(graph), _Specs(graph)
    for position, spec in _state_specs(ends, state_map).items():
        ends_known.impose(graph.inputs[position], spec)
        for output, source in state_map.items():
            if source == position:
                ends_known.impose(graph.outputs[output], spec)
    for output, spec in ends.outputs.items():
        if output not in state_map:
            ends_known.impose(graph.outputs[output], spec)
    for value, spec in _read_by_manual(graph, specs_by_op):
        if graph.inputs.index(value) not in state_map.values():
            ends_known.impose(value, spec)
    state = {*graph.inputs, *(graph.outputs[output] for output in state_map)}
    # State stays as the plan stores it, also where the step constrains it on the way.
    inner.barred = state | ends_known.specs_by_value.keys()
    for index, spec in specs_by_op.items():
        (value,) = graph.ops[index].outputs
        inner.impose(value, spec)
        source = graph.ops[index].inputs[0]
        producer = graph.values[source].producer
        # What a `shard_map` gives back is split as its out_specs say already when it leaves.
        if producer >= 0 and graph.ops[producer].opcode == MANUAL_EXIT:
            inner.impose(source, spec)
    specs_by_stack_op = _follow_stacks(graph, inner.specs_by_value, inner.impose, inner.tied)
    return Imposed(
        specs_by_op, specs_by_stack_op, {**inner.specs_by_value, **ends_known.specs_by_value}
    )


def _read_by_manual(
    graph: Graph, specs_by_op: Mapping[int, ImposedSpec]
) -> Iterator[tuple[int, ImposedSpec]]:
    """Inputs that only `shard_map`s read, all split alike: they arrive so."""
    for value in graph.inputs:
        # An input that other ops read too may be wanted in another way by them.
        users = graph.users[value]
        specs = {specs_by_op.get(user) for user in users}
        enters = (
            graph.ops[after].opcode == MANUAL_ENTER
            for user in users
            for result in graph.ops[user].outputs
            for after in graph.users[result]
        )
        if len(specs) == 1 and None not in specs and all(enters):
            yield value, next(spec for spec in specs if spec is not None)


def divides(spec: ImposedSpec, dims: Sequence[int], mesh: Mesh) -> bool:
    """Whether a mesh has all axes of a spec, in sizes that divide the dimensions; keys have more of
    these than the spec.
    """
    sizes = dict(mesh.axes)
    used = [axes or () for axes in spec]
    return all(axis in sizes for axes in used for axis in axes) and all(
        size % prod(sizes[axis] for axis in axes) == 0 for size, axes in zip(dims, used)
    )


def agreed(ends: ImposedEnds, state_map: Mapping[int, int]) -> dict[int, int]:
    """A state map without leaves that come in one sharding and go out in another: they are no
    state.
    """
    return {
        output: position
        for output, position in state_map.items()
        if ends.inputs.get(position) == ends.outputs.get(output)
        or not (position in ends.inputs and output in ends.outputs)
    }


def _state_specs(ends: ImposedEnds, state_map: Mapping[int, int]) -> Mapping[int, ImposedSpec]:
    """Specs of inputs: one of a leaf's new version holds for the leaf too, as the plan stores both
    alike.
    """
    specs_of_new = {i: ends.outputs[o] for o, i in state_map.items() if o in ends.outputs}
    return {**specs_of_new, **ends.inputs}


class _Specs:
    """Specs by value as they are found; the first that is imposed on tied values is that of all.

    Values tied to one in `barred` get none.
    """

    def __init__(self, graph: Graph) -> None:
        self.specs_by_value: dict[int, ImposedSpec] = {}
        self.barred: set[int] = set()
        self._graph = graph
        self._tied: dict[int, set[int]] = {}
        for first, second in graph.ties:
            # One set object for all its members, so that looking one up is a single step.
            both = self.tied(first) | self.tied(second)
            self._tied.update(dict.fromkeys(both, both))

    def tied(self, value: int) -> set[int]:
        """A value and all that are one tensor with it."""
        return self._tied.get(value, {value})

    def impose(self, value: int, spec: ImposedSpec) -> list[int]:
        """Impose a spec on a value and those tied to it, and say on which: not where another is
        imposed.
        """
        rank = len(self._graph.values[value].dims)
        # The words of a random key are a dimension in HLO only.
        padded = (*spec, *((),) * (rank - len(spec)))
        if value in self.specs_by_value or not self.barred.isdisjoint(self.tied(value)):
            return []
        imposed_on = sorted(self.tied(value) - self.specs_by_value.keys())
        self.specs_by_value.update(dict.fromkeys(imposed_on, padded))
        return imposed_on


def _follow_stacks(
    graph: Graph,
    specs_by_value: Mapping[int, ImposedSpec],
    may_impose: Callable[[int, ImposedSpec], list[int]],
    tied: Callable[[int], set[int]],
) -> dict[int, ImposedSpec]:
    """The ops that run as constrained tensors are split, with the spec of their first operand.

    `specs_by_value` grows: `may_impose(value, spec)` imposes a spec on a value and those `tied` to
    it, and gives those it imposed it on, [] if another is imposed there.
    """
    specs_by_stack_op: dict[int, ImposedSpec] = {}
    # A work list: each newly imposed value may be read by a further op on a stack.
    left = list(specs_by_value)
    while left:
        value = left.pop()
        for index in graph.users[value]:
            op = graph.ops[index]
            spec = _spec_of_result(graph, op, value, specs_by_value[value])
            if spec is None or (
                op.opcode == DYNAMIC_UPDATE_SLICE and op.inputs[0] not in tied(op.outputs[0])
            ):
                continue
            left += may_impose(op.outputs[0], spec)
            if specs_by_value.get(op.outputs[0]) == spec:
                specs_by_stack_op[index] = specs_by_value[op.inputs[0]]
    return specs_by_stack_op


def _spec_of_result(graph: Graph, op: Op, value: int, spec: ImposedSpec) -> ImposedSpec | None:
    """The spec of what an op makes of a tensor, None for any op but the three."""
    if op.opcode not in (RESHAPE, BROADCAST, DYNAMIC_UPDATE_SLICE, DYNAMIC_SLICE):
        return None
    before, after = graph.values[value].dims, graph.values[op.outputs[0]].dims
    if op.opcode in (RESHAPE, BROADCAST):
        if after == (1, *before):
            return ((), *spec)
        return spec[1:] if before == (1, *after) and spec[0] == () else None
    # A slice of one element along the stack's first dimension, all of the others.
    is_one = before[0] if op.opcode == DYNAMIC_UPDATE_SLICE else after[0]
    place = 1 if op.opcode == DYNAMIC_UPDATE_SLICE else 0
    same = before[1:] == after[1:] and op.inputs[place] == value
    return spec if same and is_one == 1 and spec[0] == () else None
