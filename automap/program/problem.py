"""What there is to decide about one workload: decision classes, folded over repeated layers.

A *class* is a set of groups that share one decision. Compute classes come from the linkage groups,
storage classes from the storage groups, regional ones are compute classes in a region around their
weights only; they are numbered together in this order, so that a mesh axis is described by one
ordered list of classes: in any tensor or op, the first listed class that is present gets the axis
(see `automap.space.point`).

Splitting an op along a class that it sums, sorts or looks up in costs a collective, however small
its tensors are: the router of a mixture of experts, a table of positions, counts per expert. So a
class c has two parts,

    small(c)   tensors of at most 1 / `LEAST_RATIO` of the bytes of the largest that holds c, and
               ops whose tensors with c are all small                          -> in: `small_parts`
    the rest

and whether the first is left whole is a decision of its own (`Point.small_whole_classes`): every
device then does all of it, and what large tensors need of it is cut out without communication.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.choices import Layers
from automap.policy import default_policy
from automap.program.imposed import Imposed
from automap.program.own_collectives import OwnCollective
from automap.program.work import ModelWork, Work, model_work, step_work
from hlo_tools.analyses.batches import Batch
from hlo_tools.analyses.conflicts import PairConflict, SelfConflict, pair_conflicts, self_conflicts
from hlo_tools.analyses.linkage import Linkage
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.regions import Regions
from hlo_tools.analyses.roles import Role
from hlo_tools.analyses.storage import Storage
from hlo_tools.graph import Graph
from hlo_tools.opcodes import AT_RUN_TIME_OFFSET
from hlo_tools.rules import FactorKind


LEAST_RATIO = 16


@dataclass(frozen=True)
class SmallParts:
    """The small parts of the classes of a graph.

    `is_small_node` [nodes], `is_small_factor` [ops, factors]: whether a dimension or factor
    belongs to the small part of its class. `classes`: those of whose small part some op sums, sorts
    or looks up along the class.
    """

    is_small_node: np.ndarray
    is_small_factor: np.ndarray
    classes: frozenset[int]


@dataclass(frozen=True)
class Problem:
    """A graph with everything known about it before any mesh is chosen.

    `hosted` are the numbers of inputs that are kept in the host's memory between steps.
    `own_collectives` are those the step itself has, by op; `kernels` are the targets of calls that
    stand for kernels of Pallas; `unknown` has a sentence for each kind of op that no rule is known
    for, which are `warnings` too.
    """

    graph: Graph
    phases: Sequence[Phase]
    roles: tuple[Role, ...]
    paths: tuple[str, ...]
    state_map: Mapping[int, int]
    donated: Mapping[int, int]
    linkage: Linkage
    storage: Storage
    class_of_group: np.ndarray
    class_of_storage_group: np.ndarray
    regions: Regions
    imposed: Imposed
    own_collectives: Mapping[int, OwnCollective]
    layers: Layers
    kernels: frozenset[str]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    hosted: frozenset[int] = frozenset()

    @cached_property
    def n_compute(self) -> int:
        """Number of compute classes; storage classes are numbered from here."""
        return int(self.class_of_group.max(initial=-1)) + 1

    @cached_property
    def n_split(self) -> int:
        """Number of compute and storage classes; regional classes are numbered from here."""
        return self.n_compute + int(self.class_of_storage_group.max(initial=-1)) + 1

    @cached_property
    def n_classes(self) -> int:
        """Number of all classes; this number itself is the padding of class arrays."""
        return self.n_split + len(self.regions.classes)

    def compute_class(self, number: int) -> int:
        """The compute class of which a regional class is a part; any other class itself."""
        return number if number < self.n_split else self.regions.classes[number - self.n_split]

    @cached_property
    def limits(self) -> np.ndarray:
        """Greatest number of equal parts of each class, int64 [n_classes]."""
        limits = np.zeros(self.n_classes, np.int64)
        for class_by_group, group_limits, first in (
            (self.class_of_group, self.linkage.limits, 0),
            (self.class_of_storage_group, self.storage.limits, self.n_compute),
        ):
            for group, limit in enumerate(group_limits.tolist()):
                index = first + int(class_by_group[group])
                # gcd(0, n) = n: a class begins without a limit.
                limits[index] = np.gcd(limits[index], limit)
        # A region is split as its class would be, but for one inside of what the class splits.
        limits[self.n_split :] = limits[list(self.regions.classes)]
        for number, own in enumerate(self.regions.classes, self.n_split):
            if own in self.regions.grouped:
                limits[number] = self.regions.grouped[own].limit
        return limits

    @cached_property
    def outer_parts(self) -> Mapping[int, tuple[int, int]]:
        """By regional class of a grouped dimension (`hlo_tools.analyses.grouped`): the compute
        class outside of it, and into how many parts that has to be split.
        """
        return {
            number: (own, self.regions.grouped[own].outer)
            for number, own in enumerate(self.regions.classes, self.n_split)
            if own in self.regions.grouped
        }

    @cached_property
    def compute_class_of_node(self) -> np.ndarray:
        """Compute class of each (value, dimension) node, `n_classes` where there is none."""
        return _class_of_node(self.linkage.group_of_node, self.class_of_group, 0, self.n_classes)

    @cached_property
    def storage_class_of_node(self) -> np.ndarray:
        """Storage class of each node, `n_classes` where there is none."""
        groups = self.storage.group_of_node
        return _class_of_node(groups, self.class_of_storage_group, self.n_compute, self.n_classes)

    @cached_property
    def regional_class_of_node(self) -> np.ndarray:
        """Regional class of each node, `n_classes` where there is none."""
        return self._regional(self.regions.class_of_node)

    @cached_property
    def regional_class_of_factor(self) -> np.ndarray:
        """Regional class of each op's factors [ops, factors], `n_classes` where there is none."""
        return self._regional(self.regions.class_of_factor)

    def _regional(self, compute_class: np.ndarray) -> np.ndarray:
        # One more entry than classes: index -1, no class, reads the padding.
        number = np.full(self.n_compute + 1, self.n_classes)
        for index, split_class in enumerate(self.regions.classes):
            number[split_class] = self.n_split + index
        return number[compute_class]

    def regional_classes(self, value: int) -> tuple[int, ...]:
        """Regional class of each dimension of a value (`n_classes`: none)."""
        return tuple(self.regional_class_of_node[self._nodes(value)].tolist())

    def compute_classes(self, value: int) -> tuple[int, ...]:
        """Compute class of each dimension of a value (`n_classes`: none)."""
        return tuple(self.compute_class_of_node[self._nodes(value)].tolist())

    def storage_classes(self, value: int) -> tuple[int, ...]:
        """Storage class of each dimension of a value (`n_classes`: none)."""
        return tuple(self.storage_class_of_node[self._nodes(value)].tolist())

    def _nodes(self, value: int) -> slice:
        offset = self.linkage.node_offset
        return slice(int(offset[value]), int(offset[value + 1]))

    @cached_property
    def self_conflicts(self) -> tuple[SelfConflict, ...]:
        """Classes that meet themselves in one tensor or op."""
        return self_conflicts(self.linkage, self.class_of_group)

    @cached_property
    def pair_conflicts(self) -> tuple[PairConflict, ...]:
        """Pairs of compute classes that meet in some op."""
        return pair_conflicts(self.linkage, self.class_of_group)

    @cached_property
    def batch_class(self) -> int | None:
        """The class of the batch: the one most batch inputs hold on their leading dimension, of
        several one that none holds inside.

        Not one along which a loop steps (time, microbatches), if there is another. If the one found
        is, or little of the work runs over it, the class of no parameter that most of the work runs
        over, no loop steps along, and that never meets itself.
        """
        inner = self.inner_classes
        # Most batch inputs lead with the batch; of equals, not a class that stands inside of one,
        # as a sequence does.
        likely = [c for c in self.leading if c not in self.loop_classes]
        voted = max(
            likely or self.leading,
            key=lambda c: (self.leading[c], c not in inner, -c),
            default=None,
        )
        # The vote may go to what little is done along, as a table with a row for each class.
        done, total = self.work.by_class, self.work.total
        is_worked = (
            voted is not None
            and done.get(voted, 0.0) >= default_policy().least_work_of_batch * total
        )
        if is_worked and voted not in self.loop_classes:
            return voted
        # A batch meets itself nowhere (no sample looks at another), and no parameter has it.
        barred = (
            {c.group_class for c in self.self_conflicts} | self.state_classes | self.loop_classes
        )
        others = {c: n for c, n in done.items() if c not in barred and self.limits[c] > 1}
        # Of equals the class that was numbered first: the choice does not depend on a dict's order.
        best = max(others, key=lambda c: (others[c], -c), default=None)
        return best if best is not None and 2 * others[best] >= total else voted

    @cached_property
    def loop_classes(self) -> frozenset[int]:
        """Classes along which a loop steps: slices at a run-time offset would have to gather
        them.
        """
        indexed = set[int]()
        for op, rule in zip(self.graph.ops, self.linkage.rules, strict=True):
            # REPLICATION is the kind of a dimension that is taken in part, at an offset known when
            # it runs.
            if op.opcode in AT_RUN_TIME_OFFSET:
                classes = self.compute_classes(op.inputs[0])
                indexed.update(
                    c
                    for c, factors in zip(classes, rule.operands[0])
                    if factors and rule.factors[factors[0]].kind is FactorKind.REPLICATION
                )
        return frozenset(indexed)

    @cached_property
    def leading(self) -> Mapping[int, int]:
        """How many batch inputs hold a class on their leading dimension."""
        votes: dict[int, int] = {}
        for value, role in zip(self.graph.inputs, self.roles, strict=True):
            if role is Role.BATCH and self.graph.values[value].dims:
                leading = self.compute_classes(value)[0]
                if leading < self.n_classes:
                    votes[leading] = votes.get(leading, 0) + 1
        return votes

    @cached_property
    def inner_classes(self) -> frozenset[int]:
        """Classes that some batch input holds on another dimension than its leading one."""
        inputs = zip(self.graph.inputs, self.roles, strict=True)
        batches = (value for value, role in inputs if role is Role.BATCH)
        return frozenset(c for value in batches for c in self.compute_classes(value)[1:])

    @cached_property
    def state_classes(self) -> frozenset[int]:
        """Classes that some parameter, or its optimizer's state, holds."""
        kept = (Role.PARAMETER, Role.OPTIMIZER)
        inputs = zip(self.graph.inputs, self.roles, strict=True)
        return frozenset(
            c for value, role in inputs if role in kept for c in self.compute_classes(value)
        )

    @cached_property
    def work(self) -> Work:
        """Operations per step that run over each compute class."""
        return step_work(self.linkage, self.class_of_group)

    @cached_property
    def model_work(self) -> ModelWork:
        """Operations per step of the products that the model asks for."""
        return model_work(self.linkage)

    @cached_property
    def small_parts(self) -> SmallParts:
        """The small parts of the compute classes."""
        return small_parts(self.linkage, self.compute_class_of_node, self.class_of_group)


