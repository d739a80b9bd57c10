"""`parallelize`, the decorator: a step that plans itself at its first call, and runs its plan.

A call of a kind (trees, shapes and types of its arguments) that has no plan yet gets, in this
order,

    the plan of another kind of call that is for this one too     -> in: `ParallelStep._known_for`
    the plan that the cache folder has for it
    a new one                                                     -> in: `ParallelStep._new_for`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial, update_wrapper
from inspect import signature
from pathlib import Path
from typing import Any, Unpack
import warnings

import jax

from automap.api.call_plans import (
    cache_key,
    checked_machine,
    load_cached,
    machine_with_devices,
    plan_call,
    save_cached,
)
from automap.api.keywords import JitKeywords, ParallelizeKeywords, with_options
from automap.api.plan import Plan
from automap.config import Options, described_options, read_options
from automap.errors import PlanError, PlanWarning
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.reemit import Reemitter
from automap.option_values import unknown_keyword
from automap.planner.decisions import same_work
from automap.program.trace import mesh_of_call
from automap.runtime.initialization import even_shardings, init_arguments, planned_shardings
from automap.runtime.meshes import platform_name
from automap.runtime.planned_calls import difference
from automap.runtime.run import RunningStep, step_under_plan
from automap.step.call import TracedCall
from automap.step.lru_cache import MAX_ENTRIES, LRUCache
from automap.step.rules import user_rules
from automap.step.step import StepCall, as_step
from automap.topology import Graph, Topology


@with_options(described_options(), rest="jit_options")
def parallelize(
    step: Callable[..., Any] | None = None,
    *,
    topology: str | Topology | Graph = "local",
    cache_dir: str | Path | None = None,
    devices: Sequence[Any] | None = None,
    **options: Unpack[ParallelizeKeywords],
) -> Any:
    """Decorator: the step, planned at its first call and run in parallel from then on.

    Use it bare, with options, or on a function that `jax.jit` has wrapped already (which keeps its
    own options). Planning shows its progress on stderr, unless
    `logging.getLogger("automap").setLevel("WARNING")` was called before.

    Args:
        step: the function, when used without parentheses. Its arguments and results may be any
            trees of arrays.
        topology: as for `plan`; "local" is `devices`.
        cache_dir: a folder to keep plans in; a later process loads them instead of searching.
        devices: devices to run on, by default all that JAX sees; as many as the topology has.
        **options: described in `automap.config`; each has an entry here.
        **jit_options: of `jax.jit`, for a step that is not jitted: `donate_argnums`,
            `static_argnums`...

    Returns:
        A `ParallelStep`, or the decorator that makes one.

    Raises:
        InputError: a bad option; at the first call a step that cannot be traced, or shardings in
            its code that no plan can have.
        InfeasiblePlanError: at the first call, no plan fits the memory of the devices.
        NotSeparableError: at the first call, a pipeline of a step that needs all samples at once.
        MeshMismatchError: at the first call, another number of devices than the topology has.
        ProfileError: a profile that cannot be read.
        TopologyError: at the first call, an unknown topology, or a mesh that does not fit it.
        TypeError: a keyword that is neither an option nor one of `jax.jit`.
    """
    names = [option.name for option in described_options()]
    given: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    # What is no option of a plan is one of `jax.jit`, of which another version of JAX has others.
    jit_options = {name: value for name, value in options.items() if name not in names}
    jit_names = {*JitKeywords.__annotations__, *signature(jax.jit).parameters}
    for name in jit_options:
        if name not in jit_names:
            known = ("topology", "cache_dir", "devices", *names)
            more = f"; of jax.jit: {', '.join(JitKeywords.__annotations__)}"
            raise unknown_keyword(name, known, more)
    make = partial(
        ParallelStep,
        topology=topology,
        options=read_options(**given),
        devices=devices,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        jit_options=jit_options,
    )
    return make if step is None else make(step)


class ParallelStep:
    """A step that plans itself; made by `parallelize`. Call it like the step.

    On an object whose class has it as a method it is a method: all objects share the plans.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        topology: str | Topology | Graph,
        options: Options,
        cache_dir: Path | None,
        devices: Sequence[Any] | None,
        jit_options: Mapping[str, Any],
    ) -> None:
        """Nothing is traced, planned or placed until the first call."""
        self.step = as_step(step, jit_options, options.axes)
        self._topology = checked_machine(topology)
        self._options = options
        self._cache_dir = cache_dir
        self._devices = devices
        # A plan for each kind of call; on an object they are shared by all of the class's objects.
        self._planned: LRUCache[RunningStep] = LRUCache()
        # Attributes of a callable object are its own.
        update_wrapper(self, step, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> "ParallelStep":
        """The step as a method of an object; see `automap.step.arguments` for what becomes of the
        object.
        """
        if instance is None:
            return self
        # Shallow: the object's step, and the plans of all objects.
        method = copy(self)
        method.step = self.step.as_method(instance)
        return method

    @property
    def plan(self) -> Plan:
        """The plan of the latest call. Raises `PlanError` before the first."""
        latest = next(self._planned.latest_first(), None)
        if latest is None:
            raise PlanError(
                f"{self.step.name} has no plan yet; call it, or `plan_for(*args)`, first"
            )
        return Plan.from_record(latest.plan)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step; the first of a kind of call plans it, or loads the cached plan.

        At most `automap.step.lru_cache.MAX_ENTRIES` plans are kept; the one that was not used for
        longest is dropped. Raises `InputError` inside a transformation of JAX, as `jax.grad`: the
        step has its gradient in it.
        """
        entered = self.step.enter(args, kwargs).to_run()
        return self._for(entered).run(entered)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The `jax.stages.Lowered` of the planned step, as `PlannedStep.lower`."""
        return self._for(self.step.enter(args, kwargs)).lower(*args, **kwargs)

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """Plan for arguments that may be `jax.ShapeDtypeStruct`s, and run nothing.

        Before `init`, it lets the state be made where the plan stores it. Raises what a first call
        raises.
        """
        return Plan.from_record(self._for(self.step.enter(args, kwargs)).plan)

    def init(self, init_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`init_fn(*args, **kwargs)` with every array made sharded from the start, or on the stage
        of a pipeline that owns it: no device ever has all of it.

        If a plan is known whose step takes the result as one argument, or the elements of a tuple
        as several, arrays are made where it stores them; otherwise split as evenly as they can be,
        and the first step moves them. Modules of libraries are returned as what they are; those
        among the arguments may be changed in place.
        """

        def choose(shapes: Any) -> Any:
            even = even_shardings(shapes, self._devices or jax.devices())
            # The plan of the latest call that takes such a state.
            for planned in self._planned.latest_first():
                own = planned_shardings(planned.plan, planned.input_shardings, shapes.returned)
                if own is not None:
                    return replace(even, returned=own)
            return even

        return init_arguments(self.step, init_fn, args, kwargs, choose)

    def _for(self, entered: StepCall) -> RunningStep:
        planned = self._planned.get(entered.signature)
        if planned is None:
            call = entered.traced()
            # Tracing is cheap beside planning, and what was traced tells whether a known plan is
            # for it.
            planned = self._known_for(entered, call) or self._new_for(entered, call)
            self._planned.add(entered.signature, planned)
        return planned

    def _known_for(self, entered: StepCall, call: TracedCall) -> RunningStep | None:
        """What runs a plan that there is and that is also for this call."""
        for planned in self._planned.latest_first():
            # Other trees and shapes are another plan's, whatever the step computes.
            with suppress(PlanError):
                planned.take(entered.signature, call)
                return planned
        return None

    def _new_for(self, entered: StepCall, call: TracedCall) -> RunningStep:
        topology = machine_with_devices(self._topology, self._options, self._devices)
        kept = [planned.plan for planned in self._planned.latest_first()]
        if kept:
            warnings.warn(
                f"{self.step.name} is planned once more, for other arguments: "
                f"{difference(kept, call)}; {_count(len(kept))} kept, at most {MAX_ENTRIES}",
                PlanWarning,
                # The user's call: `__call__`, `_for` and this method are between.
                stacklevel=4,
            )
        if self._cache_dir is None:
            return self._taking(
                plan_call(call, topology, self._options, self.step.name), entered, call
            )
        # The digest of the equations is a part of the key, so the step is taken apart before it is
        # lowered.
        reemitter = Reemitter(call.jaxpr, user_rules(self._options.rules))
        digest, mesh = jaxpr_sha256(reemitter.flat), mesh_of_call(call, reemitter)
        key = cache_key(digest, topology, self._options, mesh, call.ends)
        cached = load_cached(self._cache_dir, key, call, reemitter)
        if cached is not None:
            # A file whose constraints do not hold is planned again and written over.
            with suppress(PlanError):
                return self._taking(cached, entered, call)
        plan = plan_call(call, topology, self._options, self.step.name)
        save_cached(self._cache_dir, key, plan)
        return self._taking(plan, entered, call)

    def _taking(self, plan: Plan, entered: StepCall, call: TracedCall) -> RunningStep:
        """What runs a plan, with the program of a call. Raises `PlanError` if the plan is not for
        it.
        """
        made = step_under_plan(plan, self.step, self._devices, is_own=True)
        made.take(entered.signature, call)
        for notice in (*same_work(plan), *self._other_machine(plan)):
            # The user's call: `__call__`, `_for`, `_new_for` and this method are between.
            warnings.warn(f"{self.step.name}: {notice}", PlanWarning, stacklevel=5)
        return made

    def _other_machine(self, plan: Plan) -> Iterator[str]:
        """A notice if what the step runs on is no such device as it was planned for."""
        name, platform = plan.topology["name"], plan.topology["platform"]
        device = (self._devices or jax.devices())[0]
        if platform != platform_name(device):
            yield (
                f"planned for {name} and run on devices of platform {device.platform}: the results "
                f"are the same, but what is predicted, and which plan is best, is for {name}; "
                'topology="local" plans for the devices that are there'
            )


def _count(plans: int) -> str:
    return f"{plans} plan is" if plans == 1 else f"{plans} plans are"
