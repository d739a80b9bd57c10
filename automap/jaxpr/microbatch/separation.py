"""The state of separating a flat jaxpr of a step into what is done once and what is done for each
microbatch.

That is the step or an inner body. Its equations are taken in program order; how each one is
separated is in `automap.jaxpr.microbatch.equations`. They are only collected here; those nobody
needs are dropped when the program is put together (`automap.jaxpr.microbatch.program`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import jax
from jax.extend import core

from automap.errors import NotSeparableError
from automap.jax_compat import rebuild_jaxpr
from automap.jaxpr.microbatch.build import (
    emit,
    needed_equations,
    new_variable,
    take_part,
    variables,
    with_atoms,
)
from automap.jaxpr.microbatch.dependence import (
    Batched,
    Dependence,
    Known,
    Partial,
    Refusal,
    batch_dim,
    own_outer,
    portable,
)
from automap.jaxpr.microbatch.elements import literal_elements
from automap.jaxpr.microbatch.program import Sum
from automap.jaxpr.microbatch.traces import EquationPair, JaxprPair, source_line


# What the gradient may do with a sum over the whole batch that a sample needs: keep a scalar factor
# back until the loop is over, or run the loop twice.
LateSums = Literal["scale", "second loop"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all equations of a flat jaxpr have in common.

    `limit` is the elements of the largest batch input, `order` the batch's own outer.
    """

    microbatches: int
    limit: int
    order: int
    late: LateSums
    depth: Literal["step", "body"] = "step"
    phase: Literal["forward", "backward"] = "forward"


