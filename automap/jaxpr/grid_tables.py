"""What a kernel of Pallas computes of its place in the grid: scalars as tables over the grid, and
its body read with them.

A scalar that follows from the indices of the grid alone is a table with an axis for each of the
grid's, of size one along those it does not depend on: i // 4 on the second axis of three is
[1, n, 1]. What depends on data has no table, which is None            -> in: `GridTables.results`

As the index of a block a table is read as a number of mixed radix, each digit of one axis, their
strides filling all blocks                                             -> in: `block_digits`

    index = sum over digits of  stride * ((program // low) % size)

A body is walked once for two questions. What it *reads* of the grid are the tables that reach
something else than scalars: an address, a mask, the predicate of a branch. Its *products* count

    2 M N K of each  *  programs that come there  *  trips of the loops around it

where a branch whose predicate has a table is taken by as many programs as the table says (a causal
kernel leaves out what is masked), and a loop from a to b runs b - a times  -> in: `GridTables`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import Any, Final, TypeAlias

from jax.extend import core
import numpy as np

from automap.jax_compat import open_jaxpr, scan_split


Table: TypeAlias = np.ndarray | None

_MOST_ENTRIES: Final = 1 << 22
"""Larger tables are not made: a kernel reads of few axes at once."""


def _divided(x: Any, y: Any) -> Any:
    # XLA's division of integers is towards zero, and by zero it is something.
    by = np.where(y == 0, 1, y)
    return np.sign(x) * np.sign(by) * (np.abs(x) // np.abs(by))


def _selected(which: Any, *cases: Any) -> Any:
    return np.select([which == n for n in range(len(cases))], cases)


_SCALARS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "convert_element_type": lambda x: x,
    "copy": lambda x: x,
    "div": _divided,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": lambda x: np.logical_not(x) if x.dtype == bool else np.invert(x),
    "or": np.bitwise_or,
    "pvary": lambda x: x,
    "rem": lambda x, y: np.fmod(x, np.where(y == 0, 1, y)),
    "select_n": _selected,
    "sign": np.sign,
    "squeeze": lambda x: x,
    "stop_gradient": lambda x: x,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}
_CALLS: Final = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(frozen=True, slots=True, order=True)
class GridFactor:
    """The digit (program // low) % size of an axis of the grid."""

    axis: int
    low: int
    size: int


Digit: TypeAlias = tuple[int, GridFactor]
"""A stride in blocks, and what of the grid counts it."""


@dataclass(slots=True)
class GridTables:
    """Walks jaxprs over a grid of these sizes, 0 for one that is known at run time.

    `body_axes` are the axes that `program_id` counts; `predicates` those of branches, by the id of
    their equation.
    """

    sizes: tuple[int, ...]
    body_axes: tuple[int, ...]
    read: list[np.ndarray] = field(default_factory=list)
    read_axes: set[int] = field(default_factory=set)
    flops: float = 0.0
    is_counted: bool = True
    predicates: dict[int, Table] = field(default_factory=dict)

    def index(self, axis: int) -> Table:
        """The index along an axis; None, and the axis is read, if its size is not known."""
        size = self.sizes[axis]
        if not 0 < size <= _MOST_ENTRIES:
            self.read_axes.add(axis)
            return None
        return np.arange(size).reshape([size if a == axis else 1 for a in range(len(self.sizes))])

    def results(
        self, jaxpr: Any, arguments: Sequence[Table], runs: np.ndarray | float = 1.0
    ) -> list[Table]:
        """The tables of a jaxpr's results; `runs` is how often each program comes here."""
        inner, consts = open_jaxpr(jaxpr)
        tables: dict[Any, Table] = dict(zip(inner.invars, arguments))
        tables |= {v: _constant(c) for v, c in zip(inner.constvars, consts)}

        def table(atom: Any) -> Table:
            return _constant(atom.val) if isinstance(atom, core.Literal) else tables.get(atom)

        for eqn in inner.eqns:
            made = self._equation(eqn, [table(atom) for atom in eqn.invars], runs)
            tables.update(zip(eqn.outvars, made))
        return [table(atom) for atom in inner.outvars]

    def _equation(self, eqn: Any, operands: list[Table], runs: Any) -> Sequence[Table]:
        name = eqn.primitive.name
        if name in ("program_id", "num_programs"):
            axis = self.body_axes[eqn.params["axis"]]
            if name == "program_id":
                return [self.index(axis)]
            # How many there are is another number on each device.
            self.read_axes.add(axis)
            return [None]
        scalar = _SCALARS.get(name)
        known = [x for x in operands if x is not None]
        if scalar is not None and len(known) == len(operands) and not eqn.outvars[0].aval.shape:
            shape = np.broadcast_shapes(*(x.shape for x in known))
            if math.prod(shape) <= _MOST_ENTRIES:
                return [scalar(*known)]
        handler = _HIGHER_ORDER.get(name)
        if handler is not None:
            return handler(self, eqn, operands, runs)
        called = next((eqn.params[p] for p in _CALLS if p in eqn.params), None)
        if called is not None and len(open_jaxpr(called)[0].invars) == len(operands):
            return self.results(called, operands, runs)
        if called is not None:
            self.results(called, [None] * len(open_jaxpr(called)[0].invars), runs)
        self._note_read(operands)
        if name == "dot_general":
            self._add(_product_flops(eqn), runs)
        return [None] * len(eqn.outvars)

    def _note_read(self, operands: Sequence[Table]) -> None:
        self.read += [x for x in operands if x is not None and x.size > 1]

    def _add(self, flops: float, runs: Any) -> None:
        # A mean over the axes that the runs depend on is one over the whole grid.
        self.flops += flops * float(np.mean(runs)) * math.prod(size or 1 for size in self.sizes)
        self.is_counted &= all(self.sizes)

    def cond(self, eqn: Any, operands: list[Table], runs: Any) -> Sequence[Table]:
        """Each branch by as many programs as take it; of an unknown predicate by all."""
        which, *rest = operands
        self._note_read([which])
        self.predicates[id(eqn)] = which
        before = self.flops
        for number, branch in enumerate(eqn.params["branches"]):
            last = len(eqn.params["branches"]) - 1
            taken = 1.0 if which is None else np.clip(which, 0, last) == number
            self.results(branch, rest, _all_runs(runs, taken))
        self.is_counted &= which is not None or self.flops == before
        return [None] * len(eqn.outvars)

    def scan(self, eqn: Any, operands: list[Table], runs: Any) -> Sequence[Table]:
        """The body as often as the scan is long; what is carried has no table."""
        n_constants, _ = scan_split(eqn)
        self._note_read(operands[n_constants:])
        inner = len(open_jaxpr(eqn.params["jaxpr"])[0].invars)
        known = [*operands[:n_constants], *[None] * (inner - n_constants)]
        self.results(eqn.params["jaxpr"], known, _all_runs(runs, eqn.params["length"]))
        return [None] * len(eqn.outvars)

    def loop(self, eqn: Any, operands: list[Table], runs: Any) -> Sequence[Table]:
        """The body as often as the loop counts, once if that is not known."""
        split = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test, constants = operands[: split[0]], operands[split[0] : sum(split)]
        carried = operands[sum(split) :]
        trips = _trips(eqn, [*test, *carried])
        self._note_read(carried)
        before = self.flops
        known = [*constants, *[None] * len(carried)]
        self.results(
            eqn.params["body_jaxpr"], known, _all_runs(runs, 1 if trips is None else trips)
        )
        self.results(eqn.params["cond_jaxpr"], [*test, *[None] * len(carried)])
        self.is_counted &= trips is not None or self.flops == before
        return [None] * len(eqn.outvars)


_HIGHER_ORDER: Final = {
    "cond": GridTables.cond,
    "scan": GridTables.scan,
    "while": GridTables.loop,
}


def _all_runs(runs: Any, more: Any) -> Any:
    shapes = [np.shape(runs), np.shape(more)]
    if math.prod(np.broadcast_shapes(*shapes)) > _MOST_ENTRIES:
        # Taken as independent of each other.
        return float(np.mean(runs)) * float(np.mean(more))
    return np.multiply(runs, more)


def _trips(eqn: Any, known: Sequence[Table]) -> Table:
    """Trips of a loop `while i < end` that counts up by one, by what its test reads."""
    test, _ = open_jaxpr(eqn.params["cond_jaxpr"])
    if len(test.eqns) != 1 or test.eqns[0].primitive.name != "lt":
        return None
    tables = dict(zip(test.invars, known))
    first, end = (
        _constant(a.val) if isinstance(a, core.Literal) else tables.get(a)
        for a in test.eqns[0].invars
    )
    body, _ = open_jaxpr(eqn.params["body_jaxpr"])
    position = len(test.invars) - eqn.params["cond_nconsts"]
    carried = body.invars[len(body.invars) - position :]
    number = test.invars[eqn.params["cond_nconsts"] :].index
    try:
        counter = carried[number(test.eqns[0].invars[0])]
    except ValueError:
        return None
    steps = {
        e.outvars[0]: e.invars[1]
        for e in body.eqns
        if e.primitive.name == "add" and e.invars[0] is counter
    }
    by_one = any(
        isinstance(step, core.Literal) and step.val == 1 and made in body.outvars
        for made, step in steps.items()
    )
    return None if first is None or end is None or not by_one else np.maximum(end - first, 0)


def _constant(value: Any) -> Table:
    array = np.asarray(value) if np.ndim(value) == 0 else None
    return None if array is None or array.dtype.kind not in "bif" else array


def _product_flops(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    summed = math.prod(left[dim] for dim in contracted)
    return 2 * summed * math.prod(eqn.outvars[0].aval.shape)


def varying_axes(table: np.ndarray) -> set[int]:
    """The axes of the grid along which a table is not constant."""
    whole = [(axis, np.moveaxis(table, axis, 0)) for axis in range(table.ndim)]
    return {axis for axis, rows in whole if len(rows) > 1 and (rows != rows[:1]).any()}


def block_digits(index: np.ndarray, n_blocks: int) -> tuple[Digit, ...] | None:
    """The digits of a table of block indices, major first; None if it is no such number."""
    index = index.astype(np.int64)
    origin = index.reshape(-1)[0]
    if origin or index.size == 1:
        return None if origin or n_blocks > 1 else ()
    digits: list[Digit] = []
    total = np.zeros((), np.int64)
    for axis, size in enumerate(index.shape):
        # Along one axis, at the origin of all others.
        line = np.moveaxis(index, axis, -1).reshape(-1, size)[0]
        total = total + line.reshape([size if a == axis else 1 for a in range(index.ndim)])
        on_axis = _line_digits(line)
        if on_axis is None:
            return None
        digits += [(stride, GridFactor(axis, low, n)) for stride, low, n in on_axis]
    if (total != index).any():
        return None
    digits.sort(key=lambda digit: digit[0])
    filled = 1
    for stride, factor in digits:
        if stride != filled:
            return None
        filled *= factor.size
    return tuple(reversed(digits)) if filled == n_blocks else None


def _line_digits(line: np.ndarray) -> list[tuple[int, int, int]] | None:
    """(stride, low, size) of the digits of f(0), f(1), ..., f(n - 1) with f(0) = 0."""
    digits, low = list[tuple[int, int, int]](), 1
    while len(line) > 1:
        stride = int(line[1])
        # The longest beginning that is flat, or goes up by one stride a time.
        steps = np.flatnonzero(np.diff(line) != stride)
        size = int(steps[0]) + 1 if len(steps) else len(line)
        if stride < 0 or len(line) % size:
            return None
        rows = line.reshape(-1, size)
        if (rows - rows[:, :1] != rows[0]).any():
            return None
        if stride:
            digits.append((stride, low, size))
        low *= size
        line = rows[:, 0]
    return digits


def varies_along(table: np.ndarray, factor: GridFactor) -> bool:
    """Whether a table varies along a factor."""
    size = table.shape[factor.axis] if table.ndim else 1
    if size == 1:
        return False
    rows = np.moveaxis(table, factor.axis, -1).reshape(-1, factor.size, factor.low)
    return bool((rows != rows[:, :1]).any())
