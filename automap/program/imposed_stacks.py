"""What a loop keeps of a constrained tensor for its backward pass: stacks of it are split as the
tensor is.

    v -> [1, v]                    a reshape
    [1, v] -> [.., v, ..]          written into a stack that the loop carries along
    [.., v, ..] -> [1, v] -> v     read from it

Each of these values has the spec of v, nothing on the dimension of the stack, and the ops between
them run so.
"""

from collections.abc import Callable, Mapping

from automap.step.specs import ImposedSpec
from hlo_tools.graph import Graph, Op


_WRITE, _READ = "dynamic-update-slice", "dynamic-slice"


def follow_stacks(
    graph: Graph,
    of_value: Mapping[int, ImposedSpec],
    may_impose: Callable[[int, ImposedSpec], list[int]],
    tied: Callable[[int], set[int]],
) -> dict[int, ImposedSpec]:
    """The ops that run as constrained tensors are split, with the spec of their first operand.

    `of_value` grows: `may_impose(value, spec)` imposes a spec on a value and those `tied` to it,
    and gives those it imposed it on, [] if another is imposed there.
    """
    found: dict[int, ImposedSpec] = {}
    left = list(of_value)
    while left:
        value = left.pop()
        for index in graph.users[value]:
            op = graph.ops[index]
            spec = _spec_of_result(graph, op, value, of_value[value])
            if spec is None or (op.opcode == _WRITE and op.inputs[0] not in tied(op.outputs[0])):
                continue
            left += may_impose(op.outputs[0], spec)
            if of_value.get(op.outputs[0]) == spec:
                found[index] = of_value[op.inputs[0]]
    return found


def _spec_of_result(graph: Graph, op: Op, value: int, spec: ImposedSpec) -> ImposedSpec | None:
    """The spec of what an op makes of a tensor, None for any op but the three."""
    if op.opcode not in ("reshape", "broadcast", _WRITE, _READ):
        return None
    before, after = graph.values[value].dims, graph.values[op.outputs[0]].dims
    if op.opcode in ("reshape", "broadcast"):
        if after == (1, *before):
            return ((), *spec)
        return spec[1:] if before == (1, *after) and spec[0] == () else None
    is_one = before[0] if op.opcode == _WRITE else after[0]
    place = 1 if op.opcode == _WRITE else 0
    same = before[1:] == after[1:] and op.inputs[place] == value
    return spec if same and is_one == 1 and spec[0] == () else None
