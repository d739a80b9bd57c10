"""An integer programme of what is left of one mesh, solved by HiGHS.

    x[v, i] in {0, 1}     variable v has choice i
    y[t, s] >= 0          table t is at the joint choice s

    minimise   sum of seconds_t(s) y[t, s]
    so that    sum over i of x[v, i] = 1                for each variable
               sum of y[t, s] over s with choice i of v = x[v, i]
               sum of bytes_t,p(s) y[t, s] <= limit     at each position p of the schedule that a
                                                        solution overfilled
               sum over v of x[v, chosen(v)] <= n - 1   for each solution that does not fit for
                                                        other reasons

A table stands for all tables within its scope; joint choices that are not allowed have no y. Where
seconds are only bounded by weighted sums, so is the minimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `optimize` is loaded at first use, which most runs never come to
from scipy import sparse

from automap.milp import milp
from automap.search.factored.eliminate import Table, merged, spread
from automap.search.factored.model import Factored


# Entries (y) of a programme at most; what is larger is left to the bounds that there are.
MOST_ENTRIES = 60_000
_LEAST_SECONDS, _GAP, _DONE, _INFEASIBLE = 0.1, 1e-7, 0, 2
# Nominal seconds of an entry before the first branch, and in each: ten programmes of three models
# on 2 cores, 2026-11.
_SECONDS_PER_ENTRY, _SECONDS_PER_BRANCHED_ENTRY = 1.3e-4, 5e-6
_LEAST_SECONDS_EACH, _MOST_BRANCHES = 1e-4, 2**31 - 1


@dataclass(frozen=True)
class Solution:
    """Choices, if any were found, and a proven lower bound of the objective, infinite if nothing is
    allowed.

    `is_done` is whether time and work were enough; `nominal_seconds` is the work.
    """

    assignment: list[int] | None
    bound: float
    is_done: bool
    nominal_seconds: float


class Programme:
    """The programme of a mesh for fixed weights of seconds; positions and solutions to leave out
    are added later.
    """

    def __init__(self, factored: Factored, weights: np.ndarray) -> None:
        self.factored, self.sizes = factored, factored.variables.sizes
        # Fewer and larger tables make a tighter relaxation: y of one table agree among themselves.
        tables = merged(factored.tables(weights))
        self.constant = sum(float(t.values) for t in tables if not t.scope)
        self.tables = [t for t in tables if t.scope]
        self.first = np.cumsum([0, *self.sizes])
        # Infinite where a barrier forbids the choice: it has no y, so no row has to say so.
        self.kept = [np.flatnonzero(np.isfinite(t.values)) for t in self.tables]
        self.n_entries = sum(len(entries) for entries in self.kept)
        self.rows: list[np.ndarray] = []
        self.most: list[float] = []

    @property
    def first_seconds(self) -> float:
        """Nominal seconds before the first branch."""
        return self.n_entries * _SECONDS_PER_ENTRY

    def limit(self, weights: np.ndarray) -> None:
        """Weighted features that must be at most 1."""
        tables = [term.table(weights) for term in self.factored.terms]
        constant = sum(float(t.values) for t in tables if not t.scope)
        self._add(self._row(self._spread([t for t in tables if t.scope])), 1.0 - constant)

    def leave_out(self, assignment: Sequence[int]) -> None:
        """A solution that is not allowed."""
        row = np.zeros(self.first[-1] + self.n_entries)
        # At least one variable has to choose otherwise.
        row[self.first[:-1] + np.array(assignment)] = 1
        self._add(row, len(self.sizes) - 1.0)

    def _add(self, row: np.ndarray, most: float) -> None:
        self.rows.append(row)
        self.most.append(most)

    def _spread(self, tables: Sequence[Table]) -> list[np.ndarray]:
        """Tables added up over the scopes of `self.tables`."""
        sums = [np.zeros(t.values.shape) for t in self.tables]
        for table in tables:
            at, target = min(
                (
                    (number, t)
                    for number, t in enumerate(self.tables)
                    if set(table.scope) <= set(t.scope)
                ),
                key=lambda pair: pair[1].values.size,
            )
            sums[at] += spread(table.values, table.scope, target.scope)
        return sums

    def _row(self, sums: Sequence[np.ndarray]) -> np.ndarray:
        """Coefficients of all x, which are 0, and all y."""
        entries = [values.ravel()[kept] for values, kept in zip(sums, self.kept, strict=True)]
        return np.concatenate([np.zeros(self.first[-1]), *entries])

    def _marginals(self) -> sparse.csr_matrix:
        """Each row: the y of a table with one choice of a variable, less its x; then the sum of the
        x of each variable.
        """
        n_x = int(self.first[-1])
        blocks: list[tuple[np.ndarray, ...]] = []
        row, column = 0, n_x
        for table, kept in zip(self.tables, self.kept, strict=True):
            # The choice of each variable of the scope at each y.
            places = np.unravel_index(kept, table.values.shape)
            for v, place in zip(table.scope, places, strict=True):
                size = self.sizes[v]
                blocks.append((row + place, column + np.arange(len(kept)), np.ones(len(kept))))
                blocks.append(
                    (row + np.arange(size), self.first[v] + np.arange(size), -np.ones(size))
                )
                row += size
            column += len(kept)
        # The last rows: each variable has exactly one choice.
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        blocks.append((row + owner, np.arange(n_x), np.ones(n_x)))
        at, columns, values = (np.concatenate(part) for part in zip(*blocks))
        return sparse.csr_matrix((values, (at, columns)), shape=(row + len(self.sizes), column))

    def solve(self, seconds_left: float, work_left_seconds: float) -> Solution:
        """The best solution found in `seconds_left`, with no more work than is left.

        That is counted in branches, as many as `work_left_seconds` of a nominal machine have room
        for after the first.
        """
        each = self.n_entries * _SECONDS_PER_BRANCHED_ENTRY
        branches = (work_left_seconds - self.first_seconds) / max(each, _LEAST_SECONDS_EACH)
        cost = self._row([t.values for t in self.tables])
        # Seconds are small numbers, and HiGHS has absolute tolerances.
        scale = max(float(np.abs(cost).max(initial=0.0)), np.finfo(float).tiny)
        equalities = self._marginals()
        n_sums = sum(self.sizes[v] for t in self.tables for v in t.scope)
        wanted = np.concatenate([np.zeros(n_sums), np.ones(len(self.sizes))])
        constraints = [(equalities, wanted, wanted)]
        if self.rows:
            constraints.append(
                (
                    sparse.csr_matrix(np.array(self.rows)),
                    np.full(len(self.most), -np.inf),
                    np.array(self.most),
                )
            )
        n_x = int(self.first[-1])
        solution = milp(
            cost / scale,
            # With whole x the y are whole by themselves.
            integrality=np.arange(len(cost)) < n_x,
            bounds=scipy.optimize.Bounds(0, 1),
            constraints=constraints,
            # HiGHS 1.12's presolve does not look at the clock: 48 s of processor time to drop 8 of
            # 48,462 columns.
            options={
                "time_limit": max(seconds_left, _LEAST_SECONDS),
                "node_limit": int(np.clip(branches, 1, _MOST_BRANCHES)),
                "mip_rel_gap": _GAP,
                "presolve": False,
            },
        )
        # Counted by branches and not timed, so that searches end at the same place on every
        # machine.
        took = self.first_seconds + each * (solution.mip_node_count or 0)
        if solution.status == _INFEASIBLE:
            return Solution(None, np.inf, is_done=True, nominal_seconds=took)
        bound = solution.mip_dual_bound
        proven = -np.inf if bound is None else float(bound) * scale + self.constant
        chosen = None
        if solution.x is not None:
            parts = zip(self.first, self.first[1:])
            chosen = [int(solution.x[first:end].argmax()) for first, end in parts]
        return Solution(chosen, proven, is_done=solution.status == _DONE, nominal_seconds=took)
