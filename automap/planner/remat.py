"""Which values of the forward pass are kept, and which of them wait in the host's memory: the exact
choice over the blocks of a step.

Of block group g, which runs N_g times, with equations e and values v (`automap.jaxpr.blocks`):

    minimize    sum over g, e of N_g t_e y_e + sum over g, v of N_g (s_v + eps b_v) x_v
    x_v         1 if v is kept
    y_e >= 1 - x_v            for a value v of e that the backward pass reads
    y_e >= y_f - x_v          for a value v of e that equation f reads
    y_f <= x_c                for a carry c of a loop that f reads: only a stack can hand it on
    sum of N_g b_v x_v <= B                                              -> in: `keep_within`

What a loop stacks, its carries too, may be in the host's memory instead, h_v = 1, where its link
has w bytes per second: x_v + h_v takes the place of x_v in all rows but the last, and what a device
waits is added, for each loop g of T_g seconds a trip, of which c_v are over when v is made,

    N_g (sum over v of h_v b_v / w + z_g)
    z_g >= c_v h_v + sum over u from v on of h_u b_u / w - T_g           for each v

for copies back, as if nothing went on beside them, and for those there
(`automap.cost.host_copies` tells both from the order of kernels); where copies go in line with
kernels, 2 N_g sum over v of h_v b_v / w                             -> in: `_Programme._add_host`

t_e are the seconds of kernels and collectives of e, b_v the bytes of v on a device, both under one
plan (`Prices`); s_v are the seconds in which a loop stacks v, by a kernel that reads and writes it
or by that of the product that makes it, 0 for runs of equations; B is what memory leaves for what
is kept. A knapsack over the values of each layer, all layers at once, solved by HiGHS. eps decides
between choices of equal seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import Any, Final

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
from scipy import sparse

from automap.jaxpr.blocks import Block, BlockGroup, variables
from automap.milp import milp
from automap.plan.levers import CARRY, KeptRecord, RematRecord
from automap.planner.remat_prices import BlockPrices


_EPSILON: Final = 1e-6
"""Of all seconds, what all bytes count."""
_SOLVER_SECONDS: Final = 10.0
_GAP: Final = 1e-4

Place = tuple[int, int]
Kept = Mapping[int, frozenset[Place]]
"""By the number of a group: (equation, result) of what its blocks keep, (CARRY, n) for carry n."""


@dataclass(frozen=True, slots=True)
class KeptValues:
    """What is kept, `hosted` of it in the host's memory: of carries only what is there."""

    kept: Kept
    hosted: Kept = field(default_factory=dict)


def keep_all(groups: Sequence[BlockGroup]) -> KeptValues:
    """What the step itself keeps."""
    return KeptValues({number: group.residuals for number, group in enumerate(groups)})


def keep_products(groups: Sequence[BlockGroup]) -> KeptValues:
    """MaxText's minimal policy: of repeated layers the products without batch dimensions, else
    all.
    """
    kept = dict(keep_all(groups).kept)
    for number, group in enumerate(groups):
        if is_repeated(group):
            equations = enumerate(group.blocks[0].equations)
            kept[number] = frozenset((n, 0) for n, e in equations if _is_plain_product(e.eqn))
    return KeptValues(kept)


def keep_nothing(groups: Sequence[BlockGroup]) -> KeptValues:
    """Of repeated layers nothing (`jax.checkpoint` around each), else all."""
    kept = dict(keep_all(groups).kept)
    kept.update({n: frozenset() for n, group in enumerate(groups) if is_repeated(group)})
    return KeptValues(kept)


def is_repeated(group: BlockGroup) -> bool:
    """Whether a group is of layers: several equal runs of equations, or a loop."""
    return group.runs > 1


def _is_plain_product(eqn: Any) -> bool:
    if eqn.primitive.name != "dot_general":
        return eqn.primitive.name == "conv_general_dilated"
    _, (batch, _) = eqn.params["dimension_numbers"]
    return not batch


def kept_bytes(priced: Sequence[BlockPrices], choice: KeptValues) -> float:
    """Bytes on a device of what blocks keep by choice, with the carries that are stacked for it."""
    total = 0.0
    for number, block in enumerate(priced):
        hosted = choice.hosted.get(number, frozenset())
        kept = choice.kept[number] - block.group.stored - hosted
        total += block.group.runs * sum(block.value_bytes[place] for place in kept)
        stacked = _stacked_carries(block.block, block.group, choice.kept[number] | hosted)
        here = (n for n, var in enumerate(block.carries) if var in stacked)
        sizes = list(block.carries.values())
        total += block.group.runs * sum(sizes[n] for n in here if (CARRY, n) not in hosted)
    return total


def saved_seconds(priced: Sequence[BlockPrices], before: KeptValues, after: KeptValues) -> float:
    """Of a step, by computing less again; infinite, as it is not known, with values in the host's
    memory.
    """
    if before.hosted or after.hosted:
        return math.inf
    return _again_seconds(priced, before.kept) - _again_seconds(priced, after.kept)


