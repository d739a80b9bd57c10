"""Frozen parameters: what a train step reads as it reads parameters, but gives back no new version
of.

A base model under adapters, a teacher, a reference policy. The program alone shows them as inputs
like the batch, but the batch is what most of the work runs over; an input without it, whose own
classes are only worked on for examples of the batch, is a parameter         -> in: `with_frozen`
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from automap.policy import default_policy
from automap.program.work import shared_work, step_work
from hlo_tools.analyses.conflicts import self_conflicts
from hlo_tools.analyses.linkage import Linkage
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role


# Numbers, and those that stand for them; other integers are tokens and indices.
_QUANTIZED = frozenset({"s8", "u8", "s4", "u4"})


def with_frozen(
    linkage: Linkage,
    class_of_group: np.ndarray,
    phases: Sequence[Phase],
    roles: tuple[Role, ...],
) -> tuple[Role, ...]:
    """The roles, with parameters among the batch inputs of a train step called so.

    None is found where no batch input leads with what half of the work runs over, as under gradient
    accumulation.
    """
    if Role.PARAMETER not in roles or Phase.BACKWARD not in phases:
        return roles
    classes = _classes_of_inputs(linkage, class_of_group)
    asked = [i for i, role in enumerate(roles) if role is Role.BATCH and classes[i]]
    leading = Counter(classes[i][0] for i in asked if classes[i][0] >= 0)
    if len(leading) < 2:
        return roles
    trained = {
        c
        for of, role in zip(classes, roles)
        if role in (Role.PARAMETER, Role.OPTIMIZER)
        for c in of
    }
    work = step_work(linkage, class_of_group)
    done = work.by_class
    meets_itself = {conflict.group_class for conflict in self_conflicts(linkage, class_of_group)}
    batch = max(
        (c for c in leading if c not in trained),
        key=lambda c: (done.get(c, 0.0), c not in meets_itself, leading[c], -c),
        default=-1,
    )
    if 2 * done.get(batch, 0.0) < work.total:
        return roles
    least = default_policy().least_batch_work_of_frozen
    alone = {
        c
        for c in {c for i in asked for c in classes[i] if c in done}
        if shared_work(linkage, class_of_group, batch, c) < least * done[c]
    }
    frozen = {
        i
        for i in asked
        if _holds_numbers(linkage.graph.values[linkage.graph.inputs[i]].dtype)
        and batch not in classes[i]
        and not alone & set(classes[i])
        and any(c in done for c in classes[i])
    }
    return tuple(Role.PARAMETER if i in frozen else role for i, role in enumerate(roles))


def _classes_of_inputs(linkage: Linkage, class_of_group: np.ndarray) -> list[tuple[int, ...]]:
    """The compute class of each dimension of each input, -1 for none."""
    class_of_node = np.append(class_of_group, -1)[linkage.group_of_node]
    first = linkage.node_offset
    return [tuple(class_of_node[first[v] : first[v + 1]].tolist()) for v in linkage.graph.inputs]


def _holds_numbers(dtype: str) -> bool:
    return dtype in _QUANTIZED or dtype[0] in "fbc"
