"""A module -> the problem of parallelizing it: graph, phases, roles, linkage, storage and classes.

The module is flattened, its ops get their rules, rules link dimensions to groups, and groups of
equal layers are folded to classes                                       -> in: `build_problem`

A train step reads *frozen* parameters as it reads others, but gives back no new version of them: a
base model under adapters, a teacher, a reference policy. The program alone shows them as inputs
like the batch, but the batch is what most of the work runs over; an input without it, whose own
classes are only worked on for examples of the batch, is a parameter         -> in: `with_frozen`
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap.choices import Layers
from automap.jaxpr.kernels import StandIn
from automap.jaxpr.names import readable
from automap.policy import default_policy
from automap.program.imposed import imposed
from automap.program.own_collectives import own_collectives
from automap.program.problem import Problem
from automap.program.work import shared_work, step_work
from automap.step.own_shardings import ImposedEnds
from hlo_tools.analyses.conflicts import self_conflicts
from hlo_tools.analyses.folding import fold, fold_storage
from hlo_tools.analyses.grouped import with_grouped
from hlo_tools.analyses.interleaved import interleaved_rules
from hlo_tools.analyses.linkage import Linkage, link, op_rules
from hlo_tools.analyses.phases import Phase, phases
from hlo_tools.analyses.regions import Regions, regions
from hlo_tools.analyses.roles import Role, match_state, roles
from hlo_tools.analyses.storage import Storage, storage
from hlo_tools.graph import Graph, Op, flatten
from hlo_tools.module import Module
from hlo_tools.opcodes import NO_RULE_NEEDED
from hlo_tools.rules import CallRules, Notation, find_rule


# Numbers, and those that stand for them; other integers are tokens and indices.
_QUANTIZED = frozenset({"s8", "u8", "s4", "u4"})


def build_problem(
    module: Module,
    *,
    paths: Sequence[str] | None = None,
    state_map: Mapping[int, int] | None = None,
    rng_inputs: frozenset[int] = frozenset(),
    donated: frozenset[int] | None = None,
    user_rules: Mapping[str, Notation] | None = None,
    kernels: Sequence[StandIn] = (),
    layers: Layers = "folded",
    ends: ImposedEnds | None = None,
    manual_sizes: tuple[int, ...] = (),
    warnings: tuple[str, ...] = (),
) -> Problem:
    """Analyse a module. `paths`, `state_map`, `rng_inputs` and `donated` (input indices) come from
    the argument trees where there are any; else they are read from the program. `user_rules` are
    those of custom calls and functions, by name, `kernels` what stands for those of Pallas;
    `layers` says whether equal layers share their decisions; `ends` are the shardings of inputs and
    outputs that the step itself decides, `manual_sizes` the sizes of the mesh that its `shard_map`s
    are on; `warnings` are those there are already.
    """
    user_rules = user_rules or {}
    graph = flatten(module, user_rules)
    if state_map is None:
        state_map = match_state(graph)
    op_phases = phases(graph, state_map)
    call_rules = {kernel.target: kernel.rule for kernel in kernels} | {**user_rules}
    linkage = link(graph, op_rules(graph, call_rules))
    # Before the roles: which inputs are frozen parameters is seen by classes.
    class_of_group = _classes(linkage, layers)
    input_roles = roles(graph, op_phases, state_map, rng_inputs)
    input_roles = with_frozen(linkage, class_of_group, op_phases, input_roles)
    targets = frozenset(kernel.target for kernel in kernels)
    linked = _linked(linkage, class_of_group, op_phases, input_roles, state_map, layers, targets)
    unknown = (*_unknown_ops(graph, call_rules), *_whole_kernels(graph, kernels))
    # What the caller says it donates, else what the program itself says.
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
        own_collectives=own_collectives(graph, manual_sizes),
        layers=layers,
        kernels=targets,
        unknown=unknown,
        warnings=(
            *warnings,
            *map(readable, graph.assumptions),
            *unknown,
            *_unused_rules(graph, user_rules, kernels),
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


def _classes(linkage: Linkage, layers: Layers) -> np.ndarray:
    return fold(linkage) if layers == "folded" else np.arange(linkage.n_groups)


def _linked(
    linkage: Linkage,
    class_of_group: np.ndarray,
    op_phases: Sequence[Phase],
    input_roles: tuple[Role, ...],
    state_map: Mapping[int, int],
    layers: Layers,
    kernels: frozenset[str],
) -> _Linked:
    stored = storage(linkage, op_phases, input_roles, state_map)
    class_of_storage_group = (
        fold_storage(linkage, stored, class_of_group, state_map)
        if layers == "folded"
        else np.arange(len(stored.limits))
    )
    around_weights = regions(linkage, stored.side, class_of_group)
    each = with_grouped(around_weights, linkage, class_of_group, _runs_per_device(kernels))
    return _Linked(linkage, stored, class_of_group, class_of_storage_group, each)


def _runs_per_device(kernels: frozenset[str]) -> Callable[[Op], bool]:
    """Whether an operation is cuDNN's attention or one of `kernels`, the targets of those of
    Pallas (`automap.jaxpr.kernels`).
    """

    def runs(op: Op) -> bool:
        attributes = op.instruction.attributes
        return attributes.attention is not None or attributes.custom_call_target in kernels

    return runs


def interleaved(problem: Problem) -> Problem:
    """The problem as it would be if fused dimensions were stored interleaved
    (`hlo_tools.analyses.interleaved`).
    """
    linkage = link(problem.graph, interleaved_rules(problem.graph, problem.linkage.rules))
    linked = _linked(
        linkage,
        _classes(linkage, problem.layers),
        problem.phases,
        problem.roles,
        problem.state_map,
        problem.layers,
        problem.kernels,
    )
    return replace(
        problem,
        linkage=linked.linkage,
        storage=linked.storage,
        class_of_group=linked.class_of_group,
        class_of_storage_group=linked.class_of_storage_group,
        regions=linked.regions,
    )


def _unused_rules(
    graph: Graph, user_rules: Mapping[str, Notation], kernels: Sequence[StandIn]
) -> tuple[str, ...]:
    # Functions with a rule have become custom calls of that name.
    used = {op.instruction.attributes.custom_call_target for op in graph.ops}
    used |= {kernel.name for kernel in kernels if kernel.has_given_rule}
    misfits: dict[str, str] = {kernel.name: kernel.misfit for kernel in kernels if kernel.misfit}
    nothing = "no custom call, kernel or jitted function of that name fits it"
    return tuple(
        f"the rule of {name!r} was not used: {misfits.get(name, nothing)}"
        for name in user_rules
        if name not in used
    )


def _unknown_ops(graph: Graph, call_rules: CallRules) -> tuple[str, ...]:
    # One sentence for each kind, with the first place: a model has hundreds of equal ops.
    counts: dict[str, int] = {}
    where: dict[str, str] = {}
    for op in graph.ops:
        if op.opcode in NO_RULE_NEEDED:
            continue
        if find_rule(op.instruction, op.opcode, call_rules) is None:
            name = op.instruction.attributes.custom_call_target or op.opcode
            counts[name] = counts.get(name, 0) + 1
            where.setdefault(name, readable(op.op_name) or op.instruction.name)
    return tuple(
        f"no sharding rule for {name!r} ({n} times, first at {where[name]}): its operands are "
        "gathered and it runs whole on every device"
        for name, n in counts.items()
    )


def _whole_kernels(graph: Graph, kernels: Sequence[StandIn]) -> tuple[str, ...]:
    """A sentence for each kernel that runs whole on every device."""
    whole = {kernel.target: kernel for kernel in kernels if kernel.lack}
    places: dict[str, list[str]] = {}
    for op in graph.ops:
        target = op.instruction.attributes.custom_call_target
        if target in whole:
            places.setdefault(target, []).append(readable(op.op_name) or op.instruction.name)
    return tuple(
        f"kernel {whole[target].name!r} ({len(at)} times, first at {at[0]}): its operands are "
        f"gathered and it runs whole on every device, as its call says nothing else "
        f"({whole[target].lack}); {_rule_text(whole[target])}"
        for target, at in places.items()
    )


def _rule_text(kernel: StandIn) -> str:
    """What a rule of the user's does for a kernel that is not split, or could do."""
    if not kernel.has_steps:
        given = "your rule was not used to split it: " if kernel.has_given_rule else ""
        return f"{given}no rule can, as rules count along whole blocks of the grid alone"
    if kernel.has_given_rule:
        return "your rule passes along none of the steps of its grid"
    if kernel.misfit:
        return f"your rule {kernel.misfit}"
    return f"a rule can (--rule {kernel.name}=...)"


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
    # Nothing is trained: roles of inference are read in another way (`hlo_tools.analyses.roles`).
    if Role.PARAMETER not in roles or Phase.BACKWARD not in phases:
        return roles
    classes = _classes_of_inputs(linkage, class_of_group)
    # The batch itself and frozen parameters, which the program does not tell apart.
    asked = [i for i, role in enumerate(roles) if role is Role.BATCH and classes[i]]
    leading = Counter(classes[i][0] for i in asked if classes[i][0] >= 0)
    # All lead with one class, or with none: there is no second kind of input among them.
    if len(leading) < 2:
        return roles
    # No class of a trained parameter is the batch.
    trained = {
        c
        for input_classes, role in zip(classes, roles)
        if role in (Role.PARAMETER, Role.OPTIMIZER)
        for c in input_classes
    }
    work = step_work(linkage, class_of_group)
    done = work.by_class
    meets_itself = {conflict.group_class for conflict in self_conflicts(linkage, class_of_group)}
    # Of equal work not a class that meets itself, as a sequence does in attention.
    batch = max(
        (c for c in leading if c not in trained),
        key=lambda c: (done.get(c, 0.0), c not in meets_itself, leading[c], -c),
        default=-1,
    )
    # Too little to be sure, as where a loop over microbatches hides the batch.
    if 2 * done.get(batch, 0.0) < work.total:
        return roles
    least = default_policy().least_batch_work_of_frozen
    # Worked on without the batch for a good part: what holds such a class is data of another kind,
    # and no parameter that examples are computed with.
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