def _again_seconds(priced: Sequence[BlockPrices], kept: Kept) -> float:
    total = 0.0
    for number, block in enumerate(priced):
        group, here = block.group, kept[number]
        again = _ancestors(block.block, group.residuals - here, group.stored | here)
        total += group.runs * sum(block.seconds[n] for n in again)
    return total


def choice_key(groups: Sequence[BlockGroup], choice: KeptValues) -> tuple[object, ...]:
    """What is the same of equal choices."""
    return tuple(
        (frozenset(choice.kept[n] - g.stored), choice.hosted.get(n, frozenset()))
        for n, g in enumerate(groups)
    )


def _stacked_carries(block: Block, group: BlockGroup, kept: frozenset[Place]) -> frozenset[Any]:
    """Carries of a loop that its backward pass reads, or that lead to what is not kept."""
    missing = group.residuals - kept
    needed = _ancestors(block, missing, group.stored | kept)
    read = {v for n in needed for v in variables(block.equations[n].eqn.invars)}
    return frozenset(v for v in block.carries if v in read or v in block.residuals)


def keep_within(
    priced: Sequence[BlockPrices],
    budget_bytes: float,
    host_bytes_per_s: float = 0.0,
    *,
    may_compute_again: bool = True,
    copies_in_line: bool = False,
) -> KeptValues:
    """The choice of the fewest seconds of recomputation, and of waiting for a host's memory with a
    link, whose kept values take at most `budget_bytes` on a device; the least bytes if none does.
    """
    programme = _Programme(
        priced,
        host_bytes_per_s,
        most_again=1.0 if may_compute_again else 0.0,
        copies_in_line=copies_in_line,
    )
    solution = programme.solve(max(budget_bytes, 0.0)) > 0.5
    here = {
        number: frozenset(place for place, x in keep.items() if solution[x])
        for number, keep in enumerate(programme.keep)
    }
    hosted = {
        number: frozenset(p for p, x in host.items() if solution[x] and p not in here[number])
        for number, host in enumerate(programme.host)
    }
    kept = {
        n: frozenset(p for p in here[n] | hosted[n] if p[0] != CARRY) for n in range(len(priced))
    }
    return KeptValues(kept, {n: places for n, places in hosted.items() if places})


