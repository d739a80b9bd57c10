"""Along what a kernel of Pallas can be split, from its call: the grid, its index maps, its body.

A program of the grid reads and writes one block of each array, at an index that the array's index
map gives. As a table over the grid, a dimension's index is read as a number of mixed radix,

    index = sum over digits of  stride * ((program // low) % size)          -> in: `_digits`

each digit of one axis of the grid, its strides filling the dimension's whole blocks: i on its own,
the key head i // 4 of a query head i, the b * n + i of two axes. What several arrays take of one
axis cuts it into *factors* (key head, query of it)                         -> in: `_factors`

A factor is a batch if the programs along it have nothing to do with each other:

    every result has it once, each operand at most once, no index map uses it otherwise
                                                                            -> in: `_misfit`
    the body reads nothing that varies along it
    nothing is kept from one program to the next along it: the axis is declared parallel, or the
    kernel has no scratch memory, or writes the whole of it where the axes after it begin, or what
    is read of the grid comes after it, so that the body does the same at each step of it
                                                                            -> in: `_reason`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
import math
from typing import Any

from jax.extend import core
import numpy as np

from automap.jax_compat import PallasBlock, PallasCall, open_jaxpr, pallas_call
from automap.jaxpr.grid_tables import (
    Digit,
    GridFactor,
    GridTables,
    block_digits,
    varies_along,
    varying_axes,
)


@dataclass(frozen=True, slots=True)
class BlockedArray:
    """An operand or a result: for each dimension the factors that count its blocks, major first.

    `rest` are what the factors leave of each dimension, `irregular` the axes of the grid that its
    index map uses in another way.
    """

    shape: tuple[int, ...]
    dims: tuple[tuple[GridFactor, ...], ...]
    rest: tuple[int, ...]
    irregular: frozenset[int]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with the factors of its grid; `reasons` say why one is no batch, for people.

    `operands` are all of the equation's; `steps` are the factors that all arrays are stepped
    through by, whatever the body does; `flops` are those of the whole grid.
    """

    call: PallasCall
    operands: tuple[BlockedArray, ...]
    results: tuple[BlockedArray, ...]
    factors: tuple[GridFactor, ...]
    steps: tuple[GridFactor, ...]
    batches: tuple[GridFactor, ...]
    reasons: tuple[str, ...]
    flops: int


def is_kernel(eqn: Any) -> bool:
    """Whether an equation is a kernel of Pallas."""
    return eqn.primitive.name == "pallas_call"


def read_kernel(eqn: Any) -> Kernel | None:
    """The kernel of a `pallas_call` equation, None where it cannot be read."""
    call = pallas_call(eqn)
    shapes = [tuple(getattr(a.aval, "shape", ())) for a in (*eqn.invars, *eqn.outvars)]
    n_results = len(eqn.outvars)
    if call is None or len(call.blocks) + call.leading != len(shapes):
        return None
    blocks = [_digit_dims(call, block) for block in call.blocks]
    factors = _factors(call, blocks)
    arrays = [_array(call, block, dims, factors) for block, dims in zip(call.blocks, blocks)]
    leading = [BlockedArray(s, ((),) * len(s), s, frozenset()) for s in shapes[: call.leading]]
    operands, results = (*leading, *arrays[:-n_results]), tuple(arrays[-n_results:])
    body = GridTables(call.grid, call.body_axes)
    # What nobody reads of a kernel's results is memory that it works in, as scratch memory is.
    used = [not isinstance(var, core.DropVar) for var in eqn.outvars]
    body.results(call.body, [None] * len(open_jaxpr(call.body)[0].invars))
    every = [factor for axis in factors for factor in axis if factor.size > 1]
    misfits = {f: _misfit(f, call, operands, results, used) for f in every}
    scratch = _scratch(call, used)
    reasons = {f: misfits[f] or _reason(f, call, body, scratch) for f in every}
    unknown = [axis for axis, size in enumerate(call.grid) if not size]
    return Kernel(
        call,
        operands,
        results,
        tuple(every),
        tuple(f for f, misfit in misfits.items() if not misfit),
        tuple(f for f, reason in reasons.items() if not reason),
        (
            *(f"{_axis_name(call, a)} is known at run time only" for a in unknown),
            *(f"{_axis_name(call, f.axis)}: {reason}" for f, reason in reasons.items() if reason),
        ),
        int(body.flops) if body.is_counted or not call.stated_flops else call.stated_flops,
    )


def _axis_name(call: PallasCall, axis: int) -> str:
    return f"axis {axis} of its grid {tuple(n or '?' for n in call.grid)}"


@dataclass(frozen=True, slots=True)
class _Dims:
    """The digits of each dimension, major first; axes that irregular ones depend on."""

    digits: tuple[tuple[Digit, ...], ...]
    irregular: frozenset[int]


