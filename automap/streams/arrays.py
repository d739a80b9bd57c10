"""The operators of a block as arrays, as the compiled functions of `automap.streams.costs` read
them.

A GPU has its multiprocessors to share. A processor is one of them: each of its kernels has all
cores, so that only waiting for memory and launches is saved, until stages are measured
                                                                         -> in: `device_machine`
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from automap.streams.blocks import Block, make_block
from automap.streams.costs import (
    Machine,
    Measured,
    Operators,
    measured_table,
    price_products,
    price_stages,
)
from automap.streams.operators import Operator
from automap.streams.products import MOST_DIMS, MergeClass
from automap.topology.gpu_devices import multiprocessors
from automap.topology.model import Topology
from hlo_tools.graph import DTYPE_BITS


_MOST_VALUES = 64


def device_machine(topology: Topology) -> Machine:
    """What kernels share. Raises `TopologyError` for a device without a figure of
    multiprocessors.
    """
    device = topology.device
    return Machine(
        sms=1.0 if topology.platform == "cpu" else float(multiprocessors(topology)),
        bytes_per_s=device.memory_bytes_per_s("product"),
        launch_seconds=device.launch_seconds,
    )


@dataclass(frozen=True)
class StagePrices:
    """What was measured of stages: (at once, merged) `seconds` by their operators in order, nan for
    one that was not, and the `corrections` of the model for those that were not.
    """

    seconds: Mapping[tuple[int, ...], tuple[float, float]] = field(default_factory=dict)
    corrections: tuple[float, float] = (1.0, 1.0)
    floor_share: float = 1.0


@dataclass(frozen=True)
class PricedOperators:
    """All operators of a step, each priced alone on the device of a topology; stages that were
    `measured` are priced as measured.
    """

    operators: tuple[Operator, ...]
    topology: Topology
    measured: StagePrices = field(default_factory=StagePrices)

    @cached_property
    def machine(self) -> Machine:
        """What kernels share."""
        return device_machine(self.topology)

    @cached_property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Seconds of each operator, [operators], by the names of `costs.Operators`; `ideal` are
        those of its flops at the device's rate, which no schedule is below.
        """
        products = np.zeros((sum(len(op.parts) for op in self.operators), 6))
        index = 0
        for op in self.operators:
            for part in op.parts:
                p = part.product
                if p is not None:
                    sizes = (p.rows, p.columns, p.depth, p.groups)
                    products[index] = (*sizes, self.rate(p.dtype), DTYPE_BITS[p.dtype] / 8)
                index += 1
        # A row of zeros stands for no product: its rate must not be divided by.
        products[products[:, 4] == 0, 4] = np.inf
        priced = price_products(products, self.machine)
        return self._summed(priced)

    def _summed(self, priced: np.ndarray) -> Mapping[str, np.ndarray]:
        names = ("alone", "compute", "waves", "block", "memory", "l2", "launches", "ideal")
        total = {name: np.zeros(len(self.operators)) for name in names}
        launch, index = self.topology.device.launch_seconds, 0
        for number, op in enumerate(self.operators):
            work = 0.0
            for part in op.parts:
                compute, waves, block, l2 = priced[index]
                index += 1
                memory = self._memory(part.op_class, sum(n for _, n in part.reads))
                memory += self._memory(part.op_class, part.written_bytes)
                total["alone"][number] += part.runs * max(compute, l2, memory, launch)
                total["compute"][number] += part.runs * compute
                total["block"][number] += part.runs * block
                work += part.runs * waves * block
                total["memory"][number] += part.runs * memory
                total["l2"][number] += part.runs * l2
                total["launches"][number] += part.runs
                if part.product is not None:
                    peak = self.rate(part.product.dtype) * self.machine.sms
                    total["ideal"][number] += part.runs * part.product.flops / peak
            if total["block"][number] > 0:
                total["waves"][number] = work / total["block"][number]
        return total

    def rate(self, dtype: str) -> float:
        """Flops per second of one SM."""
        device = self.topology.device
        return device.peak_flops_per_s(dtype) * device.matmul_efficiency / self.machine.sms

    def _memory(self, op_class: str, n_bytes: float) -> float:
        return n_bytes / self.topology.device.memory_bytes_per_s(op_class)  # type: ignore[arg-type]

    def block(self, block: Block) -> Operators:
        """The arrays of a block."""
        members = [self.operators[number] for number in block.members]
        picked = {name: column[list(block.members)] for name, column in self.columns.items()}
        values, shared = self._shared_inputs(members)
        n = len(members)
        inputs = np.full((n, max((len(v) for v in values), default=0) or 1), -1, np.int64)
        for place, each in enumerate(values):
            inputs[place, : len(each)] = each
        seconds = np.array([self._memory("product", size) for size in shared] or [0.0])
        own = picked["memory"] - np.array([sum(seconds[v] for v in each) for each in values])
        after = np.zeros(n, np.uint64)
        for place, mask in enumerate(block.before):
            for other in range(n):
                if mask >> other & 1:
                    after[other] |= np.uint64(1 << place)
        return Operators(
            **{name: picked[name] for name in ("alone", "compute", "waves", "block", "l2")},
            memory=own,
            inputs=inputs,
            input_seconds=seconds,
            before=np.array(block.before, np.uint64),
            after=after,
            measured=self._measured(block, picked["alone"]),
            **self._merge_columns(members),
        )

    def _measured(self, block: Block, alone: np.ndarray) -> Measured:
        """Of the block's operators, and of the stages that have no others."""
        place = {number: index for index, number in enumerate(block.members)}
        own = {
            members: seconds
            for members, seconds in self.measured.seconds.items()
            if all(number in place for number in members)
        }
        singles = np.array(alone)
        for members, (seconds, _) in own.items():
            if len(members) == 1:
                singles[place[members[0]]] = seconds
        return measured_table(
            singles,
            {sum(1 << place[n] for n in members): seconds for members, seconds in own.items()},
            self.measured.corrections,
            self.measured.floor_share,
        )

    @cached_property
    def least_work(self) -> np.ndarray:
        """Seconds of all SMs that each operator takes at least of any stage, [operators]: of its
        blocks, or of its flops if it may be merged, which fills tiles better.
        """
        can_merge = np.array([op.merge is not None for op in self.operators])
        blocks = self.columns["waves"] * self.columns["block"]
        return np.where(can_merge, self.columns["ideal"], blocks)

    @cached_property
    def _least_bytes(self) -> Mapping[int, int]:
        """Of each value that operators of one kernel read, what all of these read at least."""
        least: dict[int, int] = {}
        for op in self.operators:
            for value, n_bytes in _plain_reads(op):
                least[value] = min(least.get(value, n_bytes), n_bytes)
        return least

    def stage_seconds(self, members: Sequence[int]) -> tuple[float, float]:
        """(concurrent, merged) seconds of a stage of operators, inf where they cannot be merged."""
        block = self.block(make_block(members, [op.before for op in self.operators]))
        mask = np.array([2 ** len(members) - 1], np.uint64)
        concurrent, merged = price_stages(block, mask, self.machine)[0]
        return float(concurrent), float(merged)

    def _shared_inputs(self, members: Sequence[Operator]) -> tuple[list[list[int]], list[int]]:
        """For each operator the numbers of the values that others read too, and the bytes of each
        value.
        """
        readers: dict[int, list[int]] = {}
        for place, op in enumerate(members):
            for value, _ in _plain_reads(op):
                readers.setdefault(value, []).append(place)
        several = (value for value, each in readers.items() if len(each) > 1)
        largest = sorted(several, key=lambda value: -self._least_bytes[value])[:_MOST_VALUES]
        number = {value: index for index, value in enumerate(largest)}
        values = [
            [number[v] for v in number if place in readers[v]] for place in range(len(members))
        ]
        return values, [self._least_bytes[v] for v in number]

    def _merge_columns(self, members: Sequence[Operator]) -> Mapping[str, np.ndarray]:
        n, classes = len(members), dict[object, int]()
        first: list[tuple[MergeClass, Operator]] = []
        merge = np.full(n, -1, np.int64)
        columns, other = np.zeros(n), np.zeros(n)
        padding, rest = np.zeros((n, MOST_DIMS)), np.ones((n, MOST_DIMS))
        for place, op in enumerate(members):
            each, part = op.merge, op.parts[0]
            if each is None or part.product is None:
                continue
            number = classes.setdefault(each.key, len(classes))
            if number == len(first):
                first.append((each, op))
            merge[place], columns[place] = number, part.product.columns
            padding[place, : len(each.padding)] = each.padding
            rest[place, : len(each.rest)] = each.rest
            weights = part.product.depth * part.product.columns * each.weight_bytes
            read = sum(size for value, size in part.reads if value != each.operand)
            other[place] = self._memory("product", max(read - weights, 0) + part.written_bytes)
        products = [op.parts[0].product for _, op in first]
        return {
            "merge": merge,
            "columns": columns,
            "padding": padding,
            "rest": rest,
            "other": other,
            "rows": np.array([p.rows for p in products if p] or [0], float),
            "depth": np.array([each.depth for each, _ in first] or [0], float),
            "rate": np.array([self.rate(p.dtype) for p in products if p] or [1.0]),
            "size": np.array([each.weight_bytes for each, _ in first] or [1], float),
            "image": np.array(
                [
                    self._memory(
                        "product", sum(n for v, n in op.parts[0].reads if v == each.operand)
                    )
                    for each, op in first
                ]
                or [0.0]
            ),
        }


def _plain_reads(op: Operator) -> Iterator[tuple[int, int]]:
    """(value, bytes) that an operator of one kernel, run once, reads of others."""
    if len(op.parts) == 1 and op.parts[0].runs == 1:
        yield from (read for read in op.parts[0].reads if read[0] >= 0)
