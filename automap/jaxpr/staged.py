"""A step whose equations stand in the order of stages, the merged ones as one
(`automap.jaxpr.merged`).

Equations are moved only behind what they read, so the values that others compute are the same bits
                                                                   -> in: `staged`

For a GPU each group of a stage at once is a call with a stream of its own; the calls of a stage are
one scheduling group of XLA's, which starts all of them before it waits for one, and a barrier holds
what comes after behind them. A call has the group's equations, what they alone need, and the
elementwise equations that read nothing else of the stage and add no result: bias, norm, activation,
with what these alone read, as the factors of a norm. The compiler fuses all of that into the
group's kernels, and those that read merged results into the kernel that cuts them apart
                                                -> in: `Order.emit_at_once`, `Order.emit_epilogues`
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core
from jax.extend.core import jaxpr_as_fun

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr, rebuild_jaxpr, stream_call
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.jaxpr.merged import MERGES, concurrent_equations, has_inner, merged_equations
from automap.step.user_constraints import drop_constraint, is_constraint


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
    order = Order(flat, [site for stage in stages for site in stage.all])
    for number, stage in enumerate(stages):
        if stage.is_merged:
            order.emit_merged(stage.all)
            order.emit_epilogues(stage.all)
        elif not on_streams or not order.emit_at_once(stage.groups, number):
            for site in stage.all:
                order.emit_site(site)
    for equation in flat.equations:
        order.emit(equation)
    jaxpr = rebuild_jaxpr(flat.original, flat.constvars, flat.consts, flat.outvars, order.eqns)
    run = jaxpr_as_fun(jaxpr)

    def step(*inputs: Any) -> list[Any]:
        return list(run(*inputs))

    return step


class Order:
    """Equations that are emitted one after another, each behind those that it reads; `done` are
    there already.
    """

    def __init__(
        self, flat: FlatJaxpr, operators: Collection[str], done: Collection[str] = ()
    ) -> None:
        self.eqns: list[Any] = []
        self._flat = flat
        self._operators = frozenset(operators)
        self._by_site = {equation.path: equation for equation in flat.equations}
        self._maker = {var: equation for equation in flat.equations for var in equation.eqn.outvars}
        self._readers: dict[Any, list[str]] = {}
        for equation in flat.equations:
            for var in _variables(equation.eqn.invars):
                self._readers.setdefault(var, []).append(equation.path)
        self.done = set(done)

    def emit_site(self, site: str) -> None:
        """The equation of a site, if the step has it."""
        if site in self._by_site:
            self.emit(self._by_site[site])

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
        self.eqns += merged_equations([member.eqn for member in members])
        self.done.update(sites)

    def emit_epilogues(self, sites: Sequence[str]) -> None:
        """The elementwise equations that read results of these and nothing that is to come."""
        inside = set(sites)
        for equation in self._flat.equations:
            makers = [maker for maker in self._makers(equation) if maker.path in inside]
            if equation.path in self.done or not self._is_elementwise(equation, makers):
                continue
            if not any(path in self._operators for path in self._needed([equation])):
                self.emit(equation)
                inside.add(equation.path)

    def emit_at_once(self, groups: Sequence[Sequence[str]], number: int) -> bool:
        """A call for each of several groups, if they can be; `number` is the stage's own."""
        call = stream_call()
        if len(groups) < 2 or call is None:
            return False
        sites = [[site for site in group if site in self._by_site] for group in groups]
        needed = [self._needed([self._by_site[site] for site in group]) for group in sites]
        counts = Counter(path for each in needed for path in each)
        bodies = [[path for path in each if counts[path] == 1] for each in needed]
        shared = [path for path in counts if counts[path] > 1]
        chosen = {path for body in bodies for path in body}
        if not all(bodies) or any(has_inner(self._by_site[path]) for path in chosen):
            return False
        # What several groups need stands before them, so it must not need one of them.
        if any(set(self._needed([self._by_site[path]])) & chosen for path in shared):
            return False
        for path in shared:
            self.emit(self._by_site[path])
        counts_before = [len(body) for body in bodies]
        self._add_epilogues(bodies)
        bodies = list(map(self._with_fewest_results, bodies, counts_before))
        equations = [[self._by_site[path] for path in body] for body in bodies]
        self.eqns += concurrent_equations(
            [[_free(each.eqn) for each in body] for body in equations],
            list(map(self._results, bodies)),
            lambda function, stream: call(function, stream, number),
        )
        self.done.update(path for body in bodies for path in body)
        return True

    def _needed(self, equations: Sequence[Equation]) -> list[str]:
        """Equations and all that are missing before them, in an order in which they can run."""
        needed: dict[str, None] = {}
        todo = list(reversed(equations))
        while todo:
            latest = todo[-1]
            missing = [e for e in self._missing(latest) if e.path not in needed]
            if missing and latest.path not in needed:
                todo += missing
            else:
                needed.setdefault(todo.pop().path)
        return [path for path in needed if path not in self.done]

    def _add_epilogues(self, bodies: list[list[str]]) -> None:
        """The elementwise equations that read results of one group, and nothing that is to come."""
        group = {path: index for index, body in enumerate(bodies) for path in body}
        for equation in self._flat.equations:
            if equation.path in group or equation.path in self.done:
                continue
            missing = self._missing(equation)
            inside = [each for each in missing if each.path in group]
            outside = [each for each in missing if each.path not in group]
            owners = {group[each.path] for each in inside}
            if len(owners) != 1 or not self._is_elementwise(equation, inside):
                continue
            before = self._needed(outside)
            if any(path in group or path in self._operators for path in before):
                continue
            number = owners.pop()
            own = self._own(before, {*bodies[number], equation.path})
            for path in before:
                if path not in own:
                    self.emit(self._by_site[path])
            for path in (*own, equation.path):
                group[path] = number
                bodies[number].append(path)

    def _own(self, before: Sequence[str], body: Collection[str]) -> list[str]:
        """Those of the equations before a body that it alone reads, in their order."""
        inside, outputs = set(body), set(_variables(self._flat.outvars))
        for path in reversed(before):
            equation = self._by_site[path]
            made = equation.eqn.outvars
            readers = {reader for var in made for reader in self._readers.get(var, ())}
            if readers <= inside and not outputs & set(made) and not has_inner(equation):
                inside.add(path)
        return [path for path in before if path in inside]

    def _is_elementwise(self, equation: Equation, operands: Sequence[Equation]) -> bool:
        """Whether an equation that is no operator has results of the size of its operands."""
        shapes = {var.aval.shape for each in operands for var in each.eqn.outvars}
        is_own = equation.path in self._operators or equation.eqn.primitive.name in MERGES
        return (
            not is_own
            and not has_inner(equation)
            and all(var.aval.shape in shapes for var in equation.eqn.outvars)
        )

    def _results(self, body: Sequence[str]) -> list[Any]:
        """The variables of a body that are read outside of it."""
        inside, outputs = set(body), set(_variables(self._flat.outvars))
        return [
            var
            for path in body
            for var in self._by_site[path].eqn.outvars
            if var in outputs or not inside.issuperset(self._readers.get(var, ()))
        ]

    def _with_fewest_results(self, body: Sequence[str], count: int) -> list[str]:
        """As many epilogues behind the first `count` equations as leave it the fewest results:
        what several read is written once, and not what each of them makes of it.
        """
        lengths = range(count, len(body) + 1)
        best = min(lengths, key=lambda length: (len(self._results(body[:length])), -length))
        return list(body[:best])

    def _makers(self, equation: Equation) -> list[Equation]:
        read = _variables(equation.eqn.invars)
        return [self._maker[var] for var in read if var in self._maker]

    def _missing(self, equation: Equation) -> list[Equation]:
        return [maker for maker in self._makers(equation) if maker.path not in self.done]


def _variables(atoms: Sequence[Any]) -> Iterator[Any]:
    return (atom for atom in atoms if not isinstance(atom, core.Literal))


def _free(eqn: Any) -> Any:
    """An equation without a sharding that the user asked for: one device has all of everything."""
    return drop_constraint(eqn) if is_constraint(eqn) else eqn
