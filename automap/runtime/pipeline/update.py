"""What is computed once after a loop, mostly the optimizer, as programs of the stages.

A *placed* value is on one stage: a sum where it was added up, a parameter on the stage that owns
it, and what is made of them. An equation runs where the largest placed value that it reads is, the
earliest stage of several; one that combines scalars of several stages (the norm of all gradients)
on stage 0. What reads nothing placed (a schedule, a step counter) is computed by whoever reads it,
and inputs of the step that are read by one stage alone come to be owned by it: the optimizer's
state follows the gradients.

    phase(o) = max over what o reads of phase(v) + (1 if v is on another stage)

All equations of a phase on a stage are one program.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from automap.runtime.pipeline.numbered import Node, Numbered
from automap.runtime.pipeline.programs import closure


# Where scalars of several stages meet: each sends a few bytes, whichever stage it is.
_HUB = 0


@dataclass(frozen=True, slots=True)
class UpdateProgram:
    """`equations` are numbers of `UpdatePlan.nodes`."""

    phase: int
    stage: int
    equations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class UpdatePlan:
    """Programs in the order in which they run; `home` is the stage of every placed value, results
    of the update included.
    """

    nodes: tuple[Node, ...]
    programs: tuple[UpdateProgram, ...]
    home: Mapping[int, int]


def update_plan(
    numbers: Numbered, own: Sequence[Node], home: Mapping[int, int], wanted: Iterable[int]
) -> UpdatePlan:
    """The programs that compute `wanted` of the equations `own` and of those before the loops.

    `home` has the stages of the sums, of what former updates made and of the inputs that a loop
    reads.
    """
    nodes = (*numbers.before, *own)
    first = len(numbers.before)
    maker = {v: n for n, node in enumerate(nodes) for v in node.outputs}
    home = dict(home)
    stage = _stages(numbers, nodes, first, home)
    wanted = [v for v in dict.fromkeys(wanted) if v in maker]
    copied = {v: n for v, n in maker.items() if n not in stage}
    # By (phase, stage). Nodes are in program order, so that what one reads has its phase already.
    groups: dict[tuple[int, int], set[int]] = defaultdict(set)
    phase: dict[int, int] = {}
    for number in sorted(stage):
        reads = [v for v in nodes[number].inputs if v in phase]
        at = max((phase[v] + (home[v] != stage[number]) for v in reads), default=0)
        phase.update((v, at) for v in nodes[number].outputs)
        groups[at, stage[number]].add(number)
    # Results that depend on nothing placed, as the next step's counter.
    rest = [v for v in wanted if v in copied]
    if rest:
        groups[0, _HUB] |= closure(rest, copied, nodes)
        home.update((v, _HUB) for v in rest)
        phase.update((v, 0) for v in rest)
    return UpdatePlan(
        nodes, tuple(_programs(nodes, groups, copied, phase, home, set(wanted))), home
    )


def _stages(
    numbers: Numbered, nodes: Sequence[Node], first: int, home: dict[int, int]
) -> dict[int, int]:
    """Stage by equation, of those that read something placed; `home` grows with what they make."""
    size = {v: numbers.n_bytes(v) for node in nodes for v in (*node.inputs, *node.outputs)}
    is_scalar = lambda v: numbers.variables[v].aval.size == 1  # noqa: E731
    before = {v for node in nodes[:first] for v in node.outputs}
    stage_by_node = {}
    for number, node in enumerate(nodes[first:], first):
        placed = [v for v in node.inputs if v in home and v not in before]
        if not placed:
            continue
        stages = {home[v] for v in placed}
        if len(stages) > 1 and all(map(is_scalar, (*placed, *node.outputs))):
            at = _HUB
        else:
            # Moving the smaller values to the largest one sends the fewest bytes.
            most = max(size[v] for v in placed)
            at = min(home[v] for v in placed if size[v] == most)
        stage_by_node[number] = at
        home.update((v, at) for v in node.outputs)
    return stage_by_node


def _programs(
    nodes: Sequence[Node],
    groups: Mapping[tuple[int, int], set[int]],
    copied: Mapping[int, int],
    phase: Mapping[int, int],
    home: Mapping[int, int],
    wanted: set[int],
) -> list[UpdateProgram]:
    # First what each program reads, which says what the others have to hand out.
    drafts = []
    for (at, stage), own in sorted(groups.items()):
        read = [v for n in own for v in nodes[n].inputs]
        equations = tuple(sorted(own | closure(read, copied, nodes)))
        made = {v for n in equations for v in nodes[n].outputs}
        inputs = dict.fromkeys(v for n in equations for v in nodes[n].inputs if v not in made)
        drafts.append((at, stage, equations, tuple(inputs)))
    used = wanted.union(*(inputs for *_, inputs in drafts))
    programs = []
    for at, stage, equations, inputs in drafts:
        outputs = [
            v
            for n in equations
            for v in nodes[n].outputs
            if v in used and home.get(v) == stage and phase.get(v) == at
        ]
        programs.append(UpdateProgram(at, stage, equations, inputs, tuple(outputs)))
    return programs
