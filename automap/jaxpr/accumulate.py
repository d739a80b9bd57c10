"""A step that computes its gradients in a loop over parts of its batch, and updates once.

Of a batch of B samples microbatch i = 0..m-1 has the samples i, i + m, i + 2 m, ..:

    x[B]  ->  x[B/m, m]  ->  for i:  x[:, i]

so a device that holds a run of B/d samples has B/(d m) of each microbatch, and none moves. What the
step sums over the batch is added up in the loop, in float32 at least; what it returns per sample is
put back in order; all else, as the optimizer, runs once behind the loop. No collective is asked for
here: compilers take the all-reduce of what a loop adds up out of it (`automap.cost.edges.sums`).
A step that is not the sum of its samples is refused (`automap.jaxpr.microbatch`)
                                                                           -> in: `accumulated`
"""

from collections.abc import Iterator
from typing import Any

import jax

from automap.errors import InputError
from automap.jax_compat import weak_shape
from automap.jaxpr.microbatch import separate
from automap.jaxpr.microbatch.batches import sample_count
from automap.jaxpr.microbatch.loops import run
from automap.jaxpr.microbatch.separate import batch_leaves
from automap.step.call import TracedCall


def accumulated(call: TracedCall, microbatches: int) -> Any:
    """The closed jaxpr of a step in so many microbatches.

    Raises `InputError` for a number that does not divide the batch, `NotSeparableError` for a step
    that needs all samples at once.
    """
    program = separate(call, microbatches, order="every m-th")
    avals = [weak_shape(aval) for aval in call.jaxpr.in_avals]
    return jax.make_jaxpr(lambda *inputs: run(program, inputs))(*avals)


def microbatch_counts(call: TracedCall) -> Iterator[int]:
    """Numbers of microbatches that a step may have, each at least twice the one before it."""
    try:
        size = sample_count(call, batch_leaves(call))
    except InputError:
        return
    last = 1
    for count in range(2, size + 1):
        if size % count == 0 and count >= 2 * last:
            last = count
            yield count
