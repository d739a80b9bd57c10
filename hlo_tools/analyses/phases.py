"""Phases: which ops are the forward pass, which the backward pass, which the update.

JAX writes the transformations that made an op into its name, the outermost first: `transpose(` is
the backward pass, `jvp(` the forward pass of a differentiated function, without either the op
stands outside of one. What stands outside, o, by data flow:

    after(o)    o depends on a backward pass
    leads(o)    some user of o is forward or backward
    forward     leads(o), not after(o): casts of the batch, what an old policy says of it
    update      after(o): also where a further forward pass comes after it, as with several updates
                in a step
    forward     after(o), and o is or depends on a contraction of new parameters with data that
                leads to a further forward pass: the next episode, a target of the next update
                                                                    -> in: `_next_forward_pass`

*Data* is what depends on a non-state array, or on a contraction of a forward pass, and on no
backward pass. Ops without a name take the phase of their users. A program in which no name says
`transpose(` (inference, or a dump without metadata) is read by data flow: what leads to outputs
that replace no input is forward, and the rest is backward or update by whether it feeds a
contraction.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
import re

from hlo_tools.graph import Graph, sources_by_output
from hlo_tools.opcodes import (
    CONTRACTIONS,
    LOOP_ENTER,
    LOOP_EXIT,
    STRUCTURAL,
    WHOLE_DIMENSIONS,
)


_TRANSFORMATION = re.compile(r"transpose\(|jvp\(")


class Phase(IntEnum):
    """Part of a train step."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


def phases(graph: Graph, state_map: Mapping[int, int]) -> Sequence[Phase]:
    """Phase of every op; `state_map` is output index -> index of the input of which it is the new
    version.
    """
    # JAX names all that it transposes, so one name says that names can be relied on.
    if any("transpose(" in op.op_name for op in graph.ops):
        return _by_name(graph, frozenset(state_map.values()))
    return _by_flow(graph, frozenset(state_map))


def awaited_by_products(graph: Graph, phases: Sequence[Phase]) -> list[int]:
    """For each product of a backward pass that leads to no other product of its computation, as the
    gradient of weights does, the last op of the computation that does; -1 for all else.

    Computations are the program and the bodies of its loops; a loop is as a product there.
    """
    around, computation = list[int](), list[int]()
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_EXIT:
            around.pop()
        computation.append(around[-1] if around else -1)
        if op.opcode == LOOP_ENTER:
            around.append(index)
    leads = _leading_to_products(graph)
    last, ends = dict[int, int](), set[int]()
    for index, op in enumerate(graph.ops):
        if phases[index] is not Phase.BACKWARD:
            continue
        if op.opcode == LOOP_EXIT or (op.opcode in CONTRACTIONS and leads[op.outputs[0]]):
            last[computation[index]] = index
        elif op.opcode in CONTRACTIONS:
            ends.add(index)
    return [last.get(here, -1) if n in ends else -1 for n, here in enumerate(computation)]


def _leading_to_products(graph: Graph) -> list[bool]:
    """Whether a product or a loop of the same computation, or of its next trip, reads a value,
    maybe by way of other ops.
    """
    leads = [False] * len(graph.values)
    entry = {end: enter for enter, end in graph.exit_by_entry.items()}
    # What the next trip reads of a carry is known after the first walk over the body.
    for _ in range(2):
        for index in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[index]
            if op.opcode == LOOP_EXIT:
                carried = graph.ops[entry[index]].outputs
                for value, begun in zip(op.inputs, carried):
                    leads[value] = leads[value] or leads[begun]
            elif (
                op.opcode in CONTRACTIONS
                or op.opcode == LOOP_ENTER
                or any(leads[v] for v in op.outputs)
            ):
                for value in op.inputs:
                    leads[value] = True
    return leads


def after_backward(graph: Graph, phases: Sequence[Phase | None]) -> list[bool]:
    """Whether each value is made by a backward pass, or of what one makes."""
    after = [False] * len(graph.values)
    for op, phase in zip(graph.ops, phases, strict=True):
        is_backward = phase is Phase.BACKWARD and op.opcode not in STRUCTURAL
        for output, sources in sources_by_output(op):
            after[output] = is_backward or any(after[v] for v in sources)
    return after


def data(graph: Graph, phases: Sequence[Phase | None], state_inputs: frozenset[int]) -> list[bool]:
    """Whether each value depends on a non-state array or a contraction of a forward pass, and not
    by way of a gradient.
    """
    is_data = [False] * len(graph.values)
    for position, value in enumerate(graph.inputs):
        is_data[value] = position not in state_inputs and bool(graph.values[value].dims)
    for op, phase in zip(graph.ops, phases, strict=True):
        is_activation = phase is Phase.FORWARD and op.opcode in WHOLE_DIMENSIONS
        for output, sources in sources_by_output(op):
            is_data[output] = phase is not Phase.BACKWARD and (
                is_activation or any(is_data[v] for v in sources)
            )
    return is_data


