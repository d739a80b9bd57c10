"""Cutting loops between their trips, so that stages end inside them: one step's equations -> others
of the same results.

A loop over L layers that is cut after trips t_1 < t_2 < .. becomes one loop for each range of
trips, its carry handed on. What it reads and makes slice by slice (stacked parameters, what the
backward pass needs of every layer) is in *pieces* then, the same ranges of the first dimension; so
is whatever is combined with them element by element, up to the step's inputs and results:
gradients, moments, updates                                                      -> in: `_Pieces`

Every piece is a value of its own and can be on a stage of its own. Where an operation needs the
whole, pieces are joined.

    loop over [0, L)     ->  loop over [0, t_1), .., loop over [t_k, L)     -> in: `_Cutter._loop`
    x op y               ->  x[r] op y[r] for each range r           -> in: `_Cutter._elementwise`
    sum of x over layers ->  sums of x[r], added                         -> in: `_Cutter._reduced`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from jax import lax, numpy as jnp
from jax.extend import core

from automap.jax_compat import rebuild_jaxpr, scan_split
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.jaxpr.microbatch.build import emit, variables
from automap.jaxpr.microbatch.rules import ELEMENTWISE
from automap.runtime.pipeline.cuts import Cuts


Range = tuple[int, int]
_REDUCE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_sum": lax.add,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """An input or result of the cut step: of the step's own one at `leaf` the `range` of its first
    dimension, None for all.
    """

    leaf: int
    range: Range | None


@dataclass(frozen=True)
class CutJaxpr:
    """A flat jaxpr with its loops cut, and what its inputs and results are."""

    flat: FlatJaxpr
    inputs: tuple[Piece, ...]
    outputs: tuple[Piece, ...]


def cut_loops(flat: FlatJaxpr, cuts: Cuts) -> CutJaxpr:
    """The step's flat jaxpr with the loops cut that stages end in."""
    trips = {e.path: cuts.trips(int(e.path)) for e in flat.equations if _is_scan(e.eqn)}
    pieces = _Pieces()
    for equation in flat.equations:
        if trips.get(equation.path):
            length, is_reverse = equation.eqn.params["length"], equation.eqn.params["reverse"]
            # The backward loop goes from the last layer to the first: trip t is layer L - t.
            at = {length - t if is_reverse else t for t in trips[equation.path]}
            pieces.add(_stacked(equation.eqn), at - {0, length})
    if not pieces.at:
        whole = (tuple(Piece(n, None) for n in range(len(x))) for x in (flat.invars, flat.outvars))
        return CutJaxpr(flat, *whole)
    pieces.spread(flat)
    return _Cutter(flat, pieces).run()


def _is_scan(eqn: Any) -> bool:
    return eqn.primitive.name == "scan"


def _stacked(eqn: Any) -> list[Any]:
    """What a scan reads and makes slice by slice."""
    consts, carry = scan_split(eqn)
    return variables([*eqn.invars[consts + carry :], *eqn.outvars[carry:]])


def _alike(eqn: Any) -> list[Any]:
    """Of an element-by-element equation what has the result's shape; nothing of others."""
    if eqn.primitive.name not in ELEMENTWISE or len(eqn.outvars) != 1:
        return []
    # A scalar or a first dimension of 1 is read by every piece as it is.
    shape = eqn.outvars[0].aval.shape
    others = [a for a in eqn.invars if a.aval.shape != shape]
    if not shape or any(a.aval.shape[:1] not in ((), (1,)) for a in others):
        return []
    return variables([a for a in (*eqn.invars, *eqn.outvars) if a.aval.shape == shape])


