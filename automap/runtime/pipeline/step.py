"""A pipeline plan's step: called like the step, its state on the devices of its stages.

Per kind of call the step is traced once, checked against the plan, separated in microbatches (one
size for each number of replicas that stages have), divided among the stages and compiled.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from automap.errors import AutomapError, InputError, PlanError
from automap.jaxpr.flatten import FlatJaxpr, flatten
from automap.jaxpr.microbatch import separate
from automap.jaxpr.reemit import Reemitter
from automap.pipeline.schedules import Job, planned_schedule
from automap.pipeline.simulation import simulated_step
from automap.plan.pipeline import PipelineRecord
from automap.plan.record import PlanRecord
from automap.quantities import number_text
from automap.runtime.meshes import device_mesh
from automap.runtime.pipeline.assembly import Assembler, Assembly
from automap.runtime.pipeline.blueprint import blueprint
from automap.runtime.pipeline.cuts import plan_cuts
from automap.runtime.pipeline.loops import cut_loops
from automap.runtime.pipeline.numbered import Numbered, check_alike, number_values
from automap.runtime.pipeline.pinned import stage_pins, with_sites
from automap.runtime.pipeline.places import StagePlace, replica_count, stage_places
from automap.runtime.pipeline.runner import forward_order, run_step, simulated_order
from automap.runtime.pipeline.value_shardings import ValueShardings
from automap.runtime.planned_calls import StepUnderPlan
from automap.runtime.processes import (
    argument_places,
    check_agreement,
    check_state_types,
    check_takes_part,
    process_numbers,
)
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import Step


class PipelinedStep(StepUnderPlan["_Program"]):
    """A step as a pipeline plan says; made by `Plan.jit`.

    After a call `jobs` are the passes in the order in which the stages were given them. The first
    call of a kind raises `PlanError` in all processes if they do not run the same, and
    `NotSeparableError` for a step that needs all samples at once.
    """

    def __init__(
        self, plan: PlanRecord, step: Step, devices: Sequence[Any] | None, *, is_own: bool
    ) -> None:
        """Raises `MeshMismatchError` for other devices."""
        super().__init__(plan, step, is_own=is_own)
        assert plan.pipeline is not None  # noqa: S101 - this class is for plans that have one
        self._record = plan.pipeline
        self.jobs: Sequence[Job] = ()
        self._devices = list(device_mesh(plan, devices).devices.flat)
        check_takes_part(self._devices)
        self._latest: _Program | None = None
        self._agreed: list[_Program] = []

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Always `PlanError`: the step is several programs."""
        raise PlanError(
            "a pipeline is several programs, which cannot be lowered as one; call the step, or "
            "plan with --space sharding"
        )

    @property
    def bubble_fraction(self) -> float:
        """The part of the step in which a device waits, the mean over devices, by the simulation of
        the plan's seconds.
        """
        return simulated_step(self._record).bubble_fraction

    @property
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """Where the inputs of the latest kind of call belong. Raises `PlanError` before there is
        one.
        """
        if self._latest is None:
            raise PlanError(
                "which stage an input belongs to is known after `prepare`, or the first call"
            )
        return tuple(stored.sharding for stored in self._latest.assembly.inputs)

    def _make_program(self, call: TracedCall) -> "_Program":
        if len(process_numbers(self._devices)) == 1:
            self._latest = self._divide(call)
            return self._latest
        try:
            program = self._divide(call)
            check_state_types(call)
        except AutomapError as error:
            # The others would wait for this process: they get its error too.
            with suppress(PlanError):
                self._agree(str(error))
            raise
        self._agree(program.assembly.programs.structure())
        self._latest = program
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

    def _divide(self, call: TracedCall) -> "_Program":
        plan = self.plan_for(call)
        # The plan is this one, with other names of places at most.
        assert plan.pipeline is not None  # noqa: S101
        _check_sites(call, plan)
        return _Program(call, assemble(call, plan.pipeline, self._devices))

    def _run(self, program: "_Program", leaves: Sequence[Any]) -> Any:
        # Once for each kind of call: it costs messages between all processes.
        if program.is_shared and program not in self._agreed:
            check_agreement(self._devices, {"where the arguments lie": argument_places(leaves)})
            self._agreed.append(program)
        jobs: list[Job] = []
        result = program.run(leaves, jobs.append)
        self.jobs = jobs
        return result


