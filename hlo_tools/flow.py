"""How data flows through the ops of a graph: which of an op's inputs each of its outputs is made
of.

A loop's carry comes from what is handed in at its place, and a branch's result from the result at
its place of each branch; `shard_map` hands on arrays and their parts by place; what any other op
makes comes from all that it reads. A loop's body is followed once, from what the loop starts with:
what its second trip reads of the first is not seen.
"""

from collections.abc import Iterator, Sequence

from hlo_tools.graph import BRANCH_EXIT, LOOP_ENTER, LOOP_EXIT, MANUAL_ENTER, MANUAL_EXIT, Op


# Ops that do work over whole dimensions of what they read; all others make each element of few.
HEAVY: frozenset[str] = frozenset(
    {"dot", "convolution", "ragged-dot", "scatter", "gather", "reduce", "reduce-window"}
)


_BY_PLACE = frozenset({LOOP_ENTER, LOOP_EXIT, BRANCH_EXIT, MANUAL_ENTER, MANUAL_EXIT})


def made_of(op: Op) -> Iterator[tuple[int, Sequence[int]]]:
    """(output, the inputs it is made of) of one op."""
    if op.opcode in _BY_PLACE:
        for place, output in enumerate(op.outputs):
            yield output, op.inputs[place :: len(op.outputs)]
    else:
        for output in op.outputs:
            yield output, op.inputs
