"""Whether a traced step is the one that a plan was made for: inputs, outputs, equations, program,
own shardings.

    inputs, outputs    paths, shapes and types are those of the plan's records
    equations          `jaxpr_sha256`, of the step's jaxpr
    program            `hlo_sha256`, of what it is lowered to           -> in: `check_program`

Another version of JAX may write another jaxpr for the same program, or lower the same jaxpr to
another one: that is a notice. With the same version it is another step, or a file that was changed.
"""

from collections.abc import Mapping
import warnings

import jax

from automap.errors import PlanError, PlanWarning
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.reemit import Reemitter
from automap.plan.record import LeafRecord, PlanRecord, check_matches_leaves
from automap.program.trace import program_sha256
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.specs import ImposedSpec, spec_text


def check_is_planned(plan: PlanRecord, call: TracedCall, reemitter: Reemitter) -> None:
    """Refuse a call that is not what the plan was made for, its program aside. Raises
    `PlanError`.
    """
    avals = call.jaxpr.in_avals
    given = zip(call.paths, avals, strict=True)
    check_matches_leaves(
        plan, "inputs", [(path, tuple(a.shape), str(a.dtype)) for path, a in given]
    )
    check_has_step(plan)
    # The program is lowered only if the equations differ: it takes most of the time of a check.
    if plan.workload.jaxpr_sha256 != jaxpr_sha256(reemitter.flat):
        if not _is_of_another_jax(plan) or _program(plan, call) != plan.workload.hlo_sha256:
            raise another_step(plan, "its code, a constant or the version of JAX has changed")
        _warn(plan, "this one traces other equations, which are lowered to the same program")
    # After the equations: another step is better told apart by its code than by its results.
    made = zip(call.result_paths, call.jaxpr.out_avals, strict=True)
    check_matches_leaves(
        plan, "outputs", [(path, tuple(a.shape), str(a.dtype)) for path, a in made]
    )
    check_own_shardings(plan, call)


def check_has_step(plan: PlanRecord) -> None:
    """Refuse a plan of a program without a Python step. Raises `PlanError`."""
    if plan.workload.jaxpr_sha256 is None:
        raise PlanError(
            f"the plan was made from the program {plan.workload.target}, which has no Python step; "
            "plan the step itself to run it"
        )


def check_program(plan: PlanRecord, call: TracedCall) -> None:
    """Refuse a step that is lowered to another program than the planned one. Raises `PlanError`."""
    if _program(plan, call) == plan.workload.hlo_sha256:
        return
    if not _is_of_another_jax(plan):
        raise PlanError(
            f"the step is lowered to another program than the planned {plan.workload.target} "
            "(hlo_sha256), though its "
            "equations are the same: was the plan file changed? Plan again"
        )
    _warn(plan, "this one lowers its equations to another program; what is predicted may differ")


def check_own_shardings(plan: PlanRecord, call: TracedCall) -> None:
    """Refuse a step that is jitted with shardings that are not the plan's. Raises `PlanError`."""
    _check_ends("in_shardings", plan.inputs, call.ends.inputs)
    _check_ends("out_shardings", plan.outputs, call.ends.outputs)


def another_step(plan: PlanRecord, why: str) -> PlanError:
    """What to raise for other equations."""
    return PlanError(
        f"the step computes something else than the planned {plan.workload.target}, though its "
        f"inputs are the same: {why}; plan again"
    )


def _check_ends(
    option: str, leaves: tuple[LeafRecord, ...], given: Mapping[int, ImposedSpec]
) -> None:
    for index, spec in given.items():
        leaf = leaves[index]
        # What the step leaves free, None, the plan may have decided in any way.
        if any(a is not None and a != (b or ()) for a, b in zip(spec, leaf.spec)):
            planned = spec_text(tuple(axes or () for axes in leaf.spec))
            raise PlanError(
                f"{option} of the step say {spec_text(spec)} for {leaf.path}, the plan {planned}; "
                "plan again, or jit the step as it was planned"
            )


def _warn(plan: PlanRecord, what: str) -> None:
    made_with = plan.workload.jax_version or "of an unknown version"
    text = f"the plan of {plan.workload.target} was made with JAX {made_with}; {what}"
    warnings.warn(text, PlanWarning, stacklevel=2)


def _is_of_another_jax(plan: PlanRecord) -> bool:
    return plan.workload.jax_version != jax.__version__


def _program(plan: PlanRecord, call: TracedCall) -> str:
    platform = plan.topology["platform"]  # of a graph of devices too
    return program_sha256(call, platform, user_rules(plan.workload.rules))
