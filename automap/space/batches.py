"""All classes of the batch: a step may have several that share no dimension.

The towers of a contrastive loss meet in its logits only, points inside a domain and on its boundary
never. Who runs such a step data-parallel splits them all.

What another batch makes larger                                        -> in: `growing_classes`
How much the batch holds: its examples                                      -> in: `batch_size`
and the positions of its longest sequence of integers                       -> in: `batch_tokens`
"""

from collections.abc import Collection
from dataclasses import dataclass
import math
from typing import Final

from automap.program.problem import Problem
from automap.program.work import shared_work
from hlo_tools.analyses.roles import Role


_TOKEN_DTYPES: Final = frozenset({"s16", "u16", "s32", "u32", "s64", "u64"})
"""HLO's names; integers of 8 bits are pixels."""
_CUTTING: Final = frozenset({"slice", "convert", "copy"})
"""Opcodes that hand on a part of a sequence, as a step does that is given one token more."""


def batch_classes(problem: Problem) -> tuple[int, ...]:
    """The class of the batch first, then those of no parameter that other batch inputs hold on
    their leading dimension.

    One that meets the batch is of the same size, and less than half of its work and of the batch's
    is where they meet: else it is a sequence (positions), or a set that all of the batch shares.
    """
    batch = problem.batch_class
    if batch is None:
        return ()
    # Not a leading dimension of the inputs, so nothing says which other classes would be of its
    # kind.
    if batch not in problem.leading:
        return (batch,)
    # Towers share no tensor until their loss; a sequence stands beside the batch in nearly all.
    met = {
        c
        for p in problem.pair_conflicts
        if batch in (p.first, p.second)
        for c in (p.first, p.second)
    }
    others = (c for c in problem.leading if c != batch and c not in problem.state_classes)
    return (batch, *(c for c in others if c not in met or _is_tower(problem, batch, c)))


def _is_tower(problem: Problem, batch: int, other: int) -> bool:
    # A tower has as many examples as the batch has.
    if problem.limits[other] != problem.limits[batch]:
        return False
    done = problem.work.by_class
    both = shared_work(problem.linkage, problem.class_of_group, batch, other)
    # Most of the work of each is without the other.
    return 2 * both < min(done.get(batch, 0.0), done.get(other, 0.0))


def undivided_batch(problem: Problem, n_devices: int) -> tuple[str, ...]:
    """That the batch cannot be split over all devices though it is large enough, and the next size
    of which it can.

    A step that goes through the batch in parts, as under accumulation, splits a part: of all its
    examples there have to be as many more.
    """
    batch = problem.batch_class
    size = 0 if batch is None else int(problem.limits[batch])
    parts = math.gcd(size, n_devices)
    # One example cannot be split, and where all devices have work there is nothing to say.
    if size < 2 or parts == min(size, n_devices):
        return ()
    examples = max(batch_size(problem), size)
    multiple = n_devices * (examples // size)
    more = -(-examples // multiple) * multiple
    return (
        f"the batch divides by {size}, so it can be split over {parts} of {n_devices} devices; a "
        "multiple of "
        f"{multiple} over all of them, as {more}",
    )


def growing_classes(problem: Problem) -> tuple[int, ...]:
    """Classes that are as many times as large as the batch: its own, and those that lead other
    batch inputs of as many examples, whose work is mostly with the batch, as of a contrastive loss.
    """
    size, batches = batch_size(problem), batch_classes(problem)
    values = problem.graph.values
    led = (
        problem.compute_classes(v)[0]
        for v, role in zip(problem.graph.inputs, problem.roles, strict=True)
        if role is Role.BATCH and values[v].dims[:1] == (size,)
    )
    # What stands inside an input too is a sequence that is as long by chance, and of what a step
    # goes through in a loop the parts grow, of which there are as many.
    others = (c for c in led if c < problem.n_classes and c not in problem.inner_classes)
    fixed = {*batches, *problem.state_classes, *problem.loop_classes}
    return (*batches, *dict.fromkeys(c for c in others if c not in fixed))


def batch_size(problem: Problem) -> int:
    """The examples of the batch: the leading dimension of the inputs that hold it, or that a step
    reshapes to microbatches which it goes through in a loop, or in loops within each other, as
    where gradients are accumulated over such a step; 0 without a batch.
    """
    batch = problem.batch_class
    if batch is None:
        return 0
    values = problem.graph.values
    whole = {
        values[v].dims[0]
        for v, role in zip(problem.graph.inputs, problem.roles, strict=True)
        if role is Role.BATCH and problem.compute_classes(v)[:1] == (batch,)
    }
    folded = {values[problem.graph.inputs[i]].dims[0] for i in _folded_inputs(problem, batch)}
    nested = _in_nested_loops(problem, batch)
    return min(whole or folded or nested, default=int(problem.limits[batch]))


def _in_nested_loops(problem: Problem, batch: int) -> set[int]:
    """Sizes of batch inputs whose first dimension is that of a loop, and which hold the batch of
    that loop several times.
    """
    values, limits = problem.graph.values, problem.limits
    return {
        dims[0]
        for v, role in zip(problem.graph.inputs, problem.roles, strict=True)
        if role is Role.BATCH
        and (dims := values[v].dims)
        and (leading := problem.compute_classes(v)[0]) in problem.loop_classes
        and dims[0] > int(limits[leading])
        and dims[0] % (int(limits[leading]) * int(limits[batch])) == 0
    }


def _folded_inputs(problem: Problem, batch: int) -> list[int]:
    """Positions of the batch inputs that a step reshapes to microbatches and goes through in a
    loop: of [64] as [4, 16] only the 4 are linked with the input.
    """
    inputs = zip(problem.graph.inputs, problem.roles, strict=True)
    return [
        i
        for i, (v, role) in enumerate(inputs)
        if role is Role.BATCH
        and (dims := problem.graph.values[v].dims)
        and (leading := problem.compute_classes(v)[0]) in problem.loop_classes
        and dims[0] == int(problem.limits[leading]) * int(problem.limits[batch])
    ]


def whole_inputs(
    problem: Problem, split: Collection[int], imposed: Collection[int]
) -> tuple[str, ...]:
    """That batch inputs lie whole on every device under a plan that splits the classes `split`, as
    no part of such an input is a part of each microbatch, and how to write it. The user says where
    the inputs `imposed` lie.
    """
    batch = problem.batch_class
    if batch is None or batch not in split:
        return ()
    whole = [
        i
        for i in _folded_inputs(problem, batch)
        if i not in imposed and problem.compute_classes(problem.graph.inputs[i])[0] not in split
    ]
    if not whole:
        return ()
    first, each = whole[0], int(problem.limits[batch])
    count = problem.graph.values[problem.graph.inputs[first]].dims[0] // each
    more = f" and {len(whole) - 1} more" if len(whole) > 1 else ""
    return (
        f"{problem.paths[first]}{more}: whole on every device, as it is reshaped to {count:,} "
        f"microbatches of {each:,} samples that follow each other; "
        f"x.reshape({each}, {count}, ...).swapaxes(0, 1) in place of x.reshape({count}, {each}, "
        "...) takes microbatches of other samples, and lets it be split",
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """How many tokens a step has, and the path of the input that they were counted in."""

    count: int
    path: str


def batch_tokens(problem: Problem) -> Tokens | None:
    """The positions of the longest integers [batch, sequence], the first of equals; None without
    such.

    A sequence is a dimension that operations iterate over: a row of a table's indices, each of
    which is looked up by itself, is none.
    """
    path_by_value = {
        value: path
        for value, role, path in zip(
            problem.graph.inputs, problem.roles, problem.paths, strict=True
        )
        if role is Role.BATCH and problem.graph.values[value].dtype in _TOKEN_DTYPES
    }
    # Operations stand in the order in which they run, so one pass follows a chain of parts.
    for op in problem.graph.ops:
        if op.opcode in _CUTTING and op.inputs[0] in path_by_value:
            path_by_value[op.outputs[0]] = path_by_value[op.inputs[0]]
    counted = (Tokens(_positions(problem, v), path) for v, path in path_by_value.items())
    longest = max(counted, key=lambda tokens: tokens.count, default=None)
    return longest if longest is not None and longest.count else None


def _positions(problem: Problem, value: int) -> int:
    """Elements of a value [batch, sequence]; 0 of any other."""
    classes, batch = problem.compute_classes(value), problem.batch_class
    if len(classes) != 2 or batch is None or classes[0] != batch or classes[1] == batch:
        return 0
    is_worked = problem.work.by_class.get(classes[1], 0.0) > 0
    return math.prod(problem.graph.values[value].dims) if is_worked else 0
