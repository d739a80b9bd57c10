"""Shardings that the user's own code imposes: on inner values, and on inputs and outputs of a jitted step.

    text      := [dim ("," dim)*]            one per dimension, as the target of a marked constraint has it
    dim       := "null" | "*" | axis ("+" axis)*       "*": free, the plan decides (UNCONSTRAINED)

A constraint y = constrain(x) is an op of the graph that runs in one way only: its factors are split as its spec says,
whatever the classes of its dimensions do elsewhere.  What the plan has otherwise before or after it is resharded
there, and priced like any other move                                        -> in: `Imposed.of_op`
Its result, an input and an output have the spec as their own sharding       -> in: `Imposed.of_value`
    and so have the values tied to them (carries of loops), unless another spec is imposed on one of those.  The result
    of a constraint that goes on as an input's carry, or is the new version of an input, is kept as that input is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hlo_tools.graph import CONSTRAINT, CONSTRAINT_TARGET, Graph


# The axes of each dimension, major first; None for one that is left free.
ImposedSpec = tuple[tuple[str, ...] | None, ...]


def spec_text(spec: ImposedSpec) -> str:
    """A spec as text."""
    return ",".join("*" if axes is None else "+".join(axes) or "null" for axes in spec)


def read_spec(text: str) -> ImposedSpec:
    """The spec of a text that `spec_text` made."""
    return tuple(
        None if dim == "*" else () if dim == "null" else tuple(dim.split("+"))
        for dim in (text.split(",") if text else ())
    )


@dataclass(frozen=True)
class Imposed:
    """Specs by op and by value of a graph."""

    of_op: Mapping[int, ImposedSpec] = field(default_factory=dict)
    of_value: Mapping[int, ImposedSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class ImposedEnds:
    """Specs of a jitted step's own `in_shardings` and `out_shardings`, by position of the leaf."""

    inputs: Mapping[int, ImposedSpec] = field(default_factory=dict)
    outputs: Mapping[int, ImposedSpec] = field(default_factory=dict)


def imposed(graph: Graph, ends: ImposedEnds, state_map: Mapping[int, int]) -> Imposed:
    """What a step imposes; `state_map` (output index -> input index) agrees with `ends`, see `agreed`."""
    of_op = {
        index: read_spec(op.instruction.attributes.custom_call_target[len(CONSTRAINT_TARGET) :])
        for index, op in enumerate(graph.ops)
        if op.opcode == CONSTRAINT
    }
    if not (of_op or ends.inputs or ends.outputs):
        return Imposed()
    known = _Known(graph)
    for position, spec in _of_state(ends, state_map).items():
        known.impose(graph.inputs[position], spec)
        for output, source in state_map.items():
            if source == position:
                known.impose(graph.outputs[output], spec)
    for output, spec in ends.outputs.items():
        if output not in state_map:
            known.impose(graph.outputs[output], spec)
    state = {*graph.inputs, *(graph.outputs[output] for output in state_map)}
    for index, spec in of_op.items():
        (value,) = graph.ops[index].outputs
        if graph.varies[value] and known.tied(value).isdisjoint(state):
            known.impose(value, spec)
    return Imposed(of_op, known.of_value)


def agreed(ends: ImposedEnds, state_map: Mapping[int, int]) -> dict[int, int]:
    """A state map without leaves that come in one sharding and go out in another: they are no state."""
    return {
        output: position
        for output, position in state_map.items()
        if ends.inputs.get(position) == ends.outputs.get(output)
        or not (position in ends.inputs and output in ends.outputs)
    }


def _of_state(ends: ImposedEnds, state_map: Mapping[int, int]) -> Mapping[int, ImposedSpec]:
    """Specs of inputs: one of a leaf's new version holds for the leaf too, as the plan stores both alike."""
    of_new = {i: ends.outputs[o] for o, i in state_map.items() if o in ends.outputs}
    return {**of_new, **ends.inputs}


class _Known:
    """Specs by value as they are found; the first that is imposed on tied values is that of all."""

    def __init__(self, graph: Graph) -> None:
        self.of_value: dict[int, ImposedSpec] = {}
        self._graph = graph
        self._tied: dict[int, set[int]] = {}
        for first, second in graph.ties:
            both = self.tied(first) | self.tied(second)
            self._tied.update(dict.fromkeys(both, both))

    def tied(self, value: int) -> set[int]:
        """A value and all that are one tensor with it."""
        return self._tied.get(value, {value})

    def impose(self, value: int, spec: ImposedSpec) -> None:
        """Impose a spec on a value and those tied to it that have none."""
        rank = len(self._graph.values[value].dims)
        # The words of a random key are a dimension in HLO only.
        padded = (*spec, *((),) * (rank - len(spec)))
        if value not in self.of_value:
            self.of_value.update(dict.fromkeys(self.tied(value) - self.of_value.keys(), padded))
