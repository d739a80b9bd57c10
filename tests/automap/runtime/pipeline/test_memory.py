"""What is held while a pipeline runs: activations by schedule, state by stage, and what is given
away.
"""

from collections import defaultdict

import jax
from jax import numpy as jnp
import pytest

from automap.runtime.pipeline.runner import run_step
from tests.automap.runtime.pipeline.running import Running, even_cuts, mlp, record


def peak_bytes(run, args) -> dict[int, int]:
    """The most that JAX's live arrays hold on each device whenever a stage is given a pass."""
    peak: dict[int, int] = defaultdict(int)
    before = {id(x) for x in jax.live_arrays()}

    def look(job) -> None:
        here: dict[int, int] = defaultdict(int)
        for array in jax.live_arrays():
            if id(array) not in before and not array.is_deleted():
                for shard in array.addressable_shards:
                    here[shard.device.id] += shard.data.nbytes
        for device, n in here.items():
            peak[device] = max(peak[device], n)

    leaves = jax.tree.leaves(args)
    jax.block_until_ready(run_step(run.assembly, leaves, look))
    return peak


@pytest.mark.slow
def test_one_f_one_b_holds_less_than_gpipe_on_every_device():
    step, args = mlp(batch=256)
    cuts = even_cuts(step, args, 4)
    peaks = []
    for schedule in ("gpipe", "1f1b"):
        run = Running(step, args, record((1, 1, 1, 1), cuts, 16, schedule))
        peaks.append(peak_bytes(run, args))
    gpipe, other = peaks
    assert all(other[device] <= gpipe[device] for device in range(4))
    # GPipe keeps 16 microbatches, 1F1B at most 4 in the first stage and 1 in the last.
    assert other[3] < gpipe[3] / 2


def test_state_that_is_given_away_is_overwritten():
    step, (state, batch) = mlp(depth=2)
    step = jax.jit(step, donate_argnums=0)
    run = Running(step, (state, batch), record((2, 2), even_cuts(step, (state, batch), 2)))
    first, _ = run(jax.tree.map(jnp.copy, state), batch)
    kept = jax.tree.leaves((first["params"], first["momentum"]))
    second, _ = run(first, batch)
    assert all(leaf.is_deleted() for leaf in kept)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(second))


@pytest.mark.slow
def test_state_that_is_not_given_away_stays():
    step, (state, batch) = mlp(depth=2)
    run = Running(step, (state, batch), record((2, 2), even_cuts(step, (state, batch), 2)))
    first, _ = run(state, batch)
    run(first, batch)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((first, state, batch)))
