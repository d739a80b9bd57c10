"""Evolution strategies on a function whose greatest value is known."""

from dataclasses import replace

import numpy as np

from rl.evolution import Evolution, evolved


EVOLUTION = Evolution(names=("moved",), sigma=0.1, pairs=4, step=0.5)
GOAL = np.linspace(-1.0, 1.0, 12, dtype=np.float32)


def _gain(weights):
    return -float(((weights["moved"] - GOAL) ** 2).sum())


def _run(steps, seed=0, evolution=EVOLUTION, gain=_gain):
    source = np.random.default_rng(seed)
    weights = {
        "moved": source.normal(size=12).astype(np.float32),
        "still": np.ones(3, np.float32),
    }
    begun = weights
    for _ in range(steps):
        weights = evolved(weights, gain, evolution, source)
    return begun, weights


def test_weights_come_near_the_greatest_gain():
    begun, weights = _run(300)
    assert _gain(weights) > 0.02 * _gain(begun)
    # Along the slope and not against it.
    _, away = _run(30, gain=lambda weights: -_gain(weights))
    assert _gain(away) < _gain(begun)


def test_only_the_arrays_that_are_named_are_changed():
    begun, weights = _run(3)
    assert (weights["still"] == begun["still"]).all()
    assert (weights["moved"] != begun["moved"]).any()


def test_a_step_is_as_long_as_it_is_said_to_be():
    begun, weights = _run(1)
    rms = np.sqrt(np.mean((weights["moved"] - begun["moved"]) ** 2))
    np.testing.assert_allclose(rms, 0.5 * 0.1 * begun["moved"].std(), rtol=1e-4)
    _, further = _run(1, evolution=replace(EVOLUTION, step=1.0))
    np.testing.assert_allclose(
        further["moved"] - begun["moved"], 2 * (weights["moved"] - begun["moved"]), rtol=1e-3
    )


def test_weights_stay_where_every_change_brings_the_same():
    begun, weights = _run(5, gain=lambda weights: 1.0)
    assert (weights["moved"] == begun["moved"]).all()


def test_the_same_seed_makes_the_same_weights():
    first, again, other = (_run(5, seed)[1]["moved"] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()
