"""Decisions of the count objective: what can be split over one mesh axis, and what contradicts
what.

operator partitioning    a decision for each linkage group that holds a trainable variable's
                         dimension; it counts those dimensions. Largest first
                                                                      -> in: `operator_partitioning`
auto data parallelism    a decision for each dimension of each batch tensor, one by one although
                         propagation links them; each tensor counts once  -> in: `data_parallelism`

A group cannot be split if the axis does not divide it or a tensor holds it twice. Two groups
contradict each other where they meet in an op or in one tensor: an axis splits only one of its
dimensions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from automap.errors import InputError
from automap.program.problem import Problem
from hlo_tools.analyses.roles import Role


@dataclass(frozen=True)
class Choices:
    """n decisions in the order in which they are made.

    `labels` name them, `weights` [n] int64 are what splitting counts, `allowed` [n] bool what can
    be split at all, `conflicts` [n, n] bool what cannot be split both, `linked` [n, n] bool what is
    split both or neither.
    """

    labels: tuple[str, ...]
    weights: np.ndarray
    allowed: np.ndarray
    conflicts: np.ndarray
    linked: np.ndarray

    def __len__(self) -> int:
        """n."""
        return len(self.labels)

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


def operator_partitioning(problem: Problem, axis_size: int) -> Choices:
    """Decisions about trainable variables; `problem` is traced with `layers="apart"`.

    Raises `InputError` if the step trains nothing, or the problem's layers are folded.
    """
    if problem.layers != "apart":
        raise InputError("linkage groups of folded layers: trace the step with layers='apart'")
    # Dimensions of trainable variables by the group that propagation puts them in.
    dimensions_by_group: dict[int, list[str]] = {}
    for path, value, role in zip(problem.paths, problem.graph.inputs, problem.roles, strict=True):
        if role is Role.PARAMETER:
            for dim, group in enumerate(problem.compute_classes(value)):
                if group < problem.n_classes:
                    dimensions_by_group.setdefault(group, []).append(f"{path}[{dim}]")
    groups = sorted(dimensions_by_group, key=lambda g: (-len(dimensions_by_group[g]), g))
    if not groups:
        raise InputError("no trainable variable has a dimension to split: the step trains nothing")
    return _choices(
        problem,
        axis_size,
        labels=[dimensions_by_group[g][0] for g in groups],
        weights=[len(dimensions_by_group[g]) for g in groups],
        groups=groups,
    )


def data_parallelism(problem: Problem, axis_size: int) -> Choices:
    """Decisions about batch tensors. Raises `InputError` if the step has none."""
    labels, groups = [], []
    for path, value, role in zip(problem.paths, problem.graph.inputs, problem.roles, strict=True):
        if role is Role.BATCH:
            for dim, group in enumerate(problem.compute_classes(value)):
                if group < problem.n_classes:
                    labels.append(f"{path}[{dim}]")
                    groups.append(group)
    if not groups:
        raise InputError("no batch tensor has a dimension to split: the step takes no batch")
    return _choices(problem, axis_size, labels=labels, weights=[1] * len(groups), groups=groups)


def _choices(
    problem: Problem, axis_size: int, *, labels: list[str], weights: list[int], groups: list[int]
) -> Choices:
    # An axis splits one dimension of a tensor, so a group that stands there twice cannot be split
    # whole.
    twice = {conflict.group_class for conflict in problem.self_conflicts}
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
        labels=tuple(labels),
        weights=np.array(weights, np.int64),
        allowed=np.array([problem.limits[g] % axis_size == 0 and g not in twice for g in groups]),
        conflicts=meets[np.ix_(group_by_decision, group_by_decision)],
        linked=linked,
    )


def _groups_of_inputs(problem: Problem) -> Iterable[list[int]]:
    for value in problem.graph.inputs:
        yield [g for g in problem.compute_classes(value) if g < problem.n_classes]
