"""A pipeline problem as arrays: all that the value function, the solvers and the agents read.

n points (instructions, or what they were coarsened to), U device units, M microbatches. A stage has
points [i, j) and units [d, e), r = e - d replicas; indices of points and units are of boundaries,
from 0 to n and U.

    `Arrays`             what numba functions take
    `pipeline_arrays`    from a coarsened profile and a fabric, for one M and schedule
    `from_lines`         from C, A and W alone (Auto-MAP section 3.5.2): generated problems, and the
                         paper's own model
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array
from automap.pipeline.fabric import Fabric
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import PassOrder, Schedule, pass_order


class Arrays(NamedTuple):
    """One problem. Indices are named in the module's first lines.

    forward, backward  [U + 1, n + 1] seconds of one microbatch on r replicas, sums of the points
                       before
    weights            [U + 1, n + 1] the same of weight passes, if the schedule has them apart:
                       they are not in `backward` then; else 0
    cut_bytes          [n + 1] of one microbatch that cross boundary i, one way
    may_cut            [n + 1] bool: whether a stage may begin at point i
    may_cut_devices    [U + 1] bool: whether a stage may begin at unit d
    usable             [U + 1] bool: whether a stage may have r replicas
    gradient_bytes     [n + 1, n + 1] that a stage's replicas sum
    state_bytes        [n + 1, n + 1] parameters, their gradients' sums, and the optimizer, on each
                       device
    saved_bytes        [n + 1, n + 1] activations of one microbatch that are saved for its backward
                       pass, over all replicas
    kept_bytes         [n + 1, n + 1] of one microbatch that its weight pass reads, over all
                       replicas
    working_bytes      [n + 1, n + 1] the most that a microbatch needs besides, over all replicas
    reduce_seconds_per_byte    [U + 1, U + 1] of a stage's gradients, its update included
    transfer_seconds_per_byte  [U + 1, U + 1, U + 1] from stage [d, e) to stage [e, f)
    latency_seconds    [U + 1] of a transfer at unit boundary e
    memory_limit_bytes per device
    unit_devices, microbatches: int
    order              what the schedule says of its passes
    transfers_differ   int: whether a transfer depends on more than the boundary
    """

    forward: Array
    backward: Array
    weights: Array
    cut_bytes: Array
    may_cut: Array
    may_cut_devices: Array
    usable: Array
    gradient_bytes: Array
    state_bytes: Array
    saved_bytes: Array
    kept_bytes: Array
    working_bytes: Array
    reduce_seconds_per_byte: Array
    transfer_seconds_per_byte: Array
    latency_seconds: Array
    memory_limit_bytes: float
    unit_devices: int
    microbatches: int
    order: PassOrder
    transfers_differ: int

    @property
    def n_points(self) -> int:
        """n."""
        return len(self.cut_bytes) - 1

    @property
    def n_units(self) -> int:
        """U."""
        return len(self.latency_seconds) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is decided before a search: M microbatches, their schedule, and the memory of a
    device.
    """

    microbatches: int
    schedule: Schedule
    memory_limit_bytes: float


def pipeline_arrays(points: Points, fabric: Fabric, terms: Terms) -> Arrays:
    """The arrays of a profile; a stage may have as many replicas as divide a microbatch's examples.

    Raises `InputError` for a schedule that does not say what the value function needs.
    """
    n, m = points.n_points, terms.microbatches
    shape = (fabric.n_units + 1, n + 1)
    forward, backward, weights = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    usable, order = np.zeros(shape[0], bool), pass_order(terms.schedule)
    # Sizes that do not divide a microbatch's examples keep 0 seconds: nothing may read them.
    examples = points.profile.batch_size // m
    for r in range(1, fabric.n_units + 1):
        replicas = r * fabric.unit_devices
        if examples % replicas == 0:
            usable[r] = True
            forward[r], backward[r] = points.seconds(m * replicas)
            if order.weights_apart:
                weights[r] = points.weight_seconds(m * replicas)
                backward[r] -= weights[r]
    state_bytes = points.state_bytes
    return Arrays(
        forward=forward,
        backward=backward,
        weights=weights,
        cut_bytes=points.cut_bytes / m,
        may_cut=points.may_cut,
        may_cut_devices=np.ones(shape[0], bool),
        usable=usable,
        gradient_bytes=points.gradient_bytes,
        state_bytes=state_bytes,
        saved_bytes=points.saved_bytes / m,
        kept_bytes=points.kept_bytes / m,
        working_bytes=points.working_bytes / m,
        reduce_seconds_per_byte=fabric.reduce_seconds_per_byte + points.update_seconds_per_byte,
        transfer_seconds_per_byte=fabric.transfer_seconds_per_byte,
        latency_seconds=fabric.latency_seconds,
        memory_limit_bytes=terms.memory_limit_bytes,
        unit_devices=fabric.unit_devices,
        microbatches=m,
        order=order,
        transfers_differ=int(fabric.transfers == "matched"),
    )


