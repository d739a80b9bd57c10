"""What a plan says of memory: `predicted.memory` at the peak, and `memory_curve` over the step."""

from dataclasses import dataclass
from itertools import pairwise

from automap.plan.checks import check_numbers, refuse


MOST_POINTS = 1000
MOST_HELD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """What a device's memory holds at the moment of the peak, in bytes.

    - `parameters`, `optimizer`, `other_state`, `inputs`: what the step is given, as it is stored.
      Random keys and constants count as other state, `inputs` is the batch.
    - `activations`: what the forward pass makes and the backward pass reads.
    - `temporaries`: everything else that is alive then: gradients, gathered parameters, results.
    """

    parameters: int
    optimizer: int
    other_state: int
    inputs: int
    activations: int
    temporaries: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecord:
    """What is alive at the peak, results of like operations together.

    - `name`: of the operations, with `*` for numbers that differ; or what the copies are of.
    - `count`: how many there are.
    - `bytes`: of all of them, on one device.
    """

    name: str
    count: int
    bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurveRecord:
    """Bytes of one device over the step: `stored` all the time, the others at points of it.

    - `stored`: parameters, optimizer state, other state and the batch.
    - `at`: the share of the step's operations that have begun, from 0 to 1, increasing. A point
      stands for the operations up to the next one, and says what they hold when they hold most.
    - `activations`, `temporaries`: at each point, as of `predicted.memory`.
    - `held`: the largest that is alive at the peak besides what is stored.
    """

    stored: int
    at: tuple[float, ...]
    activations: tuple[int, ...]
    temporaries: tuple[int, ...]
    held: tuple[HeldRecord, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for columns of unequal length, numbers out of range, and points that do
        not follow each other.
        """
        check_numbers(self)
        if not 1 <= len(self.at) <= MOST_POINTS:
            raise refuse("at", len(self.at), f"from 1 to {MOST_POINTS} points")
        if len(self.held) > MOST_HELD:
            raise refuse("held", len(self.held), f"at most {MOST_HELD} rows")
        for name in ("activations", "temporaries"):
            column = getattr(self, name)
            if len(column) != len(self.at):
                raise refuse(name, column, f"{len(self.at)} entries, as `at` has")
            if any(count < 0 for count in column):
                raise refuse(name, column, "integers >= 0")
        # NaN is not at least anything, so this asks for what is allowed.
        is_increasing = all(before < after for before, after in pairwise(self.at))
        if not (self.at[0] >= 0 and is_increasing and self.at[-1] <= 1):
            raise refuse("at", self.at, "increasing numbers from 0 to 1")
