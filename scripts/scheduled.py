"""The seconds of a step as the TPU compiler scheduled it, without a TPU.

The compiler gives each of its fusions a number of cycles; loops count them as often as they run,
and the clock makes seconds of them. Collectives have no cycles in its program and are priced by the
cost model. Those that run beside the kernels (permutes of rings) count as far as they outlast all
of them                                                         -> in: `scheduled_step`
"""

from dataclasses import dataclass
from itertools import groupby

from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.planner.records import Outcome, build_plan
from automap.step.call import TracedCall
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILER_BY_PLATFORM
from automap.verify.compiling import OTHER_DEVICES, ask, joined_axes
from automap.verify.program import planned_program
from automap.verify.witness import Witness
from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.compiled.scheduled import read_schedule
from hlo_tools.read.proto import decode_module


# Clocks by which the compiler's cycles are seconds: peak FLOP/s over those of a cycle (four matrix
# units of 128 x 128 on v5e, eight on v5p).
CLOCK_HZ = {"v5e": 197e12 / (4 * 2 * 128**2), "v5p": 459e12 / (8 * 2 * 128**2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """Seconds of a step: `collective_seconds` are those that nothing hides."""

    compute_seconds: float
    collective_seconds: float

    @property
    def seconds(self) -> float:
        """The step."""
        return self.compute_seconds + self.collective_seconds


def compile_witness(
    outcome: Outcome, call: TracedCall, timeout_seconds: float = DEFAULT_COMPILE_TIMEOUT_SECONDS
) -> Witness:
    """What the compiler of the outcome's machine makes of its plan, kept between runs.

    Raises `CompilerError` if the compiler is missing, or takes longer.
    """
    return ask(
        planned_program(build_plan(outcome), call),
        COMPILER_BY_PLATFORM[outcome.topology.platform],
        timeout_seconds=timeout_seconds,
        cache_folder=default_folder(),
    )


def scheduled_seconds(
    witness: Witness, topology: Topology, mesh: Mesh
) -> tuple[float, float] | None:
    """(compute, collective) seconds of the compiled program; None if there is none or it cannot be
    read.
    """
    if witness.program is None or witness.collectives is None:
        return None
    step = scheduled_step((default_folder() / witness.program).read_bytes(), topology, mesh)
    return step.compute_seconds, step.collective_seconds


def scheduled_step(data: bytes, topology: Topology, mesh: Mesh) -> ScheduledStep:
    """The step of a serialized program; `mesh` lies row-major on its partitions. Raises `HloError`
    for a malformed one.

    Tensors that the compiler merged go as one message.
    """
    compute = read_schedule(data).cycles / CLOCK_HZ[topology.device.name]
    inline = beside = 0.0
    collectives = compiled_collectives(decode_module(data))
    for _, tensors in groupby(collectives, key=lambda c: c.message):
        # Tensors of one message share its latency.
        first, *others = tensors
        kind = CollectiveKind(first.kind)
        axes = joined_axes(first.groups, mesh.axes, is_pairs=kind == CollectiveKind.PERMUTE)
        # Groups that no axes say are priced over all axes.
        axes = mesh.names if axes == OTHER_DEVICES else axes
        cost = collective_cost(kind, topology, mesh.sizes, [mesh.names.index(a) for a in axes])
        n_bytes = first.n_bytes + sum(c.n_bytes for c in others)
        seconds = float(cost.seconds(float(n_bytes))) * first.count
        # The TPU compiler runs rings of permutes beside the products they feed.
        if kind == CollectiveKind.PERMUTE:
            beside += seconds
        else:
            inline += seconds
    return ScheduledStep(
        compute_seconds=compute, collective_seconds=inline + max(beside - compute, 0.0)
    )
