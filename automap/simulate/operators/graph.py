"""The operator graph of FlexFlow (section 3): what a configuration divides, and the tensors in
between.

An operator is a kernel of the HLO graph (`hlo_tools.analyses.kernels`: fused ops belong to the kernel that
computes them). Its factors are those of its rule that can be split, and one more:

    PASSTHROUGH   sample, attribute or parameter dimensions of the result: each part computes its share
    REDUCTION     each part has a partial sum, to be added up; for the gradient of a weight this is the
                  batch, and adding up is the synchronisation of section 5.1
    REPLICATION   copies, the last factor of every operator: each part does the same (an update that every
                  device of a data-parallel step does for itself)

seconds of a part = trips * max(flops / (parts * peak), sum of bytes / (parts of the tensor * bandwidth),
launch), the roofline of `automap.cost.evaluate`                                -> in: `Operator.part_seconds`

An edge is a tensor on its way, with the factor of the producer and of the consumer along each
dimension. Within a step the consumer waits for it; a weight, or other state, also goes from the
operator that makes its new version to those that read it in the next step, which nothing waits for,
but which takes its time.
"""

from dataclasses import dataclass
from enum import Enum
import math
from typing import Final

from hlo_tools.rules import FactorKind


NO_CLASS: Final = -1


@dataclass(frozen=True, slots=True)
class SplitFactor:
    """A factor of an operator that a configuration may split; parts are equal, so degrees divide
    `size`.

    `is_batch`: it is the sample dimension. `group_class`: factors of several operators that are
    linked (the problem's decision class) have the same, `NO_CLASS` is linked to nothing.
    """

    size: int
    kind: FactorKind
    is_batch: bool = False
    group_class: int = NO_CLASS


@dataclass(frozen=True, slots=True)
class Traffic:
    """A tensor an operator reads or writes: seconds for all of it, and the factors that divide it."""

    seconds: float
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator.

    `compute_seconds`, `traffic` and `launch_seconds` are those of one trip on one whole device;
    `result_bytes` is what it makes in a step and `result_factors` the factors that divide that.
    """

    name: str
    phase: str
    factors: tuple[SplitFactor, ...]
    trips: int
    compute_seconds: float
    traffic: tuple[Traffic, ...]
    launch_seconds: float
    result_bytes: float
    result_factors: tuple[int, ...]

    def part_seconds(self, degrees: tuple[int, ...]) -> float:
        """What one part takes on a device of speed 1, of `degrees` parts along each factor."""
        work = math.prod(degrees[:-1])  # copies divide nothing
        memory = sum(t.seconds / math.prod(degrees[f] for f in t.factors) for t in self.traffic)
        return self.trips * max(self.compute_seconds / work, memory, self.launch_seconds)

    def part_bytes(self, degrees: tuple[int, ...]) -> float:
        """Bytes of one part's result."""
        return self.result_bytes / math.prod(degrees[f] for f in self.result_factors)


class ConsumerStep(Enum):
    """Which execution of the consumer an edge is for."""

    SAME_STEP = "same step"
    NEXT_STEP = "next step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor from operator `source` to operator `target`.

    `dims` has, for each dimension of which a part is a part of a factor, (factor of the source,
    factor of the target), NO_FACTOR where one of them has all of it; `n_bytes` is all that is read
    in a step. `sums` are such pairs of factors along which parts hold partial sums of the whole
    tensor, which are added up later on.
    """

    source: int
    target: int
    n_bytes: float
    dims: tuple[tuple[int, int], ...]
    consumer_step: ConsumerStep
    sums: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order; edges sorted by source."""

    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]
