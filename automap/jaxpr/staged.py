"""A step whose equations stand in the order of stages, the merged ones as one
(`automap.jaxpr.merged`).

Equations are moved only behind what they read, so the values that others compute are the same bits
                                                                   -> in: `staged`

For a GPU each group of a stage at once is a call with a stream of its own; the calls of a stage are
one scheduling group of XLA's, which starts all of them before it waits for one, and a barrier holds
what comes after behind them                                       -> in: `Order.emit_at_once`

XLA fuses nothing across the edge of a call. So that no kernel is added, an edge is where a value is
written to memory anyway (`automap.jaxpr.fused`), and what is light is made again on both sides:

    body      of a call, the heavy equations of its group, and of the light ones before them those
              that no other kernel reads from memory                    -> in: `Order._body`
    results   those that heavy equations elsewhere are made of          -> in: `Order._kept`
    behind    light equations that are written anyway, if they leave the call no more results
                                                                        -> in: `Order._behind`
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jax.extend.core import jaxpr_as_fun

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr, rebuild_jaxpr, stream_call
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.jaxpr.fused import Fusions, as_compiled, variables
from automap.jaxpr.merged import concurrent_equations, has_inner, merged_equations
from automap.step.user_constraints import hold_constrained, is_constraint


# What cuts a result of several operators apart: light, as each reader takes its own part.
_CUTS: Final = frozenset({"reshape", "slice"})


@dataclass(frozen=True, slots=True)
class StageSites:
    """The sites of a stage's operators, group by group, and whether they are merged."""

    groups: tuple[tuple[str, ...], ...]
    is_merged: bool

    @property
    def all(self) -> list[str]:
        """Of all groups."""
        return [site for group in self.groups for site in group]


def staged(
    flat: FlatJaxpr, stages: Sequence[StageSites], *, on_streams: bool
) -> Callable[..., list[Any]]:
    """The step on flat inputs to flat outputs, in the order of stages; `on_streams` asks for the
    streams of a GPU, which other compilers know nothing of.

    A site that is none of the step's own equations (of a loop's body, or an instruction's name) is
    passed over unless it is merged. Raises `PlanError` for equations that cannot be merged, and for
    a step with effects, whose order is not to be changed.
    """
    effects = open_jaxpr(flat.original)[0].effects
    if effects:
        raise PlanError(
            f"the step has effects ({', '.join(map(str, effects))}), whose order stages would "
            "change; plan it without --space streams"
        )
    sites = [site for stage in stages for site in stage.all]
    merged = {site for stage in stages if stage.is_merged for site in stage.all}
    compiled = as_compiled(flat, sites, merged) if on_streams else flat
    order = Order(compiled, sites)
    for number, stage in enumerate(stages):
        if stage.is_merged:
            order.emit_merged(stage.all)
        elif not on_streams or not order.emit_at_once(stage.groups, number):
            for site in stage.all:
                order.emit_site(site)
    order.emit_makers(compiled.outvars)
    jaxpr = rebuild_jaxpr(flat.original, flat.constvars, flat.consts, compiled.outvars, order.eqns)
    run = jaxpr_as_fun(jaxpr)

    def step(*inputs: Any) -> list[Any]:
        return list(run(*inputs))

    return step


