"""Sites: the names of a step's equations, readable in the HLO that the step lowers to.

    site  := index | site "." body "." index     "12", "12.b0.3"
    body  := "b" n | "c" n                       a body or branch; the condition of a while
    tag   := "am" site "~"                       a named scope around the equation
    place := "arg" i | site side j
    side  := ":from" | ":in" | ":spread" | ":made" | ":out"

Indices count the equations of one body after inlining its calls, so a site depends on the step
alone. "~" ends the tag: it is in no Python name, and no site is a prefix of another tag.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import re
from typing import Any, Literal, TypeAlias

from jax.extend import core

from automap.errors import PlanError
from automap.jaxpr.flatten import FlatJaxpr
from automap.jaxpr.names import TAG


# Where an operand comes from: ("arg", i), (site of its producer, output j), or, for the i-th
# parameter of an inner body, (site.body, i).
Source: TypeAlias = tuple[str, int]

# For type checkers: a matched string is one of these literals.
_SIDES: Mapping[str, Literal["from", "in", "spread", "made", "out"]] = {
    "from": "from",
    "in": "in",
    "spread": "spread",
    "made": "made",
    "out": "out",
}
_PLACE = re.compile(
    r"arg(?P<arg>[0-9]+)"
    r"|(?P<site>[0-9][0-9a-z.]*):(?P<side>from|in|spread|made|out)(?P<number>[0-9]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One equation: its avals (`.shape`, `.dtype`) and where each operand comes from.

    `in_sources` has None for a literal or a constant; `literal_operands` says which are literals.
    `trip_count` is how often the equation runs in a
    step: the product of the lengths of the scans around it; a `while` counts once.
    """

    path: str
    primitive: str
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    in_sources: tuple[Source | None, ...]
    literal_operands: frozenset[int]
    trip_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A parsed constraint site; `site` is "" for a step input."""

    site: str
    side: Literal["arg", "from", "in", "spread", "made", "out"]
    number: int


def scope_name(path: str) -> str:
    """The named scope of an equation."""
    return f"am{path}~"


def parse_site(op_name: str) -> str | None:
    """The innermost site in the op_name of an HLO instruction, None if it has none."""
    tagged = TAG.findall(op_name)
    return tagged[-1] if tagged else None


def parse_place(at: str) -> Place:
    """The parts of a constraint site. Raises `PlanError` if it has none of the six forms."""
    match = _PLACE.fullmatch(at)
    if match is None:
        raise PlanError(
            f"constraint site {at!r} cannot be read; allowed: arg<i>, <site>:from<j>, "
            "<site>:in<j>, <site>:spread<j>, <site>:made<j>, <site>:out<j> (for instance arg0, "
            "12:out0, 12.b0.3:in1)"
        )
    if match["arg"] is not None:
        return Place(site="", side="arg", number=int(match["arg"]))
    return Place(site=match["site"], side=_SIDES[match["side"]], number=int(match["number"]))


def describe(flat: FlatJaxpr) -> Iterator[Site]:
    """The sites of a flat jaxpr and of its bodies, in program order."""
    sources: dict[Any, Source] = {var: (flat.name, i) for i, var in enumerate(flat.invars)}
    for equation in flat.equations:
        eqn = equation.eqn
        literals = [isinstance(atom, core.Literal) for atom in eqn.invars]
        yield Site(
            path=equation.path,
            primitive=eqn.primitive.name,
            in_avals=tuple(atom.aval for atom in eqn.invars),
            out_avals=tuple(var.aval for var in eqn.outvars),
            in_sources=tuple(
                None if literal else sources.get(atom)
                for atom, literal in zip(eqn.invars, literals)
            ),
            literal_operands=frozenset(j for j, literal in enumerate(literals) if literal),
            trip_count=flat.trip_count,
        )
        # Results are known to later equations beside it; a body sees its own parameters only.
        sources.update((var, (equation.path, j)) for j, var in enumerate(eqn.outvars))
        for body in equation.bodies:
            yield from describe(body.flat)
