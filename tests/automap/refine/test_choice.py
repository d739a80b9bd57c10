"""Which of two plans is compiled next, by the formulas of `automap.refine.candidates` by hand."""

from dataclasses import dataclass, replace
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from automap.backends import BACKENDS
from automap.cost.evaluate import Estimate
from automap.plan.refined import CompiledPlanRecord
from automap.policy import default_policy
from automap.refine.candidates import Candidates
from automap.refine.trials import Trial
from automap.search.context import Candidate


POLICY = default_policy()
BACKEND = BACKENDS["cuda"]
ERRORS = BACKEND.shared_numbers
# What each plan does, in seconds of three kernels: a does nearly what was compiled, b all else.
PARTS = {"compiled": [1.0, 0.0, 0.0], "a": [0.9, 0.1, 0.0], "b": [0.0, 0.0, 1.0]}


@dataclass(frozen=True)
class Toy(Candidates):
    """Plans with the parts of `PARTS`, by name."""

    def _point_parts(self, point):
        return np.array(PARTS[point])


def toy(compiled_seconds, predicted=None, origins=None, tried=("compiled",)):
    predicted = {"compiled": 1.0, "a": 0.99, "b": 1.01} | (predicted or {})
    estimates = {
        name: Estimate(
            compute_seconds=seconds, collective_seconds=0.0, hidden_seconds=0.0, peak_bytes=1.0
        )
        for name, seconds in predicted.items()
    }
    known = SimpleNamespace(
        policy=POLICY,
        evaluator=SimpleNamespace(backend=BACKEND),
        presets=("preset",),
        objective=SimpleNamespace(memory_limit_bytes=1e9),
        estimate=estimates.get,
    )
    trials = [
        Trial(point=name, record=_record(seconds), plan=None, program=None)
        for name, seconds in zip(tried, [compiled_seconds, 0.9, 0.8])
    ]
    origins = origins or {}
    plans = [Candidate(name, estimates[name], origins.get(name, "search")) for name in predicted]
    return Toy(known, plans, trials)


def _record(seconds):
    return CompiledPlanRecord(
        plan="",
        predicted_seconds=1.0,
        predicted_bytes=1,
        expected_seconds=1.0,
        compiled_seconds=seconds,
        compiled_bytes=1,
        fits=True,
        compile_seconds=1.0,
        note="",
    )


def gain(name, predicted, compiled_seconds):
    """Expected improvement after one compiled plan."""
    error = math.log(compiled_seconds / 1.0)
    shared, own = ERRORS.shared_error**2, ERRORS.own_error**2
    distance = sum(abs(x - y) for x, y in zip(PARTS[name], PARTS["compiled"])) / 2
    prior = shared + own + ERRORS.alone_error**2
    covariance = shared + own * math.exp(-distance / ERRORS.error_reach)
    mean = math.log(predicted / compiled_seconds) + covariance / prior * error
    size = (1 + error**2 / prior) / 2
    deviation = math.sqrt(size * (prior - covariance**2 / prior))
    # E [1 - e^u]^+ of a normal u.
    z = -mean / deviation
    return norm.cdf(z) - math.exp(mean + deviation**2 / 2) * norm.cdf(z - deviation)


@pytest.mark.parametrize("compiled_seconds", [0.9, 1.0, 1.3])
def test_gains_of_two_plans_by_hand(compiled_seconds):
    plans = toy(compiled_seconds)
    expected = [0.0, gain("a", 0.99, compiled_seconds), gain("b", 1.01, compiled_seconds)]
    assert plans.gains(compiled_seconds) == pytest.approx(expected, rel=1e-4)
    assert plans.next_index([]) == int(np.argmax(expected))


def test_an_unlike_plan_is_compiled_though_it_is_predicted_to_be_slower():
    assert gain("b", 1.001, 1.0) > 1.2 * gain("a", 0.999, 1.0)
    assert toy(1.0, {"a": 0.999, "b": 1.001}).next_index([]) == 2
    # If it is too much slower, the one that is like the compiled plan is.
    assert toy(1.0, {"b": 1.2}).next_index([]) == 1


def test_those_that_come_first_do_and_a_compiled_plan_never_comes_again():
    assert toy(1.0).next_index(["compiled", "b"]) == 2
    assert toy(1.0, tried=("compiled", "b")).next_index(["compiled", "b"]) in (None, 1)
    assert toy(1.0, tried=("compiled", "b", "a")).next_index(["compiled"]) is None


def test_every_second_plan_is_a_preset_that_gains():
    assert toy(1.0, origins={"a": "preset"}).next_index([]) == 1
    # One that is not expected to gain anything is left out.
    slow = toy(1.0, {"a": 3.0}, origins={"a": "preset"})
    assert slow.next_index([]) == 2


def test_nothing_is_compiled_that_promises_nothing():
    assert toy(1.0, {"a": 3.0, "b": 3.0}).next_index([]) is None


def test_presets_that_are_near_are_compiled_last():
    # One that is as like the compiled plan as can be, and a little slower, gains nothing.
    near = toy(1.0, {"a": 1.2, "b": 3.0}, origins={"a": "preset"})
    near = replace(near, trials=(*near.trials, *near.trials))
    assert near.gains(1.0).max() < POLICY.least_improvement
    assert near.next_index([]) == 1
    far = toy(1.0, {"a": 1.6, "b": 3.0}, origins={"a": "preset"})
    assert replace(far, trials=near.trials).next_index([]) is None
    # A plan of the search is not, however near.
    assert (
        replace(near, candidates=toy(1.0, {"a": 1.2, "b": 3.0}).candidates).next_index([]) is None
    )


def test_the_last_plan_that_time_is_left_for_is_a_preset_that_is_near():
    plans = toy(1.0, {"a": 0.9, "b": 1.1}, origins={"b": "preset"})
    plans = replace(plans, trials=(*plans.trials, *plans.trials))
    assert plans.next_index([]) == 1
    assert plans.next_index([], is_last=True) == 2
    # Those that come first do then too, and a preset that is far is left out.
    assert plans.next_index(["a"], is_last=True) == 1
    far = toy(1.0, {"a": 0.9, "b": 1.6}, origins={"b": "preset"})
    assert replace(far, trials=plans.trials).next_index([], is_last=True) == 1
