"""Which state a sum of gradients is combined with after the loop, and which of its dimensions are
whose.

A sum may be transposed or reshaped before it meets its parameter or moments. From the last equation
to the first:

    x op y, shapes equal     the dimensions are the same
    transpose                those of the operand
    reshape, squeeze, ..     those of the operand whose first elements stay the first of a dimension
    other sizes              nothing is known
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
import math
from typing import Any

from automap.jaxpr.microbatch.build import variables
from automap.runtime.pipeline.numbered import Numbered


Dims = tuple[int | None, ...]
"""By dimension of a sum the dimension of the state's leaf."""


def state_beside(numbers: Numbered) -> dict[int, dict[int, Dims]]:
    """By value after the loops, the step's inputs that it is combined with, element by element."""
    found: dict[Any, dict[Any, Dims]] = defaultdict(dict)
    given = set(numbers.program.inputs)
    eqns = [
        *(eqn for turn in numbers.program.passes for eqn in turn.middle),
        *numbers.program.after,
    ]
    for eqn in reversed(eqns):
        operands = variables(eqn.invars)
        for value in operands:
            shape = value.aval.shape
            same = tuple(range(len(shape)))
            met: dict[Any, Dims] = {
                v: same for v in operands if v in given and v.aval.shape == shape
            }
            for result in eqn.outvars:
                for leaf, dims in found[result].items():
                    back = _back(eqn, shape, result.aval.shape, dims)
                    if back is not None:
                        met.setdefault(leaf, back)
            found[value] = met | found[value]
    number = numbers.number
    return {
        number[v]: {number[leaf]: dims for leaf, dims in met.items()}
        for v, met in found.items()
        if v in number
    }


def _back(eqn: Any, shape: Sequence[int], result: Sequence[int], dims: Dims) -> Dims | None:
    """What is known of a result, of an operand of this shape."""
    if eqn.primitive.name == "transpose":
        order = eqn.params["permutation"]
        return tuple(dims[order.index(dim)] for dim in range(len(order)))
    if tuple(shape) == tuple(result):
        return dims
    if math.prod(shape) != math.prod(result):
        return None
    firsts = dict(_firsts(shape, result))
    return tuple(dims[firsts[d]] if d in firsts else None for d in range(len(shape)))


def _firsts(shape: Sequence[int], other: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of dimensions of two shapes that begin at the same elements, those of one left out."""
    starts: list[dict[int, int]] = []
    for sizes in (shape, other):
        done, begun = 1, {}
        for dim, size in enumerate(sizes):
            if size > 1:
                begun[done] = dim
            done *= size
        starts.append(begun)
    return ((dim, starts[1][done]) for done, dim in starts[0].items() if done in starts[1])
