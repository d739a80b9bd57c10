"""What a sharding rule is: the indices of an op's iteration space and where each one appears.

An op is a loop nest over *factors* f with sizes n_f.  Every dimension of an operand or result is an
ordered list of factors, major first (a matmul: `ik,kj->ij`; a reshape that merges: `i j->(ij)`).  A
factor's kind says what splitting it over devices means:

    PASSTHROUGH   each device computes its part of the result, nothing to exchange
    REDUCTION     each device holds a partial result that must be combined
    PERMUTATION   parts of other devices are needed (windows, slices, reversals)
    REPLICATION   every device needs all of it (a sorted dimension)

The kinds are Shardy's (its op_sharding_rule attribute); `str(rule)` is the algebra of the golden
tests. What several results share may pass in one of them and be summed over in another, as the
query heads of attention in the gradient of their only key head            -> in: `Rule.summed_in`

A window needs only the elements next to a device's own part, its *halo*; a slice or a reversal
moves parts as a whole and has none. The size of a permuted or replicated dimension may differ from
tensor to tensor; so may that of a factor with a halo; the factor has the largest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
import string


class FactorKind(Enum):
    """What it means to split a factor over devices."""

    PASSTHROUGH = "passthrough"
    REDUCTION = "reduce"
    PERMUTATION = "permute"
    REPLICATION = "replicate"


@dataclass(frozen=True, slots=True)
class Halo:
    """How far a window reads past both ends of a device's part (`hlo_tools.rules.window`).

    `low` and `high` are positions before and after a part of which both tensors have equal shares,
    negative where the window ends inside; `drift` is by how many positions the input is longer than
    all that the window steps over, and `step` how many positions its elements lie apart.
    """

    low: int
    high: int
    drift: int
    step: int


@dataclass(frozen=True, slots=True)
class Factor:
    """One index of the iteration space; `halo` if a window slides along it."""

    size: int
    kind: FactorKind
    halo: Halo | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What a user says that a kernel does on whole tensors, where its rule alone does not tell.

    `flops` is of the whole iteration space, `efficiency` the fraction of the device's peak that the
    kernel reaches; 0 is that of the device's own products.
    """

    flops: int
    efficiency: float = 0.0


# One entry per dimension: the factors it is made of, major first; () for a dimension of size one.
DimFactors = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of one op and how operands and results are indexed by them.

    `work` is stated of kernels of a user's own; None of all others. `sums` are the factors that
    pass elsewhere and are summed over in each result; () where all results are alike.
    """

    factors: tuple[Factor, ...]
    operands: tuple[DimFactors, ...]
    results: tuple[DimFactors, ...]
    work: Work | None = None
    # Names of kernels in plan files are digests of what is printed: no kernel of Pallas has some.
    sums: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """The rule as algebra, as `ik,kj->ij reduce=k`."""

        def dims(tensor: DimFactors) -> str:
            names = ["".join(_letter(f) for f in dim) or "1" for dim in tensor]
            return "".join(n if len(n) == 1 else f"({n})" for n in names) or "."

        text = ",".join(map(dims, self.operands)) + "->" + ",".join(map(dims, self.results))
        for kind in FactorKind:
            names = [_letter(i) for i, f in enumerate(self.factors) if f.kind is kind]
            if names and kind is not FactorKind.PASSTHROUGH:
                text += f" {kind.value}={','.join(names)}"
        for result, factors in enumerate(self.sums):
            text += f" {result}:reduce={','.join(map(_letter, factors))}" if factors else ""
        return text

    def summed_in(self, result: int) -> tuple[int, ...]:
        """The factors over which a result is a sum: split over devices, each has a part of it."""
        reduced = tuple(i for i, f in enumerate(self.factors) if f.kind is FactorKind.REDUCTION)
        return (*reduced, *self.sums[result]) if self.sums else reduced

    @property
    def n_iterations(self) -> int:
        """Size of the iteration space."""
        total = 1
        for factor in self.factors:
            total *= factor.size
        return total


def _letter(factor: int) -> str:
    letters = string.ascii_letters
    return letters[factor] if factor < len(letters) else f"<{factor}>"


class RuleBuilder:
    """Collects factors, then `build()`s a `Rule`; dimensions never mentioned get a factor of their
    own.
    """

    def __init__(self, operands: list[tuple[int, ...]], results: list[tuple[int, ...]]):
        """A rule to be for tensors of these shapes."""
        self._factors: list[Factor] = []
        self._shapes = [*operands, *results]
        self._n_operands = len(operands)
        self._dims: list[list[tuple[int, ...] | None]] = [[None] * len(s) for s in self._shapes]
        self._sums: dict[int, tuple[int, ...]] = {}

    def result(self, index: int = 0) -> int:
        """Tensor number of a result, to be used in `add` beside operand numbers."""
        return self._n_operands + index

    def add(
        self,
        *places: tuple[int, int],
        size: int,
        kind: FactorKind = FactorKind.PASSTHROUGH,
        halo: Halo | None = None,
    ) -> int:
        """A factor of `size` that is the whole of the given (tensor, dimension) places."""
        factor = len(self._factors)
        self._factors.append(Factor(size, kind, halo))
        for tensor, dim in places:
            self._dims[tensor][dim] = (factor,) if self._shapes[tensor][dim] > 1 else ()
        return factor

    def join(self, *places: tuple[int, int], kind: FactorKind) -> int:
        """A factor that is the whole of places of different sizes."""
        sizes = [self._shapes[tensor][dim] for tensor, dim in places]
        return self.add(*places, size=max(sizes), kind=kind)

    def set(self, tensor: int, dim: int, factors: tuple[int, ...]) -> None:
        """State a dimension's factors outright, as reshape needs."""
        self._dims[tensor][dim] = factors

    def sum(self, result: int, factors: tuple[int, ...]) -> None:
        """State over which factors that pass elsewhere a result is a sum."""
        self._sums[result] = factors

    def build(self, rest: FactorKind = FactorKind.REPLICATION) -> Rule:
        """The rule; what was not mentioned is a factor of its own of kind `rest`."""
        for tensor, shape in enumerate(self._shapes):
            for dim, size in enumerate(shape):
                # None is a dimension that nobody mentioned; () one of size one, which is no factor.
                if self._dims[tensor][dim] is None:
                    self.add((tensor, dim), size=size, kind=rest)
        dims = [tuple(d or () for d in tensor) for tensor in self._dims]
        return _compact(self._factors, dims, self._n_operands, self._sums)


def _compact(
    factors: list[Factor],
    dims: list[tuple[tuple[int, ...], ...]],
    n_operands: int,
    sums: Mapping[int, tuple[int, ...]],
) -> Rule:
    """Drop factors of size one and number the rest in order of first appearance."""
    # Equal rules print alike, in whatever order their factors were added.
    order: dict[int, int] = {}
    for tensor in dims:
        for dim in tensor:
            for factor in dim:
                if factors[factor].size > 1:
                    order.setdefault(factor, len(order))
    renamed = [
        tuple(tuple(order[f] for f in dim if f in order) for dim in tensor) for tensor in dims
    ]
    return Rule(
        factors=tuple(factors[f] for f in order),
        operands=tuple(renamed[:n_operands]),
        results=tuple(renamed[n_operands:]),
        sums=tuple(
            tuple(order[f] for f in sums.get(result, ()) if f in order)
            for result in (range(len(dims) - n_operands) if sums else ())
        ),
    )
