"""The seconds of a step as the TPU compiler scheduled it, without a TPU.

The compiler gives each of its fusions a number of cycles; loops count them as often as they run, and the clock makes
seconds of them.  Collectives have no cycles in its program and are priced by the cost model.
"""

import gzip

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.plan_build import Outcome, build_plan
from automap.space.point import Mesh
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.collectives import OTHER_DEVICES
from automap.verify.compilers import OF_PLATFORM
from automap.verify.compiling import DEFAULT_TIMEOUT_SECONDS, ask
from automap.verify.program import planned_program
from automap.verify.witness import Witness
from automap.workload.call import TracedCall
from hlo_tools.scheduled import read_schedule


# Clocks by which the compiler's cycles are seconds: peak FLOP/s over those of a cycle (four matrix units of 128 x 128 on
# v5e, eight on v5p).
CLOCK_HZ = {"v5e": 197e12 / (4 * 2 * 128**2), "v5p": 459e12 / (8 * 2 * 128**2)}


def witness_of(
    outcome: Outcome, call: TracedCall, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> Witness:
    """What the compiler of the outcome's machine makes of its plan, kept between runs.

    Raises `CompilerError` if the compiler is missing, or takes longer.
    """
    return ask(
        planned_program(build_plan(outcome), call), OF_PLATFORM[outcome.topology.platform],
        timeout_seconds=timeout_seconds, cache_folder=default_folder(),
    )  # fmt: skip


def scheduled_seconds(
    witness: Witness, topology: Topology, mesh: Mesh
) -> tuple[float, float] | None:
    """(compute, collective) seconds of the compiled program; None if there is none or it cannot be read.

    Collectives that run beside the kernels (permutes of rings) count as far as they outlast all of them.
    """
    if witness.program is None or witness.collectives is None:
        return None
    data = gzip.decompress((default_folder() / witness.program).read_bytes())
    compute = read_schedule(data).cycles / CLOCK_HZ[topology.device.name]
    inline = beside = 0.0
    for record in witness.collectives:
        axes = mesh.names if record.axes == OTHER_DEVICES else record.axes
        cost = collective_cost(
            CollectiveKind(record.kind), topology, mesh.sizes, [mesh.names.index(a) for a in axes]
        )
        seconds = float(cost.seconds(float(record.bytes))) * record.count
        if record.kind == CollectiveKind.PERMUTE:
            beside += seconds
        else:
            inline += seconds
    return compute, inline + max(beside - compute, 0.0)
