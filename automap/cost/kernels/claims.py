"""Which values may stay in the memory on the chip, and how much of it each may claim.

What that memory has room for is not written and read again                     -> in: `automap.cost.kernels.roofline`
"""

from automap.program.problem import Problem
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT, STRUCTURAL


def claims_of(problem: Problem, loop_claim: float) -> list[float]:
    """For each value its claim to the memory on the chip: 0 for none.

    1 if it is made and read within one phase, `loop_claim` (of `TileNumbers`) if a loop reads the whole of it in every
    trip, 0 for inputs, results, and stacks that a loop fills or takes apart.
    """
    graph = problem.graph
    claims = [float(value.producer >= 0) for value in graph.values]
    for op in graph.ops:
        carried = op.outputs if op.opcode == LOOP_ENTER else op.inputs
        for value in carried if op.opcode in (LOOP_ENTER, LOOP_EXIT) else ():
            claims[value] *= loop_claim
    for value in graph.outputs:
        claims[value] = 0.0
    for index, op in enumerate(graph.ops):
        is_handed_on = op.opcode in STRUCTURAL and op.opcode != LOOP_EXIT
        for value in op.inputs:
            producer = graph.values[value].producer
            if is_handed_on or problem.phases[producer] != problem.phases[index]:
                claims[value] = 0.0
        if op.opcode == "dynamic-update-slice":
            claims[op.inputs[0]] = claims[op.outputs[0]] = 0.0
        elif op.opcode == "dynamic-slice":
            claims[op.inputs[0]] = 0.0
    return claims