@dataclass(slots=True)
class Separation:
    """The growing equations of a flat jaxpr.

    `dependence` is by variables of the whole batch's trace; `term` has the variable of the loop
    that stands for one, `index` the number of the microbatch; `separate` takes one equation;
    `sites` has the path that each equation of the loop was made for. In a body both lists of
    equations are the same.
    """

    pair: JaxprPair
    setting: Setting
    separate: Callable[["Separation", EquationPair], None]
    index: Any
    dependence: dict[Any, Dependence] = field(default_factory=dict)
    term: dict[Any, Any] = field(default_factory=dict)
    known: list[Any] = field(default_factory=list)
    loop: list[Any] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    sums: dict[Any, Sum] = field(default_factory=dict)
    phase: Literal["forward", "backward"] = "forward"

    def run(self, inputs: Sequence[Dependence]) -> "Separation":
        """Separate all equations. Raises `NotSeparableError` that names the first that cannot
        be.
        """
        self.dependence.update(zip(self.pair.full.invars, inputs, strict=True))
        self.dependence.update((var, Known(source="data")) for var in self.pair.full.constvars)
        # The gradient of what nobody uses is in the trace, and might refuse to be separated.
        for pair in self._live():
            # JAX names the transposed equations of a gradient so.
            backward = "transpose(" in str(pair.full.eqn.source_info.name_stack)
            self.phase = "backward" if backward else self.setting.phase
            try:
                self.separate(self, pair)
                self.sites += [pair.full.path] * (len(self.loop) - len(self.sites))
            except Refusal as refusal:
                line = source_line(pair.full)
                at = f" at {line}" if line else ""
                raise NotSeparableError(
                    f"{pair.full.eqn.primitive.name}{at}: {refusal}; the step cannot be run in "
                    f"microbatches{refusal.instead}"
                ) from None
        return self

    def nearest_sum(self, eqn: Any) -> str:
        """Which equation adds up the samples where one reads the sum: `reduce_sum at model.py:12`;
        "" if it is in a loop.
        """
        made_by = {var: pair.full for pair in self.pair.pairs for var in pair.full.eqn.outvars}
        todo = deque(variables(eqn.invars))
        while todo:
            var = todo.popleft()
            maker = made_by.get(var)
            if maker is None:
                continue
            if var in self.sums:
                return f"{maker.eqn.primitive.name} at {source_line(maker)}"
            # Of a mean the division is what waits for the loop.
            if self.dependence[var].n_loops:
                todo.extend(variables(maker.eqn.invars))
        return ""

    def _live(self) -> list[EquationPair]:
        """The equations whose results are used; differentiation leaves others behind."""
        used = set(variables(self.pair.full.outvars))
        live = []
        for pair in reversed(self.pair.pairs):
            eqn = pair.full.eqn
            if eqn.effects or not used.isdisjoint(eqn.outvars):
                live.append(pair)
                used.update(variables(eqn.invars))
        return live[::-1]

    def read(self, atom: Any) -> Dependence:
        """What an atom of the whole batch's trace is."""
        if isinstance(atom, core.Literal):
            return Known(0, literal_elements(atom), source="data")
        return self.dependence[atom]

    def atom(self, full: Any) -> Any:
        """The atom of the loop that stands for one of the whole batch's trace, not sliced."""
        # Literals are the whole batch's: the other trace may have its own size in them.
        if isinstance(full, core.Literal):
            return full
        default = (
            full if isinstance(self.dependence[full], Known) else self.pair.micro_variable[full]
        )
        return self.term.get(full, default)

    def slice_known(
        self,
        full: Any,
        micro: Any,
        dependence: Known,
        outer: int | None,
        origin: Any,
        whole: Any = None,
    ) -> tuple[Any, Dependence]:
        """(atom, status) of a Known value in a microbatch; as it is if it does not grow with the
        batch.

        `whole` is what is cut, if it is not what stands for the value in the loop. Raises `Refusal`
        if it grows in a way that no slice has.
        """
        dim = batch_dim(full.aval.shape, micro.aval.shape, self.setting.microbatches)
        if dim is None:
            return self.atom(full), dependence
        size = micro.aval.shape[dim]
        outer = outer or own_outer(size, self.setting.order)
        # A slice has to cut every one of the `outer` blocks into equal parts.
        if size % outer:
            raise Refusal("its operands hold the samples in different orders")
        cut = partial(take_part, dim=dim, outer=outer, parts=self.setting.microbatches)
        (atom,) = emit(cut, [whole or self.atom(full), self.index], self.loop, origin)
        return atom, Batched(dim, outer, dependence.n_loops, dependence.elements)

    def finish(self, var: Any, origin: Any) -> Known:
        """Make a Partial value, or one that the loop computes alike every time, known after the
        loop.
        """
        dependence = self.read(var)
        if isinstance(dependence, Known) and dependence.made == "outside":
            return dependence
        if isinstance(dependence, Batched):
            raise Refusal("it needs all samples at once")
        n_loops = dependence.n_loops + 1
        scale = dependence.scale if isinstance(dependence, Partial) else None
        # The sum is finished when its scale is known too.
        if scale is not None:
            n_loops = max(n_loops, self.read(scale).n_loops)
        if var not in self.sums:
            raw = var if scale is None else new_variable(var)
            operator = dependence.op if isinstance(dependence, Partial) else "last"
            self.sums[var] = Sum(raw, self.atom(var), operator)
            if scale is not None:
                self.multiply_after(raw, scale, var, origin)
        return Known(n_loops)

    def multiply_after(self, raw: Any, scale: Any, result: Any, origin: Any) -> None:
        """Append result = raw * scale to what is done after the loop."""

        def times(x: jax.Array, factor: jax.Array) -> jax.Array:
            return (x * factor.astype(x.dtype)).astype(result.aval.dtype)

        # The last equation is given the variable that the step's own equations read.
        emit(times, [raw, scale], self.known, origin)
        last = self.known.pop()
        self.known.append(with_atoms(last, last.invars, [result]))

    # --- bodies

    def body(self, pair: JaxprPair, inputs: Sequence[Dependence]) -> "Separation":
        """The separation of an inner body whose parameters are `inputs`."""
        eqns: list[Any] = []
        setting = replace(self.setting, depth="body", phase=self.phase)
        inner = Separation(
            pair, setting, self.separate, new_variable(self.index), known=eqns, loop=eqns
        )
        return inner.run([portable(dependence) for dependence in inputs])

    def close_body(self, wanted: Sequence[Dependence], origin: Any) -> Any:
        """The body as a jaxpr of (index, parameters) with results that are `wanted`. Raises
        `Refusal`.
        """
        flat = self.pair.full
        results = zip(flat.outvars, self.pair.micro.outvars, wanted, strict=True)
        outputs = [
            self.atom_as(full, micro, dependence, origin) for full, micro, dependence in results
        ]
        defined = {var: n for n, eqn in enumerate(self.loop) for var in eqn.outvars}
        roots = [*outputs, *(v for eqn in self.loop if eqn.effects for v in eqn.invars)]
        needed = set(needed_equations(roots, defined, self.loop)[0])
        eqns = [eqn for n, eqn in enumerate(self.loop) if n in needed or eqn.effects]
        invars = [self.index, *(self.atom(var) for var in flat.invars)]
        return rebuild_jaxpr(
            flat.original, flat.constvars, flat.consts, outputs, eqns, invars=invars
        )

    def atom_as(self, full: Any, micro: Any, wanted: Dependence, origin: Any) -> Any:
        """The atom of the loop for a value that is to be `wanted`. Raises `Refusal` if it cannot
        be.
        """
        dependence = self.read(full)
        if isinstance(wanted, Batched) and isinstance(dependence, Known):
            return self.slice_known(full, micro, dependence, wanted.outer, origin)[0]
        return self.atom(full)

    def set(self, var: Any, dependence: Dependence, atom: Any) -> None:
        """Say what a result of the loop is, and which atom of the loop stands for it."""
        if isinstance(dependence, Known) and self.setting.depth == "step":
            dependence = replace(dependence, made="inside")
        self.dependence[var] = dependence
        self.term[var] = atom
