"""Decisions of the count objective: what can be split over one mesh axis, and what contradicts
what.

operator partitioning    a decision for each linkage group that holds a trainable variable's
                         dimension; it counts those dimensions. Largest first. To split it implies
                         that the other dimensions of its variables stay whole, with their groups
                                                                      -> in: `operator_partitioning`
auto data parallelism    a decision for each dimension of each input that is neither a trainable
                         variable (with its optimizer's state) nor a constant, one by one although
                         propagation links them; each tensor counts once  -> in: `data_parallelism`

A group cannot be split if the axis does not divide it or a tensor holds it twice. Two groups
contradict each other where they meet in an op or in one tensor: an axis splits only one of its
dimensions.

What else a propagation refuses is a question of its rules, which the paper does not print. By ours
any group may be summed over devices, and the greatest count then splits the residual stream of a
transformer and every other convolution. The paper's plans (its Tables 3 and 4) split neither, but
do split what matrix products sum and what a softmax runs over. One rule gives exactly those plans,
and is the reading `"products"`:

    only a matrix product sums over devices (its result is all-reduced); a group that another op
    sums, as a convolution or a normalization does, is not split. The exception is a softmax, of
    which the maximum is taken too: frameworks have it as one op          -> in: `_summed_otherwise`
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from automap.errors import InputError
from automap.program.problem import Problem
from hlo_tools.analyses.roles import Role
from hlo_tools.opcodes import DOT
from hlo_tools.rules import FactorKind


Sums = Literal["anywhere", "products"]
"""Which ops may sum over devices: all, or matrix products alone."""

# What is neither trained nor a constant; an optimizer's state follows what is trained.
_CANDIDATES = frozenset({Role.BATCH, Role.STATE, Role.RNG})


@dataclass(frozen=True)
class Choices:
    """n decisions in the order in which they are made.

    `classes` are the compute classes that they decide, `dimensions` those that each decides, as
    `path[dim]`, `weights` [n] int64 what splitting counts, `allowed` [n] bool what can be split at
    all, `conflicts` [n, n] bool what cannot be split both, `linked` [n, n] bool what is split both
    or neither. `implied` [n, n] bool: to split i decides at once that j stays whole; such j
    conflict with i.
    """

    classes: tuple[int, ...]
    dimensions: tuple[tuple[str, ...], ...]
    weights: np.ndarray
    allowed: np.ndarray
    conflicts: np.ndarray
    linked: np.ndarray
    implied: np.ndarray

    def __len__(self) -> int:
        """n."""
        return len(self.dimensions)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each: its first dimension."""
        return tuple(dimensions[0] for dimensions in self.dimensions)

    def count(self, split: np.ndarray) -> int:
        """What a plan counts; `split` [n] bool."""
        return int(self.weights[split].sum())

    def holds(self, split: np.ndarray) -> bool:
        """Whether a plan [n] bool contradicts itself nowhere."""
        together = split[:, None] & split[None, :]
        apart = split[:, None] & ~split[None, :]
        return not (
            (split & ~self.allowed).any()
            or (together & self.conflicts).any()
            or (apart & self.linked).any()
        )


