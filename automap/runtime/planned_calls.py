"""The calls of a step under a plan: which calls the plan is for, and the program of each kind.

A call is the planned one (`automap.program.check`), or differs from it in types only:

    weak types      as a Python number's: of any input
    another type    of an input that the step itself returns so: an output at the same path within
                    its argument has the shape and that type

For the latter the planned call is traced too, unless it was seen before, and the equations of both
must be the same but for conversions (`automap.runtime.other_types`); the plan's places are renamed
to those of the call.                                              -> in: `PlannedCalls`

Per kind of call (`automap.step.signature`) the step is traced once, held against the plan and made
a program, which later calls run.                                  -> in: `StepUnderPlan`
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
import time
from typing import Any, Final, Generic, TypeVar
import warnings

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding

from automap.backends import backend_for
from automap.errors import AutomapError, PlanError, PlanWarning
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.flatten import FlatJaxpr
from automap.jaxpr.reemit import Reemitter
from automap.jaxpr.rematerialize import levered_call
from automap.plan.record import PlanRecord, check_matches_leaves
from automap.program.check import another_step, check_is_planned, check_own_shardings, check_program
from automap.runtime.initialization import even_shardings, init_arguments, planned_shardings
from automap.runtime.other_types import DifferentStepError, match_sites, rename_sites
from automap.step.call import TracedCall
from automap.step.lost_state import lost_state
from automap.step.lru_cache import LRUCache
from automap.step.rules import user_rules
from automap.step.signature import Signature
from automap.step.step import Step, StepCall


# (path, shape, type) of an input or output.
_Leaf = tuple[str, tuple[int, ...], str]


@dataclass(slots=True)
class PlannedCalls:
    """The calls of one step under one plan; `is_program_known` if the plan was made of this step by
    this process.
    """

    plan: PlanRecord
    is_program_known: bool
    _planned: FlatJaxpr | None = None
    _returned: set[_Leaf] = field(default_factory=set)

    def plan_for(self, call: TracedCall) -> PlanRecord:
        """The plan to run a call under, which has the plan's levers already. Raises `PlanError` for
        a call that the plan is not for.
        """
        if [leaf[:2] for leaf in _inputs(call)] != [(x.path, x.shape) for x in self.plan.inputs]:
            check_matches_leaves(self.plan, "inputs", _inputs(call))
        reemitter = Reemitter(call.jaxpr, user_rules(self.plan.workload.rules))
        if self._is_planned(call, reemitter) or not self._has_other_types(call):
            # Raises for a call that differs in more than types, with what differs.
            check_is_planned(self.plan, call, reemitter)
            if not self.is_program_known:
                check_program(self.plan, call)
                self.is_program_known = True
            self._planned = reemitter.flat
            return self.plan
        # A plan that was loaded has no trace of the planned call.
        if self._planned is None:
            self.plan_for(self.levered(self._planned_call(call)))
        assert self._planned is not None  # noqa: S101 - the planned call has just been seen
        try:
            plan = rename_sites(self.plan, match_sites(self._planned, reemitter.flat))
        except DifferentStepError as error:
            raise another_step(self.plan, f"with inputs of other types {error}") from error
        self._check_outputs(call)
        check_own_shardings(self.plan, call)
        return plan

    def levered(self, call: TracedCall) -> TracedCall:
        """A call with the plan's levers. Raises `PlanError` for a step that does not have their
        blocks.
        """
        plan, backend = self.plan, backend_for(self.plan.topology["platform"])
        rules = user_rules(plan.workload.rules)
        return levered_call(call, plan.levers, rules, backend.host_stacks)

    def _is_planned(self, call: TracedCall, reemitter: Reemitter) -> bool:
        planned = [(leaf.path, leaf.shape, leaf.dtype) for leaf in self.plan.inputs]
        digest = self.plan.workload.jaxpr_sha256
        return planned == _inputs(call) and digest == jaxpr_sha256(reemitter.flat)

    def _has_other_types(self, call: TracedCall) -> bool:
        """Whether a call differs from the planned one in types, in ways that a step's own results
        have.
        """
        # Leaves whose type the plan does not have; shapes and paths were compared before.
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
        return any(returned.endswith(within) and rest == array for returned, *rest in outputs)

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
        outputs = [(path, tuple(aval.shape), str(aval.dtype)) for path, aval in made]
        planned = {leaf.path: leaf.dtype for leaf in self.plan.outputs}
        untyped = [(path, shape, planned.get(path, dtype)) for path, shape, dtype in outputs]
        check_matches_leaves(self.plan, "outputs", untyped)
        self._returned.update(outputs)


def _inputs(call: TracedCall) -> list[_Leaf]:
    given = zip(call.paths, call.jaxpr.in_avals, strict=True)
    return [(path, tuple(aval.shape), str(aval.dtype)) for path, aval in given]


Program = TypeVar("Program")


class StepUnderPlan(ABC, Generic[Program]):
    """What `Plan.jit` makes; called like the step."""

    def __init__(self, plan: PlanRecord, step: Step, *, is_own: bool) -> None:
        """`is_own` says that this process has made the plan of this step, or has checked its
        program.
        """
        self.plan = plan
        self.step = step
        self._calls = PlannedCalls(plan, is_own)
        self._programs: LRUCache[Program] = LRUCache()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step. Raises `PlanError` if it is not the plan's, or its arguments are not, and
        `InputError` inside a transformation of JAX.
        """
        return self.run(self.step.enter(args, kwargs).to_run())

    def init(self, init_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`init_fn(*args, **kwargs)` with every array made where the plan stores it: no device has
        more of it than the plan says.

        What it makes is one argument of the step, or a tuple of several. Raises `PlanError` if the
        plan's step takes no such arguments, and for a pipeline before `prepare`.
        """

        def choose(shapes: Any) -> Any:
            own = planned_shardings(self.plan, self.input_shardings, shapes.returned)
            if own is None:
                raise PlanError(
                    f"init: got a function that makes {_shapes_text(shapes.returned)}; allowed: "
                    f"what {self.step.name} takes as one argument under this plan, or a tuple of "
                    "several, with the planned shapes and types"
                )
            devices = {d for sharding in self.input_shardings for d in sharding.device_set}
            ordered = sorted(devices, key=lambda device: device.id)
            return replace(even_shardings(shapes, ordered), returned=own)

        return init_arguments(self.step, init_fn, args, kwargs, choose)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Trace the step for arguments that may be shapes, and check that it is the plan's, as the
        first call does.
        """
        self.program(self.step.enter(args, kwargs))

    def run(self, entered: StepCall) -> Any:
        """Run one step for a call of it."""
        program = self.program(entered)
        return entered.own_result(self._run(program, entered.leaves))

    def program(self, entered: StepCall) -> Program:
        """The program of a call. Raises `PlanError` if the plan is not for it."""
        program = self._programs.get(entered.signature)
        return self.take(entered.signature, entered.traced()) if program is None else program

    def take(self, signature: Signature, call: TracedCall) -> Program:
        """Make the program of a traced call. Raises `PlanError` if the plan is not for it."""
        program = self._make_program(self._calls.levered(call))
        # Once for a plan is enough.
        lost = lost_state(call) if not self._programs else None
        if lost is not None:
            warnings.warn(f"{self.step.name}: {lost}", PlanWarning, stacklevel=2)
        self._programs.add(signature, program)
        return program

    def plan_for(self, call: TracedCall) -> PlanRecord:
        """The plan with places of the call's equations. Raises `PlanError` if it is not for the
        call.
        """
        return self._calls.plan_for(call)

    @property
    @abstractmethod
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """Where the plan's inputs are stored."""

    @abstractmethod
    def _make_program(self, call: TracedCall) -> Program:
        """The program of a call, under `plan_for` it."""

    @abstractmethod
    def _run(self, program: Program, leaves: Any) -> Any:
        """What the traced function returns for the arrays among its arguments."""


def _shapes_text(tree: Any) -> str:
    """The first arrays of a tree."""
    arrays = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(tree)]
    more = [f"{len(arrays) - _SHOWN} more"] if len(arrays) > _SHOWN else []
    return ", ".join([*arrays[:_SHOWN], *more])


