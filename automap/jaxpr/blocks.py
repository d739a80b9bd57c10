"""Blocks of a step's forward pass: repeated layers, the bodies of loops, and what lies between.

A block is what is computed again as a whole where its values are not kept
(`automap.jaxpr.rematerialize`).

    backward      an equation with `transpose(` in its name, as JAX names all that it transposes
    scan          the body of a loop whose stacked results only loops of the backward pass read
                                                            -> in: `_paired_scans`
    layers        of all other equations up to a backward one the longest run that repeats,
                  s[i] = s[i + L] for signatures s, cut in periods of L where the fewest bytes go
                  across; then the longest of what is left
                                                            -> in: `_repeats`, `_narrowest`
    the rest      one block, or sqrt(n) of them for n products   -> in: `_pieces`

Blocks of equal signatures and equal wiring are one group, with one choice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
import math
from typing import Any, Final

from jax.extend import core
import numpy as np

from automap.jax_compat import scan_split
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.plan.levers import BlockKind


_TRANSPOSED: Final = "transpose("
_PRODUCTS: Final = frozenset({"dot_general", "conv_general_dilated", "ragged_dot"})
# Distances between equal equations that are tried as periods: the most frequent ones.
_MOST_PERIODS: Final = 32
# A run of fewer equations is part of a layer, as its projections are.
_LEAST_PERIOD: Final = 8
END: Final = 1 << 60
"""Where the outputs of a flat jaxpr are read."""


@dataclass(frozen=True)
class Home:
    """A flat jaxpr with both passes in it: the step, or the body of a loop over microbatches."""

    flat: FlatJaxpr

    @cached_property
    def maker(self) -> dict[Any, int]:
        """The equation that makes a variable, by its number."""
        return {v: n for n, e in enumerate(self.flat.equations) for v in e.eqn.outvars}

    @cached_property
    def readers(self) -> dict[Any, list[int]]:
        """The equations that read a variable, in order; `END` if it is an output."""
        readers: dict[Any, list[int]] = defaultdict(list)
        for number, equation in enumerate(self.flat.equations):
            for var in variables(equation.eqn.invars):
                readers[var].append(number)
        for var in variables(self.flat.outvars):
            readers[var].append(END)
        return readers

    @cached_property
    def is_backward(self) -> list[bool]:
        """Whether each equation is of a backward pass."""
        names = (str(e.eqn.source_info.name_stack) for e in self.flat.equations)
        return [_TRANSPOSED in name for name in names]

    def is_read_forward(self, var: Any, first: int, end: int) -> bool:
        """Whether anything but a backward pass reads a variable outside of a range of equations."""
        return any(
            reader == END or not (first <= reader < end or self.is_backward[reader])
            for reader in self.readers.get(var, ())
        )


@dataclass(frozen=True)
class Block:
    """A run of `count` equations of `home` from number `first` on; of kind scan all of a body.

    `outer` is the home of the loop of a scan, and `loop` that loop's number there.
    """

    kind: BlockKind
    home: Home
    first: int
    count: int
    outer: Home | None = None
    loop: int = -1

    @property
    def site(self) -> str:
        """The site of the first equation."""
        return self.home.flat.equations[self.first].path

    @property
    def equations(self) -> Sequence[Equation]:
        """The block's equations."""
        return self.home.flat.equations[self.first : self.first + self.count]

    @property
    def carries(self) -> Sequence[Any]:
        """What a trip of a loop is given by the one before it; nothing for kind layers."""
        if self.outer is None:
            return ()
        n_consts, n_carry = scan_split(self.outer.flat.equations[self.loop].eqn)
        return self.home.flat.invars[n_consts : n_consts + n_carry]

    @cached_property
    def number(self) -> dict[Any, tuple[int, int]]:
        """(equation, result) of each variable that the block makes."""
        return {
            var: (n, j)
            for n, equation in enumerate(self.equations)
            for j, var in enumerate(equation.eqn.outvars)
            if not isinstance(var, core.DropVar)
        }

    @cached_property
    def stored(self) -> frozenset[Any]:
        """Variables that are stored in any case: read by later parts of the forward pass, or made
        by what cannot run twice.
        """
        end = self.first + self.count
        effects = {v for e in self.equations if e.eqn.effects for v in e.eqn.outvars}
        if self.outer is not None:
            return frozenset(effects)
        return frozenset(
            var
            for var in self.number
            if var in effects or self.home.is_read_forward(var, self.first, end)
        )

    @cached_property
    def residuals(self) -> frozenset[Any]:
        """Variables made here, and carries of a scan, that a backward pass reads and that need not
        be stored.
        """
        if self.outer is not None:
            return frozenset(self._stacked()) - self.stored
        return frozenset(
            var
            for var in self.number
            if var not in self.stored
            and any(r != END and self.home.is_backward[r] for r in self.home.readers.get(var, ()))
        )

    def _stacked(self) -> Iterator[Any]:
        """What a loop stacks for backward loops alone."""
        assert self.outer is not None  # noqa: S101 - the caller has asked
        loop = self.outer.flat.equations[self.loop].eqn
        carries = scan_split(loop)[1]
        for stacked, var in zip(loop.outvars[carries:], self.home.flat.outvars[carries:]):
            if not isinstance(var, core.Literal) and is_for_backward(self.outer, stacked):
                yield var


