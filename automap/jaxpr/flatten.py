"""A step's jaxpr flattened: numbered equations, with calls inlined.

There is a flat jaxpr for the step itself and for each inner body. Per equation of a jaxpr:

    call-like                 its equations take its place, between constraints if it has shardings
                              of its own                                          -> in: `_Builder`
    scan, while, cond, remat  kept; each inner jaxpr becomes a flat one below      -> in: `_bodies`
    anything else             kept as it is, inner jaxprs untouched; so are calls of functions for
                              which the user gave a rule

Differentiation is over when a step is traced, so a custom_jvp or custom_vjp call is only its call.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core
from jax.extend.source_info_util import new_name_stack

from automap.jax_compat import is_unspecified, open_jaxpr
from automap.jaxpr.pallas import is_kernel
from automap.step.user_constraints import constrained_jaxpr, named
from hlo_tools.rules import Notation


Rules = Mapping[str, Notation]

# Call-like primitives and the parameter that holds what they call.
_CALLS = {
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat_opt": "fwd_jaxpr",
}
# Higher-order primitives and their bodies: parameter and letter.
HIGHER_ORDER = {
    "checkpoint": (("jaxpr", "b"),),
    "cond": (("branches", "b"),),
    "remat": (("jaxpr", "b"),),
    "remat2": (("jaxpr", "b"),),
    "scan": (("jaxpr", "b"),),
    "while": (("cond_jaxpr", "c"), ("body_jaxpr", "b")),
}
_LAYOUT_OPTIONS = ("in_layouts", "out_layouts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One inner jaxpr of an equation: `name` is its part of the site, such as "b0"."""

    name: str
    parameter: str
    flat: "FlatJaxpr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """A jaxpr equation in terms of the variables of its flat jaxpr.

    `callers` has the source info of the calls that were inlined around it, the innermost first.
    """

    path: str
    eqn: Any
    bodies: tuple[Body, ...]
    callers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatJaxpr:
    """One jaxpr after inlining: `original` gives its class, parameters and effects.

    `name` is what parameters are called in sources: "arg" for the step, site.body below.
    """

    name: str
    original: Any
    constvars: tuple[Any, ...]
    consts: tuple[Any, ...]
    equations: tuple[Equation, ...]
    outvars: tuple[Any, ...]
    trip_count: int

    @property
    def invars(self) -> Sequence[Any]:
        """The parameters."""
        return open_jaxpr(self.original)[0].invars


def flatten(closed_jaxpr: Any, rules: Rules) -> FlatJaxpr:
    """The flat jaxpr of a step; calls of jitted functions with a fitting rule are not inlined."""
    return _flat_jaxpr(closed_jaxpr, rules, name="arg", prefix="", trip_count=1)


def equations(flat: FlatJaxpr) -> Iterator[Equation]:
    """The equations of a flat jaxpr and of its bodies, in program order."""
    for equation in flat.equations:
        yield equation
        for body in equation.bodies:
            yield from equations(body.flat)


def _flat_jaxpr(jaxpr: Any, rules: Rules, *, name: str, prefix: str, trip_count: int) -> FlatJaxpr:
    inner, consts = open_jaxpr(jaxpr)
    builder = _Builder(
        constvars=list(inner.constvars),
        consts=list(consts),
        may_add_constants=name == "arg",
        rules=rules,
    )
    outvars = builder.inline(inner, env={}, stack=None, callers=())
    equations = []
    read = {a for eqn in builder.eqns for a in eqn.invars if not isinstance(a, core.Literal)}
    read |= {a for a in outvars if not isinstance(a, core.Literal)}
    for number, (given, callers) in enumerate(zip(builder.eqns, builder.callers, strict=True)):
        # Whether anybody reads a kernel's result says what it is for.
        eqn = _without_unread(given, read) if is_kernel(given) else given
        path = f"{prefix}{number}"
        bodies = tuple(_bodies(eqn, rules, path, trip_count))
        equations.append(Equation(path=path, eqn=eqn, bodies=bodies, callers=callers))
    return FlatJaxpr(
        name=name,
        original=jaxpr,
        constvars=tuple(builder.constvars),
        consts=tuple(builder.consts),
        equations=tuple(equations),
        outvars=tuple(outvars),
        trip_count=trip_count,
    )


def _bodies(eqn: Any, rules: Rules, path: str, trip_count: int) -> Iterator[Body]:
    trips = trip_count * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)
    for parameter, letter in HIGHER_ORDER.get(eqn.primitive.name, ()):
        held = eqn.params[parameter]
        for number, jaxpr in enumerate(held if isinstance(held, tuple) else (held,)):
            name = f"{letter}{number}"
            # A site's body, as `automap.jaxpr.sites` spells it: "12.b0".
            inside = f"{path}.{name}"
            flat = _flat_jaxpr(jaxpr, rules, name=inside, prefix=f"{inside}.", trip_count=trips)
            yield Body(name=name, parameter=parameter, flat=flat)


@dataclass(slots=True, kw_only=True)
class _Builder:
    """The growing equations and constants of one flat jaxpr."""

    constvars: list[Any]
    consts: list[Any]
    may_add_constants: bool
    rules: Rules
    eqns: list[Any] = field(default_factory=list)
    callers: list[tuple[Any, ...]] = field(default_factory=list)

    def inline(
        self, jaxpr: Any, *, env: dict[Any, Any], stack: Any, callers: tuple[Any, ...]
    ) -> list[Any]:
        """Append a jaxpr's equations; `env` maps its variables to the flat one's, missing ones to
        itself.

        `stack` is the name stack of the call, None for the jaxpr that is flattened, whose variables
        are kept; `callers` are the calls around it. Returns the flat jaxpr's atoms for its outputs.
        """

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else env.get(atom, atom)

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            names = eqn.source_info.name_stack
            names = names if stack is None else stack + names
            # A call with a rule of the user's is one operation for the planner.
            parameter = None if _has_rule(eqn, self.rules) else _inlined_parameter(eqn)
            if parameter is not None:
                called, values = open_jaxpr(eqn.params[parameter])
                inner = dict(
                    zip(called.invars, self._constrained(eqn, "in_shardings", inputs, callers))
                )
                inner.update(zip(called.constvars, map(self._constant, called.constvars, values)))
                label = new_name_stack(_label(eqn))
                around = (eqn.source_info, *callers)
                outputs = self.inline(called, env=inner, stack=names + label, callers=around)
                outputs = self._constrained(eqn, "out_shardings", outputs, callers)
                env.update(zip(eqn.outvars, outputs))
                continue
            self.callers.append(callers)
            if stack is None:
                self.eqns.append(eqn.replace(invars=inputs))
            else:
                # The same jaxpr may be called again in this one.
                outputs = [_fresh(var) for var in eqn.outvars]
                env.update(zip(eqn.outvars, outputs))
                info = eqn.source_info.replace(name_stack=names)
                self.eqns.append(eqn.replace(invars=inputs, outvars=outputs, source_info=info))
        return [read(atom) for atom in jaxpr.outvars]

    def _constrained(
        self, call: Any, option: str, atoms: Sequence[Any], callers: tuple[Any, ...]
    ) -> list[Any]:
        """The atoms as a call's shardings constrain them."""
        result = list(atoms)
        for number, given in enumerate(call.params.get(option, ())):
            sharding = named(given, f"{option} of {call.params['name']}")
            atom = result[number]
            if sharding is not None and not isinstance(atom, core.Literal):
                (made,) = open_jaxpr(constrained_jaxpr(atom.aval, sharding))[0].eqns
                result[number] = core.Var(atom.aval)
                self.callers.append(callers)
                self.eqns.append(
                    made.replace(
                        invars=[atom], outvars=[result[number]], source_info=call.source_info
                    )
                )
        return result

    def _constant(self, var: Any, value: Any) -> Any:
        # The jaxpr of remat has no room for constants: there they are literals.
        if not self.may_add_constants:
            return core.Literal(value, var.aval)
        for known_var, known in zip(self.constvars, self.consts):
            if known is value:
                return known_var
        self.constvars.append(core.Var(var.aval))
        self.consts.append(value)
        return self.constvars[-1]


