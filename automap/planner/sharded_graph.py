"""A plan on single values and ops: which axes split each dimension, as the plan keeps it and as an
op runs.

Where several axes split a dimension, their order decides what moves. With a major and b minor,
device (i, j) holds part i |b| + j. Gathering b joins parts that lie beside each other, and what a
splits stays where it is. Gathering a first needs a permute of the whole tensor. So an axis that
stays should be major to one that comes or goes; where operations want it both ways, the order is
taken that permutes the fewest bytes in a step. Axes that move together from one dimension to
another should stand in one order on both, and so should those of the rows that are summed up and
of the dimension that the sum is scattered along: else XLA reduces it whole
                                                                -> in: `ShardedGraph._ranks`
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
import math

import numpy as np

from automap.cost.edges import AtOnce, Edges, inners, majors
from automap.cost.shardings import Shardings
from automap.cost.tables import Tables
from automap.cost.traffic.flows import dims_held
from automap.program.problem import Problem
from automap.space.point import SplitClasses
from automap.step.specs import ImposedSpec
from hlo_tools.opcodes import CONVOLUTION, FFT, TOP_K
from hlo_tools.rules import FactorKind
from hlo_tools.rules.convolution import has_groups, partitioned_alone


# Per dimension, the axes that split it, major first.
AxesPerDim = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShardedGraph:
    """Shardings of single values and ops under one plan.

    `parameter_side` maps the storage class of a gradient's dimension to that of the parameter's.
    """

    problem: Problem
    tables: Tables
    split_classes: SplitClasses
    sharding: Shardings
    parameter_side: Mapping[int, int]

    @cached_property
    def _row_of_value(self) -> list[int]:
        return self.tables.row_of_value.tolist()

    @cached_property
    def _row_of_op(self) -> list[int]:
        return self.tables.row_of_op.tolist()

    @cached_property
    def _axes_by_row(self) -> dict[tuple[int, int], AxesPerDim]:
        """The axes of rows of values, by row and rank: layers share them."""
        return {}

    @cached_property
    def _axes_in_op_by_rows(self) -> dict[tuple[int, int, tuple[int, ...]], AxesPerDim]:
        """The axes of operands and results as their ops have them, by rows of the op and of the
        value.
        """
        return {}

    def value_axes(self, value: int) -> AxesPerDim:
        """Axes of each dimension of a value, compute axes before storage axes."""
        row = self._row_of_value[value]
        rank = len(self.problem.graph.values[value].dims)
        axes = self._axes_by_row.get((row, rank))
        if axes is None:
            # For each axis the dimension that it splits, -1 for none.
            axis_dims = self.sharding.dim_of_axis[row].tolist()
            classes = self.tables.value_rows[row]
            axes = self._axes_by_row[row, rank] = tuple(
                self._ordered([a for a, d in enumerate(axis_dims) if d == dim], classes[dim])
                for dim in range(rank)
            )
        return _as_imposed(self.problem.imposed.specs_by_value.get(value), axes)

    def _ordered(self, axes: list[int], classes: np.ndarray) -> tuple[str, ...]:
        """The axes of one dimension, those that are gathered first last (minor), then as most of
        what is imposed.

        Gathering a minor axis leaves the parts of the others in place; a major one moves them all.
        """
        names = self.split_classes.mesh.names
        if len(axes) < 2:
            return tuple(names[a] for a in axes)
        # The three classes of a dimension, any of which may have put an axis on it.
        compute, stored, regional = classes.tolist()
        # The small part of a class has another number in the rows.
        compute %= self.problem.n_classes + 1
        parameter = self.parameter_side.get(stored, stored)

        # Major first: axes of computation stay for all of the tensor's life, a stored parameter's
        # are gathered at its use, a gradient's or an optimizer state's at the update.
        def lifetime(axis: int) -> int:
            kept = self.split_classes.classes[axis]
            if compute in kept or regional in kept:
                return 2
            return 1 if parameter in kept else 0

        # An axis inside of what others split is minor to them (`hlo_tools.analyses.grouped`).
        def is_inside(axis: int) -> bool:
            return (
                regional in self.problem.outer_parts
                and regional in self.split_classes.classes[axis]
            )

        rank = self._rank_of_axis(compute)
        order = sorted(axes, key=lambda a: (-lifetime(a), is_inside(a), rank[a]))
        return tuple(names[a] for a in order)

    def _rank_of_axis(self, compute_class: int) -> tuple[int, ...]:
        """Places of the axes on dimensions of a class."""
        # What is never moved takes what is imposed, or the mesh's own order.
        return self._ranks.get(compute_class) or self._best_rank(compute_class, {})

    @cached_property
    def _ranks(self) -> dict[int, tuple[int, ...]]:
        """The places of axes on the dimensions of classes whose tensors are moved.

        Each class takes its best in turn, those that permute the most bytes if they do not first.
        """
        at_stake = {number: float(b.sum()) for number, b in self._permuted_bytes.items()}
        for pair, n_bytes in self._moved_bytes.items():
            for number in pair:
                at_stake[number] = at_stake.get(number, 0.0) + float(n_bytes.sum())
        ranks: dict[int, tuple[int, ...]] = {}
        for number in sorted(at_stake, key=lambda number: (-at_stake[number], number)):
            ranks[number] = self._best_rank(number, ranks)
        return ranks

    def _best_rank(
        self, compute_class: int, ranks: Mapping[int, tuple[int, ...]]
    ) -> tuple[int, ...]:
        """The order that agrees with most of what is imposed, so that little is moved for it, and
        then permutes the fewest bytes, where classes in `ranks` have theirs.
        """
        n_axes = len(self.split_classes.mesh.names)
        permuted = self._permuted_bytes.get(compute_class, np.zeros((n_axes, n_axes)))
        others = [
            (np.greater.outer(ranks[other], ranks[other]), n_bytes)
            for pair, n_bytes in self._moved_bytes.items()
            if compute_class in pair
            for other in pair
            if other != compute_class and other in ranks
        ]

        def preference(rank: tuple[int, ...]) -> tuple[int, float]:
            places = ([rank[a] for a in axes] for axes in self._imposed_orders)
            is_after = np.greater.outer(rank, rank)
            n_bytes = float(permuted[is_after].sum())
            n_bytes += sum(float(moved[is_after != there].sum()) for there, moved in others)
            return sum(axes == sorted(axes) for axes in places), -n_bytes

        # A mesh has few axes. Of orders that are as good the first is taken, which is the mesh's
        # own if it is among them.
        return max(permutations(range(n_axes)), key=preference)

    @cached_property
    def _imposed_orders(self) -> list[list[int]]:
        """The orders that the user's code asks for: positions of axes, one list for each dimension
        that several axes split.
        """
        names = self.split_classes.mesh.names
        return [
            [names.index(axis) for axis in axes]
            for spec in self.problem.imposed.specs_by_value.values()
            for axes in spec
            if axes and len(axes) > 1
        ]

    @cached_property
    def _moved_bytes(self) -> dict[frozenset[int], np.ndarray]:
        """By a pair of compute classes, [axes, axes]: bytes that a device permutes in a step if two
        axes, which move together from a dimension of one to one of the other, stand there in
        different orders.
        """
        n_axes = len(self.split_classes.mesh.names)
        moved: dict[frozenset[int], np.ndarray] = defaultdict(lambda: np.zeros((n_axes, n_axes)))
        for edges in (self.tables.operands, self.tables.results):
            kept, run, local = self._splits(edges)
            for one, other in combinations(range(n_axes), 2):
                is_together = (kept[one] == kept[other]) & (run[one] == run[other])
                is_moved = (kept[one] >= 0) & (run[one] >= 0) & (kept[one] != run[one])
                rows = np.flatnonzero(is_together & is_moved)
                ends = [self._classes(edges, rows, dims[one][rows]) for dims in (kept, run)]
                n_bytes = local[rows] * edges.trips[rows]
                for row, pair in enumerate(zip(*ends)):
                    moved[frozenset(pair)][[one, other], [other, one]] += n_bytes[row] / 2
        for one, other, pair, n_bytes in self._scattered_sums():
            moved[pair][[one, other], [other, one]] += n_bytes / 2
        return dict(moved)

    def _scattered_sums(self) -> Iterator[tuple[int, int, frozenset[int], float]]:
        """Of sums over rows, whose devices stand in the order of the axes on the rows: two axes,
        the compute classes of the rows and of the dimension that is scattered, and bytes of a step.
        """
        edges = self.tables.results
        kept, _, local = self._splits(edges)
        factors = self.sharding.factor_of_axis[edges.op_row]
        edge = np.arange(len(factors))
        is_summed = (factors >= 0).T & [edges.is_reduced[edge, f] for f in factors.T]
        is_summed &= edges.sums_at_once != AtOnce.NEVER
        for one, other in combinations(range(len(factors.T)), 2):
            is_both = is_summed[one] & is_summed[other] & (factors[:, one] == factors[:, other])
            rows = np.flatnonzero(is_both & (kept[one] >= 0) & (kept[one] == kept[other]))
            summed = self.tables.op_rows[edges.op_row[rows], factors[rows, one], 0]
            ends = self._plain(summed), self._classes(edges, rows, kept[one][rows])
            for *pair, row in zip(*ends, rows.tolist()):
                yield one, other, frozenset(pair), float(local[row] * edges.trips[row])

    def _splits(self, edges: Edges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The dimension that each axis splits, as the tensor is kept and as the operation has it,
        [axes, edges], -1 for none, and bytes of a device's part.
        """
        kept = self.sharding.dim_of_axis[edges.value_row].T
        run = dims_held(edges, self.sharding.factor_of_axis[edges.op_row]).T
        sizes = np.array(self.sharding.sizes)[:, None]
        local = edges.n_bytes / np.where((kept >= 0) | (run >= 0), sizes, 1).prod(axis=0)
        return kept, run, local

    def _classes(self, edges: Edges, rows: np.ndarray, dims: np.ndarray) -> list[int]:
        """The compute classes of dimensions of the tensors of rows."""
        return self._plain(self.tables.value_rows[edges.value_row[rows], dims, 0])

    def _plain(self, classes: np.ndarray) -> list[int]:
        """Compute classes of rows, of small parts too."""
        return (classes % (self.problem.n_classes + 1)).tolist()

    @cached_property
    def _permuted_bytes(self) -> dict[int, np.ndarray]:
        """By compute class, [axes, axes]: bytes that a device permutes in a step if the first axis,
        which stays, is minor to the second, which comes or goes.
        """
        n_axes = len(self.split_classes.mesh.names)
        permuted: dict[int, np.ndarray] = defaultdict(lambda: np.zeros((n_axes, n_axes)))
        for edges in (self.tables.operands, self.tables.results):
            kept, run, local = self._splits(edges)
            for stays, moves in permutations(range(n_axes), 2):
                dim = kept[stays]
                is_at = (dim >= 0) & (run[stays] == dim)
                rows = np.flatnonzero(is_at & ((kept[moves] == dim) != (run[moves] == dim)))
                numbers = np.array(self._classes(edges, rows, dim[rows]), np.int64)
                moved = local[rows] * edges.trips[rows]
                for number in np.unique(numbers).tolist():
                    permuted[number][stays, moves] += moved[numbers == number].sum()
        return dict(permuted)

    @cached_property
    def _factors_of_row(self) -> list[list[int]]:
        return self.sharding.factor_of_axis.tolist()

    def _factors(self, op: int) -> list[int]:
        """The factor that each axis splits, -1 for none."""
        return self._factors_of_row[self._row_of_op[op]]

    def value_parts(self, value: int) -> int:
        """Of how many parts of a value a device keeps one."""
        sizes = dict(self.split_classes.mesh.axes)
        return math.prod(sizes[axis] for dim in self.value_axes(value) for axis in dim)

    def factor_parts(self, op: int) -> list[int]:
        """Of how many parts of each factor of an op a device runs one."""
        parts = [1] * len(self.problem.linkage.rules[op].factors)
        for size, factor in zip(self.split_classes.mesh.sizes, self._factors(op), strict=True):
            if factor >= 0:
                parts[factor] *= size
        return parts

    def idle_axes(self, op: int) -> set[str]:
        """Axes that split no factor of an op: every device along them does the same."""
        factors = self._factors(op)
        return {name for name, factor in zip(self.split_classes.mesh.names, factors) if factor < 0}

    def slides(self, op: int) -> bool:
        """Whether an op slides a window along a dimension that some axis splits."""
        factors = self._factors(op)
        rule = self.problem.linkage.rules[op]
        return any(f >= 0 and rule.factors[f].halo is not None for f in factors)

    def is_written_out(self, op: int) -> bool:
        """Whether an op is a convolution with groups or with a split image, a split top_k or
        Fourier transform, or a kernel of Pallas.
        """
        instruction = self.problem.graph.ops[op].instruction
        factors = self._factors(op)
        if instruction.attributes.custom_call_target in self.problem.kernels:
            return True
        if instruction.opcode in (FFT, TOP_K):
            return any(f >= 0 for f in factors)
        if instruction.opcode != CONVOLUTION:
            return False
        alone = partitioned_alone(instruction, self.problem.linkage.rules[op])
        return has_groups(instruction) or any(f in alone for f in factors)

    def is_attention(self, op: int) -> bool:
        """Whether an op is cuDNN's attention, whose equation is told how its operands are split."""
        return self.problem.graph.ops[op].instruction.attributes.attention is not None

    def summed_axes(self, op: int) -> set[str]:
        """Axes along which an op's result is partial."""
        rule = self.problem.linkage.rules[op]
        factors = self._factors(op)
        return {
            name
            for name, f in zip(self.split_classes.mesh.names, factors)
            if f >= 0 and rule.factors[f].kind is FactorKind.REDUCTION
        }

    def axes_in_op(self, op: int, value: int, dims: tuple[tuple[int, ...], ...]) -> AxesPerDim:
        """Axes of each dimension of an operand or result, of these factors, as the op itself has
        it.
        """
        row, major = self._row_of_value[value], majors(dims)
        inner = inners(self.problem, op, dims) or (-1,) * len(dims)
        key = self._row_of_op[op], row, (*major, *inner)
        axes = self._axes_in_op_by_rows.get(key)
        if axes is None:
            factors, classes = self._factors(op), self.tables.value_rows[row]
            axes = self._axes_in_op_by_rows[key] = tuple(
                # An axis splits the dimension whose major factor it splits, or the one inside of
                # that; -1 stands for no factor on either side.
                self._ordered(
                    [a for a, f in enumerate(factors) if f in own and f >= 0], classes[dim]
                )
                for dim, own in enumerate(zip(major, inner))
            )
        return _as_imposed(self.problem.imposed.running_spec(op, value), axes)


def _as_imposed(spec: ImposedSpec | None, axes: AxesPerDim) -> AxesPerDim:
    """The axes of a spec, in its order, where it does not leave a dimension free."""
    if spec is None:
        return axes
    return tuple(own if given is None else given for own, given in zip(axes, spec, strict=True))
