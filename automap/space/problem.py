"""What there is to decide about one workload: decision classes, folded over repeated layers.

A *class* is a set of groups that share one decision.  Compute classes come from the linkage groups,
storage classes from the storage groups, regional ones are compute classes in a region around their weights
only; they are numbered together in this order, so that a mesh axis is described by one ordered list of
classes: in any tensor or op, the first listed class that is present gets the axis (see
`automap.space.point`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from automap.space.imposed import Imposed, ImposedEnds, imposed
from automap.space.names import readable
from automap.space.small import Small, small_parts
from automap.space.work import work
from hlo_tools.conflicts import PairConflict, SelfConflict, pair_conflicts, self_conflicts
from hlo_tools.flatten import flatten
from hlo_tools.folding import fold, numbered
from hlo_tools.graph import LOOP_EXIT, STRUCTURAL, Graph
from hlo_tools.interleaved import interleaved_rules
from hlo_tools.linkage import Linkage, link, rules_of
from hlo_tools.module import Module
from hlo_tools.phases import Phase, phases
from hlo_tools.regions import Regions, regions
from hlo_tools.roles import Role, match_state, roles
from hlo_tools.rules import NO_RULE_NEEDED, Notation, Rule, find_rule
from hlo_tools.storage import Side, Storage, storage


Layers = Literal["folded", "apart"]
"""Whether equal layers share their decisions, or each has its own."""

# Share of the work under which the class of the batch inputs is not what the work runs over.
_LITTLE_WORK = 0.1


@dataclass(frozen=True)
class Problem:
    """A graph with everything known about it before any mesh is chosen.

    `unknown` has a sentence for each kind of op that no rule is known for; they are `warnings` too.
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
    layers: Layers
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]

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
        for of_group, group_limits, first in (
            (self.class_of_group, self.linkage.limits, 0),
            (self.class_of_storage_group, self.storage.limits, self.n_compute),
        ):
            for group, limit in enumerate(group_limits.tolist()):
                index = first + int(of_group[group])
                limits[index] = np.gcd(limits[index], limit)
        limits[self.n_split :] = limits[list(self.regions.classes)]
        return limits

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
        number = np.full(self.n_compute + 1, self.n_classes)
        for index, of in enumerate(self.regions.classes):
            number[of] = self.n_split + index
        return number[compute_class]

    def regional_classes_of(self, value: int) -> tuple[int, ...]:
        """Regional class of each dimension of a value (`n_classes`: none)."""
        return tuple(self.regional_class_of_node[self._nodes(value)].tolist())

    def classes_of(self, value: int) -> tuple[int, ...]:
        """Compute class of each dimension of a value (`n_classes`: none)."""
        return tuple(self.compute_class_of_node[self._nodes(value)].tolist())

    def storage_classes_of(self, value: int) -> tuple[int, ...]:
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
        """The class of the batch: the one most batch inputs hold on their leading dimension.

        If little of the work runs over it (gradient accumulation cuts the batch in microbatches), the
        class of no parameter that most of the work runs over and that never meets itself.
        """
        votes: dict[int, int] = {}
        for value, role in zip(self.graph.inputs, self.roles, strict=True):
            if role is Role.BATCH and self.graph.values[value].dims:
                leading = self.classes_of(value)[0]
                if leading < self.n_classes:
                    votes[leading] = votes.get(leading, 0) + 1
        voted = max(votes, key=lambda c: (votes[c], -c)) if votes else None
        done, total = self.work
        if voted is not None and done.get(voted, 0.0) >= _LITTLE_WORK * total:
            return voted
        barred = {c.group_class for c in self.self_conflicts}
        for value, role in zip(self.graph.inputs, self.roles, strict=True):
            if role in (Role.PARAMETER, Role.OPTIMIZER):
                barred.update(self.classes_of(value))
        others = {c: n for c, n in done.items() if c not in barred and self.limits[c] > 1}
        best = max(others, key=lambda c: (others[c], -c), default=None)
        return best if best is not None and 2 * others[best] >= total else voted

    @cached_property
    def work(self) -> tuple[Mapping[int, float], float]:
        """(operations that run over each compute class, all of them), per step."""
        return work(self.linkage, self.class_of_group)

    @cached_property
    def small(self) -> Small:
        """The small parts of the compute classes."""
        return small_parts(self.linkage, self.compute_class_of_node, self.class_of_group)


def _class_of_node(group: np.ndarray, of_group: np.ndarray, first: int, none: int) -> np.ndarray:
    padded = np.append(of_group + first, none)
    return padded[group]


def build_problem(
    module: Module,
    *,
    paths: Sequence[str] | None = None,
    state_map: Mapping[int, int] | None = None,
    rng_inputs: frozenset[int] = frozenset(),
    donated: frozenset[int] | None = None,
    user_rules: Mapping[str, Notation] | None = None,
    layers: Layers = "folded",
    ends: ImposedEnds | None = None,
    warnings: tuple[str, ...] = (),
) -> Problem:
    """Analyse a module. `paths`, `state_map`, `rng_inputs` and `donated` (input indices) come from the
    argument trees where there are any; else they are read from the program. `user_rules` are those of
    custom calls and functions, by name; `layers` says whether equal layers share their decisions;
    `ends` are the shardings of inputs and outputs that the step itself decides; `warnings` are those there are
    already.
    """
    user_rules = user_rules or {}
    graph = flatten(module, user_rules)
    if state_map is None:
        state_map = match_state(graph)
    op_phases = phases(graph, frozenset(state_map))
    input_roles = roles(graph, op_phases, state_map, rng_inputs)
    linked = _link(graph, rules_of(graph, user_rules), op_phases, input_roles, state_map, layers)
    unknown = _unknown_ops(graph, user_rules)
    given = graph.donated if donated is None else donated
    return Problem(
        graph=graph,
        phases=op_phases,
        roles=input_roles,
        paths=tuple(paths) if paths is not None else graph.input_names,
        state_map=state_map,
        donated={o: i for o, i in state_map.items() if i in given},
        linkage=linked.linkage,
        storage=linked.storage,
        class_of_group=linked.class_of_group,
        class_of_storage_group=linked.class_of_storage_group,
        regions=linked.regions,
        imposed=imposed(graph, ends or ImposedEnds(), state_map),
        layers=layers,
        unknown=unknown,
        warnings=(
            *warnings,
            *map(readable, graph.assumptions),
            *unknown,
            *_unused_rules(graph, user_rules),
        ),
    )


