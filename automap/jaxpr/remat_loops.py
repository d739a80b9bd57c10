"""Loops whose backward pass computes again what the forward loop does not stack.

    forward     y, keeps = scan(body)            without the stack of d, with those of what is kept
    backward    scan(d' = f(keeps);  ...)        d again in each trip

What a trip of the backward loop needs of the forward one's it reads as that did: constants and
slices are given to it too, carries are stacked                              -> in: `Loop.source`
What waits in the host's memory is put there in its trip, stacked there, and brought back in the
trip that reads it                                       -> in: `Loop.forward`, `_BackwardBody`
Each loop's kernels may want its dimensions in another order. XLA:TPU brings the whole stack back
between the loops to turn it around, so it is told one order for both; XLA:GPU turns none, but does
if it is told one (measured: docs/reports/levers.md)            -> in: `_ordered`, `_host_order`
The order of a stack is taken for what it is made of too, whose own stack on the device would be
turned then: so of such a loop all stacks of three dimensions and more in a trip have one
                                                  -> in: `Loop.ordered`, `_BackwardBody._read`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, permutations
import math
from typing import Any, Final

import jax
from jax import lax, memory
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp

from automap.jax_compat import open_jaxpr, rebuild_jaxpr, scan_split, shape_in_memory
from automap.jaxpr.again import Again, Choice, HostStacks, is_var
from automap.jaxpr.blocks import Home, is_for_backward, variables
from automap.jaxpr.flatten import FlatJaxpr


_TILE: Final = (8, 128)
"""A TPU rounds the last two dimensions of an array in memory up to multiples of these."""
_MOST_LENGTHENING: Final = 1.5
_FEWEST_DIMS: Final = 3
"""Of what is stacked on the device: vectors and matrices are small."""


class Loop:
    """A forward loop that stacks what is chosen, and the backward loops that compute the rest
    again.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._body = choice.block.home.flat
        self._loop = choice.block.outer.flat.equations[choice.block.loop].eqn  # type: ignore[union-attr]
        self._n_consts, self._n_carry = scan_split(self._loop)
        # The stack of each variable of the body that the backward loops read.
        self._stacks: dict[Any, Any] = {}
        self.readers: dict[int, Any] = {}

    def prepare(self, readers: Sequence[int], home: Home) -> None:
        """Rewrite the bodies of the backward loops, which says what has to be stacked."""
        stacked = zip(
            self._loop.outvars[self._n_carry :], self._body.outvars[self._n_carry :], strict=True
        )
        self._stacked = dict(stacked)
        self._dropped = {
            stack: var
            for stack, var in self._stacked.items()
            if is_var(var)
            and (self._choice.is_dropped(var) or var in self._choice.hosted)
            and is_for_backward(home, stack)
        }
        kept = [(s, v) for s, v in self._stacked.items() if s not in self._dropped and is_var(v)]
        self._stacks = {v: s for s, v in kept if not isinstance(s, core.DropVar)}
        self._added: list[Any] = []
        for number in readers:
            (body,) = home.flat.equations[number].bodies
            eqn = home.flat.equations[number].eqn
            if any(v in self._dropped for v in variables(eqn.invars)):
                self.readers[number] = _BackwardBody(self, body.flat, eqn)

    def stack(self, var: Any) -> Any:
        """The stack of a variable of the body, which is made if there is none."""
        if var not in self._stacks:
            length = self._loop.params["length"]
            space = memory.Space.Host if var in self._choice.hosted else memory.Space.Device

            def stacked(x: Any) -> Any:
                return jax.device_put(jnp.broadcast_to(x, (length, *x.shape)), space)

            self._stacks[var] = core.Var(
                jax.make_jaxpr(stacked)(shape_in_memory(var.aval)).out_avals[0]
            )
            self._added.append(var)
        return self._stacks[var]

    def source(self, var: Any) -> tuple[str, Any]:
        """Where a backward loop reads what a trip read from outside: (constant or slice, the
        array).
        """
        if var in self._body.invars:
            position = self._body.invars.index(var)
            if position < self._n_consts:
                return "constant", self._loop.invars[position]
            if position >= self._n_consts + self._n_carry:
                return "slice", self._loop.invars[position]
        return "slice", self.stack(var)

    @property
    def choice(self) -> Choice:
        """What is kept of the body."""
        return self._choice

    @property
    def dropped(self) -> Mapping[Any, Any]:
        """Stacks that are not made any more, with the variable of the body that each was of."""
        return self._dropped

    @property
    def ordered(self) -> Mapping[Any, Any]:
        """Of what the device stacks beside values on the host that whose order of dimensions is
        said: the stack of each variable.
        """
        hosted = self._choice.hosted
        return {
            var: stack
            for var, stack in self._stacks.items()
            if hosted and var not in hosted and len(var.aval.shape) >= _FEWEST_DIMS
        }

    def forward(self, eqn: Any) -> Iterator[Any]:
        """The forward loop with its new stacks."""
        n_carry = self._n_carry
        left = [
            (stack, var)
            for stack, var in zip(eqn.outvars[n_carry:], self._body.outvars[n_carry:])
            if stack not in self._dropped
        ]
        choice = self._choice
        stores = {v: _stored(v, choice.host_stacks) for v in self._added if v in choice.hosted}
        stores |= {
            var: ordered for var in self.ordered if (ordered := _ordered(var, choice.host_stacks))
        }
        stacked = [
            stores[v][-1].outvars[0] if is_var(v) and v in stores else v
            for v in (*(v for _, v in left), *self._added)
        ]
        outvars = [*self._body.outvars[:n_carry], *stacked]
        body = rebuild_jaxpr(
            self._body.original,
            self._body.constvars,
            self._body.consts,
            outvars,
            [*(e.eqn for e in self._body.equations), *chain.from_iterable(stores.values())],
        )
        results = [*eqn.outvars[:n_carry], *(s for s, _ in left)]
        results += [self._stacks[var] for var in self._added]
        yield from _scan(eqn, body, self._body.invars, eqn.invars, results)

    def backward(self, number: int, eqn: Any) -> Iterator[Any]:
        """A backward loop that computes again what is not stacked."""
        return self.readers[number].emit(eqn)