@dataclass
class _Pieces:
    """Where values are cut along their first dimension, by variable."""

    at: dict[Any, set[int]] = field(default_factory=dict)

    def add(self, values: Sequence[Any], at: set[int]) -> bool:
        """Cut all of `values` also at `at`; whether that is new."""
        before = [len(self.at.get(v, ())) for v in values]
        for value in values:
            self.at.setdefault(value, set()).update(at)
        return before != [len(self.at[v]) for v in values]

    def spread(self, flat: FlatJaxpr) -> None:
        """Cut everything that is combined slice by slice with what is cut, until nothing
        changes.
        """
        groups = [_stacked(e.eqn) if _is_scan(e.eqn) else _alike(e.eqn) for e in flat.equations]
        constants = set(flat.constvars)
        # A constant stays whole, and is sliced where a piece of it is needed.
        groups = [[v for v in group if v not in constants] for group in groups]
        changed = True
        while changed:
            changed = False
            # Forwards and back: cuts spread to results and to operands, mostly in one round.
            for group in (*groups, *reversed(groups)):
                at = set[int]().union(*(self.at.get(v, ()) for v in group))
                changed |= bool(at) and self.add(group, at)

    def ranges(self, value: Any) -> list[Range]:
        """The ranges of a value's pieces, one or none if it is not cut."""
        if isinstance(value, core.Literal) or not self.at.get(value):
            return []
        return list(pairwise((0, *sorted(self.at[value]), value.aval.shape[0])))


