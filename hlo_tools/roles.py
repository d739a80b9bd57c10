"""Roles of the step's inputs: parameter, optimizer state, other state, batch, rng key, constant.

State is an input of which some output is the new version.  Who says which output that is: the argument
trees where there are any (a *state map*), else the program's own donation table, else `match_state`:
the longest run of outputs whose shapes and types equal a run of inputs.
A state leaf that the forward pass reads is a parameter; one that only the update reads is optimizer state.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from hlo_tools.common_run import longest_common_run
from hlo_tools.graph import LOOP_ENTER, LOOP_EXIT, Graph
from hlo_tools.phases import Phase


class Role(Enum):
    """What a step input is for. Values are the words of the plan file."""

    PARAMETER = "parameter"
    OPTIMIZER = "optimizer state"
    STATE = "other state"
    BATCH = "batch"
    RNG = "rng key"
    CONSTANT = "constant"


_FLOATS = frozenset({"f64", "f32", "bf16", "f16", "c64", "c128"})


def match_state(graph: Graph) -> Mapping[int, int]:
    """Output index -> input index, from the program alone.

    Donation entries are believed.  Otherwise outputs and inputs are aligned by their longest common run
    of (dtype, dims); runs shorter than two arrays are not trusted unless the output reads the input.
    """
    if graph.aliases:
        return dict(graph.aliases)
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    outs, ins = (
        [kinds.setdefault((graph.values[v].dtype, graph.values[v].dims), len(kinds)) for v in side]
        for side in (graph.outputs, graph.inputs)
    )
    length, first_out, first_in = longest_common_run(outs, ins)
    if length == 1 and graph.inputs[first_in] not in _ancestors(graph, graph.outputs[first_out]):
        return {}
    return {first_out + n: first_in + n for n in range(length)}


def _ancestors(graph: Graph, value: int) -> set[int]:
    seen, todo = {value}, [value]
    while todo:
        producer = graph.values[todo.pop()].producer
        for source in graph.ops[producer].inputs if producer >= 0 else ():
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return seen


def roles(
    graph: Graph,
    phases: Sequence[Phase],
    state_map: Mapping[int, int],
    rng_inputs: frozenset[int] = frozenset(),
) -> tuple[Role, ...]:
    """Role of every input. `rng_inputs` are those known to be typed random keys."""
    state = set(state_map.values())
    read_forward = _read_by_forward(graph, phases)
    training = any(phase is Phase.BACKWARD for phase in phases)
    result = []
    for index, value in enumerate(graph.inputs):
        array = graph.values[value]
        if index in rng_inputs or (array.dtype == "u32" and array.dims in ((2,), (4,))):
            role = Role.RNG
        elif index in state and array.dtype not in _FLOATS:
            role = Role.STATE
        elif index in state:
            role = Role.PARAMETER if value in read_forward else Role.OPTIMIZER
            if role is Role.OPTIMIZER and not training:
                role = Role.STATE
        elif not array.dims:
            role = Role.CONSTANT
        else:
            role = Role.BATCH
        result.append(role)
    return tuple(result) if state else _inference_roles(graph, result)


def _read_by_forward(graph: Graph, phases: Sequence[Phase]) -> set[int]:
    read = set[int]()
    for op, phase in zip(reversed(graph.ops), reversed(phases)):
        if op.opcode == LOOP_ENTER:
            # What a loop reads it reads inside: stacked parameters, or the state of a loop of steps.
            read.update(s for s, c in zip(op.inputs, op.outputs) if c in read)
        elif op.opcode != LOOP_EXIT and phase is Phase.FORWARD:
            read.update(op.inputs)
    return read


def _inference_roles(graph: Graph, guessed: list[Role]) -> tuple[Role, ...]:
    """Without state, the few large float arrays that are contracted are parameters.

    A batch shares its leading size with an output; what does not is a parameter.
    """
    leading = {graph.values[v].dims[0] for v in graph.outputs if graph.values[v].dims}
    result = []
    for value, role in zip(graph.inputs, guessed):
        array = graph.values[value]
        is_batch = bool(array.dims) and array.dims[0] in leading
        if role is Role.BATCH and array.dtype in _FLOATS and not is_batch:
            role = Role.PARAMETER
        result.append(role)
    return tuple(result)
