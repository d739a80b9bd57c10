"""A step that computes values of its forward pass again in its backward pass, instead of keeping
them.

Of each block (`automap.jaxpr.blocks`) some values are kept. Where the backward pass reads another
one, d, the equations that d is made of are emitted again, from what is kept, what the block is
given, and what the forward pass has stored in any case:

    run of equations    x', g' = barrier(x, g);  d' = f(x')    g a gradient that is there already
    loop                forward   y, keeps = scan(body)        without the stack of d
                        backward  scan(d' = f(keeps);  ...)    d again in each trip

So what is computed again waits for the backward pass to come there, and XLA does not take both for
one. What passes a barrier is in memory: of the gradient that is read, and those that it alone is
made of, g is the one with the fewest bytes             -> in: `_Emitter._smallest_gradient`
Every equation keeps its primitive and parameters: numbers are those of the step itself, as far as
the compiler fuses alike. What the user's own `jax.checkpoint` does is left as it is: it is one
equation among the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr, rebuild_jaxpr, scan_split, shape_in_memory
from automap.jaxpr.accumulate import accumulated
from automap.jaxpr.again import Again, Choice, HostStacks, is_var
from automap.jaxpr.blocks import (
    END,
    Block,
    Home,
    is_for_backward,
    is_heavy,
    n_bytes,
    variables,
)
from automap.jaxpr.flatten import FlatJaxpr, equations, flatten
from automap.jaxpr.remat_loops import Loop
from automap.plan.levers import CARRY, LeversRecord
from automap.step.call import TracedCall
from hlo_tools.rules import Notation


def levered_call(
    call: TracedCall,
    levers: LeversRecord | None,
    rules: Mapping[str, Notation],
    host_stacks: HostStacks,
) -> TracedCall:
    """A call as a plan's levers change it, for a backend with `host_stacks`; one that has them
    already is handed on.

    Whatever plans, checks, compiles or runs a step takes the levered call for it, so that its
    places count the equations that run. Raises `PlanError` for a step that does not have the blocks
    that the plan names, `NotSeparableError` for one that cannot be run in its microbatches.
    """
    done = call.levers
    if levers is None or done == levers:
        return call
    # What is offloaded changes no equation.
    if done is not None and _equations(done) == _equations(levers):
        return replace(call, levers=levers)
    jaxpr = _in_microbatches(call, levers.microbatches)
    if levers.remat:
        jaxpr = with_levers(flatten(jaxpr, rules), levers, host_stacks)
    return replace(call, jaxpr=jaxpr, levers=levers, plain_jaxpr=call.own_jaxpr)


def _equations(levers: LeversRecord) -> tuple[object, ...]:
    return levers.remat, levers.microbatches


def _in_microbatches(call: TracedCall, microbatches: int) -> Any:
    own = call.own_jaxpr
    if microbatches == 1:
        return own
    done = call.levers
    if done is not None and done.microbatches == microbatches and not done.remat:
        return call.jaxpr
    plain = replace(call, jaxpr=own, levers=None, plain_jaxpr=None)
    return accumulated(plain, microbatches)


def with_levers(flat: FlatJaxpr, levers: LeversRecord, host_stacks: HostStacks) -> Any:
    """The closed jaxpr of a step, in a plan's microbatches already, with its other levers. Raises
    `PlanError` for a step that does not have the blocks.
    """
    return rematerialized(flat, read_choices(flat, levers, host_stacks))


def read_choices(flat: FlatJaxpr, levers: LeversRecord, host_stacks: HostStacks) -> list[Choice]:
    """The blocks of a step that a plan's record names. Raises `PlanError` if it has none such."""
    places: dict[str, tuple[FlatJaxpr, int]] = {}
    loops: dict[str, tuple[FlatJaxpr, int]] = {}
    for home in _all_flat(flat):
        for number, equation in enumerate(home.equations):
            places[equation.path] = home, number
            loops.update({body.flat.name: (home, number) for body in equation.bodies})
    homes: dict[int, Home] = {}

    def home_at(flat: FlatJaxpr) -> Home:
        return homes.setdefault(id(flat), Home(flat))

    choices = []
    for group in levers.remat:
        for site in group.blocks:
            inner, first = places.get(site, (flat, len(flat.equations)))
            if first + group.equations > len(inner.equations):
                raise _no_block(site, group.equations)
            home, outer, loop = home_at(inner), None, -1
            if group.kind == "scan":
                around = loops.get(inner.name)
                is_whole = first == 0 and group.equations == len(inner.equations)
                if around is None or not is_whole or _loop_name(around) != "scan":
                    raise _no_block(site, group.equations)
                outer, loop = home_at(around[0]), around[1]
            block = Block(group.kind, home, first, group.equations, outer, loop)
            kept, hosted = (
                frozenset(_kept(block, [k.place for k in rows]))
                for rows in (group.kept, [k for k in group.kept if k.memory == "host"])
            )
            choices.append(Choice(block, kept, hosted, host_stacks))
    _check_apart(choices)
    return choices


