"""Plans of the strategy `rainbow`."""

import os
import subprocess
import sys

import pytest


pytest.importorskip("torch")

from automap.config import Options  # noqa: E402
from automap.errors import InputError  # noqa: E402
from automap.planner.spaces import plan_workload  # noqa: E402
from automap.program import trace_step  # noqa: E402
from automap.search import torch_needed  # noqa: E402
from automap.search.rainbow import strategy  # noqa: E402
from automap.topology import get_topology  # noqa: E402
from automap.topology.mesh import Mesh  # noqa: E402
from tests.steps import decoder, mlp  # noqa: E402


TOPOLOGY = get_topology("v5e:2x4")
MESH = Mesh(("model",), (8,))


def plan(model, **options):
    workload = trace_step(*model)
    return plan_workload(workload, TOPOLOGY, Options(budget_seconds=600.0, **options))


@pytest.fixture
def short(monkeypatch):
    """Fewer episodes."""
    monkeypatch.setattr(strategy, "MOST_EPISODES", 8)


def test_finds_the_exhaustive_optimum_of_a_small_space(short):
    best = plan(mlp(), strategy="exhaustive", mesh=MESH)
    assert plan(mlp(), strategy="rainbow", mesh=MESH).predicted.step_seconds == pytest.approx(
        best.predicted.step_seconds
    )


def test_never_worse_than_a_preset(short):
    learned = plan(decoder(), strategy="rainbow", mesh=MESH)
    assert learned.predicted.step_seconds <= min(p.step_seconds for p in learned.presets if p.fits)


_RUN = """
from automap.search.rainbow import strategy
from tests.automap.search.rainbow.test_strategy import MESH, decoder, plan
strategy.MOST_EPISODES = 8
print(repr(plan(decoder(), strategy="rainbow", mesh=MESH, seed=2).inputs))
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan_in_another_process(short):
    here = plan(decoder(), strategy="rainbow", mesh=MESH, seed=2)
    run = subprocess.run(
        [sys.executable, "-c", _RUN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == repr(here.inputs)


def test_a_small_budget_ends_it_with_the_best_so_far():
    learned = plan_workload(
        trace_step(*decoder()), TOPOLOGY, Options(strategy="rainbow", budget_seconds=0.5)
    )
    assert learned.predicted.step_seconds <= min(p.step_seconds for p in learned.presets if p.fits)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_needed, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'jax-automap\[rl\]'"):
        plan(mlp(), strategy="rainbow", mesh=MESH)
