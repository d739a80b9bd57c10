"""Which values of the forward pass are kept: the exact choice over the blocks of a step.

Of block group g, which runs N_g times, with equations e and values v (`automap.jaxpr.blocks`):

    minimize    sum over g, e of N_g t_e y_e + sum over g, v of N_g b_v (s_g + eps) x_v
    x_v         1 if v is kept
    y_e >= 1 - x_v            for a value v of e that the backward pass reads
    y_e >= y_f - x_v          for a value v of e that equation f reads
    y_f <= x_c                for a carry c of a loop that f reads: only a stack can hand it on
    sum of N_g b_v x_v <= B                                              -> in: `keep_within`

t_e are the seconds of kernels and collectives of e, b_v the bytes of v on a device, both under one
plan (`Prices`); s_g are the seconds of a byte that a loop stacks, which is written once more and
read once, 0 for runs of equations; B is what memory leaves for what is kept. A knapsack over the
values of each layer, all layers at once, solved by HiGHS. eps decides between choices of equal
seconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
import math
from typing import Any, Final

from jax.extend import core
import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
from scipy import sparse

from automap.cost.evaluate import Evaluator
from automap.jaxpr.again import COMPUTED_AGAIN
from automap.jaxpr.blocks import Block, BlockGroup, n_bytes, variables
from automap.jaxpr.sites import parse_site
from automap.milp import milp
from automap.plan.levers import KeptRecord, RematRecord
from automap.program.trace import Workload
from automap.space.point import SplitClasses


_EPSILON: Final = 1e-6
"""Of all seconds, what all bytes count."""
_SOLVER_SECONDS: Final = 10.0
_GAP: Final = 1e-4

Kept = Mapping[int, frozenset[tuple[int, int]]]
"""By the number of a group: (equation, result) of what its blocks keep."""


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
            for row, _, op, sums, moves in edges.incidences.tolist():
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
        sharding = self.evaluator.price_point(self.split_classes).sharding
        return round(float(self.evaluator.hosted_bytes(sharding).sum()))

    @cached_property
    def parts(self) -> Mapping[tuple[str, tuple[int, ...]], float]:
        """In how many parts the result of a shape is split that the equation at a site makes."""
        problem, tables = self.workload.problem, self.evaluator.tables
        sharding = self.evaluator.price_point(self.split_classes).sharding
        sizes = np.array(sharding.sizes)
        by_row = np.where(sharding.dim_of_axis >= 0, sizes, 1).prod(axis=1)
        parts: dict[tuple[str, tuple[int, ...]], float] = {}
        rows = tables.row_of_value.tolist()
        for op in problem.graph.ops:
            site = parse_site(op.op_name)
            if site is None:
                continue
            for value in op.outputs:
                parts[site, problem.graph.values[value].dims] = float(by_row[rows[value]])
        return parts


@dataclass(frozen=True)
class BlockPrices:
    """One group with the prices of its equations and values; `carries` are those of a loop that it
    reads, with their bytes, `stack_seconds` those of a byte that is stacked.
    """

    group: BlockGroup
    seconds: Sequence[float]
    value_bytes: Mapping[tuple[int, int], float]
    carries: Mapping[Any, float]
    stack_seconds: float = 0.0

    @classmethod
    def priced(cls, group: BlockGroup, prices: Prices) -> "BlockPrices":
        """The prices of the group's middle block, which stands for all."""
        block = group.blocks[len(group.blocks) // 2]
        values, parts = {}, prices.parts
        for var, place in block.number.items():
            shape = tuple(getattr(var.aval, "shape", ()))
            site = block.equations[place[0]].path
            values[place] = n_bytes(var) / parts.get((site, shape), 1.0)
        seconds = [prices.seconds.get(e.path, 0.0) for e in block.equations]
        device = prices.evaluator.topology.device
        stacked = 2.0 / (device.hbm_bytes_per_s * device.memory_efficiency)
        carries = dict(_carries(block, values))
        return cls(group, seconds, values, carries, 0.0 if block.outer is None else stacked)

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


def keep_all(groups: Sequence[BlockGroup]) -> Kept:
    """What the step itself keeps."""
    return {number: group.residuals for number, group in enumerate(groups)}


def keep_products(groups: Sequence[BlockGroup]) -> Kept:
    """MaxText's minimal policy: of repeated layers the products without batch dimensions, else
    all.
    """
    kept = dict(keep_all(groups))
    for number, group in enumerate(groups):
        if is_repeated(group):
            equations = enumerate(group.blocks[0].equations)
            kept[number] = frozenset((n, 0) for n, e in equations if _is_plain_product(e.eqn))
    return kept


def keep_nothing(groups: Sequence[BlockGroup]) -> Kept:
    """Of repeated layers nothing (`jax.checkpoint` around each), else all."""
    kept = dict(keep_all(groups))
    kept.update({n: frozenset() for n, group in enumerate(groups) if is_repeated(group)})
    return kept


def is_repeated(group: BlockGroup) -> bool:
    """Whether a group is of layers: several equal runs of equations, or a loop."""
    return group.runs > 1


def _is_plain_product(eqn: Any) -> bool:
    if eqn.primitive.name != "dot_general":
        return eqn.primitive.name == "conv_general_dilated"
    _, (batch, _) = eqn.params["dimension_numbers"]
    return not batch


def kept_bytes(priced: Sequence[BlockPrices], kept: Kept) -> float:
    """Bytes on a device of what blocks keep by choice."""
    return sum(
        block.group.runs * block.value_bytes[place]
        for number, block in enumerate(priced)
        for place in kept[number] - block.group.stored
    )


def keep_within(priced: Sequence[BlockPrices], budget_bytes: float) -> Kept:
    """The choice of the fewest seconds of recomputation whose kept values take at most
    `budget_bytes` on a device.
    """
    programme = _Programme(priced)
    solution = programme.solve(max(budget_bytes, 0.0))
    return {
        number: frozenset(p for p, x in programme.keep[number].items() if solution[x] > 0.5)
        for number in range(len(priced))
    }


class _Programme:
    """The integer programme; every variable has a number."""

    def __init__(self, priced: Sequence[BlockPrices]) -> None:
        self._priced = priced
        self.keep: list[dict[tuple[int, int], int]] = []
        self._cost: list[float] = []
        self._size: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[tuple[dict[int, float], float]] = []
        total_bytes = sum(p.group.runs * sum(p.value_bytes.values()) for p in priced)
        total_seconds = sum(p.group.runs * sum(p.seconds) for p in priced)
        self._byte_seconds = _EPSILON * max(total_seconds, 1e-9) / max(total_bytes, 1.0)
        for block in priced:
            self._add(block)

    def _variable(self, seconds: float, size: float, *, is_integer: bool) -> int:
        self._cost.append(seconds + self._byte_seconds * size)
        self._size.append(size)
        self._is_integer.append(is_integer)
        return len(self._cost) - 1

    def _add(self, priced: BlockPrices) -> None:
        """Variables and rows of one group."""
        group, block, runs = priced.group, priced.block, priced.group.runs
        needed = _ancestors(block, group.residuals, group.stored)
        again = {n: self._variable(runs * priced.seconds[n], 0.0, is_integer=False) for n in needed}
        keep = {
            place: self._variable(runs * size * priced.stack_seconds, runs * size, is_integer=True)
            for place, size in priced.value_bytes.items()
            if place[0] in again and place not in group.stored
        }
        carries = {
            var: self._variable(0.0, runs * size, is_integer=True)
            for var, size in priced.carries.items()
        }
        self.keep.append(keep)
        for place in group.residuals:
            # y_e + x_v >= 1
            self._rows.append(({again[place[0]]: 1.0, keep[place]: 1.0}, 1.0))
        for n, y in again.items():
            for var in set(variables(block.equations[n].eqn.invars)):
                place = block.number.get(var)
                if place in keep:
                    # y_e + x_v >= y_f
                    row = {again[place[0]]: 1.0, keep[place]: 1.0}
                    row[y] = row.get(y, 0.0) - 1.0
                    self._rows.append((row, 0.0))
                elif var in carries:
                    self._rows.append(({carries[var]: 1.0, y: -1.0}, 0.0))

    def solve(self, budget_bytes: float) -> np.ndarray:
        """Values of the variables; those of equations that nothing asks for are 0."""
        entries = [(r, c, a) for r, (row, _) in enumerate(self._rows) for c, a in row.items()]
        rows, columns, factors = (np.array(x) for x in zip(*entries))
        lower = np.array([bound for _, bound in self._rows])
        size = np.array(self._size)
        # Bytes in units of the budget: HiGHS has absolute tolerances.
        unit = max(budget_bytes, 1.0)
        count = len(self._cost)
        scale = max(sum(self._cost), 1e-12)
        chosen = sparse.csr_matrix((factors, (rows, columns)), (len(lower), count))
        matrix = sparse.vstack([chosen, sparse.csr_matrix(size / unit)])
        upper = np.full(len(lower), math.inf)
        result = milp(
            np.array(self._cost) / scale,
            integrality=np.array(self._is_integer, int),
            bounds=scipy.optimize.Bounds(0.0, 1.0),
            constraints=scipy.optimize.LinearConstraint(
                matrix,
                np.append(lower, -math.inf),  # type: ignore[arg-type]
                np.append(upper, budget_bytes / unit),  # type: ignore[arg-type]
            ),
            options={"time_limit": _SOLVER_SECONDS, "mip_rel_gap": _GAP},
        )
        # Keeping nothing is allowed whatever the budget, but for carries, which the step stacks.
        return np.zeros(count) if result.x is None else np.asarray(result.x)


def _ancestors(
    block: Block, residuals: Iterable[tuple[int, int]], stored: frozenset[tuple[int, int]]
) -> list[int]:
    """Equations of a block that may have to run again."""
    needed, todo = set[int](), [place[0] for place in residuals]
    while todo:
        number = todo.pop()
        if number in needed:
            continue
        needed.add(number)
        for var in variables(block.equations[number].eqn.invars):
            place = block.number.get(var)
            if place is not None and place not in stored:
                todo.append(place[0])
    return sorted(needed)


def remat_records(groups: Sequence[BlockGroup], kept: Kept) -> tuple[RematRecord, ...]:
    """The records of all groups that do not keep all that the step itself does."""
    return tuple(
        RematRecord(
            kind=group.blocks[0].kind,
            blocks=tuple(block.site for block in group.blocks),
            equations=group.blocks[0].count,
            kept=tuple(_kept_records(group, kept[number])),
        )
        for number, group in enumerate(groups)
        if not group.residuals <= kept[number]
    )


def _kept_records(group: BlockGroup, kept: frozenset[tuple[int, int]]) -> Iterable[KeptRecord]:
    block = group.blocks[0]
    for number, result in sorted(kept - group.stored):
        eqn = block.equations[number].eqn
        text = f"{eqn.primitive.name} {eqn.outvars[result].aval.str_short()}"
        yield KeptRecord(at=f"{number}:out{result}", value=text)
