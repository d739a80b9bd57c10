"""Small pipeline problems for tests."""

from collections.abc import Sequence
from functools import partial

from hypothesis import strategies as st
import numpy as np
import pytest

import automap
from automap.api.plan import Plan
from automap.pipeline.agent.problems import TRAINED_SCHEDULES
from automap.pipeline.arrays import Arrays, Terms, from_lines
from automap.pipeline.fabric import Transfers, pipeline_fabric
from automap.pipeline.schedules import PRICED, Schedule
from automap.pipeline.search import Limits
from automap.topology import get_topology


def random_arrays(
    seed: int,
    schedule: Schedule,
    *,
    points: int = 7,
    topology: str = "2x2xv100",
    microbatches: int = 4,
    transfers: Transfers = "matched",
) -> Arrays:
    """C, A, W at random, with tables of memory and limits on where stages may begin."""
    rng = np.random.default_rng(seed)
    arrays = from_lines(
        rng.uniform(0, 3, points),
        rng.uniform(0, 4e9, points),
        rng.uniform(0, 2e9, points),
        pipeline_fabric(get_topology(topology), transfers),
        Terms(microbatches=microbatches, schedule=schedule, memory_limit_bytes=10.0),
    )
    sums = np.concatenate([[0.0], np.cumsum(rng.uniform(0, 2, points))])
    between = np.maximum(sums[None, :] - sums[:, None], 0.0)
    may_cut = rng.random(points + 1) < 0.8
    may_cut[[0, -1]] = True
    usable = np.arange(arrays.n_units + 1) % 3 != 0
    usable[1] = True
    return arrays._replace(
        cut_bytes=np.where(rng.random(points + 1) < 0.5, arrays.cut_bytes, 0.0),
        may_cut=may_cut,
        usable=usable,
        state_bytes=between,
        saved_bytes=between / 2,
        kept_bytes=between / 3,
        memory_limit_bytes=float(rng.uniform(4, 14)) + 8e9,
    )


def only(schedules: Sequence[Schedule], monkeypatch) -> None:
    """Let the planner's searches try these schedules only."""
    monkeypatch.setattr("automap.planner.pipeline.Limits", partial(Limits, schedules=schedules))


def assert_simulated_as_predicted(plan: Plan) -> None:
    """The record alone gives the predicted step and bubble."""
    found = automap.simulate(plan)
    assert found.warnings == ()
    assert found.step_seconds == plan.predicted.step_seconds
    bubble_seconds = found.bubble_fraction * found.step_seconds
    assert bubble_seconds == pytest.approx(plan.predicted.bubble_seconds)


SCHEDULES = st.sampled_from(PRICED)
LEARNT_SCHEDULES = st.sampled_from(TRAINED_SCHEDULES)
SEEDS = st.integers(0, 2**32 - 1)
