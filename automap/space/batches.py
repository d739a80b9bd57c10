"""All classes of the batch: a step may have several that share no dimension.

The towers of a contrastive loss meet in its logits only, points inside a domain and on its boundary
never. Who runs such a step data-parallel splits them all.
"""

import math

from automap.program.problem import Problem
from automap.program.work import shared_work


def batch_classes(problem: Problem) -> tuple[int, ...]:
    """The class of the batch first, then those of no parameter that other batch inputs hold on
    their leading dimension.

    One that meets the batch is of the same size, and less than half of its work and of the batch's
    is where they meet: else it is a sequence (positions), or a set that all of the batch shares.
    """
    batch = problem.batch_class
    if batch is None:
        return ()
    # Not a leading dimension of the inputs, so nothing says which other classes would be of its
    # kind.
    if batch not in problem.leading:
        return (batch,)
    # Towers share no tensor until their loss; a sequence stands beside the batch in nearly all.
    met = {
        c
        for p in problem.pair_conflicts
        if batch in (p.first, p.second)
        for c in (p.first, p.second)
    }
    others = (c for c in problem.leading if c != batch and c not in problem.state_classes)
    return (batch, *(c for c in others if c not in met or _is_tower(problem, batch, c)))


def _is_tower(problem: Problem, batch: int, other: int) -> bool:
    # A tower has as many examples as the batch has.
    if problem.limits[other] != problem.limits[batch]:
        return False
    done = problem.work.by_class
    both = shared_work(problem.linkage, problem.class_of_group, batch, other)
    # Most of the work of each is without the other.
    return 2 * both < min(done.get(batch, 0.0), done.get(other, 0.0))


def undivided_batch(problem: Problem, n_devices: int) -> tuple[str, ...]:
    """That the batch cannot be split over all devices though it is large enough, and the next size
    of which it can.
    """
    batch = problem.batch_class
    size = 0 if batch is None else int(problem.limits[batch])
    parts = math.gcd(size, n_devices)
    # One example cannot be split, and where all devices have work there is nothing to say.
    if size < 2 or parts == min(size, n_devices):
        return ()
    more = -(-size // n_devices) * n_devices
    return (
        f"the batch divides by {size}, so it can be split over {parts} of {n_devices} devices; a "
        "multiple of "
        f"{n_devices} over all of them, as {more}",
    )
