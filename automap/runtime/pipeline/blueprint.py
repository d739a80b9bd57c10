"""A whole step in numbers: which stage computes what, when, and owns which input.

An input that several stages read (tied embeddings, a table of positions) belongs to the first of
them, which sends it to the others before the loops and gets their sums of gradients after; any
other to the one that reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from automap.runtime.pipeline.cuts import Cuts
from automap.runtime.pipeline.divide import Backward, divide
from automap.runtime.pipeline.numbered import Numbered
from automap.runtime.pipeline.programs import (
    OnceProgram,
    SweepPrograms,
    pre_program,
    sweep_programs,
)
from automap.runtime.pipeline.update import UpdatePlan, update_plan


@dataclass(frozen=True)
class Blueprint:
    """`sweeps` has each loop and what follows it, `pre` is by stage; `owner` is the stage of every
    input and constant.
    """

    numbers: Numbered
    sweeps: tuple[tuple[SweepPrograms, UpdatePlan], ...]
    pre: tuple[OnceProgram, ...]
    owner: Mapping[int, int]
    home: Mapping[int, int]


def blueprint(numbers: Numbered, cuts: Cuts, backward: Backward = "whole") -> Blueprint:
    """The division of a step among its stages."""
    loops = [
        sweep_programs(numbers, sweep, divide(numbers, sweep, cuts, backward))
        for sweep in numbers.sweeps
    ]
    # What each stage's loop programs read that is the same for all microbatches.
    fixed = [
        {
            v
            for loop in loops
            for stage_pass, p in loop.by_pass.items()
            if stage_pass.stage == s
            for v in p.fixed
        }
        for s in range(cuts.stages)
    ]
    pre = tuple(pre_program(numbers, s, sorted(fixed[s])) for s in range(cuts.stages))
    given = (*numbers.inputs, *numbers.constants)
    # Backwards, so that the first stage that reads an input has the last word.
    owner: dict[int, int] = {}
    for stage in reversed(range(cuts.stages)):
        read = fixed[stage].union(pre[stage].inputs, _slices(numbers, loops, stage))
        owner.update((v, stage) for v in given if v in read)
    home = dict(owner)
    # Loop by loop: a later loop's update may read what an earlier one has placed.
    updates = []
    for place, (sweep, loop) in enumerate(zip(numbers.sweeps, loops)):
        for stage_pass, program in loop.by_pass.items():
            home.update((sweep.sums[n][0], stage_pass.stage) for n in program.sums)
            home.update((w, stage_pass.stage) for w, part in sweep.joins if part in program.made)
        is_last = place == len(numbers.sweeps) - 1
        own = (*sweep.middle, *(numbers.after if is_last else ()))
        made = [v for node in sweep.middle for v in node.outputs]
        # After the last loop the step's results are wanted, after another one whatever it made: a
        # later loop may read it.
        wanted = [v for v in numbers.outputs if v is not None] if is_last else made
        update = update_plan(numbers, own, home, wanted)
        home |= update.home
        updates.append(update)
    # Inputs that no loop reads go to the first stage whose update does; those of none to stage 0.
    for program in sorted((p for u in updates for p in u.programs), key=lambda p: -p.stage):
        owner.update((v, program.stage) for v in program.inputs if v in given and v not in home)
    owner |= {v: owner.get(v, home.get(v, 0)) for v in given}
    return Blueprint(numbers, tuple(zip(loops, updates, strict=True)), pre, owner, home)


def _slices(numbers: Numbered, loops: list[SweepPrograms], stage: int) -> set[int]:
    """The batch inputs of which a stage reads parts."""
    programs = [
        p for loop in loops for stage_pass, p in loop.by_pass.items() if stage_pass.stage == stage
    ]
    return {numbers.slices[part] for p in programs for part in p.parts}
