"""A stage of operators as a program of its own, which a device can be asked about.

An operator has the equations whose results its kernels write. What only leads to them, and that no
operator writes, is part of the kernels, so it is computed again in each program that needs it:

    equations of a stage   those of its operators, merged or on streams of their own as in the step
                           that runs (`automap.jaxpr.staged`), behind what leads to them
    inputs                 what these read and do not make
    results                what its operators write and others read
                                                                      -> in: `StagePrograms.program`
The programs of a schedule, run one after another, compute what the step computes.

A stage is known by the fingerprint of its program and of how its operators run together, so that
equal stages of any step have one                                   -> in: `StagePrograms.signature`
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jax.extend import core

from automap.errors import PlanError
from automap.jax_compat import new_jaxpr, open_jaxpr
from automap.jaxpr.fingerprint import program_sha256
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.jaxpr.merged import free_variables
from automap.jaxpr.staged import Order
from automap.streams.operators import Operator
from automap.streams.schedule import Stage


@dataclass(frozen=True)
class StagePrograms:
    """The stages of a step: its own equations, and the operators that were made of them."""

    flat: FlatJaxpr
    operators: Sequence[Operator]

    def signature(self, stage: Stage) -> str | None:
        """The stage's fingerprint; None for one that is no program by itself."""
        jaxpr = self.program(stage, on_streams=False)
        if jaxpr is None:
            return None
        # Groups decide what runs at once; how many equations each has says which they are.
        groups = [sum(len(self.operators[n].equations) for n in group) for group in stage.groups]
        return program_sha256(jaxpr, f"{stage.together} {groups}")

    def program(self, stage: Stage, *, on_streams: bool) -> Any:
        """The stage's jaxpr; None if its operators have no equations that are theirs alone, or if
        they have effects.
        """
        members = [self.operators[n] for group in stage.groups for n in group]
        own = {site for operator in members for site in operator.equations}
        is_alone = all(operator.equations for operator in members) and all(
            self._owners[site] == 1 and site in self._equations for site in own
        )
        if not is_alone or open_jaxpr(self.flat.original)[0].effects:
            return None
        order = Order(self.flat, own, done=self._written - own)
        try:
            self._emit(order, stage, on_streams=on_streams)
        except PlanError:
            return None
        emitted = (order.done | order.inside) - (self._written - own)
        # By equation: many lead to the same reader in several ways.
        kept: dict[str, bool] = {}
        results = [var for site in own for var in self._results(site, emitted, own, kept)]
        order.emit_makers(results)
        inputs = list(dict.fromkeys(free_variables(order.eqns)))
        return new_jaxpr("stage", inputs, results, order.eqns) if results else None

    def _results(
        self, site: str, emitted: Set[str], own: Set[str], kept: dict[str, bool]
    ) -> Iterator[Any]:
        """What an operator's equation makes that others read, or the step returns; `kept` says of
        equations that only lead on whether such a one reads what they make.
        """
        for var in self._equations[site].eqn.outvars:
            readers = self._readers.get(var, ())
            if var in self._outputs or any(self._is_read(r, emitted, own, kept) for r in readers):
                yield var

    def _is_read(
        self, reader: str, emitted: Set[str], own: Set[str], kept: dict[str, bool]
    ) -> bool:
        if reader not in emitted:
            return True
        # What only leads on is computed again by those who read that.
        if reader in own:
            return False
        if reader not in kept:
            kept[reader] = any(self._results(reader, emitted, own, kept))
        return kept[reader]

    def _emit(self, order: Order, stage: Stage, *, on_streams: bool) -> None:
        operators = [[self.operators[n] for n in group] for group in stage.groups]
        groups = [[site for op in group for site in op.equations] for group in operators]
        if stage.together == "merged":
            order.emit_merged([op.site for group in operators for op in group])
        elif on_streams and order.emit_at_once(groups, number=0):
            order.emit_wanted(site for group in groups for site in group)
            return
        for group in groups:
            for site in group:
                order.emit_site(site)

    @cached_property
    def _owners(self) -> Counter[str]:
        """How many operators have each equation."""
        return Counter(site for operator in self.operators for site in operator.equations)

    @cached_property
    def _written(self) -> frozenset[str]:
        """The equations whose results some operator writes."""
        return frozenset(self._owners)

    @cached_property
    def _equations(self) -> Mapping[str, Equation]:
        return {equation.path: equation for equation in self.flat.equations}

    @cached_property
    def _outputs(self) -> frozenset[Any]:
        return frozenset(var for var in self.flat.outvars if not isinstance(var, core.Literal))

    @cached_property
    def _readers(self) -> Mapping[Any, list[str]]:
        """The equations that read each variable."""
        readers: dict[Any, list[str]] = {}
        for equation in self.flat.equations:
            for var in equation.eqn.invars:
                if not isinstance(var, core.Literal):
                    readers.setdefault(var, []).append(equation.path)
        return readers