@dataclass
class _Cutter:
    """The equations of the cut jaxpr while they are made.

    `parts` are the pieces of a value, `whole` what stands for it where it is needed in one.
    """

    flat: FlatJaxpr
    pieces: _Pieces
    parts: dict[Any, list[Any]] = field(default_factory=dict)
    whole: dict[Any, Any] = field(default_factory=dict)
    made: list[Equation] = field(default_factory=list)

    def run(self) -> CutJaxpr:
        """The cut jaxpr."""
        invars, inputs = self._ends(self.flat.invars, self._new_parts)
        for equation in self.flat.equations:
            self._equation(equation)
        last = self.flat.equations[-1] if self.flat.equations else None
        outvars, outputs = self._ends(self.flat.outvars, lambda v: self._cut(v, last))
        eqns = [equation.eqn for equation in self.made]
        flat = self.flat
        original = rebuild_jaxpr(
            flat.original, flat.constvars, flat.consts, outvars, eqns, invars=invars
        )
        done = replace(flat, original=original, equations=tuple(self.made), outvars=tuple(outvars))
        return CutJaxpr(done, tuple(inputs), tuple(outputs))

    def _ends(
        self, atoms: Sequence[Any], make_parts: Callable[[Any], list[Any]]
    ) -> tuple[list[Any], list[Piece]]:
        """Inputs or results, with what they are of the step's own."""
        new, kinds = [], []
        for number, atom in enumerate(atoms):
            ranges = self.pieces.ranges(atom)
            new += make_parts(atom) if ranges else [self._read(atom)]
            kinds += [Piece(number, r) for r in ranges] or [Piece(number, None)]
        return new, kinds

    def _new_parts(self, value: Any) -> list[Any]:
        shape = value.aval.shape
        self.parts[value] = [
            core.Var(value.aval.update(shape=(stop - start, *shape[1:])))
            for start, stop in self.pieces.ranges(value)
        ]
        return self.parts[value]

    def _read(self, atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else self.whole.get(atom, atom)

    def _needed(self, atom: Any, by: Equation) -> Any:
        """An atom in one, its pieces joined before the equation `by` if it has some."""
        if not isinstance(atom, core.Literal) and atom in self.parts and atom not in self.whole:
            (self.whole[atom],) = self._emit(lambda *x: jnp.concatenate(x), self.parts[atom], by)
        return self._read(atom)

    def _cut(self, atom: Any, by: Equation | None) -> list[Any]:
        """The pieces of a value that has some."""
        if atom not in self.parts:
            assert by is not None  # noqa: S101 - inputs have their pieces before all equations
            self.parts[atom] = [
                self._emit(lambda x, a=a, b=b: lax.slice_in_dim(x, a, b), [self._read(atom)], by)[0]
                for a, b in self.pieces.ranges(atom)
            ]
        return self.parts[atom]

    def _emit(self, function: Callable[..., Any], atoms: Sequence[Any], by: Equation) -> list[Any]:
        eqns: list[Any] = []
        outs = emit(function, atoms, eqns, by.eqn)
        self.made += [Equation(path=by.path, eqn=e, bodies=(), callers=by.callers) for e in eqns]
        return outs

    def _equation(self, equation: Equation) -> None:
        eqn = equation.eqn
        if _is_scan(eqn) and any(self.pieces.ranges(v) for v in _stacked(eqn)):
            self._loop(equation)
        elif any(self.pieces.ranges(v) for v in _alike(eqn)):
            self._elementwise(equation)
        elif eqn.primitive.name == "broadcast_in_dim" and self._is_spread(eqn):
            self._broadcast(equation)
        elif self._is_reduced(eqn):
            self._reduced(equation)
        else:
            inputs = [self._needed(atom, equation) for atom in eqn.invars]
            self.made.append(replace(equation, eqn=eqn.replace(invars=inputs)))

    def _loop(self, equation: Equation) -> None:
        eqn = equation.eqn
        n_consts, n_carry = scan_split(eqn)
        ranges = self.pieces.ranges(_stacked(eqn)[0])
        consts = [self._needed(a, equation) for a in eqn.invars[:n_consts]]
        carry = [self._needed(a, equation) for a in eqn.invars[n_consts : n_consts + n_carry]]
        stacks = [self._cut(a, equation) for a in eqn.invars[n_consts + n_carry :]]
        made = [self._new_parts(v) for v in eqn.outvars[n_carry:]]
        # In the order of trips: a reversed loop begins with its last range. `#done` in a path is
        # the number of trips up to there, as `Cuts` has it.
        order = list(enumerate(ranges))
        done = 0
        for number, (start, stop) in reversed(order) if eqn.params["reverse"] else order:
            done += stop - start
            is_last = done == eqn.params["length"]
            # The last loop makes the step's own values, so that readers need no change.
            after = [v if is_last else core.Var(v.aval) for v in eqn.outvars[:n_carry]]
            self.made.append(
                replace(
                    equation,
                    path=f"{equation.path}#{done}",
                    eqn=eqn.replace(
                        invars=[*consts, *carry, *(parts[number] for parts in stacks)],
                        outvars=[*after, *(parts[number] for parts in made)],
                        params={**eqn.params, "length": stop - start},
                    ),
                )
            )
            carry = after

    def _elementwise(self, equation: Equation) -> None:
        eqn = equation.eqn
        (result,) = eqn.outvars
        shape = result.aval.shape
        read = [
            self._cut(a, equation)
            if not isinstance(a, core.Literal) and a.aval.shape == shape
            else self._needed(a, equation)
            for a in eqn.invars
        ]
        for number, part in enumerate(self._new_parts(result)):
            inputs = [a[number] if isinstance(a, list) else a for a in read]
            self._append(equation, number, eqn.replace(invars=inputs, outvars=[part]))

    def _is_spread(self, eqn: Any) -> bool:
        """Whether a broadcast makes a value in pieces: the same in each along the first
        dimension.
        """
        (operand, *more), (result,) = eqn.invars, eqn.outvars
        dims = eqn.params["broadcast_dimensions"]
        is_same = 0 not in dims or operand.aval.shape[dims.index(0)] == 1
        return bool(self.pieces.ranges(result)) and is_same and not more

    def _broadcast(self, equation: Equation) -> None:
        eqn = equation.eqn
        inputs = [self._needed(a, equation) for a in eqn.invars]
        for number, part in enumerate(self._new_parts(eqn.outvars[0])):
            params = {**eqn.params, "shape": part.aval.shape}
            self._append(
                equation, number, eqn.replace(invars=inputs, outvars=[part], params=params)
            )

    def _is_reduced(self, eqn: Any) -> bool:
        is_cut = any(a in self.parts for a in variables(eqn.invars))
        return is_cut and eqn.primitive.name in _REDUCE and 0 in eqn.params["axes"]

    def _reduced(self, equation: Equation) -> None:
        eqn = equation.eqn
        # Piece after piece in a fixed order: sums of floats in another one would be other sums.
        (result,), total = eqn.outvars, None
        for number, part in enumerate(self.parts[eqn.invars[0]]):
            mine = core.Var(result.aval)
            self._append(equation, number, eqn.replace(invars=[part], outvars=[mine]))
            if total is None:
                total = mine
            else:
                (total,) = self._emit(_REDUCE[eqn.primitive.name], [total, mine], equation)
        self.whole[result] = total

    def _append(self, equation: Equation, number: int, eqn: Any) -> None:
        self.made.append(replace(equation, path=f"{equation.path}#{number + 1}", eqn=eqn))
