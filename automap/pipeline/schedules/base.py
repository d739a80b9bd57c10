"""What a schedule says of itself: the protocol that the value function, the solvers, the agents,
the simulator and the runtime read.

Of S stages, stage s has k = S - s stages from itself to the last. A microbatch is *in flight* at a
stage from its forward pass until its backward pass, for which its activations are saved so long.
Stage s does K forward passes before its first backward pass and never has more than K in flight:

    all forward first   K = M
    alternating         K = min(M, last_in_flight + (k - 1) in_flight_per_stage), and after the
                        first K forward passes backward and forward passes take turns
                                                                       -> in: `in_flight`

A schedule may have the gradients of weights in a pass of their own, the weight pass W: the backward
pass B then makes only what the stage before waits for. After backward pass m stage s does the
weight pass of microbatch m - D, so that D microbatches keep what their weight passes read:

    D = min(s, M - K)                                                  -> in: `late_weights`

Stages lie on *groups* of devices: of P groups, group g has stages g, g + P, g + 2 P, .., as many as
the schedule says. All but interleaved ones have one stage a group, and a group's number is its
stage's.

The simulator and the runtime take any order of passes. The value function
(`automap.pipeline.value`) knows the longest path through the task graph of these two families only;
numba functions read them as the numbers of a `PassOrder`, so that a schedule of either family is
priced without a line of its own, and one of neither is refused        -> in: `pass_order`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from automap.errors import InputError
from automap.plan.pipeline import ScheduleName


JobKind = Literal["forward", "backward", "weights", "send forward", "send backward", "all-reduce"]
PASSES: Final[tuple[JobKind, ...]] = ("forward", "backward", "weights")
"""The kinds of jobs that are passes of a microbatch through a stage."""


@dataclass(frozen=True, slots=True)
class Job:
    """A pass of a microbatch through a stage, the transfer of what it made over the boundary after
    the stage, or the all-reduce of a stage's gradients, whose `microbatch` is 0.
    """

    kind: JobKind
    stage: int
    microbatch: int


class PassOrder(NamedTuple):
    """What the value function assumes of a schedule, as numbers for numba functions.

    `alternates`: whether forward and backward passes take turns after the first K forward passes;
    if not, all forward passes come first and the other two numbers are not read.
    `last_in_flight`: K of the last stage where there are microbatches enough, at least 1.
    `in_flight_per_stage`: how many more each stage before it has, at least 0.
    `weights_apart`: whether the gradients of weights are passes of their own, as many microbatches
    late as the stage has stages before it; only where passes alternate.
    """

    alternates: bool
    last_in_flight: int
    in_flight_per_stage: int
    weights_apart: bool = False


ALL_FORWARD_FIRST: Final = PassOrder(alternates=False, last_in_flight=0, in_flight_per_stage=0)


class Schedule(Protocol):
    """One schedule; hashable, since searches keep what they know by it."""

    @property
    def name(self) -> ScheduleName:
        """As plan files have it."""
        ...

    @property
    def stages_per_group(self) -> int:
        """How many stages each group of devices has."""
        ...

    @property
    def order(self) -> PassOrder | None:
        """What the value function may assume; None for an order of neither family, which can be
        simulated and run, but not searched for.
        """
        ...

    def passes(self, group: int, groups: int, microbatches: int, /) -> Iterator[Job]:
        """The passes of a group's stages, in the order in which it does them."""
        ...


def in_flight(order: PassOrder, microbatches: int, k: int) -> int:
    """K: the most microbatches in flight at a stage that has k - 1 stages after it."""
    if not order.alternates:
        return microbatches
    # More for each stage in front of the last: its first backward pass comes only after a
    # microbatch has gone through the k - 1 later stages and back.
    return min(microbatches, order.last_in_flight + (k - 1) * order.in_flight_per_stage)


def late_weights(order: PassOrder, microbatches: int, k: int, before: int) -> int:
    """D: the most microbatches whose weight passes wait at a stage that has `before` stages before
    it and k - 1 after it.
    """
    if not order.weights_apart:
        return 0
    return min(before, microbatches - in_flight(order, microbatches, k))


def pass_order(schedule: Schedule) -> PassOrder:
    """What the value function may assume of a schedule.

    Raises `InputError` for a schedule whose longest path it does not know.
    """
    order = schedule.order
    if order is None:
        raise InputError(
            f"the schedule {schedule.name!r} can be simulated and run, but not searched for: it "
            "does not say of its passes that all forward passes come first, or that forward and "
            "backward passes alternate, and the value function knows no other order"
        )
    if order.alternates and (order.last_in_flight < 1 or order.in_flight_per_stage < 0):
        raise InputError(
            f"the schedule {schedule.name!r} says that its last stage has {order.last_in_flight} "
            f"microbatches in flight and each stage before it {order.in_flight_per_stage} more; "
            "at least 1 and 0 are allowed"
        )
    return order
