"""Transitions: where an op's own view of a tensor is not the plan's, and where the partitioner
would not keep to it.

An op is given the sharding it runs on (`in<j>`), and its result the one that the plan keeps
(`out<j>`) and, if the partitioner would split the op itself otherwise, first the one that the op
leaves (`made<j>`). `automap.planner.constraints` says at which equation of the step.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from automap.planner.sharded_graph import AxesPerDim, ShardedGraph
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Graph, HandOver
from hlo_tools.opcodes import (
    BROADCAST,
    CONSTANT,
    CONSTRAINT,
    CONVERT,
    GATHER,
    LOOP_ENTER,
    MANUAL_ENTER,
    MANUAL_EXIT,
    SELECT_AND_SCATTER,
    SLICE,
    STRUCTURAL,
)


@dataclass(frozen=True, slots=True)
class Transition:
    """`in3`, `made0` or `out0` of an op, with the axes to impose there."""

    place: str
    value: int
    axes: AxesPerDim
    is_change: bool


def _axes(per_dim: AxesPerDim) -> set[str]:
    return {axis for axes in per_dim for axis in axes}


def _is_split_more(these: AxesPerDim, others: AxesPerDim) -> bool:
    """Whether some dimension is split along an axis along which the other is not."""
    return any(set(a) - set(b) for a, b in zip(these, others))


def moved_values(sharded: ShardedGraph) -> set[int]:
    """Values that some op wants otherwise than the plan keeps them, or that are stored so.

    Propagation would carry that view back into the op that makes the value: a slice, which costs
    nothing here, may there be an exchange, and a gather may come before an op that makes a tensor
    smaller.
    """
    graph = sharded.problem.graph
    is_parameters = (sharded.problem.storage.side == Side.PARAMETER).tolist()
    moved = _sliced_outputs(sharded) | _gradients_of_pools(graph) | _constants_of_loops(graph)
    for index, op in enumerate(graph.ops):
        if op.opcode not in STRUCTURAL:
            for value, dims in zip(op.inputs, sharded.problem.linkage.rules[index].operands):
                # A stored parameter is gathered once, before it is reshaped for each use, and needs
                # no pin. But its cast to a narrower type might come after the gather, one that a
                # loop of steps hands on whole would be split by its update, and a loop's slice
                # that moves between dimensions would be moved as the whole stack, in every trip.
                is_stored = is_parameters[value] and not _is_narrowed(graph, value)
                is_handed_on = graph.hand_over(value) is not None or value in graph.changed_once
                is_in_body = index in graph.outermost_region
                is_kept = is_stored and not is_handed_on and not is_in_body
                if graph.varies[value] and not is_kept and value not in moved:
                    kept, run = (
                        sharded.value_axes(value),
                        sharded.axes_in_op(index, value, dims),
                    )
                    if _is_split_more(run, kept) if is_stored else kept != run:
                        moved.add(value)
    return moved


def _is_narrowed(graph: Graph, value: int) -> bool:
    """Whether a value was just cast to a type of fewer bytes."""
    producer = graph.values[value].producer
    if producer < 0 or graph.ops[producer].opcode != CONVERT:
        return False
    (wider,) = graph.ops[producer].inputs
    return graph.values[value].n_bytes < graph.values[wider].n_bytes


def _sliced_outputs(sharded: ShardedGraph) -> set[int]:
    """New state that is stored split along more axes than it is computed: a slice at the step's
    end.
    """
    graph = sharded.problem.graph
    return {
        graph.outputs[output]
        for output, source in sharded.problem.state_map.items()
        if _is_split_more(
            sharded.value_axes(graph.inputs[source]), sharded.value_axes(graph.outputs[output])
        )
    }


def _gradients_of_pools(graph: Graph) -> set[int]:
    """What a select-and-scatter makes whose windows overlap by half, and what is cut out of that.

    The partitioner's result is wrong where it splits the image (jaxlib 0.10 and 0.12), which no
    plan does.
    """
    gradients = set[int]()
    for op in graph.ops:
        if op.opcode == SELECT_AND_SCATTER:
            # Half or more: then an element belongs to several windows, which is where the
            # partitioner errs.
            windows = op.instruction.attributes.window
            if any(w.size >= 2 * w.stride for w in windows):
                gradients.update(op.outputs)
        elif op.opcode == SLICE and op.inputs[0] in gradients:
            # JAX pads the image first.
            gradients.update(op.outputs)
    return gradients


def _constants_of_loops(graph: Graph) -> set[int]:
    """What is made from no input and read by a loop's body, as a mask is.

    The partitioner may split it by whatever is near and gather it in every trip.
    """
    return {
        value
        for op in graph.ops
        if op.opcode == LOOP_ENTER
        for value in op.inputs
        if not graph.varies[value]
        and graph.ops[graph.values[value].producer].opcode not in (BROADCAST, CONSTANT)
    }


def transitions(sharded: ShardedGraph, index: int, moved: Collection[int]) -> Sequence[Transition]:
    """Where an op's own view of a tensor is not the plan's, or a user's is not."""
    if index in sharded.problem.graph.local_ops:
        return ()
    # The user's own constraint is imposed by the step itself; only what it leaves open is the
    # plan's to say.
    if sharded.problem.graph.ops[index].opcode == CONSTRAINT:
        if _is_of_manual(sharded.problem.graph, index):
            return ()
        return _around_constraint(sharded, index)
    if index in sharded.problem.imposed.specs_by_stack_op:
        # A scan writes and reads its stacks itself: no equation is theirs.
        return ()
    graph, rule = sharded.problem.graph, sharded.problem.linkage.rules[index]
    op, varies = graph.ops[index], graph.varies
    # Propagation does not go along windows on its own.
    is_written_out = sharded.is_written_out(index)
    slides = is_written_out or sharded.slides(index)
    results = []
    for number, (value, dims) in enumerate(zip(op.outputs, rule.results)):
        # Scalars are whole everywhere, and what depends on no input costs nothing to make anywhere.
        if (varies[value] or value in moved) and dims:
            kept, run = sharded.value_axes(value), sharded.axes_in_op(index, value, dims)
            # Pinned though it is kept as it is made, where another op's view would otherwise be
            # propagated back into this one.
            if kept != run or value in moved or slides:
                if _must_be_made(sharded, index, kept, run):
                    results.append(Transition(f"made{number}", value, run, is_change=True))
                results.append(Transition(f"out{number}", value, kept, is_change=kept != run))
    operands = []
    for number, (value, dims) in enumerate(zip(op.inputs, rule.operands)):
        # Of a convolution that is written out all operands have to be known, constants too.
        if (varies[value] or is_written_out) and dims:
            kept, run = sharded.value_axes(value), sharded.axes_in_op(index, value, dims)
            # Axes the op splits and the tensor does not are slices, which need no help.
            is_change = _is_split_more(kept, run)
            # What enters or leaves a loop has no op that makes it: it is pinned from its first use
            # on, or where it is used if it is the same in all trips.
            hand_over = graph.hand_over(value) if value in moved else None
            is_changed_once = value in graph.changed_once and value in moved
            if hand_over is HandOver.CHANGED or is_changed_once:
                operands.append(Transition(f"from{number}", value, kept, is_change=False))
            # Where the result is pinned the operands are too: else the partitioner moves the change
            # to them.
            is_told = bool(results) or sharded.is_attention(index)
            if is_change or is_told or hand_over is HandOver.KEPT:
                operands.append(Transition(f"in{number}", value, run, is_change=is_change))
    return (*operands, *results)