def _all_flat(flat: FlatJaxpr) -> Iterator[FlatJaxpr]:
    yield flat
    for equation in equations(flat):
        for body in equation.bodies:
            yield body.flat


def _loop_name(place: tuple[FlatJaxpr, int]) -> str:
    flat, number = place
    return flat.equations[number].eqn.primitive.name


def _no_block(site: str, count: int) -> PlanError:
    return PlanError(
        f"levers.remat: the step has no block of {count} equations at {site}; its code or the "
        "version of JAX has changed: plan again"
    )


def _kept(block: Block, places: Sequence[tuple[int, int]]) -> Iterator[Any]:
    var_at: dict[tuple[int, int], Any] = {place: var for var, place in block.number.items()}
    var_at |= {(CARRY, number): var for number, var in enumerate(block.carries)}
    for place in places:
        if place not in var_at:
            raise PlanError(
                f"levers.remat: equation {place[0]} of the block at {block.site} has no result "
                f"{place[1]}; plan again"
            )
        yield var_at[place]


def _check_apart(choices: Sequence[Choice]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for choice in choices:
        block = choice.block
        for number in range(block.first, block.first + block.count):
            other = taken.setdefault((id(block.home.flat), number), block.site)
            if other != block.site:
                raise PlanError(f"levers.remat: the blocks at {other} and {block.site} overlap")


def rematerialized(flat: FlatJaxpr, choices: Sequence[Choice]) -> Any:
    """The closed jaxpr of a step that keeps of each block what is chosen."""
    eqns = _Emitter(flat, choices).emit()
    return rebuild_jaxpr(flat.original, flat.constvars, flat.consts, flat.outvars, eqns)


class _Emitter:
    """The equations of one flat jaxpr, its blocks' values computed again in backward ones."""

    def __init__(self, flat: FlatJaxpr, choices: Sequence[Choice]) -> None:
        self._flat, self._choices = flat, choices
        self._home = Home(flat)
        own = [c for c in choices if c.block.outer is None and c.block.home.flat is flat]
        self._by_var = {
            var: again
            for choice in own
            for again in [Again(choice)]
            for var in choice.block.number
            if choice.is_dropped(var)
        }
        # What stands for a variable from here on: behind a barrier it is another one.
        self._now: dict[Any, Any] = {}
        self._gradient: Any = None
        self._made: list[Any] = []
        # The one of `_made` that stands for a backward equation.
        self._backward_made: dict[int, Any] = {}
        self._loops = {
            c.block.loop: Loop(c)
            for c in choices
            if c.block.outer is not None and c.block.outer.flat is flat
        }

    def emit(self) -> list[Any]:
        for number, equation in enumerate(self._flat.equations):
            eqn = self._inside(number)
            if self._home.is_backward[number]:
                gradient = self._latest_gradient(eqn)
                for var in dict.fromkeys(variables(eqn.invars)):
                    if var in self._by_var:
                        self._emit_again(var, gradient, number)
                self._emit_backward(number)
                floats = [v for v in equation.eqn.outvars if _is_float(v)]
                self._gradient = floats[-1] if floats else self._gradient
            elif number in self._loops:
                loop = self._loops[number]
                loop.prepare(self._readers(number), self._home)
                self._made += loop.forward(eqn)
            else:
                given = [self._now.get(a, a) if is_var(a) else a for a in eqn.invars]
                self._made.append(eqn.replace(invars=given))
        return self._made

    def _emit_backward(self, number: int) -> None:
        """A backward equation as it stands, or the loop that computes again what forward loops do
        not stack.
        """
        eqn = self._inside(number)
        eqn = eqn.replace(invars=[self._read(atom) for atom in eqn.invars])
        for loop in self._loops.values():
            if number in loop.readers:
                *before, eqn = loop.backward(number, eqn)
                self._made += before
        self._made.append(eqn)
        self._backward_made[number] = eqn

    def _inside(self, number: int) -> Any:
        """An equation with the choices in its bodies applied."""
        equation = self._flat.equations[number]
        params = dict(equation.eqn.params)
        for body in equation.bodies:
            inside = [c for c in self._choices if _root(c).startswith(f"{body.flat.name}.")]
            if not inside or isinstance(params[body.parameter], tuple):
                continue
            flat = body.flat
            params[body.parameter] = rebuild_jaxpr(
                flat.original,
                flat.constvars,
                flat.consts,
                flat.outvars,
                _Emitter(flat, inside).emit(),
            )
        return equation.eqn.replace(params=params)

    def _readers(self, number: int) -> list[int]:
        eqn = self._flat.equations[number].eqn
        stacks = eqn.outvars[scan_split(eqn)[1] :]
        return sorted(
            {r for v in stacks if is_for_backward(self._home, v) for r in self._home.readers[v]}
        )

    def _latest_gradient(self, eqn: Any) -> Any:
        """A gradient that an equation reads, else the last one before it."""
        for var in variables(eqn.invars):
            if self._is_gradient(var):
                return var
        return self._gradient

    def _smallest_gradient(self, gradient: Any, reader: int) -> tuple[Any, list[int]]:
        """(the smallest gradient that one is made of without products, the equations from it to
        that one, the last first): nothing that they make passes a barrier yet or is read before
        equation `reader`, so they can wait as well.
        """
        smallest, between, path = gradient, list[int](), list[int]()
        while True:
            maker = self._home.maker[gradient]
            equation = self._flat.equations[maker]
            made = [v for v in equation.eqn.outvars if not isinstance(v, core.DropVar)]
            readers = {r for v in made for r in self._home.readers.get(v, ())} - {END, *path}
            sources = {v for v in variables(equation.eqn.invars) if self._is_gradient(v)}
            is_held = not self._now.keys().isdisjoint(made)
            is_fixed = is_held or is_heavy(equation) or equation.eqn.effects
            if is_fixed or len(sources) != 1 or any(r < reader for r in readers):
                break
            path.append(maker)
            (gradient,) = sources
            if n_bytes(gradient) < n_bytes(smallest):
                smallest, between = gradient, list(path)
        return smallest, between

    def _is_gradient(self, var: Any) -> bool:
        """Whether a backward equation makes a number of others: zeros to add to are none."""
        maker = self._home.maker.get(var)
        if maker is None or not self._home.is_backward[maker] or not _is_float(var):
            return False
        return any(variables(self._flat.equations[maker].eqn.invars))

    def _emit_again(self, var: Any, gradient: Any, reader: int) -> None:
        again = self._by_var[var]
        numbers, outside = again.needed(var)
        if var in again.now:
            return
        given = [v for v in outside if _can_wait(v)]
        again.now.update({v: self._now.get(v, v) for v in outside})
        if given:
            waiting, between = [again.now[v] for v in given], list[int]()
            if gradient is not None:
                gradient, between = self._smallest_gradient(gradient, reader)
                waiting.append(self._now.get(gradient, gradient))
            behind = [core.Var(v.aval) for v in waiting]
            if between:
                moved = {id(self._backward_made[number]) for number in between}
                self._made = [eqn for eqn in self._made if id(eqn) not in moved]
            self._made.append(_barrier(waiting, behind))
            again.now.update(zip(given, behind))
            if gradient is not None:
                # Read from here on, or the compiler would not have to wait for it.
                self._now[gradient] = behind[-1]
            for number in reversed(between):
                self._emit_backward(number)
        self._made += again.emit(numbers)

    def _read(self, atom: Any) -> Any:
        if isinstance(atom, core.Literal):
            return atom
        again = self._by_var.get(atom)
        return self._now.get(atom, atom) if again is None else again.now[atom]


def _barrier(given: Sequence[Any], made: Sequence[Any]) -> Any:
    traced = jax.make_jaxpr(lambda *x: lax.optimization_barrier(x))(
        *(shape_in_memory(var.aval) for var in given)
    )
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn.replace(invars=list(given), outvars=list(made))


def _is_float(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    is_drop = isinstance(var, core.DropVar)
    return dtype is not None and not is_drop and jnp.issubdtype(dtype, jnp.floating)


def _can_wait(var: Any) -> bool:
    """Whether a barrier can stand before a value: typed keys and tokens have none."""
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and not jnp.issubdtype(dtype, jax.dtypes.extended)


def _root(choice: Choice) -> str:
    """The site of the equation that a choice changes first."""
    block = choice.block
    if block.outer is None:
        return block.site
    return block.outer.flat.equations[block.loop].path
