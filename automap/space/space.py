"""The space of one problem: what may be decided, which points are valid, and the classes
that a point splits.

compute candidates   classes of a parameter's or the batch's dimension that some contraction, gather
                     or scatter iterates over, classes of neither that much of the work runs over
                     (sequences), and regional classes
order                features, then sequences, batches last: the first that a tensor has gets the
                     axis there; two features that meet in an op may share an axis too
storage              a `StorageLevel` per leaf class and axis, free of conflicts by construction
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
import math
import re

import numpy as np

from automap.policy import default_policy
from automap.program.problem import Problem
from automap.space.batches import batch_classes
from automap.space.leaves import LeafClass, StoredLeaves, leaf_classes
from automap.space.point import Point, SplitClasses, StorageLevel
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from hlo_tools.opcodes import CONVOLUTION, DOT
from hlo_tools.rules import FactorKind


@dataclass(frozen=True)
class Space:
    """Decisions available for a problem; `stored_multiple` is a fact of the backend
    (`automap.backends.Backend`).
    """

    problem: Problem
    stored_multiple: int = 128

    @cached_property
    def leaves(self) -> tuple[LeafClass, ...]:
        """Leaf classes, largest first."""
        return leaf_classes(self.problem)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """All classes of the batch, the one of most inputs first."""
        return batch_classes(self.problem)

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """Classes worth deciding: features by parameter bytes, regional ones before, the batch
        last.

        Between them stand classes of no parameter that much of the work runs over: sequences,
        images (at all scales together).
        """
        problem, batches = self.problem, self.batches
        done, total = problem.work.by_class, problem.work.total
        # Bytes of the parameters that hold each class; 0 for one of activations alone.
        weight = {c: 0 for c in (*done, *self.regional) if problem.limits[c] > 1}
        for leaf in self.leaves:
            for group_class in {*leaf.compute, *leaf.regional} & weight.keys():
                weight[group_class] += leaf.n_bytes * len(leaf.inputs)
        features = [c for c, n in weight.items() if n and c not in batches]
        # The order is the precedence on an axis: regional classes first, or the classes that they
        # are parts of would take the axis everywhere.
        features.sort(key=lambda c: (c not in self.regional, -weight[c], c))
        others = [
            c
            for c, n in weight.items()
            if not n
            and c not in (*batches, *problem.loop_classes)
            # A regional class is worked on as the class that it is a part of.
            and sum(
                done.get(problem.compute_class(same), 0.0) for same in self._scales.get(c, (c,))
            )
            # An image is one class at each scale: alone each may be too little work to be worth
            # deciding.
            >= default_policy().least_work_of_candidate * total
        ]
        others.sort(key=lambda c: (-done.get(problem.compute_class(c), 0.0), c))
        # Of layers apart each has classes of its own, none of which may be cut off for another's.
        most = default_policy().most_candidates if problem.layers == "folded" else None
        chosen = (*features[:most], *others[:most])
        # The other towers of the batch, and the batch itself last: it takes what features leave.
        beside = [c for c in batches[1:] if c in weight and c not in problem.loop_classes]
        return (*chosen, *beside, *(c for c in batches[:1] if c in weight))

    @cached_property
    def repeated_classes(self) -> tuple[int, ...]:
        """Candidates that stand on several dimensions of some tensor: which one they split is
        decided.
        """
        met = {conflict.group_class for conflict in self.problem.self_conflicts}
        return tuple(c for c in self.candidates if c in met)

    @cached_property
    def small_part_classes(self) -> tuple[int, ...]:
        """Candidates whose small part may be left whole; the batch's is always split."""
        small, batches = self.problem.small_parts.classes, self.batches
        return tuple(c for c in self.candidates if c in small and c not in batches)

    @cached_property
    def regional(self) -> tuple[int, ...]:
        """Classes that are only split around their weights (experts), or in a grouped dimension
        (query heads).
        """
        return tuple(range(self.problem.n_split, self.problem.n_classes))

    @cached_property
    def activations(self) -> tuple[int, ...]:
        """Candidates that no parameter holds: sequences, images, and the batch."""
        features = {c for leaf in self.leaves for c in (*leaf.compute, *leaf.regional)}
        return tuple(c for c in self.candidates if c not in features)

    @cached_property
    def _scales(self) -> Mapping[int, frozenset[int]]:
        """For each class of an image, those of the image at all scales that windows make of it."""
        problem, scales = self.problem, dict[int, frozenset[int]]()
        for op, rule in zip(problem.graph.ops, problem.linkage.rules, strict=True):
            # No window slides here: the image has the same scale on both sides.
            if all(factor.halo is None for factor in rule.factors):
                continue
            classes = [problem.compute_classes(v) for v in (*op.inputs, *op.outputs)]
            for index, factor in enumerate(rule.factors):
                if factor.halo is not None:
                    met = {
                        c
                        for tensor_classes, dims in zip(classes, (*rule.operands, *rule.results))
                        for c, factors in zip(tensor_classes, dims)
                        # A class stands for the major factor of a dimension.
                        if factors[:1] == (index,) and c < problem.n_classes
                    }
                    joined = frozenset(met).union(*(scales.get(c, ()) for c in met))
                    scales.update(dict.fromkeys(joined, joined))
        return scales

    @cached_property
    def convolved(self) -> frozenset[int]:
        """Classes that some convolution iterates over."""
        ops = [i for i, op in enumerate(self.problem.graph.ops) if op.opcode == CONVOLUTION]
        groups = np.unique(self.problem.linkage.factor_groups[ops])
        return frozenset(self.problem.class_of_group[groups[groups >= 0]].tolist())

    @cached_property
    def _meetings(self) -> frozenset[tuple[int, int]]:
        # Only features: batch and sequences stand beside them in most tensors, and are there for
        # what features leave.
        features = {c for leaf in self.leaves for c in leaf.compute}
        return frozenset(
            (pair.first, pair.second)
            for pair in self.problem.pair_conflicts
            if {pair.first, pair.second} <= features - {self.problem.batch_class}
        )

    def meet(self, first: int, second: int) -> bool:
        """Whether two classes are features that meet in a tensor or op, so that only one gets an
        axis there.
        """
        return (min(first, second), max(first, second)) in self._meetings

    @cached_property
    def meeting(self) -> tuple[int, ...]:
        """Candidates that meet another one."""
        return tuple(c for c in self.candidates if any(self.meet(c, d) for d in self.candidates))

    @cached_property
    def residual(self) -> int | None:
        """The class of the residual stream: contracted at least twice as often as any other.

        Splitting it would leave a partial sum after nearly every matmul of the forward pass.
        """
        problem = self.problem
        counts: dict[int, int] = {}
        for index, op in enumerate(problem.graph.ops):
            # Backward passes contract what forward passes do not, the batch above all.
            if op.opcode == DOT and problem.phases[index] is Phase.FORWARD:
                factors = problem.linkage.rules[index].factors
                for factor, group in zip(factors, problem.linkage.factor_groups[index].tolist()):
                    if factor.kind is FactorKind.REDUCTION and group >= 0:
                        group_class = int(problem.class_of_group[group])
                        counts[group_class] = counts.get(group_class, 0) + op.trip_count
        ranked = sorted(counts, key=lambda c: (-counts[c], c))
        if not ranked:
            return None
        runner_up = counts[ranked[1]] if len(ranked) > 1 else 0
        return ranked[0] if counts[ranked[0]] >= 2 * max(runner_up, 1) else None

    def ordered(self, classes: Iterable[int]) -> tuple[int, ...]:
        """Classes of one axis in order of precedence."""
        rank = {c: i for i, c in enumerate(self.candidates)}
        return tuple(sorted(classes, key=lambda c: (rank.get(c, len(rank)), c)))

    def is_valid(self, point: Point) -> bool:
        """Whether every class divides, and those that are on one dimension together; and what is
        inside of another class is split only where that is wholly split, over other axes.
        """
        parts = _parts(point)
        limits = self.problem.limits
        return (
            all(limits[c] % n == 0 for c, n in parts.items())
            and all(
                size % (parts.get(outside, 1) * parts.get(inside, 1)) == 0
                for (outside, inside), size in self.shared_sizes.items()
            )
            and all(
                parts.get(outside, 1) == n
                and not any({outside, c} <= {*on} for on in point.compute)
                for c, (outside, n) in self.problem.outer_parts.items()
                if c in parts
            )
        )

    @cached_property
    def shared_sizes(self) -> dict[tuple[int, int], int]:
        """What the sizes of dimensions have in common that a class splits, and a regional one too;
        of inputs.
        """
        problem, sizes = self.problem, dict[tuple[int, int], int]()
        for value in dict.fromkeys(problem.graph.inputs):
            sides = zip(problem.compute_classes(value), problem.regional_classes(value))
            for pair, size in zip(sides, problem.graph.values[value].dims, strict=True):
                if problem.n_classes not in pair:
                    sizes[pair] = math.gcd(sizes.get(pair, 0), size)
        return sizes

    def point(
        self,
        mesh: Mesh,
        compute: Sequence[Iterable[int]],
        storage: Sequence[StorageLevel] | None = None,
    ) -> Point:
        """A point with classes put in order; `storage` is one level per axis for all leaves.

        An axis of one device splits nothing.
        """
        levels = storage if storage is not None else [StorageLevel.REPLICATED] * len(mesh.sizes)
        splits = [size > 1 for size in mesh.sizes]
        return Point(
            mesh=mesh,
            compute=tuple(self.ordered(c if s else ()) for c, s in zip(compute, splits)),
            storage=tuple(
                (level if s else StorageLevel.REPLICATED,) * len(self.leaves)
                for level, s in zip(levels, splits)
            ),
        )

    def split_classes(self, point: Point) -> SplitClasses:
        """Classes of each axis with the storage classes that the point's levels turn on."""
        stored = self._stored_leaves.storage_classes(point, _parts(point))
        classes = tuple((*c, *s) for c, s in zip(point.compute, stored, strict=True))
        return SplitClasses(point.mesh, classes, point.last_dim_classes, point.small_whole_classes)

    @cached_property
    def _stored_leaves(self) -> StoredLeaves:
        return StoredLeaves(self.leaves, self.problem.n_classes, self.stored_multiple)

    def label(self, group_class: int) -> str | None:
        """The largest parameter or batch dimension of a compute class, or of a grouped dimension,
        as `path[dim]`.

        Layer numbers are starred if the class covers that dimension in all layers.
        """
        problem = self.problem
        classes_by_dim = problem.compute_classes
        if group_class in problem.outer_parts:
            classes_by_dim = problem.regional_classes
        else:
            group_class = problem.compute_class(group_class)
        names_by_starred_name: dict[str, list[str]] = {}
        others: set[str] = set()
        largest: tuple[int, str] | None = None
        for path, value, role in zip(problem.paths, problem.graph.inputs, problem.roles):
            if role in (Role.PARAMETER, Role.BATCH):
                for dim, other in enumerate(classes_by_dim(value)):
                    name = f"{path}[{dim}]"
                    if other != group_class:
                        others.add(starred(name))
                        continue
                    names_by_starred_name.setdefault(starred(name), []).append(name)
                    n_bytes = problem.graph.values[value].n_bytes
                    if largest is None or n_bytes > largest[0]:
                        largest = (n_bytes, name)
        if largest is None:
            return None
        name = starred(largest[1])
        return largest[1] if name in others or len(names_by_starred_name[name]) == 1 else name


def _parts(point: Point) -> dict[int, int]:
    """In how many parts each compute class is split, over all axes."""
    parts: dict[int, int] = {}
    for size, classes in zip(point.mesh.sizes, point.compute, strict=True):
        for group_class in classes:
            parts[group_class] = parts.get(group_class, 1) * size
    return parts


def starred(path: str) -> str:
    """A leaf's path with every layer number but the argument's own replaced by a star.

    A dimension at the end, `path[dim]`, is no layer number and stays.
    """
    head, tail = path[:3], path[3:]
    return head + re.sub(r"\[\d+\](?!$)|(?<=[._'])\d+(?=[._']|$)", "[*]", tail)
