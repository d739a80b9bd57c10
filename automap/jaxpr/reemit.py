"""Re-emitting a step: the same equations again, each under its site's name, or with constraints
added.

The step's jaxpr is flattened once (`automap.jaxpr.flatten`), so both uses number the
equations alike, and rewritten without tracing: an equation keeps its primitive, parameters and
order, so the values it computes are the same bits.

    scoped        y = op(x)  in the named scope am<site>~, the step's own names after it
    constrained   y = op(x)  becomes  x' = constrain(x);  y0 = op(x');  y = constrain(y0)
                                                                   (`automap.jaxpr.pins`)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Protocol

from jax.extend.core import jaxpr_as_fun
from jax.extend.source_info_util import new_name_stack, summarize
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from automap.jax_compat import rebuild_jaxpr
from automap.jaxpr.flatten import Equation, FlatJaxpr, equations, flatten
from automap.jaxpr.kernels import StandIn, stand_in, standing_in
from automap.jaxpr.manual import between_marks, is_manual, manual_shardings
from automap.jaxpr.pallas import is_kernel
from automap.jaxpr.pins import Pins
from automap.jaxpr.sites import Site, describe, scope_name
from automap.step.user_constraints import (
    UserSharding,
    is_constraint,
    leave_out_constraint,
    mark_constraint,
    named,
)
from hlo_tools.rules import Notation


class Rewriter(Protocol):
    """What the equations of one flat jaxpr become, in order; `inputs` is asked first."""

    def inputs(self) -> Iterable[Any]:
        """Equations before the first one."""
        ...

    def equation(self, path: str, eqn: Any) -> Iterable[Any]:
        """Equations in the place of the one at a site, with the same output variables."""
        ...


class Reemitter:
    """A traced step that can be emitted again."""

    def __init__(self, closed_jaxpr: Any, rules: Mapping[str, Notation] | None = None) -> None:
        """Flatten the step to `flat`. `closed_jaxpr` is what `jax.jit(step).trace(...).jaxpr`
        gives.

        Calls of jitted functions that `rules` has a fitting rule for stay one equation each.
        """
        self._rules = rules or {}
        self.flat = flatten(closed_jaxpr, self._rules)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every equation in program order, those of a body after the equation that owns it."""
        return tuple(describe(self.flat))

    @cached_property
    def site_by_path(self) -> dict[str, Site]:
        """`sites` by path."""
        return {site.path: site for site in self.sites}

    @cached_property
    def source_by_path(self) -> dict[str, str]:
        """The line of the user's code each equation comes from, `file:line:column (function)`, ""
        if unknown.
        """
        lines = {}
        for equation in self.equations:
            # JAX's own jitted functions keep no line of the user's; their calls do.
            infos = (equation.eqn.source_info, *equation.callers)
            lines[equation.path] = next(filter(None, map(summarize, infos)), "")
        return lines

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """All equations, as `sites` lists them."""
        return tuple(equations(self.flat))

    @cached_property
    def user_shardings(self) -> tuple[UserSharding, ...]:
        """The constraints of the user's code. Raises `InputError` for one without names."""
        shardings = []
        for equation in self.equations:
            if is_constraint(equation.eqn):
                line = self.source_by_path[equation.path]
                where = (
                    f"with_sharding_constraint at {line}" if line else "with_sharding_constraint"
                )
                sharding = named(equation.eqn.params["sharding"], where)
                shardings += [] if sharding is None else [UserSharding(where, sharding)]
        return tuple(shardings)

    @cached_property
    def manual_shardings(self) -> tuple[UserSharding, ...]:
        """Those of the operands and results of `shard_map`s. Raises `InputError` for one that no
        plan is made around.
        """
        return tuple(
            given
            for equation in self.equations
            if is_manual(equation.eqn)
            for given in manual_shardings(
                equation.eqn,
                f"shard_map at {self.source_by_path[equation.path]}".removesuffix(" at "),
            )
        )

    @cached_property
    def kernels(self) -> Mapping[str, StandIn]:
        """What stands for each kernel of Pallas in the analysis, by the path of its equation."""
        return {
            equation.path: stand_in(equation.eqn, self._rules)
            for equation in self.equations
            if is_kernel(equation.eqn)
        }

    def scoped(
        self, constraints: Literal["marked", "left out"] = "marked"
    ) -> Callable[..., list[Any]]:
        """The step on flat inputs to flat outputs, every equation in the named scope of its site.

        The user's `constraints` are there as marks for the analysis, or are left out to run it on
        one device.
        """
        rewriter = _Marks(self._rules) if constraints == "marked" else _OneDevice()
        return _as_function(_emit(self.flat, lambda _: _Scopes(rewriter)))

    def freed(self) -> Callable[..., list[Any]]:
        """The same without the user's constraints, and with the names that the step itself has."""
        return _as_function(_emit(self.flat, lambda _: _OneDevice()))

    def constrained(
        self,
        constraints: Mapping[str, PartitionSpec],
        mesh: Mesh | AbstractMesh,
        names: Literal["own", "sites"] = "own",
        platform: str | None = None,
    ) -> Callable[..., list[Any]]:
        """The step on flat inputs to flat outputs, with shardings imposed inside.

        Keys are `arg<i>` (a step input, wherever it is used), `<site>:in<j>` (an operand as that
        equation uses it), `<site>:from<j>` (as that and all later equations use it),
        `<site>:made<j>` (a result as it is computed) and `<site>:out<j>` (as it is used). With
        names "sites" what stands for an equation is in the named scope of its site; with a
        `platform` choices by platform have what is lowered for it alone. Raises `PlanError` for a
        place that the step does not have, and for a spec that does not fit the value or the mesh.
        """
        pins = Pins.parse(constraints, mesh, self.flat, self.site_by_path)
        flat = self.flat if platform is None else _lowered_for(self.flat, platform)
        if names == "own":
            return _as_function(_emit(flat, pins.rewriter))
        return _as_function(_emit(flat, lambda flat: _Scopes(pins.rewriter(flat))))


