"""The programs of a pipeline's stages in numbers: what each computes, reads and hands on.

pre[s]                  once a step: what does not depend on the samples, where stage s needs it
forward[s], backward[s], weights[s]
                        once a microbatch: fixed values, parts of the batch and values of other
                        programs -> values for other programs, and terms of sums, which are
                        added up in the program
update (phase, s)       once a step, after a loop: `automap.runtime.pipeline.update`
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from automap.runtime.pipeline.divide import KINDS, Division, StagePass
from automap.runtime.pipeline.numbered import Node, Numbered, Sweep


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """One stage's pass of a microbatch.

    `equations` are numbers of the loop's. It reads `parts` of the batch, `fixed` values and values
    `received` of this microbatch; it makes `made` and adds the terms of `sums`, numbers of the
    sweep's. `last` are the parts and received values that no later program of the stage reads,
    `stays` what it makes that programs of its own stage alone read, and no output is joined of.
    """

    stage_pass: StagePass
    equations: tuple[int, ...]
    parts: tuple[int, ...]
    fixed: tuple[int, ...]
    received: tuple[int, ...]
    made: tuple[int, ...]
    sums: tuple[int, ...]
    last: frozenset[int]
    stays: frozenset[int]


@dataclass(frozen=True, slots=True)
class OnceProgram:
    """Equations that a stage computes once a step, before the loops, with what they read and
    make.
    """

    stage: int
    equations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class SweepPrograms:
    """A sweep's programs by stage and pass; `readers` are the stages that read a value of a
    microbatch, by value.
    """

    by_pass: Mapping[StagePass, LoopProgram]
    readers: Mapping[int, frozenset[int]]


def sweep_programs(numbers: Numbered, sweep: Sweep, division: Division) -> SweepPrograms:
    """The programs of a loop."""
    last_forward = StagePass(
        "forward", max((r.stage for r in division.stage_passes if r), default=0)
    )
    copier = _copied_equations(sweep, division)
    # What is the same for all samples can be had anywhere: the last stage adds it up.
    making_pass = lambda made: division.maker.get(made, last_forward)  # noqa: E731
    own: dict[StagePass, set[int]] = defaultdict(set)
    for number, stage_pass in enumerate(division.stage_passes):
        if stage_pass is not None:
            own[stage_pass].add(number)
    sums: dict[StagePass, list[int]] = defaultdict(list)
    wanted: dict[StagePass, list[int]] = defaultdict(list)
    for number, (_, term) in enumerate(sweep.sums):
        sums[making_pass(term)].append(number)
    for _, part in sweep.joins:
        wanted[making_pass(part)].append(part)
    equations_by_pass = {}
    # Sorted: the order of a set of strings differs between processes, which must agree on programs.
    for stage_pass in sorted({*own, *sums, *wanted}):
        terms = [sweep.sums[n][1] for n in sums[stage_pass]]
        read = [v for n in own[stage_pass] for v in sweep.loop[n].inputs]
        copies = closure([*read, *terms, *wanted[stage_pass]], copier, sweep.loop)
        equations_by_pass[stage_pass] = tuple(sorted(own[stage_pass] | copies))
    reads = {
        stage_pass: _read(sweep.loop, equations, [sweep.sums[n][1] for n in sums[stage_pass]])
        for stage_pass, equations in equations_by_pass.items()
    }
    readers = _readers(reads, division)
    programs = {}
    for stage_pass, equations in equations_by_pass.items():
        made_here = [v for n in sorted(own[stage_pass]) for v in sweep.loop[n].outputs]
        read = reads[stage_pass]
        received = tuple(v for v in read if v in division.maker)
        # What later passes still read stays until then: the stage's saved activations, and what
        # its weight pass needs.
        later = {
            v
            for kind in KINDS[KINDS.index(stage_pass.kind) + 1 :]
            for v in reads.get(StagePass(kind, stage_pass.stage), ())
        }
        made = tuple(dict.fromkeys([*(v for v in made_here if readers[v]), *wanted[stage_pass]]))
        programs[stage_pass] = LoopProgram(
            stage_pass=stage_pass,
            equations=equations,
            parts=tuple(v for v in read if v in numbers.slices),
            fixed=tuple(
                v
                for v in read
                if v not in division.maker and v not in numbers.slices and v != numbers.index
            ),
            received=received,
            made=made,
            sums=tuple(sums[stage_pass]),
            last=frozenset(
                v for v in read if (v in division.maker or v in numbers.slices) and v not in later
            ),
            stays=frozenset(
                v
                for v in made
                if {p.stage for p in readers[v]} == {stage_pass.stage}
                and v not in wanted[stage_pass]
            ),
        )
    stages = {v: frozenset(p.stage for p in passes) for v, passes in readers.items()}
    return SweepPrograms(programs, stages)


def _readers(
    reads: Mapping[StagePass, Sequence[int]], division: Division
) -> Mapping[int, set[StagePass]]:
    """The passes that read a value of another program, by value; none of one that nothing reads."""
    readers: dict[int, set[StagePass]] = defaultdict(set)
    for stage_pass, values in reads.items():
        for value in values:
            if value in division.maker:
                readers[value].add(stage_pass)
    return readers


def _copied_equations(sweep: Sweep, division: Division) -> Mapping[int, int]:
    """By value that it makes, each equation that every pass that reads it computes for itself."""
    return {
        v: n
        for n, node in enumerate(sweep.loop)
        if division.stage_passes[n] is None
        for v in node.outputs
    }


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
