"""Pins: sharding constraints at the places of a step, checked against it and turned into equations.

    arg<i>            x' = constrain(x) once, and every equation that uses input x uses x'
    <site>:from<j>    x' = constrain(x), for that equation and all that follow it
    <site>:in<j>      x' = constrain(x), for that equation only; equal pins on one value share x'
    <site>:spread<j>  x' = constrain(broadcast(x)), a scalar operand over the result's shape
                      (`automap.jaxpr.spread`)
    <site>:out<j>     y0 = op(..);  y = constrain(y0), so every later use sees the constrained value
    <site>:made<j>    as out, and before it: what the op itself makes

A constraint of the user's own code keeps its names, on the plan's mesh
(`automap.step.user_constraints`); its result pinned as made is held by a barrier, or XLA would go
from the sharding before it to that after it at once. A convolution whose result is pinned as made
may be written out for each device (`automap.jaxpr.convolutions`); what other operations become is
in `automap.jaxpr.replacements`.

A kernel of Pallas, and cuDNN's attention, runs on each device's own part
(`automap.jaxpr.kernels`).

A step's output that is one of its inputs stays that input, so that donation and forwarding are
kept.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
import difflib
from typing import Any

from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr
from automap.jaxpr.convolutions import (
    Axes,
    Specs,
    convolution_per_device,
    dimension_axes,
    is_convolution,
    must_run_per_device,
)
from automap.jaxpr.flatten import FlatJaxpr
from automap.jaxpr.kernels import attention_per_device, is_attention, kernel_per_device
from automap.jaxpr.manual import is_manual, on_plans_mesh
from automap.jaxpr.pallas import is_kernel
from automap.jaxpr.replacements import (
    lacks_all_reduce,
    per_device,
    reduction_in_two_steps,
    runs_per_device,
    with_clamped_starts,
)
from automap.jaxpr.sites import Place, Site, parse_place
from automap.jaxpr.spread import spread, spread_aval, spread_number
from automap.step.user_constraints import (
    constrain_on_mesh,
    constrained_jaxpr,
    hold_constrained,
    is_constraint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """All pins of a step, as constraint equations to be given their variables; from `parse`."""

    inputs: Mapping[int, Any]
    by_site: Mapping[str, Mapping[Place, Any]]
    mesh: Mesh | AbstractMesh

    @classmethod
    def parse(
        cls,
        constraints: Mapping[str, PartitionSpec],
        mesh: Mesh | AbstractMesh,
        step: FlatJaxpr,
        sites: Mapping[str, Site],
    ) -> "Pins":
        """Check every constraint. Raises `PlanError` naming the first that cannot be imposed."""
        # One equation for equal constraints, so that pins on one value can share its copy.
        made: dict[Any, Any] = {}
        inputs: dict[int, Any] = {}
        by_site: dict[str, dict[Place, Any]] = {}
        for at, spec in constraints.items():
            place = parse_place(at)
            aval = _aval_at(at, place, step, sites)
            if (aval, spec) not in made:
                made[aval, spec] = _constraint(at, aval, spec, mesh)
            if place.side == "arg":
                inputs[place.number] = made[aval, spec]
            else:
                by_site.setdefault(place.site, {})[place] = made[aval, spec]
        return cls(inputs=inputs, by_site=by_site, mesh=mesh)

    def rewriter(self, flat: FlatJaxpr) -> "PinRewriter":
        """What adds the pins to one flat jaxpr."""
        inputs = self.inputs if flat.name == "arg" else {}
        return PinRewriter(
            by_site=self.by_site,
            mesh=self.mesh,
            pinned=[(flat.invars[i], pin) for i, pin in inputs.items()],
        )


@dataclass(slots=True, kw_only=True)
class PinRewriter:
    """Adds pins to the equations of one flat jaxpr, see `automap.jaxpr.reemit.Rewriter`."""

    by_site: Mapping[str, Mapping[Place, Any]]
    mesh: Mesh | AbstractMesh
    pinned: list[tuple[Any, Any]]
    _now: dict[Any, Any] = field(default_factory=dict)
    _copies: dict[tuple[Any, int], Any] = field(default_factory=dict)

    def inputs(self) -> Iterator[Any]:
        """Constrained copies of step inputs."""
        for var, pin in self.pinned:
            self._now[var] = core.Var(var.aval)
            self._copies[self._now[var], id(pin)] = self._now[var]
            yield pin.replace(invars=[var], outvars=[self._now[var]])

    def equation(self, path: str, eqn: Any) -> Iterable[Any]:
        """The equation between the constraints on its operands and on its results."""
        pins = self.by_site.get(path, {})
        before = [self._from_here(eqn, p, pin) for p, pin in pins.items() if p.side == "from"]
        after = []
        # As constrained so far: pins "from" here on have replaced their values already.
        operands = [a if isinstance(a, core.Literal) else self._now.get(a, a) for a in eqn.invars]
        results = list(eqn.outvars)
        # Of two pins on a result the first to be imposed is the last to be added here.
        for place, pin in sorted(pins.items(), key=lambda pair: pair[0].side == "made"):
            if place.side == "from":
                continue
            if place.side == "in":
                value = operands[place.number]
                if (value, id(pin)) not in self._copies:
                    self._copies[value, id(pin)] = core.Var(value.aval)
                    before.append(_placed(pin, eqn, value, self._copies[value, id(pin)]))
                operands[place.number] = self._copies[value, id(pin)]
            elif place.side == "spread":
                made = spread(operands[place.number], results[0].aval.shape, eqn)
                operands[place.number] = core.Var(made.outvars[0].aval)
                before += [made, _placed(pin, eqn, made.outvars[0], operands[place.number])]
            else:
                value = results[place.number]
                results[place.number] = core.Var(value.aval)
                self._copies[value, id(pin)] = value
                is_held = place.side == "made" and is_constraint(eqn)
                held = hold_constrained(eqn) if is_held else pin
                # The last variable made is the op's own result; the original one stays the one that
                # is read.
                after.insert(0, _placed(held, eqn, results[place.number], value))
        own = constrain_on_mesh(eqn, self.mesh) if is_constraint(eqn) else eqn
        if is_manual(eqn):
            own = on_plans_mesh(eqn, self.mesh)
        pinned = own.replace(invars=operands, outvars=results)
        # At most one of the following: an equation is one kind of operation.
        specs = _specs(eqn, pins)
        if specs is not None and must_run_per_device(eqn, specs):
            return (*before, convolution_per_device(pinned, specs), *after)
        if is_kernel(eqn):
            split = [_result_axes(eqn, pins, number) for number in range(len(results))]
            return (*before, kernel_per_device(pinned, self.mesh, split), *after)
        queries = _pinned_sharding(pins, "in", 0)
        if queries is not None and is_attention(eqn):
            axes = dimension_axes(queries.spec, len(eqn.invars[0].aval.shape))
            return (*before, attention_per_device(pinned, self.mesh, axes), *after)
        made = _pinned_sharding(pins, "made", 0)
        if made is not None and runs_per_device(eqn):
            axes = dimension_axes(made.spec, len(eqn.outvars[0].aval.shape))
            return (*before, per_device(pinned, made.mesh, axes), *after)
        if lacks_all_reduce(eqn):
            return (*before, *reduction_in_two_steps(pinned, self.mesh), *after)
        return (*before, *with_clamped_starts(pinned), *after)

    def _from_here(self, eqn: Any, place: Place, pin: Any) -> Any:
        """The constraint on an operand that takes its place from now on."""
        original = eqn.invars[place.number]
        value = self._now.get(original, original)
        self._now[original] = core.Var(original.aval)
        self._copies[self._now[original], id(pin)] = self._now[original]
        return _placed(pin, eqn, value, self._now[original])


def _specs(eqn: Any, pins: Mapping[Place, Any]) -> Specs | None:
    """How a convolution runs, if its result is pinned as it is made."""
    made = _pinned_sharding(pins, "made", 0)
    if made is None or not is_convolution(eqn):
        return None
    operands = [_pinned_sharding(pins, "in", number) for number in range(2)]
    image, kernel = (
        dimension_axes(sharding and sharding.spec, len(var.aval.shape))
        for sharding, var in zip(operands, eqn.invars, strict=True)
    )
    return Specs(
        made.mesh, image, kernel, dimension_axes(made.spec, len(eqn.outvars[0].aval.shape))
    )


def _result_axes(eqn: Any, pins: Mapping[Place, Any], number: int) -> tuple[Axes, ...] | None:
    """The axes of a result that is pinned as it is made, None for one that is not."""
    made = _pinned_sharding(pins, "made", number)
    return made and dimension_axes(made.spec, len(eqn.outvars[number].aval.shape))


def _pinned_sharding(pins: Mapping[Place, Any], side: str, number: int) -> Any | None:
    for place, pin in pins.items():
        if (place.side, place.number) == (side, number):
            return pin.params["sharding"]
    return None


def _placed(pin: Any, eqn: Any, value: Any, constrained: Any) -> Any:
    # Named like its equation, so that it counts to the same phase.
    return pin.replace(invars=[value], outvars=[constrained], source_info=eqn.source_info)


def _aval_at(at: str, place: Place, step: FlatJaxpr, sites: Mapping[str, Site]) -> Any:
    """The aval of the value at a place."""
    if place.side == "arg":
        avals, whole = tuple(var.aval for var in step.invars), "the step"
    elif place.site in sites:
        site = sites[place.site]
        is_operand = place.side in ("from", "in", "spread")
        avals = site.in_avals if is_operand else site.out_avals
        whole = f"{site.primitive} at {site.path}"
        if is_operand and place.number in site.literal_operands:
            raise PlanError(f"constraint {at!r}: this operand of {whole} is a literal; remove it")
    else:
        near = difflib.get_close_matches(place.site, sites, n=3, cutoff=0.0)
        raise PlanError(
            f"constraint {at!r}: the step has no equation {place.site!r}; nearest: "
            f"{', '.join(near)}. Was the plan made for another step?"
        )
    if place.number >= len(avals):
        raise PlanError(
            f"constraint {at!r}: {whole} has {len(avals)} such values; allowed: 0 to "
            f"{len(avals) - 1}"
        )
    if place.side != "spread":
        return avals[place.number]
    scalar, shape = avals[place.number], sites[place.site].out_avals[0].shape
    if spread_number([aval.shape for aval in avals], shape) != place.number:
        raise PlanError(f"constraint {at!r}: this operand of {whole} is no scalar that is spread")
    return spread_aval(scalar, shape)


def _constraint(at: str, aval: Any, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> Any:
    """An equation that constrains a value like `aval`; its variables are to be replaced."""
    try:
        sharding = NamedSharding(mesh, spec)
        traced = constrained_jaxpr(aval, sharding)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"constraint {at!r}: {spec} does not fit {aval.str_short()} on a mesh with "
            f"{dict(mesh.shape)}: {str(error).splitlines()[0]}"
        ) from error
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn
