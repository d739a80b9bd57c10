"""The evaluator: seconds per step and peak bytes per device of one point.

    step = compute + collective
    compute     sum over kernels of max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b), launch)
                where parts is how many ways the op's factors are split, bytes are local,
                e_m and e_b the device's matmul and memory efficiencies           -> in: `_compute`
    collective  sum over collectives of their seconds (`automap.cost.collectives`); XLA merges the
                collectives of gradients and parameters into messages of COMBINE_BYTES
                                                                                  -> in: `_collective`
    peak        max over schedule positions of the bytes of live buffers and gathered copies
                                                                                  -> in: `automap.cost.memory`
No overlap of computation and communication is assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from automap.cost.collectives import CollectiveCost, collective_cost
from automap.cost.flows import KINDS
from automap.cost.memory import Memory, Profile
from automap.cost.shardings import Shardings, shardings
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives, collectives
from automap.space.point import Lanes
from automap.topology.model import Topology


# XLA:GPU's default threshold for merging small collectives (xla_gpu_*_combine_threshold_bytes).
COMBINE_BYTES = 30 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one point costs, per step and per device."""

    compute_seconds: float
    collective_seconds: float
    peak_bytes: float

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return self.compute_seconds + self.collective_seconds


@dataclass(frozen=True)
class Evaluator:
    """Prices lanes on one topology. Pure; `_links` only remembers costs by mesh."""

    tables: Tables
    n_classes: int
    topology: Topology
    _links: dict[object, CollectiveCost] = field(default_factory=dict, repr=False)

    def evaluate(self, lanes: Lanes) -> Estimate:
        """Seconds and bytes of one step under `lanes`."""
        sharding = shardings(self.tables, self.n_classes, lanes)
        found = collectives(self.tables, sharding, lanes.mesh.sizes)
        return Estimate(
            compute_seconds=float(self._compute(sharding).sum()),
            collective_seconds=float(self._collective(found, lanes.mesh.sizes).sum()),
            peak_bytes=self._profile.peak_bytes(
                sharding.parts_of_value, found.copied, found.is_repeat
            ),
        )

    def memory(self, lanes: Lanes) -> Memory:
        """What the peak under `lanes` consists of."""
        sharding = shardings(self.tables, self.n_classes, lanes)
        found = collectives(self.tables, sharding, lanes.mesh.sizes)
        return self._profile.memory(sharding.parts_of_value, found.copied, found.is_repeat)

    @cached_property
    def _profile(self) -> Profile:
        tables = self.tables
        return Profile(tables.buffers, len(tables.value_rows), len(tables.operands.count))

    def collectives(self, lanes: Lanes) -> Collectives:
        """Every collective of one step under `lanes`."""
        sharding = shardings(self.tables, self.n_classes, lanes)
        return collectives(self.tables, sharding, lanes.mesh.sizes)

    @cached_property
    def _peak_flops_per_s(self) -> np.ndarray:
        device = self.topology.device
        rates: Mapping[str, float] = {
            d: device.peak_flops_per_s(d) * device.matmul_efficiency if d else np.inf
            for d in set(self.tables.kernels.dtype)
        }
        return np.array([rates[d] for d in self.tables.kernels.dtype])

    def _compute(self, sharding: Shardings) -> np.ndarray:
        table, device = self.tables.kernels, self.topology.device
        flops = table.flops / sharding.parts_of_op[table.op_row]
        local = table.traffic_bytes / sharding.parts_of_value[table.traffic_row]
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        memory = moved / (device.hbm_bytes_per_s * device.memory_efficiency)
        each = np.maximum(np.maximum(flops / self._peak_flops_per_s, memory), device.launch_seconds)
        return each * table.count

    def _collective(self, found: Collectives, sizes: tuple[int, ...]) -> np.ndarray:
        merged = np.minimum(found.count, found.count * found.n_bytes / COMBINE_BYTES)
        messages = np.where(found.combinable, merged, found.count)
        n_bytes = found.n_bytes * found.count
        seconds = np.zeros(len(n_bytes))
        of_link = (found.kind << len(sizes)) + found.mask
        for link in np.unique(of_link).tolist():
            rows = of_link == link
            cost = self._link(link >> len(sizes), link & (1 << len(sizes)) - 1, sizes)
            seconds[rows] = cost.seconds(n_bytes[rows], messages[rows])
        return seconds

    def _link(self, kind: int, mask: int, sizes: tuple[int, ...]) -> CollectiveCost:
        key = (kind, mask, sizes)
        if key not in self._links:
            axes = tuple(a for a in range(len(sizes)) if mask >> a & 1)
            self._links[key] = collective_cost(KINDS[kind], self.topology, sizes, axes)
        return self._links[key]
