"""The kernels of a user's step at the local shapes of its presets on every mesh of a topology.

Kernels bound by memory are measured at the powers of two around their bytes: their times are read
from a curve.
"""

from collections.abc import Iterator

import numpy as np

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.profile.measured import parts_of
from automap.cost.profile.signatures import Signature
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.planner.sharding import meshes_of
from automap.program.trace import Workload
from automap.space.point import SplitClasses
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology.model import Topology


def target_signatures(workload: Workload, topology: Topology) -> tuple[Signature, ...]:
    """Distinct signatures, those of the first presets first."""
    space = Space(workload.problem, backend_for(topology.platform).stored_multiple)
    tables = build_tables(workload.problem, topology.platform)
    evaluator = Evaluator(tables, workload.problem.n_classes, topology)
    signatures: dict[Signature, None] = {}
    for mesh in meshes_of(topology, None):
        for preset in PRESETS.values():
            for point in preset.points(space, mesh):
                if space.is_valid(point):
                    signatures |= dict.fromkeys(_signatures(evaluator, space.split_classes(point)))
    return tuple(signatures)


def _signatures(evaluator: Evaluator, split_classes: SplitClasses) -> Iterator[Signature]:
    table = evaluator.tables.kernels
    sharding = shardings(evaluator.tables, evaluator.n_classes, split_classes)
    split = sharding.factor_of_axis[table.op_row].tolist()
    moved = table.moved_bytes(sharding.parts_of_value)
    octave = 2 ** np.ceil(np.log2(np.maximum(moved, 1))).astype(np.int64)
    for shape, factors, n_bytes in zip(table.shape, split, octave.tolist(), strict=True):
        parts = parts_of(shape, factors, split_classes.mesh.sizes) if shape.kind else ()
        yield shape.local(parts, n_bytes)
        if not shape.kind:
            yield shape.local((), max(n_bytes // 2, 1))
