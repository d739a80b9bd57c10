"""A pipeline plan's step: called like the step, its state on the devices of its stages.

Per kind of call the step is traced once, checked against the plan, separated in microbatches (one size for each number
of replicas that stages have), divided among the stages and compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from automap.apply.flatten import Level, flatten
from automap.apply.microbatch.separate import separate
from automap.apply.pipeline.assembly import Assembler, Assembly
from automap.apply.pipeline.blueprint import blueprint
from automap.apply.pipeline.cuts import cuts_of
from automap.apply.pipeline.loops import cut_loops
from automap.apply.pipeline.numbered import Numbered, check_alike, numbered
from automap.apply.pipeline.order import bubble_fraction, forward_order, simulated_order
from automap.apply.pipeline.places import stage_places
from automap.apply.pipeline.runner import run_step
from automap.apply.reemit import Reemitter
from automap.apply.run import check_is_planned, device_mesh
from automap.errors import PlanError
from automap.pipeline.task_graph import Job
from automap.plan import Plan
from automap.plan_pipeline import PipelineRecord
from automap.workload.call import TracedCall, jitted, trace_call, without_devices
from automap.workload.rules import user_rules
from automap.workload.state import match_state


class PipelinedStep:
    """A step as a pipeline plan says; made by `Plan.jit`."""

    def __init__(
        self,
        plan: Plan,
        step: Callable[..., Any],
        devices: Sequence[Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        """Raises `MeshMismatchError` for other devices, `InputError` for options of a jitted step, `PlanError` for sharded stages."""
        assert plan.pipeline is not None  # noqa: S101 - this class is for plans that have one
        if any(stage.inside is not None for stage in plan.pipeline.stages):
            raise PlanError(
                "the plan shards stages inside (--space hybrid), which this automap plans and explains but does not run yet; "
                f"plan {plan.workload.target} with --space pipeline for stages that run"
            )
        self.plan = plan
        self.jobs: Sequence[Job] = ()
        self._devices = list(device_mesh(plan, devices).devices.flat)
        self._step = jitted(step, options)
        self._programs: list[_Program] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step; `jobs` are then the passes in the order in which the stages were given them.

        Raises `PlanError` if the arguments are not those of the plan, `NotSeparableError` for a step that needs all
        samples at once.
        """
        program = self._program(args, kwargs)
        jobs: list[Job] = []
        result = program.run(args, kwargs, jobs.append)
        self.jobs = jobs
        return result

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Always `PlanError`: the step is several programs."""
        raise PlanError(
            "a pipeline is several programs, which cannot be lowered as one; call the step, or plan with --space sharding"
        )

    def serves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call's arguments are of the plan: no other plan is needed for them."""
        return any(program.call.serves(args, kwargs) for program in self._programs)

    @property
    def bubble_fraction(self) -> float:
        """The part of the schedule in which a stage waits for another, by the simulation of the plan's seconds."""
        assert self.plan.pipeline is not None  # noqa: S101 - this class is for plans that have one
        return bubble_fraction(self.plan.pipeline)

    @property
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """Where the inputs of the latest kind of call belong. Raises `PlanError` before there is one."""
        if not self._programs:
            raise PlanError(
                "which stage an input belongs to is known after `prepare`, or the first call"
            )
        return tuple(stored.sharding for stored in self._programs[-1].assembly.inputs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Trace and divide the step for arguments that may be shapes; raises as the first call does."""
        self._program(args, kwargs)

    def _program(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "_Program":
        for program in self._programs:
            if program.call.serves(args, kwargs):
                return program
        shapes = without_devices((args, dict(kwargs)))
        call = trace_call(self._step, *shapes, mesh=self.plan.mesh.axes)
        check_is_planned(
            self.plan, call, Reemitter(call.jaxpr, user_rules(self.plan.workload.rules))
        )
        _check_sites(call, self.plan)
        assert self.plan.pipeline is not None  # noqa: S101 - this class is for plans that have one
        assembly = assemble(self._step, call, self.plan.pipeline, self._devices)
        self._programs.append(_Program(call, assembly))
        return self._programs[-1]


def check_separable(step: Callable[..., Any], call: TracedCall, record: PipelineRecord) -> None:
    """Refuse a jitted step that cannot be run in a plan's microbatches. Raises `NotSeparableError`."""
    replicas = [len(s.devices) for s in record.stages if s.inside is None]
    parts = record.microbatches * max(replicas, default=1)
    if parts > 1:
        separate(step, call, parts)


def _check_sites(call: TracedCall, plan: Plan) -> None:
    """Refuse rules that change how the step's equations are counted, by which the plan names its cuts."""
    rules = user_rules(plan.workload.rules)
    if rules and len(flatten(call.jaxpr, rules).equations) != len(
        flatten(call.jaxpr, {}).equations
    ):
        raise PlanError(
            f"the plan has rules of jitted functions ({', '.join(rules)}), which a pipeline has to look into; plan again "
            "without --rule"
        )


@dataclass(frozen=True)
class _Program:
    """The programs of one kind of call."""

    call: TracedCall
    assembly: Assembly

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], on_job: Callable[[Job], None]
    ) -> Any:
        leaves = jax.tree.leaves(self.call.traced_part(args, kwargs))
        outputs = run_step(self.assembly, leaves, on_job)
        return jax.tree.unflatten(jax.tree.structure(self.call.result), outputs)


def assemble(
    step: Callable[..., Any], call: TracedCall, record: PipelineRecord, devices: Sequence[Any]
) -> Assembly:
    """The programs of a traced step on `devices`, which the stages number.

    Raises `NotSeparableError` for a step that needs all samples at once, `InputError` for a number of microbatches
    that is not possible, `PlanError` for cuts that the step does not have.
    """
    level = flatten(call.jaxpr, {})
    cuts = cuts_of(record, len(level.equations))
    cut = cut_loops(level, cuts)

    def rewritten(level: Level) -> tuple[Level, Sequence[int]]:
        return cut_loops(level, cuts).level, [piece.leaf for piece in cut.inputs]

    places = stage_places(devices, [stage.devices for stage in record.stages])
    programs: dict[int, Numbered] = {}
    for place in places:
        parts = record.microbatches * place.replicas
        if parts not in programs:
            programs[parts] = numbered(separate(step, call, parts, rewritten))
    of_stage = [programs[record.microbatches * place.replicas] for place in places]
    for other in of_stage:
        check_alike(of_stage[0], other)
    return Assembler(
        blueprint=blueprint(of_stage[0], cuts), of_stage=of_stage, places=places,
        microbatches=record.microbatches,
        orders={"both": simulated_order(record), "forward": forward_order(record)},
        cut=cut, donated=call.donated, state=match_state(call.args, call.result, call.donated),
    ).assembly()  # fmt: skip