def _digit_dims(call: PallasCall, block: PallasBlock) -> _Dims:
    tables = GridTables(call.grid, call.body_axes)
    prefetched = [None] * (len(block.index_map.in_avals) - len(call.grid))
    indices = tables.results(
        block.index_map, [*(tables.index(a) for a in range(len(call.grid))), *prefetched]
    )
    # A map that looks at data is taken to use all that it reads of the grid for all dimensions.
    read = {a for table in tables.read for a in varying_axes(table)}
    # An axis of unknown size has no table: whatever has none may depend on it.
    unknown = {axis for axis, size in enumerate(call.grid) if not size}
    digits, irregular = [], set[int]()
    for size, block_size, index in zip(block.shape, block.sizes, indices):
        counted: tuple[Digit, ...] | None = ()
        if index is None:
            irregular |= read | unknown
        elif size != block_size:
            is_whole = block_size > 0 and size % block_size == 0
            counted = block_digits(index, size // block_size) if is_whole else None
            irregular |= varying_axes(index) if counted is None else set()
        else:
            irregular |= varying_axes(index)
        digits.append(counted or ())
    return _Dims(tuple(digits), frozenset(irregular))


def _factors(call: PallasCall, blocks: Sequence[_Dims]) -> list[tuple[GridFactor, ...]]:
    """The factors of each axis, major first: what lies between the ends of all digits on it."""
    cuts: list[set[int]] = [{1, size} if size else {1} for size in call.grid]
    for dims in blocks:
        for digit in dims.digits:
            for _, factor in digit:
                cuts[factor.axis] |= {factor.low, factor.low * factor.size}
    return [
        tuple(
            GridFactor(axis, low, high // low if high % low == 0 else 0)
            for low, high in pairwise(sorted(ends))
        )[::-1]
        for axis, ends in enumerate(cuts)
    ]


def _array(
    call: PallasCall, block: PallasBlock, dims: _Dims, factors: Sequence[tuple[GridFactor, ...]]
) -> BlockedArray:
    """An array in terms of the factors; ends that do not nest make their axis irregular."""
    split: list[tuple[GridFactor, ...]] = []
    irregular = set(dims.irregular)
    for digits in dims.digits:
        held = [tuple(_between(factor, factors[factor.axis])) for _, factor in digits]
        nests = all(f.size for part in held for f in part)
        irregular |= set() if nests else {factor.axis for _, factor in digits}
        split.append(tuple(f for part in held for f in part) if nests else ())
    rest = [n // math.prod(f.size for f in part) for n, part in zip(block.shape, split)]
    return BlockedArray(block.shape, tuple(split), tuple(rest), frozenset(irregular))


def _between(digit: GridFactor, factors: Sequence[GridFactor]) -> Iterator[GridFactor]:
    end = digit.low * digit.size
    return (factor for factor in factors if digit.low <= factor.low < end)


def _scratch(call: PallasCall, used: Sequence[bool]) -> list[Any]:
    """The memory that a kernel works in: the body's references to it."""
    refs = list(open_jaxpr(call.body)[0].invars)
    first_result = len(refs) - call.scratch - len(used)
    results = refs[first_result : first_result + len(used)]
    return refs[len(refs) - call.scratch :] + [
        ref for ref, is_used in zip(results, used, strict=True) if not is_used
    ]


def _misfit(
    factor: GridFactor,
    call: PallasCall,
    operands: Sequence[BlockedArray],
    results: Sequence[BlockedArray],
    used: Sequence[bool],
) -> str:
    """Why the arrays are not stepped through by a factor, "" if they are."""
    read = [True] * len(operands)
    sides = (("operand", 1, operands, read), ("result", 0, results, used))
    for side, least_missing, arrays, counts in sides:
        for number, array in enumerate(arrays):
            if not counts[number]:
                continue
            times = sum(dim.count(factor) for dim in array.dims)
            if factor.axis in array.irregular:
                return f"the index map of {side} {number} does not hand it on in whole blocks"
            if times > 1 or times + least_missing < 1:
                return f"{side} {number} has it on {times} dimensions"
    for first, second in call.aliases:
        # Operands of aliases are counted without the sizes of the grid.
        sizes = sum(not size for size in call.grid)
        if operands[first + sizes].dims != results[second].dims:
            return f"operand {first} is written in place in other blocks"
    return ""


def _reason(factor: GridFactor, call: PallasCall, body: GridTables, scratch: Sequence[Any]) -> str:
    """Why programs along a factor may have to do with each other, "" if they have not."""
    if factor.axis in body.read_axes or any(varies_along(table, factor) for table in body.read):
        return "the body reads its program_id"
    if scratch and not call.is_parallel[factor.axis] and _reads_before(body, factor):
        starts = (_start(open_jaxpr(call.body)[0].eqns, ref, body) for ref in scratch)
        if not all(_is_at_beginnings(start, factor) for start in starts):
            return "it is not declared parallel, and may keep something in scratch memory along it"
    return ""


def _start(eqns: Sequence[Any], ref: Any, body: GridTables) -> np.ndarray:
    """The programs that write the whole of a scratch memory before they do anything with it."""
    first = next((eqn for eqn in eqns if ref in eqn.invars), None)
    never = np.zeros((), bool)
    if first is None or first.primitive.name == "swap":
        # What is never used keeps nothing.
        return never if first and first.invars[1].aval.shape != ref.aval.shape else ~never
    which = body.predicates.get(id(first))
    if which is None:
        return never
    for number, branch in enumerate(first.params["branches"]):
        inner, _ = open_jaxpr(branch)
        held = inner.invars[first.invars.index(ref) - 1]
        uses = [eqn for eqn in inner.eqns if held in eqn.invars]
        if uses and uses[0].primitive.name == "swap" and _start(uses, held, body):
            never = never | (np.clip(which, 0, len(first.params["branches"]) - 1) == number)
    return never


def _is_at_beginnings(start: np.ndarray, factor: GridFactor) -> bool:
    """Whether a table holds wherever all that the grid steps through within a factor begins."""
    for axis, size in enumerate(start.shape):
        step = factor.low if axis == factor.axis else size
        if axis >= factor.axis and size > 1:
            start = np.take(start, range(0, size, step), axis)
    return bool(start.all())


def _reads_before(body: GridTables, factor: GridFactor) -> bool:
    """Whether the body reads what the grid steps through in a loop around the factor's."""
    if any(axis <= factor.axis for axis in body.read_axes):
        return True
    for table in body.read:
        if any(axis < factor.axis for axis in varying_axes(table)):
            return True
        size = table.shape[factor.axis]
        low = factor.low * factor.size
        if size > low and varies_along(table, GridFactor(factor.axis, low, size // low)):
            return True
    return False
