"""Roles of the step's inputs: parameter, optimizer state, other state, batch, rng key, constant.

State is an input of which some output is the new version. Who says which output that is: the
argument trees where there are any (a *state map*), else the program's own donation table, else
`match_state`: the longest run of outputs whose shapes and types equal a run of inputs. What kind of
state a leaf is follows from the data flow (`hlo_tools.analyses.state_roles`).

The longest run that two sequences have in common is found in n log n: a run of length L that both
have contains one of length L - 1, so the greatest L is found by bisection. The runs of one length
are compared by their polynomial hashes modulo 2**64, and a match is checked in full.
                                                                -> in: `longest_common_run`
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.state_roles import FLOATS, Role, StateRoles
from hlo_tools.graph import Graph


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
    state_roles = StateRoles(graph, phases, state_map)
    result = []
    for index, value in enumerate(graph.inputs):
        array = graph.values[value]
        # Untyped keys: two words for threefry, four for the RBG generators.
        if index in rng_inputs or (array.dtype == "u32" and array.dims in ((2,), (4,))):
            role = Role.RNG
        elif index in state_roles.new:
            role = state_roles.role(index)
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


# Odd, and 2**64 over the golden ratio: products spread over all bits.
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def longest_common_run(first: Sequence[int], second: Sequence[int]) -> tuple[int, int, int]:
    """(length, start in `first`, start in `second`) of the longest run; of equals the earliest in
    `first`, then in `second`; (0, 0, 0) if there is none."""
    hashes = _prefix_hashes(first), _prefix_hashes(second)
    low, high = 0, min(len(first), len(second))
    longest = (0, 0, 0)
    while low < high:
        length = (low + high + 1) // 2
        match = _match(first, second, hashes, length)
        if match is None:
            high = length - 1
        else:
            low, longest = length, (length, *match)
    return longest


def _prefix_hashes(items: Sequence[int]) -> np.ndarray:
    total, result = 0, [0]
    for item in items:
        # From 1 on, or leading zeros would not count.
        total = (total * _BASE + item + 1) & _MASK
        result.append(total)
    return np.array(result, np.uint64)


def _match(
    first: Sequence[int], second: Sequence[int], hashes: tuple[np.ndarray, np.ndarray], length: int
) -> tuple[int, int] | None:
    power = np.uint64(pow(_BASE, length, 1 << 64))
    # The hash of items a .. b - 1 is h[b] - h[a] base^(b - a); uint64 wraps as the modulus wants
    # it.
    runs = [h[length:] - h[:-length] * power for h in hashes]
    known, earliest = np.unique(runs[1], return_index=True)
    place = np.minimum(np.searchsorted(known, runs[0]), len(known) - 1)
    for a in np.flatnonzero(known[place] == runs[0]).tolist():
        b = int(earliest[place[a]])
        if first[a : a + length] == second[b : b + length]:
            return a, b
    return None
