"""The programs of a pipeline's stages in numbers: what each computes, reads and hands on.

pre[s]                  once a step: what does not depend on the samples, where stage s needs it
forward[s], backward[s] once a microbatch: fixed values, parts of the batch and values of other programs ->
                        values for other programs, and terms of sums, which are added up in the program
update (phase, s)       once a step, after a loop: `automap.runtime.pipeline.update`
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from automap.runtime.pipeline.divide import Division, Role
from automap.runtime.pipeline.numbered import Node, Numbered, Turn


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """One stage's forward or backward pass of a microbatch.

    `equations` are numbers of the loop's. It reads `parts` of the batch, `fixed` values and values
    `received` of this microbatch; it makes `made` and adds the terms of `sums`, numbers of the
    turn's. `last` are the parts and received values that no later program of the stage reads.
    """

    role: Role
    equations: tuple[int, ...]
    parts: tuple[int, ...]
    fixed: tuple[int, ...]
    received: tuple[int, ...]
    made: tuple[int, ...]
    sums: tuple[int, ...]
    last: frozenset[int]


@dataclass(frozen=True, slots=True)
class OnceProgram:
    """Equations that a stage computes once a step, before the loops, with what they read and make."""

    stage: int
    equations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class TurnPrograms:
    """A loop's programs by role; `readers` are the stages that read a value of a microbatch, by
    value.
    """

    of_role: Mapping[Role, LoopProgram]
    readers: Mapping[int, frozenset[int]]


def turn_programs(numbers: Numbered, turn: Turn, division: Division) -> TurnPrograms:
    """The programs of a loop."""
    last_forward = Role("forward", max((r.stage for r in division.roles if r), default=0))
    copier = {
        v: n for n, node in enumerate(turn.loop) if division.roles[n] is None for v in node.outputs
    }
    # What is the same for all samples can be had anywhere: the last stage adds it up.
    role_of = lambda made: division.maker.get(made, last_forward)  # noqa: E731
    own: dict[Role, set[int]] = defaultdict(set)
    for number, role in enumerate(division.roles):
        if role is not None:
            own[role].add(number)
    sums: dict[Role, list[int]] = defaultdict(list)
    wanted: dict[Role, list[int]] = defaultdict(list)
    for number, (_, term) in enumerate(turn.sums):
        sums[role_of(term)].append(number)
    for _, part in turn.joins:
        wanted[role_of(part)].append(part)
    numbers_of = {}
    # In an order: that of a set of names differs between processes.
    for role in sorted({*own, *sums, *wanted}):
        terms = [turn.sums[n][1] for n in sums[role]]
        read = [v for n in own[role] for v in turn.loop[n].inputs]
        copies = closure([*read, *terms, *wanted[role]], copier, turn.loop)
        numbers_of[role] = tuple(sorted(own[role] | copies))
    reads = {
        role: _read(turn.loop, found, [turn.sums[n][1] for n in sums[role]])
        for role, found in numbers_of.items()
    }
    readers: dict[int, set[Role]] = defaultdict(set)
    for role, values in reads.items():
        for value in values:
            if value in division.maker:
                readers[value].add(role)
    programs = {}
    for role, found in numbers_of.items():
        made_here = [v for n in sorted(own[role]) for v in turn.loop[n].outputs]
        read = reads[role]
        received = tuple(v for v in read if v in division.maker)
        later = Role("backward", role.stage)
        is_last = role.kind == "backward" or later not in numbers_of
        programs[role] = LoopProgram(
            role=role,
            equations=found,
            parts=tuple(v for v in read if v in numbers.slices),
            fixed=tuple(
                v
                for v in read
                if v not in division.maker and v not in numbers.slices and v != numbers.index
            ),
            received=received,
            made=tuple(dict.fromkeys([*(v for v in made_here if readers[v]), *wanted[role]])),
            sums=tuple(sums[role]),
            last=frozenset(
                v
                for v in read
                if (v in division.maker or v in numbers.slices)
                and (is_last or v not in reads[later])
            ),
        )
    stages = {v: frozenset(r.stage for r in found) for v, found in readers.items()}
    return TurnPrograms(programs, stages)


def pre_program(numbers: Numbered, stage: int, wanted: Iterable[int]) -> OnceProgram:
    """What a stage computes before the loops to have `wanted` of it."""
    maker = {v: n for n, node in enumerate(numbers.before) for v in node.outputs}
    outputs = tuple(dict.fromkeys(v for v in wanted if v in maker))
    equations = tuple(sorted(closure(outputs, maker, numbers.before)))
    return OnceProgram(stage, equations, _read(numbers.before, equations, ()), outputs)


def closure(wanted: Iterable[int], maker: Mapping[int, int], nodes: Sequence[Node]) -> set[int]:
    """Numbers of the nodes needed for `wanted`."""
    needed, todo = set[int](), list(wanted)
    while todo:
        number = maker.get(todo.pop())
        if number is not None and number not in needed:
            needed.add(number)
            todo.extend(nodes[number].inputs)
    return needed


def _read(nodes: Sequence[Node], numbers: Sequence[int], more: Iterable[int]) -> tuple[int, ...]:
    """What equations read that they do not make, and those of `more` that they do not make."""
    made = {v for n in numbers for v in nodes[n].outputs}
    read = [v for n in numbers for v in nodes[n].inputs]
    return tuple(dict.fromkeys(v for v in (*read, *more) if v not in made))
