"""One level of a step, separated into what is done once and what is done for each microbatch.

Equation by equation, in program order, by what its operands are:

    all Known                     once, with the whole batch's equation            -> in: `_known`
    some Batched                  in the loop, with the microbatch's equation, if its rule allows
                                                                                   -> in: `_batched`
    some Partial, none Batched    of the step: once, after the loop                -> in: `finished`
                                  of an inner body: if it is linear, on each part  -> in: `_linear`

Known operands that grow with the batch (dropout masks, constants) are made whole and sliced where a microbatch needs
them.  What is made of data alone (the batch, keys, constants) is Known if it is no larger than the batch:
sums of masks, shuffled samples.  Equations are only collected here; those nobody needs are dropped
when the program is put together (`automap.apply.microbatch.program`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import jax
from jax import numpy as jnp
from jax.extend import core
import numpy as np

from automap.apply.microbatch.build import closure, elements, emit, fresh, local, part, renamed
from automap.apply.microbatch.control import CONTROL
from automap.apply.microbatch.facts import columns_of, fact_of, literal_fact
from automap.apply.microbatch.linear import PRODUCTS, check_linear
from automap.apply.microbatch.pairs import LevelPair, Pair, source_line
from automap.apply.microbatch.rules import outcome_of
from automap.apply.microbatch.rules.rule import Operation, Outcome
from automap.apply.microbatch.status import (
    Batched,
    Fact,
    Known,
    Operator,
    Partial,
    Refusal,
    Status,
    batch_dim,
    plain,
)
from automap.errors import NotSeparableError
from automap.jax_compat import rebuild_jaxpr


# What the gradient may do with a sum over the whole batch that a sample needs: keep a scalar factor back
# until the loop is over, or run the loop twice.
Late = Literal["scale", "second loop"]


@dataclass(frozen=True, slots=True)
class Sum:
    """`total` is made of the values that `term` has in the microbatches."""

    total: Any
    term: Any
    operator: Operator


@dataclass(frozen=True, slots=True)
class Setting:
    """What all equations of a level have in common; `limit` is the elements of the largest batch input."""

    microbatches: int
    limit: int
    late: Late
    depth: Literal["step", "body"] = "step"
    phase: Literal["forward", "backward"] = "forward"


@dataclass(slots=True)
class Separation:
    """The growing equations of a level.

    `status` is by variables of the whole batch's trace; `term` has the variable of the loop that stands for one,
    `index` the number of the microbatch.  In a body both lists of equations are the same.
    """

    pair: LevelPair
    setting: Setting
    index: Any
    status: dict[Any, Status] = field(default_factory=dict)
    term: dict[Any, Any] = field(default_factory=dict)
    known: list[Any] = field(default_factory=list)
    loop: list[Any] = field(default_factory=list)
    sums: dict[Any, Sum] = field(default_factory=dict)
    phase: Literal["forward", "backward"] = "forward"

    def run(self, inputs: Sequence[Status]) -> "Separation":
        """Separate all equations. Raises `NotSeparableError` that names the first that cannot be."""
        self.status.update(zip(self.pair.full.invars, inputs, strict=True))
        self.status.update((var, Known(source="data")) for var in self.pair.full.constvars)
        for pair in self._live():
            backward = "transpose(" in str(pair.full.eqn.source_info.name_stack)
            self.phase = "backward" if backward else self.setting.phase
            try:
                self._equation(pair)
            except Refusal as refusal:
                line = source_line(pair.full)
                at = f" at {line}" if line else ""
                raise NotSeparableError(
                    f"{pair.full.eqn.primitive.name}{at}: {refusal}; the step cannot be run in microbatches"
                ) from None
        return self

    def _live(self) -> list[Pair]:
        """The equations whose results are used; differentiation leaves others behind."""
        used = set(_variables(self.pair.full.outvars))
        found = []
        for pair in reversed(self.pair.pairs):
            eqn = pair.full.eqn
            if eqn.effects or not used.isdisjoint(eqn.outvars):
                found.append(pair)
                used.update(_variables(eqn.invars))
        return found[::-1]

    def read(self, atom: Any) -> Status:
        """What an atom of the whole batch's trace is."""
        if isinstance(atom, core.Literal):
            return Known(0, literal_fact(atom), source="data")
        return self.status[atom]

    def atom(self, full: Any) -> Any:
        """The atom of the loop that stands for one of the whole batch's trace, not sliced."""
        if isinstance(full, core.Literal):
            return full
        default = full if isinstance(self.status[full], Known) else self.pair.micro_of[full]
        return self.term.get(full, default)

    def sliced(
        self,
        full: Any,
        micro: Any,
        status: Known,
        outer: int | None,
        origin: Any,
        whole: Any = None,
    ) -> tuple[Any, Status]:
        """(atom, status) of a Known value in a microbatch; as it is if it does not grow with the batch.

        `whole` is what is cut, if it is not what stands for the value in the loop. Raises `Refusal` if it grows in a way that no slice has.
        """
        dim = batch_dim(full.aval.shape, micro.aval.shape, self.setting.microbatches)
        if dim is None:
            return self.atom(full), status
        if micro.aval.shape[dim] % (outer or 1):
            raise Refusal("its operands hold the samples in different orders")
        cut = partial(part, dim=dim, outer=outer or 1, parts=self.setting.microbatches)
        (atom,) = emit(cut, [whole or self.atom(full), self.index], self.loop, origin)
        return atom, Batched(dim, outer or 1, status.level, status.fact)

    def finished(self, var: Any, origin: Any) -> Known:
        """Make a Partial value, or one that the loop computes alike every time, known after the loop."""
        status = self.read(var)
        if isinstance(status, Known) and status.made == "outside":
            return status
        if isinstance(status, Batched):
            raise Refusal("it needs all samples at once")
        level = status.level + 1
        scale = status.scale if isinstance(status, Partial) else None
        if scale is not None:
            level = max(level, self.read(scale).level)
        if var not in self.sums:
            raw = var if scale is None else fresh(var)
            operator = status.op if isinstance(status, Partial) else "last"
            self.sums[var] = Sum(raw, self.atom(var), operator)
            if scale is not None:
                self.scaled(raw, scale, var, origin)
        return Known(level)

    def scaled(self, raw: Any, scale: Any, result: Any, origin: Any) -> None:
        """Append result = raw * scale to what is done after the loop."""

        def times(x: jax.Array, factor: jax.Array) -> jax.Array:
            return (x * factor.astype(x.dtype)).astype(result.aval.dtype)

        emit(times, [raw, scale], self.known, origin)
        last = self.known.pop()
        self.known.append(renamed(last, last.invars, [result]))

    # --- bodies

    def body(self, pair: LevelPair, inputs: Sequence[Status]) -> "Separation":
        """The separation of an inner body whose parameters are `inputs`."""
        eqns: list[Any] = []
        setting = replace(self.setting, depth="body", phase=self.phase)
        inner = Separation(pair, setting, fresh(self.index), known=eqns, loop=eqns)
        return inner.run([plain(status) for status in inputs])

    def closed(self, wanted: Sequence[Status]) -> Any:
        """The body as a jaxpr of (index, parameters) with results that are `wanted`. Raises `Refusal`."""
        level = self.pair.full
        outputs = [
            self.coerced(
                full, micro, status, self.pair.pairs[-1].full.eqn if self.pair.pairs else None
            )
            for full, micro, status in zip(
                level.outvars, self.pair.micro.outvars, wanted, strict=True
            )
        ]
        defined = {var: n for n, eqn in enumerate(self.loop) for var in eqn.outvars}
        roots = [*outputs, *(v for eqn in self.loop if eqn.effects for v in eqn.invars)]
        needed = set(closure(roots, defined, self.loop)[0])
        eqns = [eqn for n, eqn in enumerate(self.loop) if n in needed or eqn.effects]
        invars = [self.index, *(self.atom(var) for var in level.invars)]
        return rebuild_jaxpr(
            level.original, level.constvars, level.consts, outputs, eqns, invars=invars
        )

    def coerced(self, full: Any, micro: Any, wanted: Status, origin: Any) -> Any:
        """The atom of the loop for a value that is to be `wanted`. Raises `Refusal` if it cannot be."""
        status = self.read(full)
        if isinstance(wanted, Batched) and isinstance(status, Known):
            return self.sliced(full, micro, status, wanted.outer, origin)[0]
        return self.atom(full)

    def set(self, var: Any, status: Status, atom: Any) -> None:
        """Say what a result of the loop is, and which atom of the loop stands for it."""
        if isinstance(status, Known) and self.setting.depth == "step":
            status = replace(status, made="inside")
        self.status[var] = status
        self.term[var] = atom

    # --- equations

    def _equation(self, pair: Pair) -> None:
        eqn = pair.full.eqn
        operands = [self.read(atom) for atom in eqn.invars]
        is_control = eqn.primitive.name in CONTROL
        some = lambda kind: any(isinstance(s, kind) for s in operands)  # noqa: E731
        if some(Batched) or (self.setting.depth == "body" and some(Partial)):
            if self._has_no_order(pair, operands):
                self._known(pair, [Known(0, source="data") for _ in operands])
            elif is_control:
                self._or_whole(pair, operands, lambda: CONTROL[eqn.primitive.name](self, pair))
            elif self.setting.depth == "body" and some(Partial):
                self._linear(pair, operands)
            else:
                operands = [
                    self.finished(atom, eqn) if isinstance(status, Partial) else status
                    for atom, status in zip(eqn.invars, operands)
                ]
                self._or_whole(pair, operands, lambda: self._batched(pair, operands))
        elif self.setting.depth == "step" and self._is_inside(operands):
            made = [fresh(var) for var in eqn.outvars]
            self.loop.append(renamed(eqn, [self.atom(a) for a in eqn.invars], made))
            self.term.update(zip(eqn.outvars, made))
            self.status.update((var, Known(made="inside")) for var in eqn.outvars)
        elif self.setting.depth == "step":
            finished = [
                status if isinstance(atom, core.Literal) else self.finished(atom, eqn)
                for atom, status in zip(eqn.invars, operands)
            ]
            self._known(pair, finished)
        else:
            self._known(pair, operands)

    def _is_inside(self, operands: Sequence[Status]) -> bool:
        """Whether the loop computes an operand alike every time, and none needs a loop to be over."""
        early = all(isinstance(s, Known) and s.level == 0 for s in operands)
        return early and any(isinstance(s, Known) and s.made == "inside" for s in operands)

    def _has_no_order(self, pair: Pair, operands: Sequence[Status]) -> bool:
        """Whether an equation combines constants that grow with the batch with copies of one value.

        Its result is known whole, and how it is to be cut is left to its users.
        """
        if self.setting.depth == "body" or not all(map(_is_data, operands)):
            return False
        atoms = zip(pair.full.eqn.invars, pair.micro.eqn.invars, operands)
        grows = any(isinstance(s, Known) and a.aval.shape != b.aval.shape for a, b, s in atoms)
        return grows and all(s.outer is None for s in operands if isinstance(s, Batched))

    def _or_whole(
        self, pair: Pair, operands: Sequence[Status], separate: Callable[[], None]
    ) -> None:
        """Separate an equation; what is made of data alone may be computed whole instead."""
        eqn = pair.full.eqn
        can_be_whole = all(map(_is_data, operands)) and all(
            elements(var.aval) <= self.setting.limit for var in eqn.outvars
        )
        try:
            separate()
        except Refusal:
            if not can_be_whole:
                raise
            self.status.update((var, Known(source="data")) for var in eqn.outvars)
        if not can_be_whole:
            return
        self.known.append(eqn)
        for var in eqn.outvars:
            status = self.status[var]
            if isinstance(status, Batched):
                self.status[var] = replace(status, is_whole=True)
            else:
                self.status[var] = Known(source="data")
                self.term.pop(var, None)

    def _known(self, pair: Pair, operands: Sequence[Status]) -> None:
        full, micro = pair.full.eqn, pair.micro.eqn
        level = max((status.level for status in operands), default=0)
        fact = fact_of(full, micro, operands)
        # In a body what is known may be the result of a loop there, which has a variable of its own.
        in_body = self.setting.depth == "body"
        inputs = [self.atom(atom) for atom in full.invars] if in_body else full.invars
        self.known.append(renamed(full, inputs, full.outvars))
        source = "data" if all(map(_is_data, operands)) else "parameters"
        if len(full.outvars) > 1:
            fact = Fact.NONE
        for var in full.outvars:
            self.status[var] = Known(level, fact, source=source)
        if full.primitive.name == "broadcast_in_dim":
            self._spread(full, micro, Known(level, fact, source=source))

    def _spread(self, full: Any, micro: Any, status: Known) -> None:
        """One value for all samples: each microbatch makes its own copies."""
        (source, *_), (result,) = full.invars, full.outvars
        if source.aval.shape != micro.invars[0].aval.shape or len(full.invars) > 1:
            return
        try:
            shapes = result.aval.shape, micro.outvars[0].aval.shape
            dim = batch_dim(*shapes, self.setting.microbatches)
        except Refusal:
            return
        if dim is None or self.setting.depth == "body" and status.level:
            return
        if status.level and self.setting.late == "scale":
            if source.aval.shape:
                return
            aval = micro.outvars[0].aval
            (ones,) = emit(lambda: jnp.ones(aval.shape, aval.dtype), [], self.loop, full)
            self.term[result] = ones
            self.status[result] = Batched(dim, None, fact=Fact.ONE, scale=source)
            return
        self.loop.append(renamed(micro, [self.atom(source)], micro.outvars))
        self.status[result] = Batched(dim, None, status.level, status.fact,
                                      is_whole=_is_data(status) and self.setting.depth == "step")  # fmt: skip

    def _batched(self, pair: Pair, operands: Sequence[Status]) -> None:
        full, micro = pair.full.eqn, pair.micro.eqn
        if full.effects:
            raise Refusal("its side effect would be one per microbatch")
        atoms, found, scales = self._in_microbatch(full, micro, operands)
        level = max(status.level for status in found)
        if level and (self.setting.late == "scale" or self.phase == "forward" or level > 1):
            raise Refusal("a sample's result depends on a sum or a mean over the whole batch")
        operation = Operation(full, micro, tuple(found), self.setting.microbatches)
        outcome = outcome_of(operation)
        scale = self._scale(full, found, scales)
        if outcome.local_columns:
            size = operation.shape(0)[found[0].dim if isinstance(found[0], Batched) else 0]
            shift = partial(local, columns=sorted(outcome.local_columns), size=size)
            (atoms[1],) = emit(shift, [atoms[1], self.index], self.loop, full)
        self.loop.append(renamed(micro, atoms, micro.outvars))
        fact = fact_of(full, micro, found)
        self._settle(full, outcome, level, scale, fact, columns_of(full, found))

    def _settle(
        self, full: Any, outcome: Outcome, level: int, scale: Any, fact: Fact,
        columns: frozenset[int],
    ) -> None:  # fmt: skip
        for var, result in zip(full.outvars, outcome.results, strict=True):
            if isinstance(result, Batched):
                fact = fact if len(full.outvars) == 1 else Fact.NONE
                result = replace(result, fact=fact, columns=columns)
            elif scale is not None and result.op != "add":
                raise Refusal("a factor known only after the batch decides which sample is largest")
            self.status[var] = replace(result, level=level, scale=scale)

    def _in_microbatch(
        self, full: Any, micro: Any, operands: Sequence[Status]
    ) -> tuple[list[Any], list[Status], list[Any]]:
        """Atoms, statuses and scales of the operands as a microbatch has them."""
        outer = self._outer(operands)
        atoms, found, scales = [], [], []
        for number, (atom, other, status) in enumerate(zip(full.invars, micro.invars, operands)):
            scale = status.scale if isinstance(status, Batched) else None
            if (
                isinstance(status, Batched)
                and status.is_whole
                and status.outer not in (None, outer)
            ):
                # Cut anew, in the order in which the others hold the samples.
                made, status = self.sliced(
                    atom, other, Known(0, status.fact), outer, full, whole=atom
                )
            elif not isinstance(status, Known):
                made = self.atom(atom)
            elif self._is_late_factor(full, number, status):
                scale, status = atom, Known(0, Fact.ONE)
                made = core.Literal(np.ones((), atom.aval.dtype), atom.aval)
            else:
                made, status = self.sliced(atom, other, status, outer, full)
            atoms.append(made)
            found.append(status)
            scales.append(scale)
        return atoms, found, scales

    def _outer(self, operands: Sequence[Status]) -> int | None:
        """How an equation's operands hold the samples; those computed whole can be cut to fit."""
        found = [s for s in operands if isinstance(s, Batched) and s.outer is not None]
        found.sort(key=lambda s: s.is_whole)
        return found[0].outer if found else None

    def _is_late_factor(self, eqn: Any, number: int, status: Known) -> bool:
        is_factor = eqn.primitive.name == "mul" or (eqn.primitive.name == "div" and number == 1)
        is_scalar = eqn.invars[number].aval.shape == ()
        is_late = status.level > 0 and self.setting.late == "scale"
        return is_factor and is_scalar and is_late and self.setting.depth == "step"

    def _scale(self, eqn: Any, found: Sequence[Status], scales: list[Any]) -> Any:
        """The scale of the results of operands with scales, None for none. Raises `Refusal`."""
        kept = [scale for scale in scales if scale is not None]
        if not kept:
            return None
        name = eqn.primitive.name
        ones = [getattr(status, "fact", None) is Fact.ONE for status in found]
        at_step = self.setting.depth == "step"
        if name == "div" and scales[1] is not None and ones[1] and at_step:
            over = lambda a, b: a / b.astype(a.dtype)  # noqa: E731
            return self._late(over, [scales[0] or _one(eqn.outvars[0].aval.dtype), scales[1]], eqn)
        if name in PRODUCTS and len(kept) == 2 and at_step:
            return self._late(lambda a, b: a * b, kept, eqn)
        zeros = [getattr(status, "fact", None) is Fact.ZERO for status in found]
        check_linear(eqn, [scale is not None for scale in scales], zeros)
        if any(scale is not kept[0] for scale in kept):
            raise Refusal("its operands are multiplied by different sums over the whole batch")
        return kept[0]

    def _late(self, function: Callable[..., Any], atoms: Sequence[Any], origin: Any) -> Any:
        (var,) = emit(function, atoms, self.known, origin)
        self.status[var] = Known(max(self.read(atom).level for atom in atoms))
        return var

    def _linear(self, pair: Pair, operands: Sequence[Status]) -> None:
        """An equation of a body on sums that are not finished."""
        full, micro = pair.full.eqn, pair.micro.eqn
        parts = [status for status in operands if isinstance(status, Partial)]
        marks = [isinstance(status, Partial) for status in operands]
        known = [status.fact for status in operands if isinstance(status, Known)]
        if len(parts) + len(known) < len(operands) and not all(marks):
            raise Refusal("it combines a sum over the batch with single samples")
        zeros = [isinstance(s, Known) and s.fact is Fact.ZERO for s in operands]
        check_linear(full, marks, zeros)
        scale = parts[0].scale
        if any(p.op != "add" or p.scale is not scale for p in parts):
            raise Refusal("its operands are different kinds of sums over the batch")
        for atom, other in zip((*full.invars, *full.outvars), (*micro.invars, *micro.outvars)):
            if atom.aval.shape != other.aval.shape:
                raise Refusal("a sum over the batch is given back to the samples")
        self.loop.append(renamed(full, [self.atom(a) for a in full.invars], micro.outvars))
        level = max(status.level for status in operands)
        self.status.update((var, Partial("add", level, scale)) for var in full.outvars)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _one(dtype: Any) -> Any:
    one = np.ones((), dtype)
    return core.Literal(one, jax.typeof(one))


def _is_data(status: Status) -> bool:
    """Whether a value is computed before the loop, without parameters."""
    if isinstance(status, Batched):
        return status.is_whole
    if not isinstance(status, Known) or status.level or status.made == "inside":
        return False
    return status.source == "data"
