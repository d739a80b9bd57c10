"""V: the seconds of one step of a synchronous pipeline (Auto-MAP sections 3.5.2 and 4.4, which name
the pipeline length L without a formula; made exact here where it can be).

S stages on M microbatches, from the last stage s = S - 1 to the first. Of stage s with points
[i, j) and units [d, e), the next stage having [e, f), one microbatch takes

    F, B   its forward and backward seconds on r = e - d replicas; T = F + B
    W      seconds of its weight pass, where the schedule has those apart; then B is without them
    X      latency[e] + transfer[d, e, f] * cut_bytes[j], on the link to the next stage, each way;
           0 for the last
    R      reduce[d, e] * gradient_bytes[i, j]: the AllReduce of its gradients after its last
           microbatch, which overlaps with what earlier stages still do
    K      microbatches in flight, as the schedule says (`automap.pipeline.schedules.in_flight`):
           M if all forward passes come first, min(M, S - s) for 1F1B
    D      microbatches whose weight passes wait (`automap.pipeline.schedules.late_weights`)

A stage, and each direction of a link, does one thing at a time; links work beside stages. L is the
longest of paths through the task graph (`automap.pipeline.task_graph`), computed from a *tail*:
what is known of the stages from s on            -> in: `prepend_stage`, `tail_seconds`

    U_s = U_{s+1} + T + 2 X             a microbatch from s to the last stage and back
    all forward first, as GPipe
      P_s = max(P_{s+1}, F, X)          the slowest stage or link forwards
      Q_s = max(Q_{s+1}, B, X)          the same backwards
      V_s = max(V_{s+1} + F + X,        the slowest end after the first forwards
                U_s + (M - 1) Q_s + R)
      L   = V_0 + (M - 1) P_0
    alternating, as 1F1B
      P_s = max(                        from the first forward of s to its last backward:
            P_{s+1} + T + 2 X,
            M T, U_s + (M - 1) X,       where a stage or a link is never idle,
            U_s + (M - 1) F + (M - K) B,   up to the last microbatch, which goes round,
            U_s + (M - K) F + (M - 1) B,   or from the first, which went round,
            U_s + G)
      G   = max over c of C_c + r W_c + rest T     if M > K: rounds of microbatches in flight
      W_c = T + 2 X + W_{c-1} of the next stage    a round through c stages; W_1 = T, W_{S-s} = U_s:
                                        a_c microbatches later the stage can begin the next
      a_c = (c - 1) I + 1               I how many more are in flight at each stage before:
                                        a_c = c for 1F1B
      C_c = (K' - 1) F                  K' the K of stage s + c - 1; r and rest are (M - K') divided
                                        by a_c
      Q_s = max(Q_{s+1} + F + X, U_s + R)          one microbatch, until its slowest end
      H   = max((M - 1) F + (M - K) B, max over c of C_c + r W_c + rest F)
      V_s = max(V_{s+1} + F + X, P_s + R, H + Q_s)   H: until the stage begins its last forward
      L   = V_0

With weights apart the weight passes that lie on such a path are added, each path's fewest: of c
backward passes in a row max(c - s, 0) are followed by one, and min(M, s + 1) follow the last, up to
the end of V_s.

With all forward passes first L is the makespan, of two flow shops. Of alternating passes L is never
above it, and below it only where rounds through different stages alternate on the longest path
(docs/reports/pipelines.md says by how much for 1F1B), or where weight passes fill what they wait.

    bytes of a device = state + (K saved + D kept + working) / replicas + 2 cut_bytes[i] / replicas
                                                                              -> in: `stage_bytes`

A partition is `cuts` and `device_cuts`, int64 [S + 1], from 0 to n and from 0 to U: stage s has
points cuts[s] .. cuts[s + 1] - 1 and units device_cuts[s] .. device_cuts[s + 1] - 1.
"""

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.pipeline.arrays import Arrays
from automap.pipeline.schedules import PassOrder, in_flight


most_in_flight = inner(in_flight)
"""`in_flight` for numba functions."""


@inner
def most_late(order: PassOrder, m: int, k: int, before: int) -> int:
    """`late_weights` for numba functions, which know other compiled functions only."""
    return min(before, m - most_in_flight(order, m, k)) if order.weights_apart else 0