# Differences that a message names; the others are counted.
_SHOWN: Final = 3


def difference(plans: Sequence[PlanRecord], call: TracedCall) -> str:
    """How a call differs from the plan that it differs least from, the latest of several; `plans`
    are latest first.
    """
    least = min((list(_differences(plan, call)) for plan in plans), key=len)
    if not least:
        return (
            "it computes something else with the same arrays: a static argument, or what it closes "
            "over, differs"
        )
    rest = f" and {len(least) - _SHOWN} more" if len(least) > _SHOWN else ""
    return f"{', '.join(least[:_SHOWN])}{rest}"


def _differences(plan: PlanRecord, call: TracedCall) -> Iterator[str]:
    planned = {leaf.path: _text(leaf.dtype, leaf.shape) for leaf in plan.inputs}
    avals = zip(call.paths, call.jaxpr.in_avals, strict=True)
    # Paths and arrays only: what else may differ has no name to give.
    given = {path: _text(aval.dtype, aval.shape) for path, aval in avals}
    for path, array in given.items():
        if path not in planned:
            yield f"{path} is new"
        elif planned[path] != array:
            yield f"{path} is {array}, planned was {planned[path]}"
    yield from (f"{path} is missing" for path in planned if path not in given)


def _text(dtype: object, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def on_leaves(step: Callable[..., Any], call: TracedCall) -> Callable[[Sequence[Any]], Any]:
    """The step as a function of the leaves of a call."""

    def run(leaves: Sequence[Any]) -> Any:
        args, kwargs = call.arguments(leaves)
        return step(*args, **kwargs)

    return run


def timed_steps(
    step: Callable[[Sequence[Any]], Any], call: TracedCall, leaves: Sequence[Any], count: int
) -> tuple[list[Any], list[float]]:
    """The leaves of what the last of `count` steps returns, and the seconds of each; a step is a
    function of the call's leaves, and each begins with the state that the one before made.
    """
    given, results, seconds = list(leaves), [], []
    # What a step donates and no result replaces, as a key by itself, is gone behind it.
    used_up = [
        number
        for number in call.donated - set(call.state.values())
        if isinstance(given[number], jax.Array)
    ]
    for _ in range(count):
        for number in used_up:
            given[number] = jnp.copy(leaves[number])
        begin = time.perf_counter()
        results = jax.tree.leaves(jax.block_until_ready(step(given)))
        seconds.append(time.perf_counter() - begin)
        for output, number in call.state.items():
            given[number] = results[output]
    return results, seconds
