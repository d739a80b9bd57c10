"""Roles of the step's inputs: parameter, optimizer state, other state, batch, rng key, constant.

State is an input of which some output is the new version.  Who says which output that is: the argument
trees where there are any (a *state map*), else the program's own donation table, else `match_state`:
the longest run of outputs whose shapes and types equal a run of inputs.
What kind of state a leaf is follows from the data flow                         -> `hlo_tools.state_roles`
"""

from collections.abc import Mapping, Sequence

from hlo_tools.common_run import longest_common_run
from hlo_tools.graph import Graph
from hlo_tools.phases import Phase
from hlo_tools.state_roles import FLOATS, Role, StateRoles


def match_state(graph: Graph) -> Mapping[int, int]:
    """Output index -> input index, from the program alone.

    Donation entries are believed. Otherwise outputs and inputs are aligned by their longest common
    run of (dtype, dims); runs shorter than two arrays are not trusted unless the output reads the
    input.
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
    of_state = StateRoles(graph, phases, state_map)
    result = []
    for index, value in enumerate(graph.inputs):
        array = graph.values[value]
        if index in rng_inputs or (array.dtype == "u32" and array.dims in ((2,), (4,))):
            role = Role.RNG
        elif index in of_state.new:
            role = of_state.role(index)
        elif not array.dims:
            role = Role.CONSTANT
        else:
            role = Role.BATCH
        result.append(role)
    has_weights = any(role in (Role.PARAMETER, Role.OPTIMIZER) for role in result)
    return tuple(result) if has_weights else _inference_roles(graph, state_map, result)


def _inference_roles(
    graph: Graph, state_map: Mapping[int, int], guessed: list[Role]
) -> tuple[Role, ...]:
    """Where no state is a parameter, the few large float arrays that are contracted are.

    A batch shares its leading size with an output; what does not is a parameter.
    """
    answers = [v for i, v in enumerate(graph.outputs) if i not in state_map] or graph.outputs
    leading = {graph.values[v].dims[0] for v in answers if graph.values[v].dims}
    result = []
    for value, role in zip(graph.inputs, guessed):
        array = graph.values[value]
        is_batch = bool(array.dims) and array.dims[0] in leading
        if role is Role.BATCH and array.dtype in FLOATS and not is_batch:
            role = Role.PARAMETER
        result.append(role)
    return tuple(result)


__all__ = ["Role", "match_state", "roles"]