class _BackwardBody:
    """The body of a backward loop, with values of the forward body computed again."""

    def __init__(self, loop: Loop, body: FlatJaxpr, eqn: Any) -> None:
        self._body, self._eqn = body, eqn
        self._n_consts, self._n_carry = scan_split(eqn)
        # The array outside -> the variable inside, of constants and of slices.
        self._given: dict[str, dict[Any, Any]] = {"constant": {}, "slice": {}}
        for outer, inner in zip(eqn.invars[self._slices :], body.invars[self._slices :]):
            if is_var(outer) and outer not in loop.dropped:
                self._given["slice"].setdefault(outer, inner)
        for outer, inner in zip(eqn.invars[: self._n_consts], body.invars[: self._n_consts]):
            if is_var(outer):
                self._given["constant"].setdefault(outer, inner)
        known = {kind: set(given) for kind, given in self._given.items()}
        # By the variable inside: where its body needs it, the forward one's is computed again.
        wanted = {
            inner: loop.dropped[outer]
            for outer, inner in zip(eqn.invars, body.invars)
            if is_var(outer) and outer in loop.dropped
        }
        self._eqns = list(self._rewritten(loop, wanted))
        self._read(loop)
        self._new = {
            kind: [(o, i) for o, i in given.items() if o not in known[kind]]
            for kind, given in self._given.items()
        }
        self._left = [n for n, var in enumerate(body.invars) if var not in wanted]

    @property
    def _slices(self) -> int:
        return self._n_consts + self._n_carry

    def _rewritten(self, loop: Loop, wanted: Mapping[Any, Any]) -> Iterator[Any]:
        again = Again(loop.choice)
        for equation in self._body.equations:
            eqn = equation.eqn
            for inner in dict.fromkeys(variables(eqn.invars)):
                if inner in wanted:
                    yield from self._made_again(loop, again, wanted[inner])
            yield eqn.replace(
                invars=[
                    again.now[wanted[a]] if is_var(a) and a in wanted else a for a in eqn.invars
                ]
            )
        # A result that is such a value as it is: there is nothing that reads it before.
        for var in variables(self._body.outvars):
            if var in wanted:
                yield from self._made_again(loop, again, wanted[var])
        self._outvars = [
            again.now[wanted[a]] if is_var(a) and a in wanted else a for a in self._body.outvars
        ]

    def _read(self, loop: Loop) -> None:
        """Have stacks on the device read in the order in which they were made."""
        stacks = set(loop.ordered.values())
        slices = [inner for outer, inner in self._given["slice"].items() if outer in stacks]
        ordered = {inner: _ordered(inner, loop.choice.host_stacks) for inner in slices}
        now = {inner: eqns[-1].outvars[0] for inner, eqns in ordered.items() if eqns}
        self._eqns = [
            *chain.from_iterable(ordered.values()),
            *(e.replace(invars=[_now(a, now) for a in e.invars]) for e in self._eqns),
        ]
        self._outvars = [_now(a, now) for a in self._outvars]

    def _made_again(self, loop: Loop, again: Again, var: Any) -> Iterator[Any]:
        """The equations that make a variable of the forward body, or bring it back."""
        if var in again.now:
            return
        numbers, outside = again.needed(var)
        for given in outside:
            here = self._inside(loop, given)
            if given in loop.choice.hosted:
                load = _loaded(here, loop.choice.host_stacks)
                yield from load
                (here,) = load[-1].outvars
            again.now[given] = here
        yield from again.emit(numbers)

    def _inside(self, loop: Loop, var: Any) -> Any:
        flat = loop.choice.block.home.flat
        if var in flat.constvars:
            value = flat.consts[flat.constvars.index(var)]
            return core.Literal(value, var.aval)
        kind, outer = loop.source(var)
        if isinstance(outer, core.Literal):
            return core.Literal(outer.val, var.aval)
        choice = loop.choice
        is_there = var in choice.hosted
        aval = _stored(var, choice.host_stacks)[-1].outvars[0].aval if is_there else var.aval
        return self._given[kind].setdefault(outer, core.Var(aval))

    def emit(self, eqn: Any) -> Iterator[Any]:
        """The loop; `eqn` is it with the operands of now."""
        constants, slices = self._new["constant"], self._new["slice"]
        own = [(eqn.invars[n], self._body.invars[n]) for n in self._left]
        first = sum(n < self._n_consts for n in self._left)
        pairs = [*own[:first], *constants, *own[first:], *slices]
        invars = [inner for _, inner in pairs]
        body = rebuild_jaxpr(
            self._body.original,
            self._body.constvars,
            self._body.consts,
            self._outvars,
            self._eqns,
            invars,
        )
        n_consts = first + len(constants)
        yield from _scan(
            eqn, body, invars, [outer for outer, _ in pairs], eqn.outvars, n_consts, self._n_carry
        )