@inner
def prepend_stage(
    pool: Array,
    z: int,
    new: Array,
    f: float,
    b: float,
    w: float,
    x: float,
    r: float,
    m: int,
    k: int,
    before: int,
    order: PassOrder,
) -> None:
    """Fill `new` with the tail of k stages that has one stage before tail `pool[z]`, and `before`
    stages before that.

    A tail is a row (U, V, P, Q, W_1, W_2, ...); of no stages all are 0.
    """
    # Columns of a tail: 0 U, 1 V, 2 P, 3 Q, 3 + c the round W_c through its first c stages.
    t = f + b
    u = pool[z, 0] + t + 2.0 * x
    new[0] = u
    if not order.alternates:
        # GPipe: the forward passes and the backward passes are a flow shop each, with stages and
        # links as machines; W is not needed.
        new[2] = max(pool[z, 2], f, x)
        new[3] = max(pool[z, 3], b, x)
        new[1] = max(pool[z, 1] + f + x, u + (m - 1) * new[3] + r)
        return
    flight, late = most_in_flight(order, m, k), before
    # Weight passes between the first and the last backward pass, before the last forward pass, and
    # after the last backward pass.
    within, ahead = max(m - 1 - late, 0) * w, max(m - flight - late, 0) * w
    end = min(m, late + 1) * w
    last, first = (m - 1) * f + (m - flight) * b + ahead, (m - flight) * f + (m - 1) * b + within
    p = max(pool[z, 2] + t + 2.0 * x, m * t + within, u + (m - 1) * x, u + max(last, first))
    h = last
    # The longest path may leave stage s again and again for rounds through its next c - 1 stages.
    for c in range(1, k + 1):
        turn = t if c == 1 else t + 2.0 * x + pool[z, 2 + c]
        new[3 + c] = turn
        # In flight at the stage where the round turns: so many go ahead before the first round.
        flight_there = most_in_flight(order, m, k - c + 1)
        later = (c - 1) * order.in_flight_per_stage + 1
        rounds, rest = (m - flight_there) // later, (m - flight_there) % later
        if m > flight and rounds > 0:
            start = (flight_there - 1) * f + rounds * turn
            p = max(p, u + start + rest * t + max(rounds + rest - late, 0) * w)
            h = max(h, start + rest * f + max(rounds - late, 0) * w)
    q = max(pool[z, 3] + f + x, u + end + r)
    new[1] = max(pool[z, 1] + f + x, p + end + r, h + q)
    new[2] = p
    new[3] = q


@inner
def tail_seconds(v: float, p: float, m: int, order: PassOrder) -> float:
    """L of the tail from stage 0."""
    return v if order.alternates else v + (m - 1) * p


@inner
def stage_bytes(arrays: Arrays, i: int, j: int, units: int, k: int, before: int) -> float:
    """Bytes on each device of a stage of points [i, j) on `units` units, with k - 1 stages after
    it and `before` before it.
    """
    saved = most_in_flight(arrays.order, arrays.microbatches, k) * arrays.saved_bytes[i, j]
    if arrays.order.weights_apart:
        late = most_late(arrays.order, arrays.microbatches, k, before)
        saved += late * arrays.kept_bytes[i, j]
    # Twice what enters: the activations, and the gradients that go back for them.
    moving = saved + arrays.working_bytes[i, j] + 2.0 * arrays.cut_bytes[i]
    return arrays.state_bytes[i, j] + moving / (units * arrays.unit_devices)


@inner
def price(arrays: Arrays, cuts: Array, device_cuts: Array, tails: Array) -> tuple[float, float]:
    """(bytes over a device's memory in the worst stage, L in seconds); both inf if a boundary is
    not allowed.

    `tails` is room for two: float64 [2, at least S + 4].
    """
    stages, m = len(cuts) - 1, arrays.microbatches
    # Two rows take turns as the old and the new tail.
    over, now = 0.0, 0
    for c in range(4):
        tails[0, c] = 0.0
    for s in range(stages - 1, -1, -1):
        i, j, d, e = cuts[s], cuts[s + 1], device_cuts[s], device_cuts[s + 1]
        r, k = e - d, stages - s
        if (
            i >= j
            or r < 1
            or not (arrays.usable[r] and arrays.may_cut[i] and arrays.may_cut_devices[d])
        ):
            return np.inf, np.inf
        x = 0.0
        if k > 1:
            per_byte = arrays.transfer_seconds_per_byte[d, e, device_cuts[s + 2]]
            x = arrays.latency_seconds[e] + per_byte * arrays.cut_bytes[j]
        prepend_stage(
            tails,
            now,
            tails[1 - now],
            arrays.forward[r, j] - arrays.forward[r, i],
            arrays.backward[r, j] - arrays.backward[r, i],
            arrays.weights[r, j] - arrays.weights[r, i],
            x,
            arrays.reduce_seconds_per_byte[d, e] * arrays.gradient_bytes[i, j],
            m,
            k,
            s,
            arrays.order,
        )
        now = 1 - now
        needed = stage_bytes(arrays, i, j, r, k, s)
        over = max(over, needed - arrays.memory_limit_bytes)
    return over, tail_seconds(tails[now, 1], tails[now, 2], m, arrays.order)


@compiled
def price_partition(arrays: Arrays, cuts: Array, device_cuts: Array) -> tuple[float, float]:
    """`price` for Python: (bytes over a device's memory, L in seconds)."""
    return price(arrays, cuts, device_cuts, np.empty((2, len(cuts) + 3)))


def value(arrays: Arrays, cuts: Array, device_cuts: Array) -> float:
    """L in seconds; inf for a partition that does not fit or is not allowed."""
    over, seconds = price_partition(arrays, cuts, device_cuts)
    return seconds if over <= 0.0 else np.inf


@compiled
def values(arrays: Arrays, cuts: Array, device_cuts: Array) -> Array:
    """`value` of many partitions: cuts, parts int64 [B, S + 1] -> float64 [B]."""
    result = np.empty(len(cuts))
    tails = np.empty((2, cuts.shape[1] + 3))
    for row in range(len(cuts)):
        over, seconds = price(arrays, cuts[row], device_cuts[row], tails)
        result[row] = seconds if over <= 0.0 else np.inf
    return result
