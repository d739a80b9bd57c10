"""Deadlines: which of two clocks ends a search, and that every strategy looks at them."""

from dataclasses import replace
import math
from unittest.mock import patch

import numba
import pytest

from automap.config import Options
from automap.cost.evaluate import Evaluator
from automap.deadline import WALL_SECONDS_OF_A_BUDGET_SECOND, Clock, Deadline, pause_clocks
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.search import STRATEGIES
from automap.search.factored.eliminate import Elimination
from automap.search.factored.model import Model
from automap.search.presets import MOST_MESHES
from automap.topology import get_topology, mesh_shapes
from automap.topology.model import Level
from tests.automap.clocks import Work
from tests.steps import decoder


class Hands:
    """Two clocks that stand where they are put."""

    def __init__(self):
        self.processor, self.wall = 5.0, 100.0

    @property
    def clock(self):
        return Clock(lambda: self.processor, lambda: self.wall)


def test_processor_time_ends_a_search_and_the_wall_clock_one_that_is_starved():
    hands = Hands()
    deadline = Deadline.after(10.0, hands.clock)
    assert deadline.seconds_left == pytest.approx(10.0)
    # On a busy machine twice the budget may pass on the wall.
    hands.processor, hands.wall = 9.0, 115.0
    assert deadline.seconds_left == pytest.approx(2.5)
    hands.wall = 100.0 + WALL_SECONDS_OF_A_BUDGET_SECOND * 10.0
    assert deadline.is_over
    hands.processor, hands.wall = 15.0, 110.0
    assert deadline.is_over
    hands.processor = 14.9
    assert not deadline.is_over


def test_a_share_ends_earlier_and_never_is_never():
    hands = Hands()
    deadline = Deadline.after(10.0, hands.clock)
    hands.processor, hands.wall = 7.0, 104.0
    part = deadline.share(0.25)
    assert part.seconds_left == pytest.approx(2.0)
    hands.processor = 9.0
    assert part.is_over
    assert not deadline.is_over
    assert not Deadline.never().share(0.5).is_over
    assert Deadline.never().seconds_left == math.inf


# What a strategy may still do once its time is up: one batch of 32 points, and the last decisions
# of `auto`.
_MOST_LATE = 60


@pytest.fixture(scope="module")
def workload():
    return trace_step(*decoder(layers=1))


# Auto-MAP's two have another objective, and are tried in tests/automap/search/counts.
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("exhaustive", "optcnn") else name
        for name in sorted(set(STRATEGIES) - {"adp", "opp"})
    ],
)
def test_every_strategy_ends_soon_after_the_deadline(workload, strategy, monkeypatch):
    if strategy == "rainbow":
        pytest.importorskip("torch")
    work, topology = Work(), get_topology("gb200-nvl72")
    for owner, name in (
        # Also of points that are priced together.
        (Evaluator, "add_up"),
        (Elimination, "_eliminate"),
        (Model, "_group_on_mesh"),
    ):
        monkeypatch.setattr(owner, name, work.counted(getattr(owner, name)))
    for budget in (0, 30, 300):
        work.done = 0
        deadline = Deadline.after(budget, work.clock)
        outcome = find(workload, topology, Options(strategy=strategy), deadline=deadline)
        assert outcome.context.fitting_seconds < math.inf
        assert work.done <= budget + _MOST_LATE
        if budget < 300:
            assert any("not done after its budget" in warning for warning in outcome.warnings)
            assert any("presets on meshes" in warning for warning in outcome.warnings)


def test_of_many_meshes_the_most_promising_are_searched(workload):
    """A flat switch of 5,040 devices has 692 mesh shapes."""
    level = Level(name="switch", size=5040, kind="switch", bytes_per_s=25e9, latency_seconds=5e-6)
    topology = replace(get_topology("8xh100"), name="flat", levels=(level,))
    outcome = find(workload, topology, Options(preset="zero-3"))
    searched = outcome.context.meshes
    assert len(mesh_shapes(topology, max_axes=3)) == 692
    assert len(searched) == MOST_MESHES
    assert f"{MOST_MESHES} of 692 mesh shapes were searched" in outcome.warnings[0]
    assert {preset.point.mesh for preset in outcome.context.best_per_preset.values()} <= set(
        searched
    )


def test_what_numba_compiles_counts_for_no_deadline():
    @numba.njit
    def twice(x):
        return 2.0 * x

    @numba.njit
    def square(x):
        return twice(x) * x / 2.0

    moments = []
    with patch("automap.numba_jit.pause_clocks", lambda *seconds: moments.append(seconds)):
        assert square(3.0) == 9.0
        # The inner function is a part of it, and the second call compiles nothing.
        assert square(4.0) == 16.0
    ((processor, wall),) = moments
    assert wall >= 0.0 < processor
    deadline = Deadline.after(10.0)
    pause_clocks(1000.0, 1000.0)
    assert deadline.seconds_left > 100.0
