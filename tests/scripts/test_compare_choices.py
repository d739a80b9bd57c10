"""Rules of what to compile next: by hand, by brute force, and on plans that were compiled once."""

from dataclasses import replace
from itertools import combinations
import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from automap.plan import codec
from automap.refine.candidates import ErrorModel, ErrorScale
from scripts.compare_choices import COMPILES, RULES, mean_least, replayed
from scripts.compiled_plans import RECORDED, Replay, Step, step_seconds, steps
from scripts.fit_choices import fitted, log_likelihood
from scripts.halves import is_held_out


@pytest.fixture(scope="module")
def replay():
    step = next(s for s in steps(RECORDED) if s.target.endswith(":small_dense"))
    return Replay.begin(step)


def test_the_mean_of_all_orders_is_that_of_all_choices():
    seconds = [3.0, 1.0, 4.0, 1.5, 9.0]
    for count in range(1, 6):
        least = [min(chosen) for chosen in combinations(seconds, count)]
        assert mean_least(seconds, count) == pytest.approx(math.fsum(least) / len(least))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_compiles_no_plan_twice_and_no_more_than_it_may(replay, name):
    n = len(replay.candidates)
    for compiles in (1, 3, n + 1):
        order = replayed(replay, RULES[name], compiles)
        assert len(set(order)) == len(order) <= min(compiles, n)


def test_the_predicted_plans_come_in_order(replay):
    order = replayed(replay, RULES["predicted"], len(replay.candidates))
    seconds = [replay.candidates[i].estimate.step_seconds for i in order]
    assert seconds == sorted(seconds) and len(order) == len(replay.candidates)


def test_what_is_learnt_begins_with_the_search_and_the_best_preset(replay):
    best, preset = replayed(replay, RULES["learnt"], 2)
    assert best == replay.by_prediction(range(len(replay.candidates)))[0]
    # The best plan may be a preset itself.
    assert preset == next(p for p in replay.by_prediction(replay.presets) if p != best)


def test_a_plan_that_the_compiler_refuses_is_worth_nothing(replay):
    plan = replay.step.plans[0]
    assert step_seconds(plan) == plan.compiled_seconds
    assert step_seconds(replace(plan, fits=False)) == math.inf


def test_recorded_plans_are_of_both_halves_and_enough_to_choose_from():
    recorded = steps(RECORDED)
    assert len({(step.target, step.topology) for step in recorded}) == len(recorded)
    assert {is_held_out(step.target) for step in recorded} == {True, False}
    assert all(len(step.plans) > COMPILES for step in recorded)
    for step in recorded:
        assert codec.decode(Step, codec.encode(step), "") == step
        assert min(map(step_seconds, step.plans)) < math.inf


def _drawn(scale: ErrorScale, seed: int) -> ErrorModel:
    """A step of 40 plans whose errors are drawn."""
    source = np.random.default_rng(seed)
    points = source.random((40, 3))
    model = ErrorModel(scale=scale, step_seconds=1.0, points=points, errors=np.zeros(40))
    return replace(model, errors=source.multivariate_normal(np.zeros(40), model.among))


def test_the_likelihood_is_that_of_a_normal_distribution():
    model = _drawn(ErrorScale(shared=0.3, own=0.1, reach=0.5, alone=0.03), seed=0)
    other = ErrorScale(shared=0.2, own=0.2, reach=0.3, alone=0.1)
    covariance = replace(model, scale=other).among
    expected = multivariate_normal(np.zeros(40), covariance).logpdf(model.errors)
    assert log_likelihood([model, model], other) == pytest.approx(2 * expected)


def test_what_errors_were_drawn_with_is_found():
    scale = ErrorScale(shared=0.3, own=0.1, reach=0.5, alone=0.03)
    models = [_drawn(scale, seed) for seed in range(12)]
    found = fitted(models)
    assert log_likelihood(models, found) >= log_likelihood(models, scale)
    assert (found.alone, found.own) == pytest.approx((0.03, 0.1), rel=0.25)
