"""`plan`: the command `automap plan` as a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from automap.api.call_plans import as_machine, plan_call
from automap.api.keywords import with_options
from automap.api.plan import Plan
from automap.choices import DEFAULT_VERIFY_TOP
from automap.compiler_options import REFINE, VERIFY, VERIFY_TOP
from automap.config import (
    TOPOLOGY,
    OptionKeywords,
    described_options,
    read_options,
)
from automap.refine.refinement import Refinement, check_one_compiler_option
from automap.runtime.pipeline.step import check_separable
from automap.step.arguments import positional_arguments
from automap.step.step import as_step
from automap.topology import Graph, Topology
from automap.verify.confirm import Confirmation


@with_options(described_options(), own=(TOPOLOGY, VERIFY, VERIFY_TOP, REFINE))
def plan(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: str | Topology | Graph,
    verify: bool = False,
    verify_top: int = DEFAULT_VERIFY_TOP,
    refine: float | None = None,
    **options: Unpack[OptionKeywords],
) -> Plan:
    """The fastest plan found for `step(*args, **kwargs)` that fits on a topology; touches no
    device.

    Args:
        step: a function of trees of arrays, or one that `jax.jit` has wrapped.
        args: its positional arguments: trees of arrays or of `jax.ShapeDtypeStruct`s, of which
            shapes and types alone are read.
        kwargs: its keyword arguments, the same.
        **options: described in `automap.config`; each has an entry here.

    Returns:
        A plan with a spec for every input and output in flattened argument order: for each
        dimension None or the mesh axes that split it, major first. Predicted seconds are of one
        step, predicted bytes of one device.

    Raises:
        NotSeparableError: a pipeline of a step that needs all samples at once.
        CompilerError: with `verify`, a compiler that is missing, fails, or is not done in time;
            with `refine`, one that is missing, has no seconds for the topology, or fails at every
            plan.
        InfeasiblePlanError: no plan fits, or none is confirmed.
        InputError: a step that cannot be traced, shardings in its code that no plan can have, or a
            bad option.
        ProfileError: a profile that cannot be read.
        TopologyError: an unknown topology, or a mesh that does not fit it.
    """
    checked = read_options(**options)
    check_one_compiler_option(
        verify=verify, refine=refine, preset=checked.preset, space=checked.space
    )
    confirmation = Confirmation(top=verify_top) if verify else None
    refinement = None if refine is None else Refinement(seconds=refine)
    given = as_step(step, mesh=checked.axes)
    call = given.enter(positional_arguments(args), kwargs or {}).traced()
    planned = plan_call(
        call,
        as_machine(topology, checked),
        checked,
        given.name,
        confirmation,
        refinement,
        settles_memory=True,
    )
    # Now rather than at the first run: a pipeline that cannot be run is no plan.
    if planned.pipeline is not None:
        check_separable(call, planned.pipeline)
    return planned