def _around_constraint(sharded: ShardedGraph, index: int) -> Sequence[Transition]:
    """What the user's constraint, which the step keeps, does not say by itself.

    That is what the plan splits of dimensions it leaves free, and how the result is kept if that is
    otherwise. Of two changes one after the other only the second would be left in the compiled
    program: where nothing makes or uses the tensor as constrained, it is held there (`made0`).
    """
    graph, op = sharded.problem.graph, sharded.problem.graph.ops[index]
    (operand,), (result,) = op.inputs, op.outputs
    dims = sharded.problem.linkage.rules[index].operands[0]
    run, kept = sharded.axes_in_op(index, operand, dims), sharded.value_axes(result)
    if not graph.varies[result] or not dims:
        return ()
    constraints = []
    # A dimension that the constraint leaves free may be split by the plan.
    if None in sharded.problem.imposed.specs_by_op[index]:
        is_change = _is_split_more(sharded.value_axes(operand), run)
        constraints.append(Transition("in0", operand, run, is_change=is_change))
    if not _is_met(sharded, operand, result, run):
        constraints.append(Transition("made0", result, run, is_change=True))
    if kept != run:
        constraints.append(Transition("out0", result, kept, is_change=True))
    return constraints


def _is_of_manual(graph: Graph, index: int) -> bool:
    """Whether a constraint stands for what a `shard_map` asks of an operand or a result: its
    equation says so itself.
    """
    op = graph.ops[index]
    producer = graph.values[op.inputs[0]].producer
    ends = [graph.ops[user].opcode for user in graph.users[op.outputs[0]]]
    return MANUAL_ENTER in ends or (producer >= 0 and graph.ops[producer].opcode == MANUAL_EXIT)


def _is_met(sharded: ShardedGraph, operand: int, result: int, spec: AxesPerDim) -> bool:
    """Whether an op makes or uses a constrained tensor as it is to be, or it is handed on so."""
    graph = sharded.problem.graph
    if spec in (
        sharded.value_axes(operand),
        result in graph.outputs and sharded.value_axes(result),
    ):
        return True
    for user in graph.users[result]:
        op = graph.ops[user]
        # It is handed on as it is kept.
        if op.opcode in STRUCTURAL:
            views = [sharded.value_axes(result)]
        else:
            operands = zip(op.inputs, sharded.problem.linkage.rules[user].operands)
            views = [sharded.axes_in_op(user, v, dims) for v, dims in operands if v == result]
        if spec in views:
            return True
    return False


def _must_be_made(sharded: ShardedGraph, index: int, kept: AxesPerDim, run: AxesPerDim) -> bool:
    """Whether a result has to be pinned as its op makes it, before it is kept otherwise.

    A sum that is scattered can be left to the partitioner, but for a look-up in split rows, and for
    reductions of several arrays at once (argmax), which are gathered instead of summed. What else
    is moved would be split by the op itself, and some ops the partitioner then gets wrong
    (overlapping windows). Where an axis is idle it would split the op over that one and permute the
    result, and where the dimension that gets the parts is split already the result can be wrong
    (jaxlib 0.10 and 0.12: the batch of a matmul). Convolutions that are written out are known by
    this pin.
    """
    summed = sharded.summed_axes(index)
    scattered = [summed & set(axes) for axes in kept]
    # A sum that is scattered onto a dimension which is split already.
    onto_split = any(new and has for new, has in zip(scattered, run))
    if sharded.is_written_out(index) or onto_split:
        return True
    op = sharded.problem.graph.ops[index]
    is_gathered = op.opcode == GATHER or op.is_joint_reduction
    if kept != run and (is_gathered or not any(scattered)):
        return True
    # Left to itself the partitioner would use them for the op, and permute its result afterwards.
    idle = sharded.idle_axes(index)
    return bool(idle & _axes(kept) or (idle and any(scattered)))