def _stored(var: Any, stacks: HostStacks) -> tuple[Any, ...]:
    """The equations that make a variable's copy in the host's memory."""
    ordered = _ordered(var, stacks)
    last = ordered[-1].outvars[0] if ordered else var
    return *ordered, _equation(lambda x: jax.device_put(x, memory.Space.Host), last)


def _loaded(var: Any, stacks: HostStacks) -> tuple[Any, ...]:
    """The equations that bring such a copy back, as it was stored."""
    load = _equation(lambda x: jax.device_put(x, memory.Space.Device), var)
    return load, *_ordered(load.outvars[0], stacks)


def _ordered(var: Any, stacks: HostStacks) -> tuple[Any, ...]:
    """The equation that says the order of a variable's dimensions, if it is said."""
    # Typed keys have dimensions that their shape does not show.
    if stacks == "any order" or jnp.issubdtype(var.aval.dtype, jax.dtypes.extended):
        return ()
    order = Layout(_host_order(var.aval.shape))
    return (_equation(lambda x: with_layout_constraint(x, order), var),)


def _host_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Dimensions from major to minor of what waits in the host's memory: as they are, unless a
    TPU's tiles then have over half as many gaps as numbers, and else in the order of fewest gaps.
    """
    own = tuple(range(len(shape)))
    if len(shape) < len(_TILE) or _in_tiles(shape, own) <= _MOST_LENGTHENING * math.prod(shape):
        return own
    # Of equal ones the later dimensions: batches, which plans split, are the first.
    pairs = permutations(reversed(own), len(_TILE))
    minor = min(pairs, key=lambda last: _in_tiles(shape, last))
    return (*(n for n in own if n not in minor), *minor)


def _in_tiles(shape: Sequence[int], order: Sequence[int]) -> int:
    """Numbers of an array whose last dimensions in an order are rounded up to tiles."""
    minor = dict(zip(order[-len(_TILE) :], _TILE, strict=True))
    return math.prod(math.ceil(n / minor.get(d, 1)) * minor.get(d, 1) for d, n in enumerate(shape))


def _now(atom: Any, now: Mapping[Any, Any]) -> Any:
    return now.get(atom, atom) if is_var(atom) else atom


def _equation(function: Callable[[Any], Any], var: Any) -> Any:
    """The one equation of a function of a variable, whose result is a variable of its own."""
    traced = jax.make_jaxpr(function)(shape_in_memory(var.aval))
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn.replace(invars=[var], outvars=[core.Var(traced.out_avals[0])])


def _scan(
    eqn: Any,
    body: Any,
    inner: Sequence[Any],
    operands: Sequence[Any],
    results: Sequence[Any],
    n_consts: int | None = None,
    n_carry: int | None = None,
) -> Iterator[Any]:
    """A loop like `eqn` with another body, operands and results; `inner` are the body's own."""
    if n_consts is None or n_carry is None:
        n_consts, n_carry = scan_split(eqn)
    length, run = eqn.params["length"], jaxpr_as_fun(body)

    def loop(constants: list[Any], carry: list[Any], slices: list[Any]) -> Any:
        def trip(carry: list[Any], here: list[Any]) -> tuple[list[Any], list[Any]]:
            made = run(*constants, *carry, *here)
            return list(made[:n_carry]), list(made[n_carry:])

        given = {
            name: eqn.params[name]
            for name in ("reverse", "unroll", "_split_transpose")
            if name in eqn.params
        }
        return lax.scan(trip, carry, slices, length=length, **given)

    shapes = [shape_in_memory(var.aval) for var in inner[: n_consts + n_carry]]
    shapes += [shape_in_memory(atom.aval) for atom in operands[n_consts + n_carry :]]
    traced = jax.make_jaxpr(loop)(
        shapes[:n_consts], shapes[n_consts : n_consts + n_carry], shapes[n_consts + n_carry :]
    )
    jaxpr, consts = open_jaxpr(traced)
    now = dict(zip(jaxpr.invars, operands, strict=True))
    now.update(
        zip(jaxpr.constvars, (core.Literal(v, c.aval) for c, v in zip(jaxpr.constvars, consts)))
    )
    made = dict(zip(jaxpr.outvars, results, strict=True))
    for new in jaxpr.eqns:
        yield new.replace(
            invars=[a if isinstance(a, core.Literal) else now.get(a, a) for a in new.invars],
            outvars=[made.get(v, v) for v in new.outvars],
            source_info=eqn.source_info,
        )
