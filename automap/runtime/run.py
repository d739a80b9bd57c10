"""Running a plan: shardings on inputs and outputs, constraints inside, on real or fake devices.

A planned step is called like the step. Per kind of call (argument trees, shapes, types and static
values) it is traced once, checked against the plan, re-emitted with the plan's constraints and
jitted:

    leaves -> device_put to the plan's input shardings (nothing if they are there already), of state
              that is offloaded in the host's memory
           -> jit(re-emitted step, out_shardings = the plan's), donating what the step donates

With a schedule of streams the equations stand in the order of its stages, and merged ones are one
(`automap.jaxpr.staged`); on GPUs the groups of a stage are on streams of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax.sharding import NamedSharding, PartitionSpec

from automap.backends import backend_for
from automap.jaxpr.hosted import HostedLeaves
from automap.jaxpr.reemit import Reemitter
from automap.jaxpr.staged import StageSites, staged
from automap.plan.record import PlanRecord
from automap.plan.streams import StreamsRecord
from automap.runtime.meshes import check_has_host_memory, device_mesh, named_shardings
from automap.runtime.pipeline.step import PipelinedStep
from automap.runtime.placement import PlacedStep
from automap.runtime.planned_calls import StepUnderPlan
from automap.runtime.processes import check_same_program, check_takes_part, where_held
from automap.runtime.transfer import send
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import Step


# As devices name it: those of a topology that is compiled for ahead of time, and those at hand.
_GPU_PLATFORMS: Final = ("cuda", "rocm", "gpu")


@dataclass(frozen=True, eq=False)
class _Program:
    """The sharded program of one kind of call: `run` takes the traced arguments as they are stored.

    `together` is `run` where several processes take part.
    """

    call: TracedCall
    shardings: tuple[NamedSharding, ...]
    run: Any
    together: Any

    def placed(self, leaves: Sequence[Any]) -> Any:
        """The traced arguments as the plan stores them."""
        moved = list(leaves)
        for i, (leaf, sharding) in enumerate(zip(leaves, self.shardings, strict=True)):
            # After the first call nearly all arrays lie there: this is all that they cost.
            if getattr(leaf, "sharding", None) == sharding:
                continue
            moved[i] = send(leaf, sharding, donate=i in self.call.donated)
        return jax.tree.unflatten(self.call.tree, moved)

    def abstract(self) -> Any:
        """The traced arguments as shapes with shardings."""
        arrays = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=s, weak_type=aval.weak_type)
            for aval, s in zip(self.call.jaxpr.in_avals, self.shardings, strict=True)
        ]
        return jax.tree.unflatten(self.call.tree, arrays)


class PlannedStep(StepUnderPlan[_Program]):
    """A step as a plan says; made by `Plan.jit`.

    The first call of a kind raises `PlanError` in all processes if they do not have the same plan,
    a later one `ProcessLostError` if one of them has gone.
    """

    def __init__(
        self, plan: PlanRecord, step: Step, devices: Sequence[Any] | None, *, is_own: bool
    ) -> None:
        """Raises `MeshMismatchError` for other devices."""
        super().__init__(plan, step, is_own=is_own)
        self.mesh = device_mesh(plan, devices)
        self._agreed: list[_Program] = []
        check_takes_part(list(self.mesh.devices.flat))
        if plan.levers is not None and plan.levers.offload:
            check_has_host_memory(list(self.mesh.devices.flat))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The `jax.stages.Lowered` of the sharded step; arguments may be `jax.ShapeDtypeStruct`s.

        Its `compile()` gives what is called with the step's traced arguments, already in place.
        """
        program = self.program(self.step.enter(args, kwargs))
        # What is lowered is the plain program: nobody waits for other processes here.
        positional, named = program.abstract()
        return program.run.lower(*positional, **named)

    @property
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """Where the plan's inputs are stored."""
        levers, inputs = self.plan.levers, self.plan.inputs
        kept = () if levers is None else levers.offload
        hosted = {number for number, leaf in enumerate(inputs) if leaf.path in kept}
        return tuple(named_shardings(self.mesh, [leaf.spec for leaf in inputs], hosted))

    def _make_program(self, call: TracedCall) -> _Program:
        plan = self.plan_for(call)
        # Places in the plan count the equations of this trace.
        reemitter = Reemitter(call.jaxpr, user_rules(plan.workload.rules))
        # On several devices stages are predicted only: their order is XLA's.
        if plan.streams is None or self.mesh.size > 1:
            constraints = {c.at: PartitionSpec(*c.spec) for c in plan.constraints}
            flat = reemitter.constrained(constraints, self.mesh)
        else:
            is_gpu = self.mesh.devices.flat[0].platform in _GPU_PLATFORMS
            flat = staged(reemitter.flat, _stages(plan.streams), on_streams=is_gpu)
        hosted = HostedLeaves.of(call)
        host_state = backend_for(plan.topology["platform"]).host_state
        flat = hosted.around(flat, self.input_shardings, host_state)
        out_tree = jax.tree.structure(call.result)

        def planned_step(*args: Any, **kwargs: Any) -> Any:
            return jax.tree.unflatten(out_tree, flat(*jax.tree.leaves((args, kwargs))))

        outputs = named_shardings(self.mesh, [leaf.spec for leaf in plan.outputs], hosted.outputs)
        run = jax.jit(
            planned_step,
            out_shardings=jax.tree.unflatten(out_tree, outputs),
            donate_argnums=tuple(
                i for i, position in enumerate(call.positions) if position in call.donated_positions
            ),
            donate_argnames=tuple(call.donated_names),
            # Arguments keep their numbers: donation and places count them.
            keep_unused=True,
        )
        together = where_held(run, self.mesh.devices.flat)
        return _Program(call, self.input_shardings, run, together)

    def _run(self, program: _Program, leaves: Sequence[Any]) -> Any:
        # Asked once for a program: it costs a round trip between all processes.
        if program not in self._agreed:
            check_same_program(self.plan, list(self.mesh.devices.flat))
            self._agreed.append(program)
        positional, named = program.placed(leaves)
        return program.together(*positional, **named)


RunningStep = PlannedStep | PipelinedStep | PlacedStep
"""A step as any plan says."""


def step_under_plan(
    plan: PlanRecord, step: Step, devices: Sequence[Any] | None, *, is_own: bool
) -> RunningStep:
    """A step as any plan says; `is_own` says that this process has made the plan, of this step."""
    if plan.placement is not None:
        return PlacedStep(plan, step, devices, is_own=is_own)
    if plan.pipeline is None:
        return PlannedStep(plan, step, devices, is_own=is_own)
    return PipelinedStep(plan, step, devices, is_own=is_own)


def _stages(streams: StreamsRecord) -> list[StageSites]:
    return [
        StageSites(
            groups=tuple(tuple(operator.at for operator in group) for group in stage.groups),
            is_merged=stage.together == "merged",
        )
        for stage in streams.stages
    ]