@dataclass(frozen=True)
class _Linked:
    """What follows from the rules."""

    linkage: Linkage
    storage: Storage
    class_of_group: np.ndarray
    class_of_storage_group: np.ndarray
    regions: Regions


def _link(
    graph: Graph,
    rules: Sequence[Rule],
    op_phases: Sequence[Phase],
    input_roles: tuple[Role, ...],
    state_map: Mapping[int, int],
    layers: Layers,
) -> _Linked:
    linkage = link(graph, rules)
    stored = storage(linkage, op_phases, input_roles, state_map)
    is_folded = layers == "folded"
    class_of_group = fold(linkage) if is_folded else np.arange(linkage.n_groups)
    class_of_storage_group = (
        _fold_storage(linkage, stored, class_of_group, state_map)
        if is_folded
        else np.arange(len(stored.limits))
    )
    of_regions = regions(linkage, stored.side, class_of_group)
    return _Linked(linkage, stored, class_of_group, class_of_storage_group, of_regions)


def interleaved(problem: Problem) -> Problem:
    """The problem as it would be if fused dimensions were stored interleaved (`hlo_tools.interleaved`)."""
    rules = interleaved_rules(problem.graph, problem.linkage.rules)
    linked = _link(
        problem.graph, rules, problem.phases, problem.roles, problem.state_map, problem.layers
    )
    return replace(
        problem,
        linkage=linked.linkage,
        storage=linked.storage,
        class_of_group=linked.class_of_group,
        class_of_storage_group=linked.class_of_storage_group,
        regions=linked.regions,
    )


def _fold_storage(
    linkage: Linkage, stored: Storage, class_of_group: np.ndarray, state_map: Mapping[int, int]
) -> np.ndarray:
    """Storage groups are of one class if they hold the same dimensions of equally classed leaves.

    A group on no leaf (a gradient without optimizer state) is known by the parameter its op updates;
    what belongs to no leaf at all is folded by the values it holds.
    """
    graph = linkage.graph
    class_of_node = np.append(class_of_group, -1)[linkage.group_of_node].tolist()
    of_leaf: list[set[object]] = [set() for _ in range(len(stored.limits))]
    of_value: list[set[object]] = [set() for _ in range(len(stored.limits))]
    offset = linkage.node_offset.tolist()
    groups = stored.group_of_node.tolist()
    side, leaves = stored.side.tolist(), set(graph.inputs)
    for v in np.flatnonzero(stored.side).tolist():
        dims = graph.values[v].dims
        start, end = offset[v], offset[v + 1]
        key_of_value = (side[v], dims, tuple(class_of_node[start:end]))
        for dim, group in enumerate(groups[start:end]):
            if group >= 0:
                key = (*key_of_value, dim)
                (of_leaf if v in leaves else of_value)[group].add(key)
    for output, position in state_map.items():
        value = graph.inputs[position]
        classes = tuple(class_of_node[offset[value] : offset[value + 1]])
        for dim, group in enumerate(update_groups(linkage, stored, graph.outputs[output])):
            if group >= 0:
                of_leaf[group].add((Side.OPTIMIZER, graph.values[value].dims, classes, dim))
    return numbered([frozenset(leaf or other) for leaf, other in zip(of_leaf, of_value)])


def update_groups(linkage: Linkage, stored: Storage, output: int) -> tuple[int, ...]:
    """Storage group, per dimension, of the op that makes a new state leaf (-1: none)."""
    graph, made = linkage.graph, output
    producer = graph.values[made].producer
    while producer >= 0 and graph.ops[producer].opcode == LOOP_EXIT:
        op = graph.ops[producer]
        made = op.inputs[op.outputs.index(made)]
        producer = graph.values[made].producer
    if producer < 0 or graph.ops[producer].opcode in STRUCTURAL:
        return (-1,) * len(graph.values[output].dims)
    groups = stored.factor_groups[producer]
    dims = linkage.rules[producer].results[graph.ops[producer].outputs.index(made)]
    return tuple(int(groups[factors[0]]) if factors else -1 for factors in dims)


def _unused_rules(graph: Graph, user_rules: Mapping[str, Notation]) -> tuple[str, ...]:
    used = {op.instruction.attributes.custom_call_target for op in graph.ops}
    return tuple(
        f"the rule of {name!r} was not used: no custom call or jitted function of that name fits it"
        for name in user_rules
        if name not in used
    )


def _unknown_ops(graph: Graph, user_rules: Mapping[str, Notation]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    where: dict[str, str] = {}
    for op in graph.ops:
        if op.opcode in NO_RULE_NEEDED:
            continue
        if find_rule(op.instruction, op.opcode, user_rules) is None:
            name = op.instruction.attributes.custom_call_target or op.opcode
            counts[name] = counts.get(name, 0) + 1
            where.setdefault(name, readable(op.op_name) or op.instruction.name)
    return tuple(
        f"no sharding rule for {name!r} ({n} times, first at {where[name]}): its operands are "
        "gathered and it runs whole on every device"
        for name, n in counts.items()
    )