@dataclass(frozen=True)
class BlockGroup:
    """Blocks that compute the same of different values, in program order."""

    blocks: tuple[Block, ...]

    @property
    def runs(self) -> int:
        """How often one of them runs in a step."""
        return sum(block.home.flat.trip_count for block in self.blocks)

    @cached_property
    def residuals(self) -> frozenset[tuple[int, int]]:
        """(equation, result) of what a backward pass reads of any of the blocks."""
        return frozenset(
            block.number[var]
            for block in self.blocks
            for var in block.residuals
            if var in block.number
        )

    @cached_property
    def stored(self) -> frozenset[tuple[int, int]]:
        """(equation, result) of what is stored of any block in any case."""
        return frozenset(block.number[var] for block in self.blocks for var in block.stored)


def variables(atoms: Sequence[Any]) -> Iterator[Any]:
    """Those of the atoms that are variables."""
    return (atom for atom in atoms if not isinstance(atom, core.Literal))


def is_for_backward(home: Home, stacked: Any) -> bool:
    """Whether only loops of a backward pass read what a loop has stacked, slice by slice."""
    readers = home.readers.get(stacked, ())
    for reader in set(readers):
        eqn = None if reader == END else home.flat.equations[reader].eqn
        if eqn is None or not home.is_backward[reader] or eqn.primitive.name != "scan":
            return False
        if stacked in set(variables(eqn.invars[: sum(scan_split(eqn))])):
            return False
    return bool(readers)


def block_groups(flat: FlatJaxpr) -> list[BlockGroup]:
    """All blocks of a step that a backward pass reads something of, in program order."""
    blocks = [block for home in _homes(flat) for block in _blocks(home)]
    groups: dict[Any, list[Block]] = defaultdict(list)
    for block in blocks:
        groups[_wiring(block)].append(block)
    made = (BlockGroup(tuple(same)) for same in groups.values())
    return [group for group in made if group.residuals]


def _homes(flat: FlatJaxpr) -> Iterator[Home]:
    home = Home(flat)
    if any(home.is_backward):
        yield home
    for equation in flat.equations:
        for body in equation.bodies if equation.eqn.primitive.name == "scan" else ():
            yield from _homes(body.flat)


def _blocks(home: Home) -> Iterator[Block]:
    paired = _paired_scans(home)
    for first, end in _forward_runs(home):
        taken: list[tuple[int, int]] = []
        for start, period, count in _repeats(home, first, end):
            taken += [(start + k * period, start + (k + 1) * period) for k in range(count)]
        inside = {n for a, b in taken for n in range(a, b)}
        # A loop within a layer is computed again with it; of any other its body is a block.
        loops = [n for n in paired if first <= n < end and n not in inside]
        free = _gaps(first, end, sorted([*taken, *((n, n + 1) for n in loops)]))
        pieces = [piece for start, stop in free for piece in _pieces(home, start, stop)]
        for start, stop in (*taken, *pieces):
            yield Block("layers", home, start, stop - start)
        for number in loops:
            (body,) = home.flat.equations[number].bodies
            inner = Home(body.flat)
            yield Block("scan", inner, 0, len(body.flat.equations), home, number)


def _paired_scans(home: Home) -> list[int]:
    """Loops of a forward pass that stack something for a backward one."""
    return [
        number
        for number, equation in enumerate(home.flat.equations)
        if equation.eqn.primitive.name == "scan"
        and not home.is_backward[number]
        and equation.bodies[0].flat.equations
        and any(
            is_for_backward(home, var)
            for var in equation.eqn.outvars[scan_split(equation.eqn)[1] :]
        )
    ]


def _forward_runs(home: Home) -> Iterator[tuple[int, int]]:
    """Ranges of equations without backward ones between them, if they have products or loops."""
    first = None
    for number, backward in enumerate([*home.is_backward, True]):
        if first is None and not backward:
            first = number
        if first is not None and backward:
            if any(is_heavy(e) for e in home.flat.equations[first:number]):
                yield first, number
            first = None


def is_heavy(equation: Equation) -> bool:
    """Whether an equation is a product or has a body."""
    return equation.eqn.primitive.name in _PRODUCTS or bool(equation.bodies)


