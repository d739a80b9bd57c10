"""The step under its plan as a file that any process can compile, without the code it came from.

    export(step constrained by the plan, on an abstract mesh, for the compiler's platform) -> bytes

`jax.export` keeps shardings and donation apart from devices, so nothing here needs the machine.
Inputs and outputs are flat lists: a pytree's classes need not exist in the compiler's process.
Every equation is in the named scope of its site, so that what the compiler made can be traced to a
line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import hashlib
import re
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from automap.backends import backend_for
from automap.errors import InputError
from automap.jaxpr.hosted import HostedLeaves
from automap.jaxpr.reemit import Reemitter
from automap.jaxpr.rematerialize import levered_call
from automap.plan.record import PlanRecord, Spec, check_is_one_program
from automap.program.check import check_is_planned
from automap.runtime.meshes import named_shardings
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.topology.model import Platform
from automap.topology.tpu import GENERATIONS
from automap.verify.messages import PlanShardings


_TARGET = re.compile(r"custom_call @([\w.$-]+)")
# Where MLIR's text says which source line made an op: a reference at its end, or the definition of
# one.
_LOCATION = re.compile(r" loc\((?:#loc\d*|unknown)\)|^#loc.*\n?", re.MULTILINE)
LOCATION_OR_NAME = re.compile(rf"{_LOCATION.pattern}|^module @\w+", re.MULTILINE)
"""What differs between programs that compute the same on stages of their own."""


@dataclass(frozen=True)
class ExportedStep:
    """An exported step; `sha256` is of its StableHLO without names and source lines."""

    artifact: bytes
    sha256: str


@dataclass(frozen=True)
class PlannedProgram:
    """A call of a step under a plan, ready to be exported; made by `planned_program`."""

    plan: PlanRecord
    call: TracedCall
    reemitter: Reemitter

    @property
    def shardings(self) -> PlanShardings:
        """What the compiler must know of the plan."""
        return PlanShardings(
            axes=self.plan.mesh.axes,
            devices=self.plan.mesh.devices,
            inputs=tuple(leaf.spec for leaf in self.plan.inputs),
            outputs=tuple(leaf.spec for leaf in self.plan.outputs),
            donated=tuple(sorted(self.call.donated)),
            hosted_inputs=tuple(sorted(self._hosted.inputs)),
            hosted_outputs=tuple(sorted(self._hosted.outputs)),
        )

    @property
    def _hosted(self) -> HostedLeaves:
        return HostedLeaves.of(self.call)

    def exported(self, platform: Platform) -> ExportedStep:
        """The step as planned, on all devices. Raises `InputError` for what cannot be exported."""
        step, inputs = self._planned(platform)
        return export_program(step, inputs, platform)

    def traced(self) -> jax.stages.Traced:
        """The step as planned, on an abstract mesh, to be lowered for any platform."""
        step, inputs = self._planned()
        return step.trace(*inputs)

    def exported_single(self) -> ExportedStep:
        """The step as it was written, on one CPU device; one with a `shard_map` on its mesh,
        everything else whole on each.
        """
        # Without levers too: it is what the planned step is held against.
        own = Reemitter(self.call.own_jaxpr, user_rules(self.plan.workload.rules))
        step = jax.jit(own.scoped("left out"), keep_unused=True)
        mesh = self._mesh if self.reemitter.manual_shardings else None
        return export_program(step, self._inputs(mesh, [()] * len(self.shardings.inputs)), "cpu")

    @property
    def _mesh(self) -> AbstractMesh:
        axes = self.plan.mesh.axes
        names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
        return AbstractMesh(
            sizes,
            names,
            axis_types=(AxisType.Auto,) * len(names),
            abstract_device=planned_tpu(self.plan),
        )

    def _planned(self, platform: Platform | None = None) -> tuple[Any, list[Any]]:
        """The jitted step with the plan's shardings, and its abstract inputs; of choices by
        platform what is lowered for the one that is given.
        """
        shardings, mesh = self.shardings, self._mesh
        constraints = {c.at: PartitionSpec(*c.spec) for c in self.plan.constraints}
        flat = self.reemitter.constrained(constraints, mesh, names="sites", platform=platform)
        inputs = self._inputs(mesh, shardings.inputs, shardings.hosted_inputs)
        places = [x.sharding for x in inputs]
        host_state = backend_for(self.plan.topology["platform"]).host_state
        step = jax.jit(
            self._hosted.around(flat, places, host_state),
            out_shardings=named_shardings(mesh, shardings.outputs, shardings.hosted_outputs),
            donate_argnums=shardings.donated,
            keep_unused=True,
        )
        return step, inputs

    def _inputs(
        self, mesh: AbstractMesh | None, specs: Sequence[Spec], hosted: Sequence[int] = ()
    ) -> list[Any]:
        shardings = [None] * len(specs) if mesh is None else named_shardings(mesh, specs, hosted)
        return [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type, sharding=sharding)
            for a, sharding in zip(self.call.jaxpr.in_avals, shardings, strict=True)
        ]


def planned_tpu(plan: PlanRecord) -> AbstractDevice | None:
    """The plan's TPU, which kernels of Pallas ask for when they are lowered; None of a plan for
    others.
    """
    generation = GENERATIONS.get(plan.topology["device"]["name"])
    if generation is None:
        return None
    return AbstractDevice(generation.kinds[0], generation.cores, "tpu")


def planned_program(plan: PlanRecord, call: TracedCall) -> PlannedProgram:
    """A traced call under its plan. Raises `PlanError` if the plan is of another step."""
    check_is_one_program(plan)
    rules = user_rules(plan.workload.rules)
    backend = backend_for(plan.topology["platform"])
    call = levered_call(call, plan.levers, rules, backend.host_stacks)
    reemitter = Reemitter(call.jaxpr, rules)
    check_is_planned(plan, call, reemitter)
    return PlannedProgram(plan, call, reemitter)


def export_program(
    program: Callable[..., Any],
    inputs: Sequence[Any],
    platform: Platform,
    without: re.Pattern[str] = _LOCATION,
) -> ExportedStep:
    """A jitted program on an abstract mesh; its hash is of the text without what `without` matches.

    Raises `InputError` for what cannot be exported.
    """
    exported = _try_export(program, inputs, platform, ())
    return ExportedStep(
        artifact=bytes(exported.serialize()),
        # Source lines move with every edit above them and change nothing that is compiled.
        sha256=hashlib.sha256(without.sub("", exported.mlir_module()).encode()).hexdigest(),
    )


def _try_export(
    step: Any, inputs: Sequence[Any], platform: Platform, allowed: tuple[str, ...]
) -> export.Exported:
    """Exported with the custom calls of `allowed`; JAX warns of those that may change with its
    version.

    The program is compiled with the same version right away.
    """
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in allowed]
    try:
        return export.export(step, platforms=[platform], disabled_checks=checks)(*inputs)
    except Exception as error:
        if not allowed and "custom calls" in str(error):
            # Which custom calls there are is known from the lowered text alone; all of them are
            # allowed then, and whatever else is wrong is raised by the second try.
            lowered = step.trace(*inputs).lower(lowering_platforms=(platform,))
            return _try_export(step, inputs, platform, _custom_calls(lowered.as_text()))
        raise InputError(
            f"the step cannot be compiled elsewhere than in this process, for {platform}: "
            f"{type(error).__name__}: {str(error)[:500]}; a step that calls back into Python "
            "(debug.print, io_callback) cannot be verified: plan and verify it without"
        ) from error


def _custom_calls(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_TARGET.findall(text)))
