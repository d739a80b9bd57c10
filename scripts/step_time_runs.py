"""A plan's step on real devices: compiled, given a state, and timed."""

from collections.abc import Callable
import time
from typing import Any

import jax

from automap.api.plan import Plan
from models.training import random_batch


Run = Callable[[], None]
# The least of so many is a round that nothing disturbed.
ROUNDS = 25


def runner(plan: Plan, step: Any, args: Any) -> Run:
    """Runs one step of a plan and waits for it, after a step that is not counted."""
    compiled = plan.jit(step).lower(*args).compile()
    shapes, (_, batch) = compiled.input_shardings[0], args
    state = jax.tree.map(
        lambda leaf, sharding: jax.device_put(_filled(leaf), sharding), args[0], shapes[0]
    )
    placed = jax.tree.map(jax.device_put, random_batch(batch, seed=0), shapes[1])
    # The step donates its state, so each run goes on with what the last one gave back.
    held = [state]

    def run() -> None:
        held[0], metrics = compiled(held[0], placed)
        jax.block_until_ready((held[0], metrics))

    run()
    return run


def _filled(leaf: jax.ShapeDtypeStruct) -> Any:
    """Small numbers: a state that stays finite for a few steps."""
    return jax.numpy.full(leaf.shape, 0.01, leaf.dtype)


def timed(run: Run) -> list[float]:
    """Seconds of `ROUNDS` steps."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds
