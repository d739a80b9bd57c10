"""`opp` and `adp`: Auto-MAP's plans by its own objective, found by its own agent.

    opp   operator partitioning: as many dimensions of trainable variables as possible are split
    adp   auto data parallelism: as many input tensors as possible are split

over one mesh axis of all devices; the integer programme says how many are possible. Neither looks
at how long a step takes: what is returned is the plan that counts most, not the fastest.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from automap.errors import InputError
from automap.program.problem import Problem
from automap.search.context import SearchContext
from automap.search.counts.choices import Choices, data_parallelism, operator_partitioning
from automap.search.counts.solvers import optimum
from automap.search.torch_needed import need_torch
from automap.topology.mesh import Mesh


if TYPE_CHECKING:
    from automap.search.counts.game import Task

_ENDLESS: Final = 2**62


def opp(context: SearchContext) -> None:
    """Auto-MAP's operator partitioning. Raises `InputError` if torch is not installed, or no mesh
    of one axis is allowed, or layers are folded.
    """
    _count(
        context,
        "operator partitioning",
        lambda problem, size: operator_partitioning(problem, size, "products"),
        "dimensions of variables",
    )


def adp(context: SearchContext) -> None:
    """Auto-MAP's auto data parallelism. Raises `InputError` if torch is not installed, no mesh of
    one axis is allowed, or the step takes no batch.
    """
    _count(context, "auto data parallelism", data_parallelism, "input tensors")


def _count(
    context: SearchContext,
    task: "Task",
    make_choices: Callable[[Problem, int], Choices],
    counted: str,
) -> None:
    need_torch()
    # Torch loads here: every other strategy works without it.
    from automap.search.counts.agent import find

    mesh = _one_axis(context)
    axis = max(range(len(mesh.sizes)), key=mesh.sizes.__getitem__)
    choices = make_choices(context.space.problem, mesh.sizes[axis])
    most = choices.count(optimum(choices))
    result = find(
        choices,
        "faithful",
        task,
        seed=context.seed,
        most_steps=_ENDLESS,
        target_count=most,
        is_over=lambda: context.deadline.is_over,
    )
    split = {c for c, is_split in zip(choices.classes, result.split, strict=True) if is_split}
    classes = [split if index == axis else () for index in range(len(mesh.sizes))]
    # Their objective is not the step: no preset is a better plan to them.
    context.best = None
    context.consider(context.space.point(mesh, classes), "agent")
    context.notes.append(
        f"{choices.count(result.split)} of {choices.weights.sum()} {counted} are split, {most} can "
        f"be; the agent made {result.steps:,} decisions"
    )
    # The plan says so if the agent was stopped.
    context.check_time()


def _one_axis(context: SearchContext) -> Mesh:
    for mesh in context.meshes:
        if sum(size > 1 for size in mesh.sizes) == 1:
            return mesh
    raise InputError(
        "opp and adp decide over one mesh axis, and the mesh asked for has several; give one axis "
        "of all devices, as --mesh "
        f"model={context.evaluator.topology.device_count}"
    )
