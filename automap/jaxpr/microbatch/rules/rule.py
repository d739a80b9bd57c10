"""What a rule is told of an operation, and what it says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from automap.jaxpr.microbatch.dependence import (
    Batched,
    Dependence,
    Partial,
    Refusal,
    own_outer,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """An equation of both traces with what its operands are, and the batch's own outer."""

    full: Any
    micro: Any
    operands: tuple[Dependence, ...]
    microbatches: int
    order: int

    @property
    def name(self) -> str:
        """The primitive's."""
        return self.full.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """Those of the microbatch's trace."""
        return self.micro.params

    def shape(self, operand: int) -> tuple[int, ...]:
        """Of an operand in the microbatch's trace."""
        return self.micro.invars[operand].aval.shape

    def full_shape(self, operand: int) -> tuple[int, ...]:
        """Of an operand in the whole batch's trace."""
        return self.full.invars[operand].aval.shape

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Of the first result in the microbatch's trace."""
        return self.micro.outvars[0].aval.shape

    def outer(self, operand: int) -> int:
        """Of an operand that is Batched, the batch's own if it has none."""
        value = self.operands[operand]
        if isinstance(value, Batched) and value.outer is not None:
            return value.outer
        dim = value.dim if isinstance(value, Batched) else 0
        return own_outer(self.shape(operand)[dim], self.order)

    @property
    def batched(self) -> tuple[Batched, ...]:
        """The operands that are Batched."""
        return tuple(s for s in self.operands if isinstance(s, Batched))

    def first_batched(self) -> Batched:
        """The operand before all others, which must be the one that is Batched. Raises
        `Refusal`.
        """
        first_batched = self.operands[0]
        if not isinstance(first_batched, Batched):
            raise Refusal("an index or a size depends on the samples")
        return first_batched

    def all_results(self, result: Batched | Partial) -> "RuleResult":
        """A rule's answer where all results are alike."""
        return RuleResult((result,) * len(self.full.outvars))


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What the results are.

    `local_columns`: columns of the second operand, the indices, that hold positions in the whole
    batch and must become positions in the microbatch.
    """

    results: tuple[Batched | Partial, ...]
    local_columns: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rule:
    """How one primitive treats the samples; `may_differ` are the parameters that may differ in the
    traces.
    """

    apply: Callable[[Operation], RuleResult]
    may_differ: frozenset[str] = frozenset()


def samples_like(value: Batched) -> Batched:
    """A result that holds the samples where a value does; nothing else is known of it."""
    return Batched(value.dim, value.outer)
