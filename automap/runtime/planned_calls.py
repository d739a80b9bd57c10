"""Which calls a plan is for, and under which plan each is run: itself, or itself with its places
renamed.

A call is the planned one (`automap.program.check`), or differs from it in types only:

    weak types         as a Python number's: of any input
    another type       of an input that the step itself returns so: an output at the same path
                       within its argument has the shape and that type

For the latter the planned call is traced too, unless it was seen before, and the equations of both
must be the same but for conversions (`automap.runtime.retyped`).
"""

from dataclasses import dataclass, field

import jax
from jax import numpy as jnp

from automap.errors import AutomapError
from automap.jaxpr.flatten import Level
from automap.jaxpr.reemit import Reemitter
from automap.plan.record import PlanRecord, check_matches_leaves
from automap.program.check import another_step, check_is_planned, check_own_shardings, check_program
from automap.runtime.retyped import DifferentStepError, renamed, renaming
from automap.step.call import TracedCall
from automap.step.rules import user_rules


# (path, shape, type) of an input or output.
_Leaf = tuple[str, tuple[int, ...], str]


@dataclass(slots=True)
class PlannedCalls:
    """The calls of one step under one plan; `is_program_known` if the plan was made of this step by
    this process.
    """

    plan: PlanRecord
    is_program_known: bool
    _planned: Level | None = None
    _returned: set[_Leaf] = field(default_factory=set)

    def plan_of(self, call: TracedCall) -> PlanRecord:
        """The plan to run a call under. Raises `PlanError` for a call that the plan is not for."""
        if [leaf[:2] for leaf in _inputs(call)] != [(x.path, x.shape) for x in self.plan.inputs]:
            check_matches_leaves(self.plan, "inputs", _inputs(call))
        reemitter = Reemitter(call.jaxpr, user_rules(self.plan.workload.rules))
        if self._is_planned(call, reemitter) or not self._has_other_types(call):
            check_is_planned(self.plan, call, reemitter)
            if not self.is_program_known:
                check_program(self.plan, call)
                self.is_program_known = True
            self._planned = reemitter.level
            return self.plan
        if self._planned is None:
            self.plan_of(self._planned_call(call))
        assert self._planned is not None  # noqa: S101 - the planned call has just been seen
        try:
            found = renamed(self.plan, renaming(self._planned, reemitter.level))
        except DifferentStepError as error:
            raise another_step(self.plan, f"with inputs of other types {error}") from error
        self._check_outputs(call)
        check_own_shardings(self.plan, call)
        return found

    def _is_planned(self, call: TracedCall, reemitter: Reemitter) -> bool:
        planned = [(leaf.path, leaf.shape, leaf.dtype) for leaf in self.plan.inputs]
        return planned == _inputs(call) and self.plan.workload.jaxpr_sha256 == reemitter.sha256()

    def _has_other_types(self, call: TracedCall) -> bool:
        """Whether a call differs from the planned one in types, in ways that a step's own results
        have.
        """
        other = [
            leaf
            for leaf, planned in zip(_inputs(call), self.plan.inputs, strict=True)
            if leaf[2] != planned.dtype
        ]
        avals = zip(call.paths, call.jaxpr.in_avals, strict=True)
        weak = {path for path, aval in avals if aval.weak_type}
        return all(map(self._is_returned, other)) and (
            bool(other) or weak != set(self.plan.workload.weak_inputs)
        )

    def _is_returned(self, leaf: _Leaf) -> bool:
        """Whether the step returns an input's type at the path that it has within its argument."""
        path, *array = leaf
        within = path.partition("]")[2]
        outputs = {(x.path, x.shape, x.dtype) for x in self.plan.outputs} | self._returned
        return any(found.endswith(within) and rest == array for found, *rest in outputs)

    def _planned_call(self, call: TracedCall) -> TracedCall:
        """The call with arrays of the types that the plan has."""
        weak = set(self.plan.workload.weak_inputs)
        arrays = []
        for leaf, aval in zip(self.plan.inputs, call.jaxpr.in_avals, strict=True):
            dtype = aval.dtype if str(aval.dtype) == leaf.dtype else jnp.dtype(leaf.dtype)
            is_weak = leaf.path in weak
            arrays.append(jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=is_weak))
        try:
            return call.with_arrays(arrays)
        except AutomapError as error:
            raise another_step(self.plan, f"with the types of the plan {error}") from error

    def _check_outputs(self, call: TracedCall) -> None:
        """Refuse outputs of other paths and shapes; their types are those that the inputs' give."""
        made = zip(call.result_paths, call.jaxpr.out_avals, strict=True)
        found = [(path, tuple(aval.shape), str(aval.dtype)) for path, aval in made]
        planned = {leaf.path: leaf.dtype for leaf in self.plan.outputs}
        untyped = [(path, shape, planned.get(path, dtype)) for path, shape, dtype in found]
        check_matches_leaves(self.plan, "outputs", untyped)
        self._returned.update(found)


def _inputs(call: TracedCall) -> list[_Leaf]:
    given = zip(call.paths, call.jaxpr.in_avals, strict=True)
    return [(path, tuple(aval.shape), str(aval.dtype)) for path, aval in given]