class Order:
    """Equations that are emitted one after another, each behind those that it reads; `done` are
    there already, and `inside` light ones that are in calls alone.
    """

    def __init__(
        self, flat: FlatJaxpr, operators: Collection[str], done: Collection[str] = ()
    ) -> None:
        self.eqns: list[Any] = []
        self.inside: set[str] = set()
        self.done = set(done)
        self._fusions = Fusions(flat, frozenset(operators))
        self._by_site = dict(self._fusions.equations)
        # Parts of merged results and of those of calls: what cuts them off, by variable.
        self._cuts: dict[Any, Equation] = {}

    def emit_site(self, site: str) -> None:
        """The equation of a site, if the step has it."""
        if site in self._by_site:
            self.emit(self._by_site[site])

    def emit_makers(self, atoms: Sequence[Any]) -> None:
        """All that variables are made of."""
        for maker in self._makers(atoms):
            self.emit(maker)

    def emit_wanted(self, sites: Iterable[str]) -> None:
        """Of sites those that something reads which is not there yet, or which the step returns."""
        for site in sites:
            equation = self._by_site[site]
            if site not in self.done and self._is_wanted(equation.eqn.outvars, self.done):
                self.emit(equation)

    def emit(self, equation: Equation) -> None:
        """An equation behind all that it reads; a walk without recursion, as steps are long."""
        todo = [equation]
        while todo:
            latest = todo[-1]
            missing = self._missing(latest)
            if latest.path in self.done:
                todo.pop()
            elif missing:
                todo += missing
            else:
                self.done.add(latest.path)
                todo.pop()
                self.eqns.append(_free(latest.eqn))
                # A library takes them in, so no call's edge must come between.
                taken = self._fusions.taken_in.get(latest.path, ())
                todo += [self._by_site[path] for path in reversed(taken)]

    def emit_merged(self, sites: Sequence[str]) -> None:
        """One equation for several. Raises `PlanError` if they cannot be one."""
        absent = [site for site in sites if site not in self._by_site]
        if absent:
            raise PlanError(f"{absent[0]}: merged, but no equation of the step; plan again")
        members = [self._by_site[site] for site in sites]
        for member in members:
            if member.path in self.done:
                raise PlanError(f"{member.path}: merged, but read by an earlier stage; plan again")
            for before in self._missing(member):
                self.emit(before)
        if any(member.path in self.done for member in members):
            raise PlanError(f"equations {', '.join(sites)}: one reads another; plan again")
        self._append(merged_equations([member.eqn for member in members]))
        self.done.update(sites)

    def emit_at_once(self, groups: Sequence[Sequence[str]], number: int) -> bool:
        """A call for each of several groups, if they can be; `number` is the stage's own."""
        call = stream_call()
        if len(groups) < 2 or call is None:
            return False
        heavy = [self._heavy([s for s in group if s in self._by_site]) for group in groups]
        counts = Counter(path for each in heavy for path in each)
        own = [[path for path in each if counts[path] == 1] for each in heavy]
        shared = [path for path in counts if counts[path] > 1]
        chosen = {path for each in own for path in each}
        if not all(own) or any(has_inner(self._by_site[path]) for path in chosen):
            return False
        # What several groups need stands before them, so it must not need one of them.
        if any(set(self._heavy([path])) & chosen for path in shared):
            return False
        for path in shared:
            self.emit(self._by_site[path])
        self._emit_siblings(own, self._bits(chosen))
        bodies = [self._behind(self._body(each, self._bits(chosen)), each) for each in own]
        self._append(
            concurrent_equations(
                [[_free(each.eqn) for each in body] for body in bodies],
                list(map(self._results, bodies, own)),
                lambda function, stream: call(function, stream, number),
            )
        )
        for body, each in zip(bodies, own, strict=True):
            self.done.update(equation.path for equation in self._kept(body, each))
            self.inside.update(equation.path for equation in body)
        return True

    def _emit_siblings(self, groups: Sequence[Sequence[str]], chosen: int) -> None:
        """What groups load that is made of the same values stands before the calls: XLA makes it
        one kernel, which reads them once.
        """
        fusions = self._fusions
        loaded = [
            [
                each
                for each in self._body(group, chosen)
                if each.path in fusions.sources and not fusions.basis[each.path] & chosen
            ]
            for group in groups
        ]
        read = [{v for e in each for v in self._read(e.path)} for each in loaded]
        counts = Counter(var for each in read for var in each)
        for equation in (equation for each in loaded for equation in each):
            if any(counts[var] > 1 for var in self._read(equation.path)):
                self.emit(equation)

    def _read(self, path: str) -> set[Any]:
        """What a light equation's kernel reads; of what was cut apart, the whole."""
        cuts, read = self._cuts, set(self._fusions.sources[path])
        while parts := read & cuts.keys():
            read = (read - parts) | {cuts[var].eqn.invars[0] for var in parts}
        return read

    def _append(self, eqns: Iterable[Any]) -> None:
        """Equations that stand for others; what only cuts their results apart waits for readers."""
        for eqn in eqns:
            if eqn.primitive.name in _CUTS:
                cut = Equation(path=f"cut {len(self._cuts)}", eqn=eqn, bodies=())
                self._cuts[eqn.outvars[0]] = self._by_site[cut.path] = cut
            else:
                self.eqns.append(eqn)

    def _bits(self, paths: Iterable[str]) -> int:
        bits = 0
        for path in paths:
            bits |= self._fusions.bit[path]
        return bits

    def _heavy(self, paths: Sequence[str]) -> list[str]:
        """Heavy equations and all heavy ones that are missing before them, in an order in which
        they can run, with what their kernels take in.
        """
        light, heavy, seen = self._fusions.light, dict[str, None](), set[str]()
        todo = [self._by_site[path] for path in reversed(paths)]
        while todo:
            latest = todo[-1]
            before = [e for e in self._makers(latest.eqn.invars) if e.path not in seen]
            if latest.path in self.done and latest.path not in light:
                todo.pop()
            elif latest.path not in seen:
                seen.add(latest.path)
                todo += before
            else:
                todo.pop()
                if latest.path in self._fusions.bit:
                    taken = self._fusions.taken_in.get(latest.path, ())
                    heavy.update(dict.fromkeys((latest.path, *taken)))
        return [path for path in heavy if path not in self.done]

    def _body(self, own: Sequence[str], chosen: int) -> list[Equation]:
        """The heavy equations of a group, each behind the light ones that are made for it."""
        body: dict[str, Equation] = {}
        self._add(body, own, self._bits(own), chosen)
        return list(body.values())

    def _add(self, body: dict[str, Equation], paths: Sequence[str], own: int, chosen: int) -> None:
        """Add equations behind the light ones before them. What another kernel loads too is made
        once, before the calls, unless it is made of what is `chosen` for them.
        """
        todo = [self._by_site[path] for path in reversed(paths)]
        while todo:
            latest = todo[-1]
            missing = [
                maker
                for maker in self._makers(latest.eqn.invars)
                if maker.path not in body and self._is_inside(maker, own, chosen)
            ]
            if latest.path in body or not missing:
                body.setdefault(todo.pop().path, latest)
            else:
                todo += missing

    def _is_inside(self, maker: Equation, own: int, chosen: int) -> bool:
        """Whether a group that reads an equation's result makes it; else it is there."""
        path, fusions = maker.path, self._fusions
        if maker.eqn.outvars[0] in self._cuts:
            return True
        if path in fusions.bit:
            return bool(fusions.bit[path] & own)
        if path in fusions.sources and path in self.done:
            return False
        is_alone = not fusions.demand[path] & ~own
        if path in fusions.sources and not is_alone and not fusions.basis[path] & chosen:
            self.emit(maker)
            return False
        return True

    def _behind(self, body: list[Equation], own: Sequence[str]) -> list[Equation]:
        """A body with the light equations that are written anyway, as long as they leave it no
        more results.
        """
        fusions, bits = self._fusions, self._bits(own)
        there = self._bits(path for path in self.done if path in fusions.bit) | bits
        for path in fusions.sources:
            basis = fusions.basis[path]
            if path in self.done or not basis & bits or basis & ~there:
                continue
            longer = {equation.path: equation for equation in body}
            self._add(longer, [path], bits, bits)
            wider = list(longer.values())
            is_kept = longer[path] in self._kept(wider, own)
            if is_kept and len(self._results(wider, own)) <= len(self._results(body, own)):
                body = wider
        return body

    def _kept(self, body: Sequence[Equation], own: Collection[str]) -> list[Equation]:
        """Of a body what others read of it: what is heavy, and what is stored and made of that. If
        this is several, what is heavy alone: of several results in one array a part is free to a
        kernel that makes something of it, and costs one to a library that loads it.
        """
        fusions, bits = self._fusions, self._bits(own)
        heavy = [each for each in body if each.path in fusions.bit]
        stored = [
            each
            for each in body
            if each.path in fusions.sources and fusions.basis[each.path] & bits
        ]
        if len(self._wanted(heavy + stored)) > 1:
            return heavy
        return heavy + stored

    def _results(self, body: Sequence[Equation], own: Collection[str]) -> list[Any]:
        """The variables of a body that are read outside of it."""
        return self._wanted(self._kept(body, own))

    def _wanted(self, kept: Sequence[Equation]) -> list[Any]:
        inside = {each.path for each in kept}
        made = [var for each in kept for var in each.eqn.outvars]
        return [var for var in made if self._is_wanted([var], inside)]

    def _is_wanted(self, made: Sequence[Any], inside: Collection[str]) -> bool:
        """Whether the step returns one of the variables, or a heavy equation that is not `inside`
        is made of one, through light ones that are not.
        """
        fusions, todo, seen = self._fusions, list(made), set[str]()
        while todo:
            var = todo.pop()
            if var in fusions.outputs:
                return True
            for path in fusions.readers.get(var, ()):
                if path in inside or path in seen:
                    continue
                seen.add(path)
                if path in fusions.bit:
                    return True
                todo += self._by_site[path].eqn.outvars
        return False

    def _makers(self, atoms: Sequence[Any]) -> list[Equation]:
        maker, by_site = self._fusions.maker, self._by_site
        return [
            self._cuts[var] if var in self._cuts else by_site[maker[var]]
            for var in variables(atoms)
            if var in self._cuts or var in maker
        ]

    def _missing(self, equation: Equation) -> list[Equation]:
        return [e for e in self._makers(equation.eqn.invars) if e.path not in self.done]


def _free(eqn: Any) -> Any:
    """An equation without a sharding that the user asked for: one device has all of everything."""
    return hold_constrained(eqn) if is_constraint(eqn) else eqn