class _Marks:
    """Rewriter for the analysis: marks in the place of the user's constraints, and what stands for
    kernels.
    """

    def __init__(self, rules: Mapping[str, Notation]) -> None:
        self._rules = rules

    def inputs(self) -> Iterable[Any]:
        return ()

    def equation(self, path: str, eqn: Any) -> Iterable[Any]:
        if is_manual(eqn):
            return between_marks(eqn)
        if is_kernel(eqn):
            return (standing_in(eqn, self._rules),)
        return (mark_constraint(eqn) if is_constraint(eqn) else eqn,)


class _OneDevice:
    """Rewriter that leaves the user's constraints out."""

    def inputs(self) -> Iterable[Any]:
        return ()

    def equation(self, path: str, eqn: Any) -> Iterable[Any]:
        return (leave_out_constraint(eqn) if is_constraint(eqn) else eqn,)


class _Scopes:
    """Rewriter that tags what another one makes of an equation with the equation's site."""

    def __init__(self, inner: Rewriter) -> None:
        self._inner = inner

    def inputs(self) -> Iterable[Any]:
        return self._inner.inputs()

    def equation(self, path: str, eqn: Any) -> Iterable[Any]:
        for made in self._inner.equation(path, eqn):
            names = new_name_stack(scope_name(path)) + made.source_info.name_stack
            yield made.replace(source_info=made.source_info.replace(name_stack=names))


def _emit(flat: FlatJaxpr, make_rewriter: Callable[[FlatJaxpr], Rewriter]) -> Any:
    rewriter = make_rewriter(flat)
    eqns = list(rewriter.inputs())
    for equation in flat.equations:
        eqns.extend(rewriter.equation(equation.path, _with_bodies(equation, make_rewriter)))
    # Output variables are the original ones: whatever a rewriter put in between hands on to them.
    return rebuild_jaxpr(flat.original, flat.constvars, flat.consts, flat.outvars, eqns)


def _with_bodies(equation: Equation, make_rewriter: Callable[[FlatJaxpr], Rewriter]) -> Any:
    if not equation.bodies:
        return equation.eqn
    params = dict(equation.eqn.params)
    emitted: dict[str, list[Any]] = {}
    for body in equation.bodies:
        emitted.setdefault(body.parameter, []).append(_emit(body.flat, make_rewriter))
    # Branches are a tuple of bodies in one parameter, loops have one body each.
    for parameter, jaxprs in emitted.items():
        params[parameter] = tuple(jaxprs) if isinstance(params[parameter], tuple) else jaxprs[0]
    return equation.eqn.replace(params=params)


def _lowered_for(flat: FlatJaxpr, platform: str) -> FlatJaxpr:
    """The flat jaxpr with the branch of a platform in the place of all others, which may have what
    JAX does not export (cuDNN's attention, where the step is lowered for TPUs). A choice without a
    branch for it stays, and JAX refuses to lower it.
    """
    made = []
    for equation in flat.equations:
        bodies = [replace(b, flat=_lowered_for(b.flat, platform)) for b in equation.bodies]
        choices = equation.eqn.params.get("branches_platforms") or ()
        its = [n for n, names in enumerate(choices) if names is None or platform in names]
        if its:
            bodies = [bodies[its[0]]] * len(bodies)
        made.append(replace(equation, bodies=tuple(bodies)))
    return replace(flat, equations=tuple(made))


def _as_function(closed_jaxpr: Any) -> Callable[..., list[Any]]:
    run = jaxpr_as_fun(closed_jaxpr)

    # jit shows this name in traces and as the module's name.
    def step(*inputs: Any) -> list[Any]:
        return list(run(*inputs))

    return step