def from_lines(
    seconds: np.ndarray,
    cut_bytes: np.ndarray,
    gradient_bytes: np.ndarray,
    fabric: Fabric,
    terms: Terms,
    *,
    forward_share: float = 1 / 3,
    weight_share: float = 1 / 3,
) -> Arrays:
    """A problem without floors, shared parameters or limits of memory (Auto-MAP section 4.4).

    Of the seconds the forward pass has `forward_share`, and the weight pass `weight_share` where
    the schedule has it apart, the backward pass the rest.

    `seconds` and `gradient_bytes` [n] of each point, the first of the whole batch, forward and
    backward, on one device; `cut_bytes` [n] of the whole batch after each point, of which the last
    is not read.
    """
    n, units, m = len(seconds), fabric.n_units, terms.microbatches
    # Replicas divide all work evenly: the paper's model, without floors of a kernel's seconds.
    total = np.concatenate([[0.0], np.cumsum(seconds)]) / m
    replicas = np.maximum(np.arange(units + 1), 1)[:, None] * fabric.unit_devices
    weights = np.concatenate([[0.0], np.cumsum(gradient_bytes)])
    nothing = np.zeros((n + 1, n + 1))
    order = pass_order(terms.schedule)
    weight_share *= order.weights_apart
    may_cut = np.ones(n + 1, bool)
    usable = np.ones(units + 1, bool)
    usable[0] = False
    return Arrays(
        forward=forward_share * total / replicas,
        backward=(1 - forward_share - weight_share) * total / replicas,
        weights=weight_share * total / replicas,
        cut_bytes=np.concatenate([[0.0], cut_bytes[: n - 1], [0.0]]) / m,
        may_cut=may_cut,
        may_cut_devices=np.ones(units + 1, bool),
        usable=usable,
        gradient_bytes=np.maximum(weights[None, :] - weights[:, None], 0.0),
        state_bytes=nothing,
        saved_bytes=nothing,
        kept_bytes=nothing,
        working_bytes=nothing,
        reduce_seconds_per_byte=fabric.reduce_seconds_per_byte,
        transfer_seconds_per_byte=fabric.transfer_seconds_per_byte,
        latency_seconds=fabric.latency_seconds,
        memory_limit_bytes=terms.memory_limit_bytes,
        unit_devices=fabric.unit_devices,
        microbatches=m,
        order=order,
        transfers_differ=int(fabric.transfers == "matched"),
    )


def divisible(arrays: Arrays, stages: int) -> np.ndarray:
    """Whether the first u units divide in k stages of usable size, bool [S + 1, U + 1]."""
    return divisible_by(np.flatnonzero(arrays.usable[1:]) + 1, arrays.n_units, stages)


def divisible_by(sizes: np.ndarray, units: int, stages: int) -> np.ndarray:
    """Whether the first u units divide in k stages of those sizes, bool [S + 1, U + 1]."""
    can = np.zeros((stages + 1, units + 1), bool)
    can[0, 0] = True
    for k in range(1, stages + 1):
        for size in np.unique(sizes[sizes <= units]):
            can[k, size:] |= can[k - 1, : units + 1 - size]
    return can