def _class_of_node(
    group: np.ndarray, class_by_group: np.ndarray, first: int, none: int
) -> np.ndarray:
    padded = np.append(class_by_group + first, none)
    return padded[group]


def small_parts(
    linkage: Linkage, class_of_node: np.ndarray, class_of_group: np.ndarray
) -> SmallParts:
    """The small parts of compute classes; `class_of_node` is `len(class_of_group)` or more where
    there is none.
    """
    values, offset = linkage.graph.values, linkage.node_offset
    # For each node, the bytes of its value; nodes of no class fall into the last entry of
    # `largest`.
    n_bytes = np.repeat(np.array([v.n_bytes for v in values], np.int64), np.diff(offset))
    largest = np.zeros(int(class_of_node.max(initial=0)) + 1, np.int64)
    np.maximum.at(largest, class_of_node, n_bytes)
    nodes = n_bytes * LEAST_RATIO <= largest[class_of_node]
    factors = np.zeros(linkage.factor_groups.shape, bool)
    communicating = set[int]()
    for batch in linkage.batches:
        for factor, places in enumerate(batch.places((True,) * batch.values.shape[1])):
            # An op belongs to the small part if all its tensors along the factor do.
            groups = linkage.factor_groups[batch.ops, factor]
            if places and (groups >= 0).any():
                is_small = _all_small(batch, places, nodes, offset) & (groups >= 0)
                factors[batch.ops, factor] = is_small
                if batch.rule.factors[factor].kind is not FactorKind.PASSTHROUGH:
                    communicating.update(class_of_group[groups[is_small]].tolist())
    return SmallParts(nodes, factors, frozenset(communicating))


def _all_small(
    batch: Batch, places: Sequence[tuple[int, int]], nodes: np.ndarray, offset: np.ndarray
) -> np.ndarray:
    tensors, dims = (list(column) for column in zip(*places))
    return np.logical_and.reduce(nodes[offset[batch.values[:, tensors]] + np.array(dims)], axis=1)
