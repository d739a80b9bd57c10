"""The role of each state leaf, from the data flow of the step.

Let s be a leaf's old value, s' its new one.

    read(s)       s reaches what a forward pass is for (a backward pass, a result, what the update
                  reads) through ops of the forward pass that depend on no gradient, that is,
                  before a leaf is updated                                  -> in: `_reads`
    trained(s)    a gradient reaches s' through ops outside of differentiated functions, by way of
                  numbers (not of a test, or an index). Where it meets data in a contraction, as in
                  an episode played with new parameters, it has to be of the leaf's own shape
                                                                            -> in: `_is_trained`
    frozen(s)     s' is made of s and constants alone, element by element, or also of arrays that
                  no forward pass reads, as the moments of a gradient that is zero
                                                                            -> in: `_is_frozen`
    copied(s)     s' is made of parameters of its shape and counters, element by element
    data(s')      s' depends on the batch or on activations, and not by way of a gradient
                                                              -> `hlo_tools.analyses.phases`
    serves(s)     s reaches the new value of a parameter through ops outside of differentiated
                  functions

    parameter         read(s) and (trained(s) or frozen(s) or copied(s)): weights, frozen ones,
                      target networks
    other state       read(s) else: hidden states, environments, done masks, the scale of a loss
    optimizer state   trained(s) or serves(s): moments, masks of the update
    other state       data(s'), or integers: running statistics, counters
    optimizer state   else: averages of parameters

The first line that holds counts; an integer without dimensions is other state, always.
Without a backward pass nothing is optimizer state.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from hlo_tools.analyses.phases import Phase, after_backward, data
from hlo_tools.graph import Graph, Op, sources_by_output
from hlo_tools.opcodes import ELEMENT_BY_ELEMENT, LOOP_EXIT, STRUCTURAL, WHOLE_DIMENSIONS


class Role(Enum):
    """What a step input is for. Values are the words of the plan file."""

    PARAMETER = "parameter"
    OPTIMIZER = "optimizer state"
    STATE = "other state"
    BATCH = "batch"
    RNG = "rng key"
    CONSTANT = "constant"


FLOATS = frozenset({"f64", "f32", "bf16", "f16", "c64", "c128"})
# Types of arrays that hold numbers, or what stands for them; other integers are indices.
_NUMBERS = FLOATS | {"s8", "u8", "s4", "u4"}


@dataclass(frozen=True, slots=True)
class _Elements:
    """Inputs, by position, that a value is made of element by element, and whether there is
    anything else in it.
    """

    inputs: frozenset[int]
    has_others: bool


class StateRoles:
    """Roles of the state leaves of one graph."""

    def __init__(self, graph: Graph, phases: Sequence[Phase], state_map: Mapping[int, int]) -> None:
        """`new` has the new value of each state leaf, by its position among the inputs."""
        self._graph, self._phases = graph, phases
        self.new = {source: graph.outputs[output] for output, source in state_map.items()}
        answers = {v for i, v in enumerate(graph.outputs) if i not in state_map}
        self._answers = answers or set(graph.outputs)
        self._after = after_backward(graph, phases)
        self._data = data(graph, phases, frozenset(self.new))
        self._is_outside = [
            op.opcode in STRUCTURAL
            or phase is Phase.UPDATE
            or (phase is Phase.FORWARD and "jvp(" not in op.op_name)
            for op, phase in zip(graph.ops, phases, strict=True)
        ]

    def role(self, position: int) -> Role:
        """The role of one state leaf."""
        value = self._graph.inputs[position]
        array = self._graph.values[value]
        is_number = array.dtype in FLOATS
        if not array.dims and not is_number:
            return Role.STATE
        if position in self._parameters:
            return Role.PARAMETER
        if self._reads[value] or Phase.BACKWARD not in self._phases:
            return Role.STATE
        if self._is_trained(position) or self._serves[value]:
            return Role.OPTIMIZER
        return Role.STATE if self._data[self.new[position]] or not is_number else Role.OPTIMIZER

    @cached_property
    def _parameters(self) -> frozenset[int]:
        graph = self._graph
        made = {
            position: self._elements(new)
            for position, new in self.new.items()
            if self._reads[graph.inputs[position]]
            and graph.values[graph.inputs[position]].dtype in _NUMBERS
        }
        changed = {
            position
            for position, elements in made.items()
            if self._is_trained(position) or self._is_frozen(position, elements)
        }
        dims = {position: graph.values[graph.inputs[position]].dims for position in made}
        copied = {
            position
            for position, elements in made.items()
            if not elements.has_others
            and any(dims[position] == dims[other] for other in elements.inputs & changed)
        }
        return frozenset(changed | copied)

    @cached_property
    def _reads(self) -> Sequence[bool]:
        """Whether each value is read by a forward pass before any leaf is updated.

        What a loop reads of its carry, its next trip reads of what this one makes of it.
        """
        graph = self._graph
        again = set[int]()
        while True:
            # Each round adds a carry at least, so there are no more rounds than carries.
            is_read = self._read_in_one_trip(again)
            more = {
                root
                for enter, leave in graph.exit_by_entry.items()
                for carried, root in zip(graph.ops[enter].outputs, graph.ops[leave].inputs)
                if is_read[carried] and not is_read[root] and not self._after[root]
            }
            if not more:
                return is_read
            again |= more

    def _read_in_one_trip(self, also: Collection[int]) -> list[bool]:
        graph, phases = self._graph, self._phases
        reads = [value in also for value in range(len(graph.values))]
        for index in range(len(graph.ops) - 1, -1, -1):
            op, phase = graph.ops[index], phases[index]
            is_made_forward = phase is Phase.FORWARD and op.opcode not in STRUCTURAL
            for output, sources in sources_by_output(op):
                # A forward pass is for its answers; what it makes and nobody reads is one too.
                is_end = output in self._answers or not graph.users[output]
                may_end = is_made_forward or (phase is Phase.FORWARD and op.opcode == LOOP_EXIT)
                reads[output] |= may_end and is_end
                passes = reads[output] and not self._after[output]
                for value in sources if passes or phase is Phase.BACKWARD else ():
                    # A backward pass reads what it is differentiated at: all its operands count.
                    is_read = passes and (is_made_forward or op.opcode in STRUCTURAL)
                    reads[value] |= is_read or op.opcode not in STRUCTURAL
            if phase is Phase.UPDATE and op.opcode not in STRUCTURAL:
                for value in op.inputs:
                    # What an update takes from a forward pass, that pass was for: a loss that
                    # scales the step.
                    producer = graph.values[value].producer
                    reads[value] |= producer >= 0 and (
                        phases[producer] is Phase.FORWARD
                        and graph.ops[producer].opcode not in STRUCTURAL
                    )
        return reads

    @cached_property
    def _serves(self) -> Sequence[bool]:
        """Whether each value reaches the new value of a parameter outside of differentiated
        functions.
        """
        serves = [False] * len(self._graph.values)
        for position in self._parameters:
            serves[self.new[position]] = True
        for index in range(len(self._graph.ops) - 1, -1, -1):
            if self._is_outside[index]:
                for output, sources in sources_by_output(self._graph.ops[index]):
                    for value in sources if serves[output] else ():
                        serves[value] = True
        return serves

    def _is_trained(self, position: int) -> bool:
        new = self.new[position]
        number, meets_data = self._gradients
        if not number[new]:
            return False
        return not meets_data[new] or self._has_own_gradient(position)

    def _is_frozen(self, position: int, elements: _Elements) -> bool:
        inputs, values = self._graph.inputs, self._graph.values
        others = [inputs[i] for i in elements.inputs - {position}]
        is_of_moments = any(values[v].dims for v in others) and not any(
            self._reads[v] for v in others
        )
        is_own = position in elements.inputs and not elements.has_others
        return is_own and (not others or is_of_moments)

    @cached_property
    def _gradients(self) -> tuple[Sequence[bool], Sequence[bool]]:
        """Whether a gradient reaches each value by way of numbers, and whether it has met data in a
        contraction.
        """
        graph = self._graph
        number, meets_data = [False] * len(graph.values), [False] * len(graph.values)
        for op, phase, is_outside in zip(graph.ops, self._phases, self._is_outside, strict=True):
            is_backward = phase is Phase.BACKWARD and op.opcode not in STRUCTURAL
            meets = op.opcode in WHOLE_DIMENSIONS and any(
                self._data[v] and not self._after[v] and graph.values[v].dims for v in op.inputs
            )
            for output, sources in sources_by_output(op) if is_backward or is_outside else ():
                is_made = is_backward or any(number[v] for v in sources)
                number[output] = is_made and graph.values[output].dtype in _NUMBERS
                meets_data[output] = not is_backward and (
                    (meets and number[output]) or any(meets_data[v] for v in sources)
                )
        return number, meets_data

    def _has_own_gradient(self, position: int) -> bool:
        """Whether a gradient of a leaf's shape, maybe for each of many examples, reaches its new
        value.
        """
        graph = self._graph
        dims = graph.values[graph.inputs[position]].dims
        seen, todo = set[int](), [self.new[position]]
        while todo:
            value = todo.pop()
            producer = graph.values[value].producer
            if value in seen or producer < 0:
                continue
            seen.add(value)
            op = graph.ops[producer]
            if self._phases[producer] is Phase.BACKWARD and op.opcode not in STRUCTURAL:
                # Leading dimensions may be examples, as where gradients are clipped one by one.
                if graph.values[value].dims[-len(dims) :] == dims:
                    return True
            elif self._is_outside[producer]:
                todo.extend(_sources(op, value))
        return False

    def _elements(self, value: int) -> _Elements:
        graph = self._graph
        inputs, has_others = set[int](), False
        seen, todo = set[int](), [value]
        while todo:
            value = todo.pop()
            producer = graph.values[value].producer
            # Constants are no source: scaling by one leaves a leaf made of itself.
            if value in seen or (producer >= 0 and not graph.varies[value]):
                continue
            seen.add(value)
            if producer < 0:
                inputs.add(graph.inputs.index(value))
                continue
            op = graph.ops[producer]
            if op.opcode in STRUCTURAL or op.opcode in ELEMENT_BY_ELEMENT:
                todo.extend(_sources(op, value))
            else:
                has_others = True
        return _Elements(frozenset(inputs), has_others)


def _sources(op: Op, value: int) -> Sequence[int]:
    """What one result of an op is made of."""
    return next(sources for output, sources in sources_by_output(op) if output == value)
