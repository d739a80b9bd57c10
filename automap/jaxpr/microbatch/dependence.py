"""What a value of a step is to the step's microbatches.

The step is traced at batch B and at batch B/m. Let v be a value of the first trace and v_i what the
second trace computes in its place on microbatch i = 0..m-1, both with the first trace's literals.

    Known(k)                  v does not depend on the microbatch; k loops over them compute it
    Batched(dim, outer, s)    v.reshape(.., outer, m, inner, ..)[.., :, i, :, ..] = s v_i, where
                              outer * m * inner is the size of dimension `dim` of v; all other
                              dimensions are equal
    Partial(op, s)            v = s (v_0 op v_1 op .. op v_(m-1)), of equal shapes

`outer` None says that v is the same along `dim`, so that any outer would be true. Where a value has
to have an order it gets the batch's own (`own_outer`): outer 1 where a microbatch is a run of
samples, B/m where it is every m-th sample. The scale s is a scalar that is known only after the
loop (1 if None): it is kept back as long as all that is done to the value is linear, as in the
gradient of sum(loss * weight) / sum(weight).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, TypeAlias


# "last" takes the value of the last microbatch: for what every microbatch computes alike.
Operator = Literal["add", "and", "last", "max", "min", "mul", "or"]
Shape: TypeAlias = Sequence[int]


class Refusal(Exception):
    """Why an operation cannot be done one microbatch at a time, and what could be written instead;
    becomes a `NotSeparableError`.
    """

    def __init__(self, why: str, instead: str = "") -> None:
        super().__init__(why)
        self.instead = instead


class KnownElements(Enum):
    """What is known of a value's elements (for Batched: of v_i, the scale aside)."""

    NONE = "nothing"
    ZERO = "all are zero, or false"
    ONE = "all are one"
    INDEX = "each is its position in v along the batch dimension"


@dataclass(frozen=True, slots=True)
class Known:
    """`made` inside: computed in the loop, the same in every microbatch.

    `source`: data if it is made of the batch, random keys, integers and constants alone.
    """

    n_loops: int = 0
    elements: KnownElements = KnownElements.NONE
    made: Literal["outside", "inside"] = "outside"
    source: Literal["data", "parameters"] = "parameters"


@dataclass(frozen=True, slots=True)
class Batched:
    """`columns`: positions along the last dimension whose elements are the position along `dim`.

    `is_whole`: v is made of data alone (see Known), and itself also computed before the loop.
    `n_loops` loops must have run to compute it.
    """

    dim: int
    outer: int | None
    n_loops: int = 0
    elements: KnownElements = KnownElements.NONE
    columns: frozenset[int] = frozenset()
    scale: Any = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Partial:
    """What is made of all samples: a sum, a largest one."""

    op: Operator
    n_loops: int = 0
    scale: Any = None


Dependence: TypeAlias = Known | Batched | Partial


def differing_dims(full: Shape, micro: Shape) -> list[int]:
    """The dimensions in which two shapes differ. Raises `Refusal` for shapes of other lengths."""
    if len(full) != len(micro):
        raise Refusal(f"its shape is {tuple(full)}, but {tuple(micro)} for a microbatch")
    return [d for d, (a, b) in enumerate(zip(full, micro)) if a != b]


def batch_dim(full: Shape, micro: Shape, microbatches: int) -> int | None:
    """The one dimension that grows with the batch, None if none does.

    Raises `Refusal` for two of them, and for one that does not grow in proportion.
    """
    dims = differing_dims(full, micro)
    if len(dims) > 1:
        raise Refusal(f"{len(dims)} dimensions of {tuple(full)} grow with the batch")
    if dims and full[dims[0]] != microbatches * micro[dims[0]]:
        raise Refusal(
            f"dimension {dims[0]} of {tuple(full)} has size {micro[dims[0]]} for one of "
            f"{microbatches} microbatches: not in proportion"
        )
    return dims[0] if dims else None


def common_outer(values: Sequence[Batched]) -> int | None:
    """The `outer` of values that are combined sample by sample. Raises `Refusal` if they differ."""
    # None, copies of one value, goes with any order.
    known = {value.outer for value in values} - {None}
    if len(known) > 1:
        raise Refusal("its operands hold the samples in different orders")
    return next(iter(known), None)


def own_outer(size: int, order: int) -> int:
    """The outer of a dimension of a microbatch that has no order yet, given that of the batch."""
    return order if size % order == 0 else 1


def join(a: Dependence, b: Dependence, order: int) -> Dependence:
    """What a value is that is one of two: a loop's carry, or the result of a branch; `order` is the
    outer of one that gets an order here. Raises `Refusal`.
    """
    if isinstance(a, Known) and isinstance(b, Known):
        return Known(
            max(a.n_loops, b.n_loops),
            a.elements if a.elements is b.elements else KnownElements.NONE,
        )
    # From here on `a` is Batched or Partial, and `b` may be anything.
    if isinstance(a, Known):
        a, b = b, a
    scale = _common_scale(a, b)
    n_loops = max(a.n_loops, b.n_loops)
    if isinstance(a, Batched):
        if isinstance(b, Known):
            return replace(
                a,
                n_loops=n_loops,
                elements=KnownElements.NONE,
                columns=frozenset(),
                scale=scale,
                outer=a.outer or order,
            )
        if isinstance(b, Batched) and a.dim == b.dim:
            elements = a.elements if a.elements is b.elements else KnownElements.NONE
            return Batched(
                a.dim, common_outer((a, b)), n_loops, elements, a.columns & b.columns, scale
            )
    elif isinstance(a, Partial):
        # A sum over samples may start from zero: that is how a loop begins one.
        is_none = isinstance(b, Known) and b.elements is KnownElements.ZERO and a.op == "add"
        if is_none or (isinstance(b, Partial) and a.op == b.op):
            return Partial(a.op, n_loops, scale)
    raise Refusal(f"its value is {describe(a)} at one time and {describe(b)} at another")


def _common_scale(a: Dependence, b: Dependence) -> Any:
    # Compared by identity: a scale is a variable or a literal of the program.
    scales = [None if isinstance(s, Known) else s.scale for s in (a, b)]
    zeros = [not isinstance(s, Partial) and s.elements is KnownElements.ZERO for s in (a, b)]
    # Zero is zero under any scale.
    if scales[0] is scales[1] or zeros[1]:
        return scales[0]
    if zeros[0]:
        return scales[1]
    raise Refusal("only a part of it is multiplied by a sum over the whole batch")


def portable(dependence: Dependence) -> Dependence:
    """A status without what holds only where it was found."""
    if isinstance(dependence, Batched):
        return replace(dependence, is_whole=False)
    return (
        Known(dependence.n_loops, dependence.elements)
        if isinstance(dependence, Known)
        else dependence
    )


def is_data(dependence: Dependence) -> bool:
    """Whether a value is computed before the loop, without parameters."""
    if isinstance(dependence, Batched):
        return dependence.is_whole
    if not isinstance(dependence, Known) or dependence.n_loops or dependence.made == "inside":
        return False
    return dependence.source == "data"


def describe(dependence: Dependence) -> str:
    """In the words of messages."""
    if isinstance(dependence, Known):
        return "the same for the whole batch"
    return "one part per sample" if isinstance(dependence, Batched) else "a sum over samples"
