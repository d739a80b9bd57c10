"""Predicted collectives beside the compiled ones, tensor by tensor.

Both sides are multisets of (kind, mesh axes, bytes), one element per tensor and execution; bytes
are the full buffer on one device (`automap.cost.collectives`). What a backend is known to do
differently (`Backend.compiled`) is applied to the prediction.
"""

from collections import Counter
from dataclasses import dataclass

from automap.backends import Backend
from automap.cost.traffic.flows import KINDS
from automap.planner.records import Outcome
from automap.topology.mesh import Mesh
from automap.verify.groups import joined_axes
from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module


@dataclass(frozen=True, slots=True, order=True)
class Transfer:
    """One tensor moved by a collective over `axes`."""

    kind: str
    axes: tuple[str, ...]
    n_bytes: int


def predicted_transfers(outcome: Outcome, backend: Backend) -> Counter[Transfer]:
    """The collectives of a search's best plan, as a backend runs them."""
    split_classes = outcome.context.space.split_classes(outcome.best.point)
    collectives = outcome.context.evaluator.collectives(split_classes)
    names = split_classes.mesh.names
    # Bytes are floats in the cost model (shares of a tensor), whole numbers in a program.
    result: Counter[Transfer] = Counter()
    rows = zip(
        collectives.kind, collectives.mask, collectives.n_bytes, collectives.count, strict=True
    )
    for kind, mask, n_bytes, count in rows:
        name = KINDS[kind].value
        axes = tuple(n for a, n in enumerate(names) if mask >> a & 1)
        result[Transfer(backend.compiled.runs_as.get(name, name), axes, round(n_bytes))] += int(
            count
        )
    return result


def compiled_transfers(text: str, mesh: Mesh) -> Counter[Transfer]:
    """Those of the HLO text of what XLA compiled in this process; `mesh` lies row-major on its
    partitions.

    Raises `HloError` for text that is no HLO.
    """
    module = decode_module(text_to_proto(text))
    result: Counter[Transfer] = Counter()
    for c in compiled_collectives(module):
        joined = joined_axes(c.groups, mesh.axes, is_pairs=c.kind == "collective-permute")
        result[Transfer(c.kind, joined, c.n_bytes)] += c.count
    return result