def _repeats(home: Home, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(first equation, period, count) of what repeats, the longest run first."""
    todo = [(first, end)]
    numbers: dict[str, int] = {}
    texts = (_signature(e) for e in home.flat.equations[first:end])
    signatures = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    while todo:
        start, stop = todo.pop()
        best = _longest_repeat(home, signatures[start - first : stop - first], start)
        if best is None:
            continue
        at, period, length = best
        # Equations that are computed only once stand at the ends.
        begin = _narrowest(home, at, period, length)
        count = (at + length - begin) // period
        yield begin, period, count
        todo += [(start, begin), (begin + count * period, stop)]


def _longest_repeat(home: Home, signatures: np.ndarray, start: int) -> tuple[int, int, int] | None:
    """(first equation, period, length) of the longest run with s[i] = s[i + period]."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for index, signature in enumerate(signatures.tolist()):
        if signature in last:
            distances[index - last[signature]] += 1
        last[signature] = index
    best: tuple[int, int, int] | None = None
    for period, _ in sorted(distances.most_common(_MOST_PERIODS)):
        if period < _LEAST_PERIOD:
            continue
        same = np.concatenate([[0], signatures[:-period] == signatures[period:], [0]]).astype(int)
        edges = np.flatnonzero(np.diff(same))
        for begin, stop in zip(edges[::2].tolist(), edges[1::2].tolist()):
            length = stop - begin + period
            heavy = home.flat.equations[start + begin : start + begin + period]
            is_layer = stop - begin >= period and any(map(is_heavy, heavy))
            # Of runs of equal length the shorter period: two layers are a period too.
            if is_layer and (best is None or length > best[2]):
                best = start + begin, period, length
    return best


def _narrowest(home: Home, at: int, period: int, length: int) -> int:
    """Where the first period begins, so that the fewest bytes go from one to the next."""
    slack = min(period, length - 2 * period + 1)
    crossing = _crossing_bytes(home, at, at + length)
    return at + int(np.argmin(crossing[: max(slack, 1)]))


def _crossing_bytes(home: Home, first: int, end: int) -> np.ndarray:
    """Before each equation of a range, the bytes that the equations before it hand on to those
    after it.
    """
    change = np.zeros(end - first + 1)
    for number in range(max(first - (end - first), 0), end):
        for var in home.flat.equations[number].eqn.outvars:
            readers = [r for r in home.readers.get(var, ()) if r < end and not home.is_backward[r]]
            last = max(readers, default=number)
            if last > number and last >= first:
                change[max(number + 1 - first, 0)] += n_bytes(var)
                change[last + 1 - first] -= n_bytes(var)
    return np.cumsum(change)[:-1]


def _gaps(first: int, end: int, taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at = first
    for start, stop in [*taken, (end, end)]:
        if start > at:
            yield at, start
        at = stop


def _pieces(home: Home, first: int, end: int) -> Iterator[tuple[int, int]]:
    """What does not repeat, in sqrt(n) pieces of as many of its n products, cut where little goes
    across.
    """
    heavy = [n for n in range(first, end) if is_heavy(home.flat.equations[n])]
    count = max(math.isqrt(len(heavy)), 1)
    crossing = _crossing_bytes(home, first, end)
    at = first
    for piece in range(1, count):
        low, high = (
            heavy[(2 * piece - 1) * len(heavy) // (2 * count)],
            heavy[min((2 * piece + 1) * len(heavy) // (2 * count), len(heavy) - 1)],
        )
        cut = low + int(np.argmin(crossing[low - first : high - first + 1]))
        if cut > at:
            yield at, cut
            at = cut
    yield at, end


def _wiring(block: Block) -> Any:
    """What blocks of one group have in common: signatures, and which results each equation
    reads.
    """
    rows = [
        (
            _signature(equation),
            *(
                None if isinstance(a, core.Literal) else block.number.get(a)
                for a in equation.eqn.invars
            ),
        )
        for equation in block.equations
    ]
    return block.kind, block.home.flat.trip_count, tuple(rows)


def n_bytes(var: Any) -> int:
    """Bytes of a whole array; 0 of what is none."""
    aval = var.aval
    try:
        return math.prod(aval.shape) * aval.dtype.itemsize
    except (AttributeError, TypeError):
        return 0


def _signature(equation: Equation) -> str:
    """What tells an equation's work: primitive, shapes and types, and which dimensions it
    contracts; not which slices it takes.
    """
    eqn = equation.eqn
    avals = [getattr(a.aval, "str_short", lambda: "")() for a in (*eqn.invars, *eqn.outvars)]
    return f"{eqn.primitive.name} {len(eqn.invars)} {avals} {eqn.params.get('dimension_numbers')}"