def _by_name(graph: Graph, state_inputs: frozenset[int]) -> list[Phase]:
    named = _inner_gradients(graph, [_phase_by_name(op.op_name) for op in graph.ops])
    after = after_backward(graph, named)
    result, leads = _before_backward(graph, named, after)
    return _fill(graph, _next_forward_pass(graph, result, leads, after, state_inputs))


def _phase_by_name(op_name: str) -> Phase | None:
    """The phase by the outermost transformation in a name: a gradient inside of what is
    differentiated is forward.
    """
    outermost = _TRANSFORMATION.search(op_name)
    if outermost is None:
        return Phase.UPDATE if op_name else None
    return Phase.BACKWARD if outermost[0] == "transpose(" else Phase.FORWARD


def _inner_gradients(graph: Graph, named: Sequence[Phase | None]) -> list[Phase | None]:
    """A gradient that only a forward pass reads is part of it: a force, whose outer name was lost
    as it left a loop.
    """
    result = list(named)
    for index in range(len(named) - 1, -1, -1):
        if named[index] is Phase.BACKWARD:
            users = {result[user] for v in graph.ops[index].outputs for user in graph.users[v]}
            if users == {Phase.FORWARD}:
                result[index] = Phase.FORWARD
    return result


def _before_backward(
    graph: Graph, named: Sequence[Phase | None], after: Sequence[bool]
) -> tuple[list[Phase | None], list[bool]]:
    """Work outside that leads into a forward pass and depends on no gradient is forward.

    With the values that lead to a forward or backward pass, by way of updates too.
    """
    # `direct`: leads to an op of a differentiated function through ops that depend on no gradient;
    # `leads`: through any.
    direct, leads = [False] * len(graph.values), [False] * len(graph.values)
    result = list(named)
    for index in range(len(graph.ops) - 1, -1, -1):
        for output, sources in sources_by_output(graph.ops[index]):
            is_update = named[index] is Phase.UPDATE
            if is_update and direct[output] and not after[output]:
                result[index] = Phase.FORWARD
            is_lead = not is_update or (direct[output] and not after[output])
            for value in sources:
                direct[value] |= is_lead
                leads[value] |= not is_update or leads[output]
    return result, leads


def _next_forward_pass(
    graph: Graph,
    known: Sequence[Phase | None],
    leads: Sequence[bool],
    after: Sequence[bool],
    state_inputs: frozenset[int],
) -> list[Phase | None]:
    """What new parameters do with data, up to the next forward pass, is forward; a scalar made so
    says nothing of its users.
    """
    is_data = data(graph, known, state_inputs)
    in_next_pass = [False] * len(graph.values)
    result = list(known)
    for index, op in enumerate(graph.ops):
        if known[index] is not Phase.UPDATE:
            continue
        # New parameters, which are after a backward pass, with data, which is not.
        meets = (
            op.opcode in WHOLE_DIMENSIONS
            and any(after[v] for v in op.inputs)
            and any(is_data[v] and not after[v] and graph.values[v].dims for v in op.inputs)
        )
        for output, sources in sources_by_output(op):
            is_in_next_pass = (meets and leads[output]) or any(in_next_pass[v] for v in sources)
            if is_in_next_pass:
                result[index] = Phase.FORWARD
            in_next_pass[output] = is_in_next_pass and bool(graph.values[output].dims)
    return result


def _fill(graph: Graph, known: list[Phase | None]) -> list[Phase]:
    result: list[Phase] = [Phase.UPDATE] * len(known)
    for index in range(len(known) - 1, -1, -1):
        phase = known[index]
        if phase is None:
            users = [result[u] for v in graph.ops[index].outputs for u in graph.users[v]]
            # One user in the forward pass suffices: the op has to run by then.
            phase = min(users, default=Phase.UPDATE)
        result[index] = phase
    return result


def _by_flow(graph: Graph, state_outputs: frozenset[int]) -> list[Phase]:
    loss = {v for i, v in enumerate(graph.outputs) if i not in state_outputs}
    if not loss and any(op.op_name for op in graph.ops):
        # JAX would have named a gradient: a step of inference whose answer is its state.
        return [Phase.FORWARD] * len(graph.ops)
    forward = [False] * len(graph.values)
    for value in loss:
        forward[value] = True
    # Gradients of weights are contractions, and so is all that leads to them; an optimizer's own
    # ops are elementwise.
    feeds_heavy = [False] * len(graph.values)
    result = [Phase.UPDATE] * len(graph.ops)
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if any(forward[v] for v in op.outputs):
            result[index] = Phase.FORWARD
        elif op.opcode in WHOLE_DIMENSIONS or any(feeds_heavy[v] for v in op.outputs):
            result[index] = Phase.BACKWARD
        for value in op.inputs:
            forward[value] |= result[index] is Phase.FORWARD
            feeds_heavy[value] |= result[index] is Phase.BACKWARD
    return result
