"""A sharded stage's constraints in the equations of its programs.

The plan names places by the step's equations (`automap.jaxpr.sites`). Separation keeps the names of
equations, and makes others of the same name around some: so every equation of the step is named by
its site first (-> in: `with_sites`), and a constraint goes to the equations with its site that are
of the same operation and have operands alike (-> in: `_Placer`). In a program in which replicas are
handled by hand (`automap.runtime.pipeline.places`) only the other axes are constrained: the rest is
a replica's own.

No constraint changes what is computed, so one that no equation is left for is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend import core
from jax.extend.source_info_util import new_name_stack
from jax.sharding import AxisType, PartitionSpec

from automap.jax_compat import open_jaxpr, rebuild_jaxpr, scan_split
from automap.jaxpr.convolutions import is_convolution
from automap.jaxpr.flatten import HIGHER_ORDER, FlatJaxpr
from automap.jaxpr.pins import PinRewriter, Pins
from automap.jaxpr.replacements import runs_per_device
from automap.jaxpr.sites import Place, Site, parse_place, parse_site, scope_name
from automap.runtime.pipeline.places import StagePlace


def with_sites(flat: FlatJaxpr) -> FlatJaxpr:
    """The flat jaxpr with every equation in the named scope of its site, those of bodies too."""
    equations = []
    for equation in flat.equations:
        info = equation.eqn.source_info
        names = new_name_stack(scope_name(equation.path)) + info.name_stack
        named = equation.eqn.replace(source_info=info.replace(name_stack=names))
        bodies = tuple(replace(body, flat=with_sites(body.flat)) for body in equation.bodies)
        equations.append(replace(equation, eqn=named, bodies=bodies))
    return replace(flat, equations=tuple(equations))


@dataclass(frozen=True)
class StagePins:
    """The constraints of one stage, by site: all of them for what is done once, and for the loop
    those not by hand.
    """

    sites: Mapping[str, Site]
    once: Pins
    loop: Pins

    def pin_once_program(self, eqns: Sequence[Any]) -> list[Any]:
        """Equations of a program that is left to the partitioner, with the constraints."""
        return _Placer(self.sites, self.once).impose(eqns)

    def pin_loop_program(self, eqns: Sequence[Any]) -> list[Any]:
        """Equations of a program whose replicas are handled by hand."""
        return _Placer(self.sites, self.loop).impose(eqns)


def stage_pins(place: StagePlace, flat: FlatJaxpr, sites: Mapping[str, Site]) -> StagePins | None:
    """The constraints of a stage, None for one of replicas alone.

    `flat` and `sites` are the step's. Raises `PlanError` for a place that the step does not have.
    """
    if place.inside is None:
        return None
    once, loop = {}, {}
    for row in place.inside.constraints:
        spot = parse_place(row.at)
        # Inputs have the sharding of the stage's leaves already.
        if spot.side == "arg":
            continue
        dims = tuple(axes or () for axes in row.spec)
        once[row.at] = PartitionSpec(*row.spec)
        # Inside of a program by hand a replica's axes do not exist.
        loop[row.at] = PartitionSpec(*(axes or None for axes in place.without_replicas(dims)))
    free = set(place.mesh.axis_names) - set(place.replica_axes)
    inside = place.mesh.abstract_mesh.update_axis_types(
        dict.fromkeys(place.replica_axes, AxisType.Manual)
    )
    return StagePins(
        sites=sites,
        once=Pins.parse(once, place.mesh, flat, sites),
        loop=Pins.parse(loop if free else {}, inside, flat, sites),
    )


@dataclass(frozen=True)
class _Placer:
    """Puts the pins of sites at the equations that separation made of them."""

    sites: Mapping[str, Site]
    pins: Pins

    def impose(self, eqns: Sequence[Any]) -> list[Any]:
        """Equations of one flat jaxpr with the pins, those of their bodies too."""
        pins_by_equation = {str(n): dict(self._places(eqn)) for n, eqn in enumerate(eqns)}
        rewriter = PinRewriter(by_site=pins_by_equation, mesh=self.pins.mesh, pinned=[])
        return [
            made
            for n, eqn in enumerate(eqns)
            for made in rewriter.equation(str(n), self._with_bodies(eqn))
        ]

    def _places(self, eqn: Any) -> Iterator[tuple[Place, Any]]:
        """The pins of an equation, by their place in it."""
        path = parse_site(str(eqn.source_info.name_stack))
        pins = self.pins.by_site.get(path or "", {})
        if not pins or self.sites[path].primitive != eqn.primitive.name:  # type: ignore[index]
            return
        site = self.sites[path]  # type: ignore[index]
        # The number of the microbatch comes first, and a loop orders its constants by itself.
        skipped = scan_split(eqn)[0] if eqn.primitive.name == "scan" else 0
        for place, pin in pins.items():
            is_operand = place.side in ("from", "in")
            atoms, avals = (
                (eqn.invars, site.in_avals) if is_operand else (eqn.outvars, site.out_avals)
            )
            # What separation adds comes in front: places are counted from the end.
            number = place.number + len(atoms) - len(avals)
            if not (skipped if is_operand else 0) <= number < len(atoms):
                continue
            is_alike = len(avals[place.number].shape) == len(atoms[number].aval.shape)
            is_variable = not isinstance(atoms[number], core.Literal)
            if is_alike and is_variable and not _says_nothing(eqn, place, [*pins.values()]):
                yield replace(place, number=number), pin

    def _with_bodies(self, eqn: Any) -> Any:
        params = dict(eqn.params)
        for parameter, _ in HIGHER_ORDER.get(eqn.primitive.name, ()):
            held = params[parameter]
            # A `cond` has several bodies, whose constraints are those of each.
            if isinstance(held, tuple):
                params[parameter] = tuple(self._body(jaxpr) for jaxpr in held)
            else:
                params[parameter] = self._body(held)
        return eqn.replace(params=params)

    def _body(self, jaxpr: Any) -> Any:
        inner, consts = open_jaxpr(jaxpr)
        return rebuild_jaxpr(jaxpr, inner.constvars, consts, inner.outvars, self.impose(inner.eqns))


def _says_nothing(eqn: Any, place: Place, pins: Sequence[Any]) -> bool:
    """Whether a pin would write out an operation that nothing but the replicas split, which each of
    them has whole.
    """
    is_written_out = is_convolution(eqn) or runs_per_device(eqn)
    splits = any(any(pin.params["sharding"].spec) for pin in pins)
    return place.side == "made" and is_written_out and not splits
