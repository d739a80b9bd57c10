"""A step in microbatches as data: equations before, in and after a loop over them.

    inputs, constants -> before
    per pass:  for i in range(microbatches):  slices[i] -> loop -> terms;  totals = sum of the terms
    -> after -> outputs

There is one pass, except where the backward pass needs a sum over the whole batch: then the first
makes the sums that the second needs, and `middle`, which it needs of them. Every list is in program
order and holds no equation that nobody needs. Equations keep the source and the name stack of the
step's ("transpose(" is in the name of those of the backward pass), so that a pipeline can divide
them among stages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from automap.jaxpr.microbatch.build import needed_equations, variables
from automap.jaxpr.microbatch.dependence import Operator


@dataclass(frozen=True, slots=True)
class SampleDimension:
    """Where a value holds the samples: its dimension `dim` is outer x samples x inner.

    Outer None: the value is the same for all samples.
    """

    dim: int
    outer: int | None


@dataclass(frozen=True, slots=True)
class Slice:
    """A batch input: `part` is what the loop has of `whole`, whose first dimension is outer x
    microbatches x inner.
    """

    whole: Any
    part: Any
    outer: int


@dataclass(frozen=True, slots=True)
class Sum:
    """`total` is made of the values that `term` has in the microbatches."""

    total: Any
    term: Any
    operator: Operator


@dataclass(frozen=True, slots=True)
class JoinedOutput:
    """An output per sample: `whole` is put together from the parts that the loop makes."""

    whole: Any
    part: Any
    sample_dimension: SampleDimension


@dataclass(frozen=True, slots=True)
class Pass:
    """One loop over the microbatches, and what is computed of its results for the next.

    `sites` has the path of the step's equation that each equation of the loop was made for.
    """

    loop: tuple[Any, ...]
    sites: tuple[str, ...]
    sums: tuple[Sum, ...]
    joins: tuple[JoinedOutput, ...]
    middle: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchProgram:
    """A step in `microbatches`; `index` is the variable of the loop that holds the microbatch's
    number, int32.

    `sample_dimensions` and `parts` are by variable of the loop: of a value with one part per
    sample, where it holds the samples, and of a part of a sum over samples, how parts are put
    together. Any other value does not depend on the samples.
    """

    microbatches: int
    index: Any
    inputs: tuple[Any, ...]
    constants: tuple[Any, ...]
    values: tuple[Any, ...]
    slices: tuple[Slice, ...]
    before: tuple[Any, ...]
    passes: tuple[Pass, ...]
    after: tuple[Any, ...]
    outputs: tuple[Any, ...]
    sample_dimensions: Mapping[Any, SampleDimension]
    parts: Mapping[Any, Operator]


@dataclass(frozen=True, slots=True)
class SeparatedStep:
    """What a separated step consists of; most of `known` and `loop` may not be needed. `sites` is
    by `loop`.
    """

    known: Sequence[Any]
    loop: Sequence[Any]
    sites: Sequence[str]
    sums: Sequence[Sum]
    joins: Sequence[JoinedOutput]
    outputs: Sequence[Any]


@dataclass(frozen=True, slots=True)
class EquationOrder:
    """Equations in the order of a `MicrobatchProgram`."""

    before: tuple[Any, ...]
    passes: tuple[Pass, ...]
    after: tuple[Any, ...]


def order_equations(parts: SeparatedStep) -> EquationOrder:
    """Which equation is computed when, each as late as its users allow, none that nobody needs."""
    # Where each value is computed: once, outside of the loops, or in them.
    # By variable, the number of the equation that makes it.
    known_at, loop_at = _defined(parts.known), _defined(parts.loop)
    made = {**{s.total: s for s in parts.sums}, **{j.whole: j for j in parts.joins}}
    passes: list[Pass] = []
    done_values, done_eqns = set[Any](), set[int]()
    depends: dict[int, bool] = {}
    # Whether an equation needs the result of a loop, by its number.
    for number, eqn in enumerate(parts.known):
        sources = [known_at.get(a) for a in variables(eqn.invars)]
        depends[number] = any(a in made for a in variables(eqn.invars)) or any(
            depends[s] for s in sources if s is not None
        )
    before = set[int]()

    def is_late(var: Any) -> bool:
        return var in made or depends.get(known_at.get(var, -1), False)

    def loop_equations(totals: Sequence[Any]) -> tuple[list[int], list[Any]]:
        return needed_equations([_term(made[var]) for var in totals], loop_at, parts.loop)

    def provide(wanted: Sequence[Any]) -> tuple[int, ...]:
        """Append the passes that `wanted` needs; the equations to compute it with after them."""
        needed, free = needed_equations(wanted, known_at, parts.known)
        totals = [var for var in free if var in made and var not in done_values]
        if totals:
            early = [var for var in loop_equations(totals)[1] if is_late(var)]
            # The loop itself needs results of a loop: that one runs before, as a pass of its own.
            if early:
                middle = provide(early)
                last = passes.pop()
                middle = (*last.middle, *(parts.known[n] for n in middle))
                passes.append(replace(last, middle=middle))
            totals = [var for var in totals if var not in done_values]
            numbers, read = loop_equations(totals)
            done_values.update(totals)
            before.update(
                needed_equations([v for v in read if not is_late(v)], known_at, parts.known)[0]
            )
            if totals:
                passes.append(_pass(parts, numbers, [made[v] for v in totals]))
        # What no loop needs waits until after the last one, so that its operands live shortest.
        late = tuple(n for n in needed if n not in before and n not in done_eqns)
        done_eqns.update(late)
        return late

    # Side effects happen once, and are nobody's operand.
    effects = [v for eqn in parts.known if eqn.effects for v in eqn.invars]
    after = set(provide([*parts.outputs, *effects]))
    after.update(number for number, eqn in enumerate(parts.known) if eqn.effects)
    return EquationOrder(
        before=tuple(parts.known[n] for n in sorted(before)),
        passes=tuple(passes),
        after=tuple(parts.known[n] for n in sorted(after - before)),
    )


def _defined(eqns: Sequence[Any]) -> dict[Any, int]:
    return {var: number for number, eqn in enumerate(eqns) for var in eqn.outvars}


def _term(result: Sum | JoinedOutput) -> Any:
    return result.term if isinstance(result, Sum) else result.part


def _pass(
    parts: SeparatedStep, numbers: Sequence[int], results: Sequence[Sum | JoinedOutput]
) -> Pass:
    return Pass(
        loop=tuple(parts.loop[n] for n in numbers),
        sites=tuple(parts.sites[n] for n in numbers),
        sums=tuple(r for r in results if isinstance(r, Sum)),
        joins=tuple(r for r in results if isinstance(r, JoinedOutput)),
        middle=(),
    )