def _without_unread(eqn: Any, read: Set[Any]) -> Any:
    """An equation whose results that nobody reads have no variable."""
    return eqn.replace(outvars=[v if v in read else core.DropVar(v.aval) for v in eqn.outvars])


def _fresh(var: Any) -> Any:
    return var if isinstance(var, core.DropVar) else core.Var(var.aval)


def _label(eqn: Any) -> str:
    """What a call adds to the names of the operations inside it, as JAX itself writes it."""
    name = eqn.params.get("name")
    return f"{eqn.primitive.name}({name})" if name else eqn.primitive.name


def _has_rule(eqn: Any, rules: Rules) -> bool:
    notation = rules.get(eqn.params.get("name", ""))
    shapes = [[atom.aval.shape for atom in atoms] for atoms in (eqn.invars, eqn.outvars)]
    return notation is not None and notation.fits(*shapes)


def _inlined_parameter(eqn: Any) -> str | None:
    """The parameter whose jaxpr takes the equation's place, None if the equation stays."""
    parameter = _CALLS.get(eqn.primitive.name)
    if parameter is None or parameter not in eqn.params:
        return None
    layouts = [x for name in _LAYOUT_OPTIONS for x in eqn.params.get(name, ())]
    # A call that asks for layouts or compiler options means something that inlining would lose.
    plain = all(map(is_unspecified, layouts)) and not eqn.params.get("compiler_options_kvs")
    return parameter if plain else None
