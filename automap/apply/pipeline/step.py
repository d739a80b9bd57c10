"""A pipeline plan's step: called like the step, its state on the devices of its stages.

Per kind of call the step is traced once, checked against the plan, separated in microbatches (one size for each number
of replicas that stages have), divided among the stages and compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from automap.apply.pipeline.lying import Lying
from automap.apply.pipeline.numbered import Numbered, check_alike, numbered
from automap.apply.pipeline.order import forward_order, simulated_order
from automap.apply.pipeline.pinned import stage_pins, with_sites
from automap.apply.pipeline.places import replicas_of, stage_places
from automap.apply.pipeline.runner import run_step
from automap.apply.processes import (
    check_agreement,
    check_takes_part,
    is_own,
    process_numbers,
)
from automap.apply.reemit import Reemitter
from automap.apply.run import check_is_planned, device_mesh
from automap.errors import AutomapError, InputError, PlanError
from automap.pipeline.simulated_record import simulated_step
from automap.pipeline.task_graph import Job
from automap.plan import Plan
from automap.plan_pipeline import PipelineRecord
from automap.workload.call import TracedCall, jitted, trace_call
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
        """Raises `MeshMismatchError` for other devices, `InputError` for options of a jitted step."""
        assert plan.pipeline is not None  # noqa: S101 - this class is for plans that have one
        self.plan = plan
        self._record = plan.pipeline
        self.jobs: Sequence[Job] = ()
        self._devices = list(device_mesh(plan, devices).devices.flat)
        check_takes_part(self._devices)
        self._step = jitted(step, options)
        self._programs: list[_Program] = []
        self._agreed: list[_Program] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step; `jobs` are then the passes in the order in which the stages were given them.

        Raises `PlanError` if the arguments are not those of the plan, `NotSeparableError` for a step that needs all
        samples at once. The first call of a kind also raises it in all processes if they do not run the same.
        """
        program = self._program(args, kwargs)
        if program.is_shared and program not in self._agreed:
            check_agreement(
                self._devices, {"where the arguments lie": program.layouts(args, kwargs)}
            )
            self._agreed.append(program)
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
        """The part of the step in which a device waits, the mean over devices, by the simulation of the plan's seconds."""
        return simulated_step(self._record).bubble_fraction

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
        program = self._made(args, kwargs)
        self._programs.append(program)
        return program

    def _made(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "_Program":
        if len(process_numbers(self._devices)) == 1:
            return self._divided(args, kwargs)
        try:
            program = self._divided(args, kwargs)
            _check_types(program.call)
        except AutomapError as error:
            # The others are told, who would wait for this process else; it has its own error.
            with suppress(PlanError):
                self._agree(str(error))
            raise
        self._agree(program.assembly.structure())
        return program

    def _agree(self, structure: str) -> None:
        record = self._record
        stages = [(stage.devices, stage.cut_after, stage.inside) for stage in record.stages]
        facts = {
            "the devices": str([device.id for device in self._devices]),
            "the plan": str((record.schedule, record.microbatches, stages)),
            "the planned step": str(self.plan.workload.jaxpr_sha256),
            "the programs of the stages": structure,
        }
        check_agreement(self._devices, facts)

    def _divided(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "_Program":
        call = trace_call(self._step, args, kwargs, mesh=self.plan.mesh.axes)
        check_is_planned(
            self.plan, call, Reemitter(call.jaxpr, user_rules(self.plan.workload.rules))
        )
        _check_sites(call, self.plan)
        return _Program(call, assemble(self._step, call, self._record, self._devices))


def check_separable(step: Callable[..., Any], call: TracedCall, record: PipelineRecord) -> None:
    """Refuse a jitted step that cannot be run in a plan's microbatches, and a plan that makes no parts of a batch.

    Raises `NotSeparableError` and `InputError`.
    """
    for number, stage in enumerate(record.stages):
        if stage.inside is not None and record.microbatches * replicas_of(stage) < 2:
            raise InputError(
                f"stage {number} ({len(stage.devices)} devices, none of them replicas) would take the batch in 1 microbatch; "
                "allowed: at least 2 parts; plan with --microbatches 2 or more"
            )
    parts = record.microbatches * max(map(replicas_of, record.stages))
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


def _check_types(call: TracedCall) -> None:
    """Refuse state of a Python scalar's type, which arrays do not have in processes that hold none of them."""
    for output in match_state(call.args, call.result, call.donated):
        if call.jaxpr.out_avals[output].weak_type:
            raise InputError(
                f"the result {call.result_paths[output]} has the type of a Python number, which has no place in state "
                "on several processes; give it one where it is made, as jnp.asarray(x, jnp.float32)"
            )


@dataclass(frozen=True, eq=False)
class _Program:
    """The programs of one kind of call."""

    call: TracedCall
    assembly: Assembly

    @property
    def is_shared(self) -> bool:
        """Whether several processes run it."""
        return self.assembly.everywhere is not None

    def layouts(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Where the arguments lie, as text that is the same in all processes."""
        leaves = jax.tree.leaves(self.call.traced_part(args, kwargs))
        places = [
            None
            if is_own(x)
            else [(d.id, i) for d, i in x.sharding.devices_indices_map(x.shape).items()]
            for x in leaves
        ]
        return str(places)

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
        named = with_sites(level) if record.is_sharded_inside else level
        return cut_loops(named, cuts).level, [piece.leaf for piece in cut.inputs]

    places = stage_places(devices, record)
    programs: dict[int, Numbered] = {}
    for place in places:
        parts = record.microbatches * place.replicas
        if parts not in programs:
            programs[parts] = numbered(separate(step, call, parts, rewritten))
    of_stage = [programs[record.microbatches * place.replicas] for place in places]
    for other in of_stage:
        check_alike(of_stage[0], other)
    division = blueprint(of_stage[0], cuts)
    sites = Reemitter(call.jaxpr).site_of_path if record.is_sharded_inside else {}
    return Assembler(
        blueprint=division, of_stage=of_stage,
        lying=Lying(
            division, places, cut, call.paths, match_state(call.args, call.result, call.donated)
        ),
        pins=[stage_pins(place, level, sites) for place in places], microbatches=record.microbatches,
        orders={"both": simulated_order(record), "forward": forward_order(record)},
        donated=call.donated,
    ).assembly()  # fmt: skip
