"""A machine of round numbers, so that seconds can be said in closed form."""

from dataclasses import replace

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


FLOPS_PER_S, BYTES_PER_S = 1e12, 1e9
# Beside what a TPU's kernels move; products take it at each end, where something comes or leaves,
# and the time of their start.
TPU_GAP_SECONDS = backend_for("tpu").launch_gap_seconds
TPU_START_SECONDS = backend_for("tpu").tile_numbers.product_start_seconds
# Nothing is rounded up, kept on the chip or launched for free: the roofline alone.
PLAIN = {
    "hbm_bytes_per_s": BYTES_PER_S,
    "flops_per_s": (("f32", FLOPS_PER_S), ("bf16", FLOPS_PER_S)),
    "matmul_efficiency": 1.0,
    "memory_efficiency": 1.0,
    "class_efficiency": (),
    "launch_seconds": 1e-12,
    "on_chip_bytes": 0,
    "matmul_tile": 1,
}
FAST_MEMORY = {"hbm_bytes_per_s": 1e30}


def machine(name, **changed):
    topology = get_topology(name)
    return replace(topology, device=replace(topology.device, **{**PLAIN, **changed}))


def evaluator(step, args, topology):
    problem = problem_of(step, args)
    tables = build_tables(problem, topology.platform)
    return Evaluator(tables, problem.n_classes, topology), Space(problem)


def whole(space):
    """Nothing is split on eight devices."""
    mesh = Mesh(("data",), (8,))
    return space.split_classes(space.point(mesh, [()]))


def batch_split(space, devices):
    """The batch is split on so many devices."""
    mesh = Mesh(("data",), (devices,))
    return space.split_classes(space.point(mesh, [[space.batches[0]]]))


def only_kernel_seconds(cost, split_classes, opcode):
    """Seconds of the one kernel of an opcode."""
    seconds = cost.price_point(split_classes).kernel_seconds
    program = cost.tables.program
    (row,) = (
        row
        for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True)
        if program.problem.graph.ops[kernel.op].opcode == opcode
    )
    return float(seconds[row])
