"""Seconds and bytes of the equations and values of a step's blocks, under one plan of it.

A block stands for all of its group, so each equation has the seconds of one run of one block, and
each value the bytes of it on one device (`automap.planner.remat` chooses by them).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
import math
from typing import Any

from jax.extend import core
import numpy as np

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.jaxpr.again import COMPUTED_AGAIN
from automap.jaxpr.blocks import Block, BlockGroup, n_bytes
from automap.jaxpr.sites import parse_site
from automap.program.trace import Workload
from automap.space.point import SplitClasses
from hlo_tools.analyses.product_kernels import made_in_products


@dataclass(frozen=True)
class Prices:
    """Seconds of a step's equations and parts of its values, under one plan of it."""

    workload: Workload
    evaluator: Evaluator
    split_classes: SplitClasses

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """Of one run of the equation at a site: of its kernels, and of collectives beside it."""
        problem, tables = self.workload.problem, self.evaluator.tables
        priced = self.evaluator.price_point(self.split_classes)
        seconds: dict[str, float] = defaultdict(float)
        for kernel, row in zip(tables.program.kernels, tables.program.row_of_kernel, strict=True):
            site = parse_site(problem.graph.ops[kernel.op].op_name)
            if site is not None:
                seconds[site] += float(priced.kernel_seconds[row])
        for edges, on_operand in ((tables.operands, True), (tables.results, False)):
            here = priced.collectives.on_operand == on_operand
            by_edge = np.bincount(
                priced.collectives.edge[here],
                weights=priced.collective_seconds[here],
                minlength=len(edges.count),
            )
            for row, _, op, sums, moves, _ in edges.incidences.tolist():
                trips = max(problem.graph.ops[op].trip_count, 1)
                site = parse_site(problem.graph.ops[op].op_name)
                if site is not None and by_edge[row]:
                    seconds[site] += float(by_edge[row]) * max(sums, moves) / trips
        return seconds

    @cached_property
    def recompute_seconds(self) -> float:
        """Of a step, of all kernels that compute something again, the user's own
        `jax.checkpoint` included.
        """
        ops, tables = self.workload.problem.graph.ops, self.evaluator.tables
        seconds = self.evaluator.price_point(self.split_classes).kernel_seconds
        rows = zip(tables.program.kernels, tables.program.row_of_kernel, strict=True)
        return sum(
            float(seconds[row]) * ops[kernel.op].trip_count
            for kernel, row in rows
            if COMPUTED_AGAIN in ops[kernel.op].op_name
        )

    @property
    def host_bytes(self) -> int:
        """On a device, of what is in its host's memory."""
        sharding, copies = (
            self.evaluator.price_point(self.split_classes).sharding,
            self.evaluator.tables.host_copies,
        )
        kept = 0.0 if copies is None else copies.stored_bytes(sharding)
        return round(float(self.evaluator.hosted_bytes(sharding).sum()) + kept)

    def beyond(self, room: float) -> tuple[str, ...]:
        """Paths of the leaves in the host's memory that stay there where the device has `room` for
        bytes of others, which are taken in their order.
        """
        problem, buffers = self.workload.problem, self.evaluator.tables.buffers
        sizes = self.evaluator.hosted_bytes(self.evaluator.price_point(self.split_classes).sharding)
        path_of_value = dict(zip(problem.graph.inputs, problem.paths, strict=True))
        staying = []
        for value, size in zip(
            buffers.value[buffers.hosted_bytes > 0].tolist(), sizes.tolist(), strict=True
        ):
            if size <= room:
                room -= size
            else:
                staying.append(path_of_value[value])
        return tuple(staying)

    @cached_property
    def parts(self) -> Mapping[tuple[str, tuple[int, ...]], float]:
        """In how many parts the result of a shape is split that the equation at a site makes."""
        problem, tables = self.workload.problem, self.evaluator.tables
        sharding = self.evaluator.price_point(self.split_classes).sharding
        parts: dict[tuple[str, tuple[int, ...]], float] = {}
        by_row, rows = sharding.parts_of_value, tables.row_of_value.tolist()
        for op in problem.graph.ops:
            site = parse_site(op.op_name)
            if site is None:
                continue
            for value in op.outputs:
                parts[site, problem.graph.values[value].dims] = float(by_row[rows[value]])
        return parts

    @cached_property
    def _in_products(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """Results, as `parts` has them, that the kernel of a product has at hand."""
        graph = self.workload.problem.graph
        made = made_in_products(graph, backend_for(self.evaluator.topology.platform).fuser)
        sites = ((parse_site(op.op_name), v) for op in graph.ops for v in op.outputs if made[v])
        return frozenset((site, graph.values[v].dims) for site, v in sites if site is not None)

    def stack_byte_seconds(self, made: tuple[str, tuple[int, ...]], item_bytes: int) -> float:
        """Of each byte of a result, as `parts` has them, that a loop stacks."""
        topology = self.evaluator.topology
        return backend_for(topology.platform).stack_byte_seconds(
            topology.device, max(item_bytes, 1), is_at_hand=made in self._in_products
        )


@dataclass(frozen=True)
class BlockPrices:
    """One group with the prices of its equations and values; `carries` are those of a loop that it
    reads, with their bytes, `stack_seconds` are those of each value if a loop stacks it; a value
    that is not there costs nothing to keep.
    """

    group: BlockGroup
    seconds: Sequence[float]
    value_bytes: Mapping[tuple[int, int], float]
    carries: Mapping[Any, float]
    stack_seconds: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @classmethod
    def priced(cls, group: BlockGroup, prices: Prices) -> "BlockPrices":
        """The prices of the group's middle block, which stands for all."""
        block = group.blocks[len(group.blocks) // 2]
        values, stacks, parts = {}, {}, prices.parts
        for var, place in block.number.items():
            shape = tuple(getattr(var.aval, "shape", ()))
            made = block.equations[place[0]].path, shape
            values[place] = n_bytes(var) / parts.get(made, 1.0)
            if block.outer is not None:
                each = n_bytes(var) // max(math.prod(shape), 1)
                stacks[place] = values[place] * prices.stack_byte_seconds(made, each)
        seconds = [prices.seconds.get(e.path, 0.0) for e in block.equations]
        return cls(group, seconds, values, dict(_carries(block, values)), stacks)

    @property
    def block(self) -> Block:
        """The block that stands for all."""
        return self.group.blocks[len(self.group.blocks) // 2]


def _carries(
    block: Block, value_bytes: Mapping[tuple[int, int], float]
) -> Iterable[tuple[Any, float]]:
    """Carries of a loop, with the bytes that the next trip's have."""
    if block.outer is None:
        return
    flat = block.home.flat
    carried = len(block.carries)
    for var, out in zip(block.carries, flat.outvars[:carried], strict=True):
        made = None if isinstance(out, core.Literal) else block.number.get(out)
        yield var, float(n_bytes(var)) if made is None else value_bytes[made]