def check_separable(call: TracedCall, record: PipelineRecord) -> None:
    """Refuse a step that cannot be run in a plan's microbatches, and a plan that makes no parts of
    a batch.

    Raises `NotSeparableError` and `InputError`.
    """
    for number, stage in enumerate(record.stages):
        if stage.inside is not None and record.microbatches * replica_count(stage) < 2:
            raise InputError(
                f"stage {number} ({len(stage.devices)} devices, none of them replicas) would take "
                "the batch in 1 microbatch; "
                "allowed: at least 2 parts; plan with --microbatches 2 or more"
            )
    replicas = max(map(replica_count, record.stages))
    parts = record.microbatches * replicas
    if parts > 1:
        try:
            separate(call, parts)
        except InputError as error:
            raise InputError(
                f"{number_text(record.microbatches, 'microbatch', 'microbatches')} on stages of up "
                f"to {replicas} replicas is {parts} parts of the batch: {error}"
            ) from error


def _check_sites(call: TracedCall, plan: PlanRecord) -> None:
    """Refuse rules that change how the step's equations are counted, by which the plan names its
    cuts.
    """
    rules = user_rules(plan.workload.rules)
    if rules and len(flatten(call.jaxpr, rules).equations) != len(
        flatten(call.jaxpr, {}).equations
    ):
        raise PlanError(
            f"the plan has rules of jitted functions ({', '.join(rules)}), which a pipeline has to "
            "look into; plan again "
            "without --rule"
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

    def run(self, leaves: Sequence[Any], on_job: Callable[[Job], None]) -> Any:
        outputs = run_step(self.assembly, leaves, on_job)
        return jax.tree.unflatten(jax.tree.structure(self.call.result), outputs)


def assemble(call: TracedCall, record: PipelineRecord, devices: Sequence[Any]) -> Assembly:
    """The programs of a traced step on `devices`, which the stages number.

    Raises as `assembler` does.
    """
    return assembler(call, record, stage_places(devices, record)).assembly()


def assembler(call: TracedCall, record: PipelineRecord, places: Sequence[StagePlace]) -> Assembler:
    """Makes the programs of a traced step on the places of its stages.

    Raises `NotSeparableError` for a step that needs all samples at once, `InputError` for a number
    of microbatches that is not possible, `PlanError` for cuts that the step does not have.
    """
    # Cuts name equations of the step as it is without rules of its jitted functions.
    flat = flatten(call.jaxpr, {})
    cuts = plan_cuts(record, len(flat.equations))
    cut = cut_loops(flat, cuts)

    def rewritten(flat: FlatJaxpr) -> tuple[FlatJaxpr, Sequence[int]]:
        named = with_sites(flat) if record.is_sharded_inside else flat
        return cut_loops(named, cuts).flat, [piece.leaf for piece in cut.inputs]

    # One program for each size of a stage's share of a microbatch: stages of one size share it.
    programs: dict[int, Numbered] = {}
    for place in places:
        parts = record.microbatches * place.replicas
        if parts not in programs:
            programs[parts] = number_values(separate(call, parts, rewritten))
    stage_programs = [programs[record.microbatches * place.replicas] for place in places]
    for other in stage_programs:
        check_alike(stage_programs[0], other)
    order = planned_schedule(record).order
    backward = "weights apart" if order is not None and order.weights_apart else "whole"
    division = blueprint(stage_programs[0], cuts, backward)
    sites = Reemitter(call.jaxpr).site_by_path if record.is_sharded_inside else {}
    return Assembler(
        blueprint=division,
        stage_programs=stage_programs,
        shardings=ValueShardings(division, places, cut, call.paths, call.state),
        pins=[stage_pins(place, flat, sites) for place in places],
        microbatches=record.microbatches,
        orders={"both": simulated_order(record), "forward": forward_order(record)},
        donated=call.donated,
    )
