"""The evaluator: seconds per step and peak bytes per device of one point.

    step = compute + collective
    compute     sum over kernels of max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b), launch)
                where parts is how many ways the op's factors are split, bytes are local,
                e_m and e_b the device's matmul and memory efficiencies; with a profile, the seconds
                measured for like kernels (`automap.cost.measured`)               -> in: `_compute`
    collective  sum over collectives of alpha + beta * bytes; XLA merges the collectives of
                gradients and parameters, so theirs pay alpha once per COMBINE_BYTES
                                                                                  -> in: `_collective`
    peak        max over schedule positions of the bytes of live buffers and gathered copies
                                                                                  -> in: `automap.cost.memory`
No overlap of computation and communication is assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from automap.cost.collectives import AlphaBeta, alpha_beta
from automap.cost.flows import KINDS
from automap.cost.measured import MeasuredKernels
from automap.cost.memory import Memory, Profile
from automap.cost.profile import KernelProfile
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
    """Prices lanes on one topology. Pure; `_links` only remembers alpha-beta pairs by mesh."""

    tables: Tables
    n_classes: int
    topology: Topology
    kernel_profile: KernelProfile | None = None
    _links: dict[object, AlphaBeta] = field(default_factory=dict, repr=False)

    def evaluate(self, lanes: Lanes) -> Estimate:
        """Seconds and bytes of one step under `lanes`."""
        sharding = shardings(self.tables, self.n_classes, lanes)
        found = collectives(self.tables, sharding, lanes.mesh.sizes)
        return Estimate(
            compute_seconds=float(self._compute(sharding, lanes.mesh.sizes).sum()),
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

    @cached_property
    def _measured(self) -> MeasuredKernels | None:
        table, profile = self.tables.kernels, self.kernel_profile
        return None if profile is None else MeasuredKernels(table.shape, table.op_row, profile)

    def _compute(self, sharding: Shardings, sizes: tuple[int, ...]) -> np.ndarray:
        table, device = self.tables.kernels, self.topology.device
        flops = table.flops / sharding.parts_of_op[table.op_row]
        moved = table.moved_bytes(sharding.parts_of_value)
        memory = moved / (device.hbm_bytes_per_s * device.memory_efficiency)
        each = np.maximum(np.maximum(flops / self._peak_flops_per_s, memory), device.launch_seconds)
        if self._measured is not None:
            each = self._measured.override(each, moved, sharding.factor_of_axis, sizes)
        return each * table.count

    def _collective(self, found: Collectives, sizes: tuple[int, ...]) -> np.ndarray:
        alpha, beta = (
            np.zeros((len(KINDS), 1 << len(sizes))),
            np.zeros((len(KINDS), 1 << len(sizes))),
        )
        for kind, mask in set(zip(found.kind.tolist(), found.mask.tolist())):
            link = self._link(kind, mask, sizes)
            alpha[kind, mask], beta[kind, mask] = link.alpha_seconds, link.beta_seconds_per_byte
        merged = np.minimum(found.count, found.count * found.n_bytes / COMBINE_BYTES)
        messages = np.where(found.combinable, merged, found.count)
        seconds = alpha[found.kind, found.mask] * messages
        return seconds + beta[found.kind, found.mask] * found.n_bytes * found.count

    def _link(self, kind: int, mask: int, sizes: tuple[int, ...]) -> AlphaBeta:
        key = (kind, mask, sizes)
        if key not in self._links:
            axes = tuple(a for a in range(len(sizes)) if mask >> a & 1)
            self._links[key] = alpha_beta(KINDS[kind], self.topology, sizes, axes)
        return self._links[key]