def operator_partitioning(problem: Problem, axis_size: int, sums: Sums = "anywhere") -> Choices:
    """Decisions about trainable variables; `problem` is traced with `layers="apart"`.

    Raises `InputError` if the step trains nothing, or the problem's layers are folded.
    """
    if problem.layers != "apart":
        raise InputError(
            "operator partitioning decides each layer by itself: plan with --layers apart, "
            "layers='apart' in Python"
        )
    # Dimensions of trainable variables by the group that propagation puts them in.
    dimensions_by_group: dict[int, list[str]] = {}
    together = np.zeros((problem.n_classes + 1,) * 2, bool)
    for path, value, role in zip(problem.paths, problem.graph.inputs, problem.roles, strict=True):
        if role is Role.PARAMETER:
            held = problem.compute_classes(value)
            together[np.ix_(held, held)] = True
            for dim, group in enumerate(held):
                if group < problem.n_classes:
                    dimensions_by_group.setdefault(group, []).append(f"{path}[{dim}]")
    np.fill_diagonal(together, False)
    groups = sorted(dimensions_by_group, key=lambda g: (-len(dimensions_by_group[g]), g))
    if not groups:
        raise InputError("no trainable variable has a dimension to split: the step trains nothing")
    return _choices(
        problem,
        axis_size,
        dimensions=[tuple(dimensions_by_group[g]) for g in groups],
        groups=groups,
        implied=together[np.ix_(groups, groups)],
        refused=_summed_otherwise(problem) if sums == "products" else frozenset(),
    )


def data_parallelism(problem: Problem, axis_size: int) -> Choices:
    """Decisions about inputs that may be data. Raises `InputError` if the step has none."""
    dimensions, groups = [], []
    for path, value, role in zip(problem.paths, problem.graph.inputs, problem.roles, strict=True):
        if role in _CANDIDATES:
            for dim, group in enumerate(problem.compute_classes(value)):
                if group < problem.n_classes:
                    dimensions.append((f"{path}[{dim}]",))
                    groups.append(group)
    if not groups:
        raise InputError("no batch tensor has a dimension to split: the step takes no batch")
    return _choices(
        problem,
        axis_size,
        dimensions=dimensions,
        groups=groups,
        implied=np.zeros((len(groups),) * 2, bool),
        refused=frozenset(),
    )


def _summed_otherwise(problem: Problem) -> frozenset[int]:
    """The groups that some other op than a matrix product sums, and that no softmax runs over."""
    summed, maximised = set[int](), set[int]()
    linkage = problem.linkage
    for op, rule, groups in zip(problem.graph.ops, linkage.rules, linkage.factor_groups.tolist()):
        if op.opcode == DOT:
            continue
        takes_maximum = op.instruction.attributes.combiner == "maximum"
        for factor, group in zip(rule.factors, groups):
            if group >= 0 and factor.kind is FactorKind.REDUCTION:
                (maximised if takes_maximum else summed).add(int(problem.class_of_group[group]))
    return frozenset(summed - maximised)


def _choices(
    problem: Problem,
    axis_size: int,
    *,
    dimensions: list[tuple[str, ...]],
    groups: list[int],
    implied: np.ndarray,
    refused: frozenset[int],
) -> Choices:
    # An axis splits one dimension of a tensor, so a group that stands there twice cannot be split
    # whole.
    never = {conflict.group_class for conflict in problem.self_conflicts} | refused
    meets = np.zeros((problem.n_classes + 1,) * 2, bool)
    for pair in problem.pair_conflicts:
        meets[pair.first, pair.second] = meets[pair.second, pair.first] = True
    # Also groups of one input that no op brings together.
    for classes_in_input in _groups_of_inputs(problem):
        meets[np.ix_(classes_in_input, classes_in_input)] = True
    np.fill_diagonal(meets, False)
    group_by_decision = np.array(groups)
    # Decisions of one group, as two batch tensors that propagation links, are one in truth.
    linked = group_by_decision[:, None] == group_by_decision[None, :]
    np.fill_diagonal(linked, False)
    return Choices(
        classes=tuple(groups),
        dimensions=tuple(dimensions),
        weights=np.array([len(decided) for decided in dimensions], np.int64),
        allowed=np.array([problem.limits[g] % axis_size == 0 and g not in never for g in groups]),
        conflicts=meets[np.ix_(group_by_decision, group_by_decision)],
        linked=linked,
        implied=implied,
    )


def _groups_of_inputs(problem: Problem) -> Iterable[list[int]]:
    for value in problem.graph.inputs:
        yield [g for g in problem.compute_classes(value) if g < problem.n_classes]
