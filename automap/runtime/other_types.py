"""A plan for a call whose types are not quite those that it was made for.

State that a step returns may have another type than what it was given: a Python number or
`jnp.array(1.0)`, whose type is weak, comes back with a type of its own; integers become floats.
`jax.jit` traces again then, and the equations differ by conversions alone. The plan's places
(`automap.jaxpr.sites`) count equations, so they are renamed to those of the new trace:

    planned   a = convert(x);  b = mul(a, y)     at 0, 1
    called                     b = mul(x, y)     at 0
                                                               -> {"1": "0"}
                                                                                -> in: `match_sites`
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.extend import core

from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.jaxpr.sites import parse_place
from automap.plan.pipeline import StageRecord
from automap.plan.record import ConstraintRecord, PlanRecord


_CONVERSION = "convert_element_type"


class DifferentStepError(Exception):
    """Two traces differ in more than conversions; says in what."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """The site in one trace of each equation of another that it has too.

    `same_operands` and `same_results` are those, by the other's names, that have the same shapes
    there. Loops may differ: what they close over is converted inside or outside, and what no trip
    changes is no result.
    """

    new_sites: Mapping[str, str]
    same_operands: frozenset[str]
    same_results: frozenset[str]

    def constraints(self, rows: Sequence[ConstraintRecord]) -> tuple[ConstraintRecord, ...]:
        """Constraints at their new places; those without one are left out, as none changes a
        result.
        """
        made = []
        for row in rows:
            # Pins on operands need an operand of the same shape, those on results a result.
            place = parse_place(row.at)
            is_operand = place.side in ("from", "in", "spread")
            if not place.site:
                made.append(row)
            elif place.site in (self.same_operands if is_operand else self.same_results):
                at = self.new_sites[place.site] + row.at.removeprefix(place.site)
                made.append(replace(row, at=at))
        return tuple(made)

    def last_matched(self, site: str) -> str:
        """A top-level site, or the last one before it that there is. Raises `DifferentStepError`
        for none.
        """
        for number in range(int(site), -1, -1):
            if str(number) in self.new_sites:
                return self.new_sites[str(number)]
        raise DifferentStepError(f"nothing up to equation {site}, where a stage ends, is left")


def match_sites(planned: FlatJaxpr, called: FlatJaxpr) -> Renaming:
    """Of the equations of a planned trace to those of a call. Raises `DifferentStepError`."""
    matching = _Matching()
    matching.match(planned, called)
    return Renaming(
        matching.new_sites, frozenset(matching.same_operands), frozenset(matching.same_results)
    )


def rename_sites(plan: PlanRecord, renaming: Renaming) -> PlanRecord:
    """The plan with the places of another trace. Raises `DifferentStepError` where a stage would
    have nothing.
    """
    pipeline = plan.pipeline
    if pipeline is not None:
        stages = tuple(_rename_stage(stage, renaming) for stage in pipeline.stages)
        pipeline = replace(pipeline, stages=stages)
    constraints = renaming.constraints(plan.constraints)
    return replace(plan, constraints=constraints, pipeline=pipeline)


def _rename_stage(stage: StageRecord, renaming: Renaming) -> StageRecord:
    inside, cut = stage.inside, stage.cut_after
    if inside is not None:
        inside = replace(inside, constraints=renaming.constraints(inside.constraints))
    if cut is not None:
        site, mark, trip = cut.partition("#")
        # A cut is behind an equation, or behind a trip of the loop that it is: "12#3".
        cut = renaming.last_matched(site) + mark + trip
    return replace(stage, inside=inside, cut_after=cut)


@dataclass(slots=True)
class _Matching:
    """Equations of two traces, matched in order; `values` has the second's value for one of the
    first.

    A conversion's result stands for what it converts (`before`), in both.
    """

    new_sites: dict[str, str] = field(default_factory=dict)
    same_operands: set[str] = field(default_factory=set)
    same_results: set[str] = field(default_factory=set)
    values: dict[Any, Any] = field(default_factory=dict)
    before: dict[Any, Any] = field(default_factory=dict)

    def match(self, planned: FlatJaxpr, called: FlatJaxpr) -> None:
        """Match one flat jaxpr and its bodies."""
        for ours, theirs in (
            (planned.invars, called.invars),
            (planned.constvars, called.constvars),
        ):
            # A loop may close over more or fewer values: then which is which is not known, and
            # conversions of them find no partner.
            if _shapes(ours) == _shapes(theirs):
                self.values.update(zip(ours, theirs, strict=True))
        pair = [_without_conversions(flat, self.before) for flat in (planned, called)]
        # Conversions are what may differ, so all else has to be the same, in the same order.
        names = [[equation.eqn.primitive.name for equation in side] for side in pair]
        if names[0] != names[1]:
            at = next((i for i, (a, b) in enumerate(zip(*names)) if a != b), min(map(len, names)))
            where = pair[0][at].path if at < len(pair[0]) else f"the end of {planned.name}"
            raise DifferentStepError(f"the equations differ from {where} on")
        for ours, theirs in zip(*pair, strict=True):
            self._equation(ours, theirs)
        self._conversions(planned, called)

    def _equation(self, ours: Equation, theirs: Equation) -> None:
        a, b = ours.eqn, theirs.eqn
        is_same = _shapes(a.outvars) == _shapes(b.outvars)
        if len(ours.bodies) != len(theirs.bodies) or not (is_same or ours.bodies):
            raise DifferentStepError(f"{a.primitive.name} at {ours.path} makes other shapes")
        # Loops may carry more or less than before: then only what is inside of them is matched.
        if is_same:
            self.values.update(zip(a.outvars, b.outvars, strict=True))
            self.same_results.add(ours.path)
        for mine, other in zip(ours.bodies, theirs.bodies, strict=True):
            self.match(mine.flat, other.flat)
        self.new_sites[ours.path] = theirs.path
        if _shapes(a.invars) == _shapes(b.invars):
            self.same_operands.add(ours.path)

    def _conversions(self, planned: FlatJaxpr, called: FlatJaxpr) -> None:
        """Match the conversions of equal values to equal types, in order."""
        called_paths: dict[Any, list[str]] = defaultdict(list)
        for equation in filter(_is_conversion, called.equations):
            called_paths[self._source(equation), equation.eqn.params["new_dtype"]].append(
                equation.path
            )
        for equation in filter(_is_conversion, planned.equations):
            # Two conversions of one value to one type are matched in order, each once.
            value = self.values.get(self._source(equation))
            paths = called_paths[value, equation.eqn.params["new_dtype"]]
            if value is not None and paths:
                self.new_sites[equation.path] = paths.pop(0)
                self.same_operands.add(equation.path)
                self.same_results.add(equation.path)

    def _source(self, conversion: Equation) -> Any | None:
        """The value that is converted first, None for a literal."""
        atom = conversion.eqn.invars[0]
        # A chain of conversions counts as one from its first value.
        while not isinstance(atom, core.Literal) and atom in self.before:
            atom = self.before[atom]
        return None if isinstance(atom, core.Literal) else atom


def _shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(getattr(atom.aval, "shape", ())) for atom in atoms]


def _is_conversion(equation: Equation) -> bool:
    return equation.eqn.primitive.name == _CONVERSION


def _without_conversions(flat: FlatJaxpr, before: dict[Any, Any]) -> list[Equation]:
    """The other equations; `before` gets what each conversion converts."""
    conversions = [equation.eqn for equation in flat.equations if _is_conversion(equation)]
    before.update((eqn.outvars[0], eqn.invars[0]) for eqn in conversions)
    return [equation for equation in flat.equations if not _is_conversion(equation)]