class _Programme:
    """The integer programme; every variable has a number."""

    def __init__(
        self,
        priced: Sequence[BlockPrices],
        host_bytes_per_s: float,
        *,
        most_again: float,
        copies_in_line: bool,
    ) -> None:
        self._host_bytes_per_s, self._most_again = host_bytes_per_s, most_again
        self._copies_in_line = copies_in_line
        self.keep: list[dict[Place, int]] = []
        self.host: list[dict[Place, int]] = []
        self._cost: list[float] = []
        self._size: list[float] = []
        self._is_integer: list[bool] = []
        self._most: list[float] = []
        self._rows: list[tuple[dict[int, float], float]] = []
        total_bytes = sum(p.group.runs * sum(p.value_bytes.values()) for p in priced)
        total_seconds = sum(p.group.runs * sum(p.seconds) for p in priced)
        self._byte_seconds = _EPSILON * max(total_seconds, 1e-9) / max(total_bytes, 1.0)
        for block in priced:
            self._add(block)

    def _variable(self, seconds: float, size: float, *, is_integer: bool, most: float = 1.0) -> int:
        self._cost.append(seconds + self._byte_seconds * size)
        self._size.append(size)
        self._is_integer.append(is_integer)
        self._most.append(most)
        return len(self._cost) - 1

    def _add(self, priced: BlockPrices) -> None:
        """Variables and rows of one group."""
        group, block, runs = priced.group, priced.block, priced.group.runs
        needed = _ancestors(block, group.residuals, group.stored)
        again = {
            n: self._variable(
                runs * priced.seconds[n], 0.0, is_integer=False, most=self._most_again
            )
            for n in needed
        }
        keep = {
            place: self._variable(
                runs * priced.stack_seconds.get(place, 0.0), runs * size, is_integer=True
            )
            for place, size in priced.value_bytes.items()
            if place[0] in again and place not in group.stored
        }
        place_of_carry = {var: (CARRY, n) for n, var in enumerate(priced.carries)}
        for var, size in priced.carries.items():
            keep[place_of_carry[var]] = self._variable(0.0, runs * size, is_integer=True)
        self.keep.append(keep)
        host = self._add_host(priced, keep) if block.outer is not None else {}
        self.host.append(host)

        def kept(place: Place) -> dict[int, float]:
            """x_v, and h_v where there is one."""
            return {row[place]: 1.0 for row in (keep, host) if place in row}

        for place in group.residuals:
            # y_e + x_v >= 1
            self._rows.append(({again[place[0]]: 1.0} | kept(place), 1.0))
        for var in block.residuals & priced.carries.keys():
            # What the backward pass reads as it is.
            self._rows.append((kept(place_of_carry[var]), 1.0))
        for n, y in again.items():
            for var in set(variables(block.equations[n].eqn.invars)):
                place = block.number.get(var, place_of_carry.get(var))
                if place not in keep:
                    continue
                # y_e + x_v >= y_f, and of a carry x_c >= y_f
                row = kept(place)
                if place[0] != CARRY:
                    row[again[place[0]]] = 1.0
                row[y] = row.get(y, 0.0) - 1.0
                self._rows.append((row, 0.0))

    def _add_host(self, priced: BlockPrices, keep: Mapping[Place, int]) -> dict[Place, int]:
        """Variables of a loop's values that may wait in the host's memory, with their seconds."""
        if not self._host_bytes_per_s:
            return {}
        runs, trip = priced.group.runs, sum(priced.seconds)
        sizes = dict(priced.value_bytes)
        sizes |= {(CARRY, n): b for n, b in enumerate(priced.carries.values())}
        copy = {place: sizes[place] / self._host_bytes_per_s for place in keep}
        waited = runs * (2 if self._copies_in_line else 1)
        host = {
            place: self._variable(waited * seconds, 0.0, is_integer=True)
            for place, seconds in copy.items()
        }
        if self._copies_in_line:
            return host
        # In trips, not in seconds: HiGHS has absolute tolerances.
        trip = max(trip, 1e-12)
        waits = self._variable(runs * trip, 0.0, is_integer=False, most=math.inf)
        # Carries are there when the trip begins: their number is before those of all equations.
        order = sorted(host)
        for index, place in enumerate(order):
            made = sum(priced.seconds[: place[0] + 1])
            row = {host[later]: -copy[later] / trip for later in order[index:]}
            row[host[place]] -= made / trip
            # z >= c h + sum of h b / w - T
            self._rows.append((row | {waits: 1.0}, -1.0))
        return host

    def solve(self, budget_bytes: float) -> np.ndarray:
        """Values of the variables; those of equations that nothing asks for are 0. If nothing keeps
        to the budget, those of the least bytes.
        """
        size = np.array(self._size)
        # Bytes in units of the budget: HiGHS has absolute tolerances.
        unit = max(budget_bytes, 1.0)
        within = self._solution(np.array(self._cost), size / unit, budget_bytes / unit)
        if within is not None:
            return within
        # Of those that have the least bytes, one of few seconds.
        costs = size / max(size.sum(), 1.0) + _EPSILON * np.array(self._cost) / sum(self._cost)
        least = self._solution(costs, size, math.inf)
        return np.zeros(len(size)) if least is None else least

    def _solution(self, costs: np.ndarray, size: np.ndarray, most: float) -> np.ndarray | None:
        entries = [(r, c, a) for r, (row, _) in enumerate(self._rows) for c, a in row.items()]
        rows, columns, factors = (np.array(x) for x in zip(*entries))
        lower = np.array([bound for _, bound in self._rows])
        chosen = sparse.csr_matrix((factors, (rows, columns)), (len(lower), len(size)))
        matrix = sparse.vstack([chosen, sparse.csr_matrix(size)])
        upper = np.full(len(lower), math.inf)
        result = milp(
            costs / max(costs.sum(), 1e-12),
            integrality=np.array(self._is_integer, int),
            bounds=scipy.optimize.Bounds(0.0, np.array(self._most)),  # type: ignore[arg-type]
            constraints=scipy.optimize.LinearConstraint(
                matrix,
                np.append(lower, -math.inf),  # type: ignore[arg-type]
                np.append(upper, most),  # type: ignore[arg-type]
            ),
            options={"time_limit": _SOLVER_SECONDS, "mip_rel_gap": _GAP},
        )
        return None if result.x is None else np.asarray(result.x)


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


def remat_records(groups: Sequence[BlockGroup], choice: KeptValues) -> tuple[RematRecord, ...]:
    """The records of all groups that do not keep on the device all that the step itself does."""
    return tuple(
        RematRecord(
            kind=group.blocks[0].kind,
            blocks=tuple(block.site for block in group.blocks),
            equations=group.blocks[0].count,
            kept=tuple(_kept_records(group, choice.kept[number], hosted)),
        )
        for number, group in enumerate(groups)
        for hosted in [choice.hosted.get(number, frozenset())]
        if hosted or not group.residuals <= choice.kept[number]
    )


def _kept_records(
    group: BlockGroup, kept: frozenset[Place], hosted: frozenset[Place]
) -> Iterable[KeptRecord]:
    block = group.blocks[0]
    for place in sorted((kept - group.stored) | hosted):
        number, result = place
        if number == CARRY:
            at, text, aval = f"carry:{result}", "carry", block.carries[result].aval
        else:
            eqn = block.equations[number].eqn
            at, text, aval = f"{number}:out{result}", eqn.primitive.name, eqn.outvars[result].aval
        yield KeptRecord(
            at=at,
            value=f"{text} {aval.str_short()}",
            memory="host" if place in hosted else "device",
        )
