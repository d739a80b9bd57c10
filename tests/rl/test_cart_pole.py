"""A classic control task: its equations, its episodes, and that Rainbow learns it to its known
score.
"""

import gymnasium
import numpy as np
import pytest


pytest.importorskip("torch")

from rl.train import Trainer  # noqa: E402
from tests.rl.cart_pole import (  # noqa: E402
    CART,
    GRAVITY,
    HALF_LENGTH,
    MOST_STEPS,
    POLE,
    PUSH,
    RAINBOW,
    SOLVED,
    CartPole,
    greedy_score,
    rates,
)


def test_accelerations_solve_the_equations_of_motion():
    source = np.random.default_rng(0)
    states, actions = source.normal(size=(200, 4)), source.integers(2, size=200)
    _, _, angle, turning = states.T
    speed, push, turned, turn = rates(states, actions).T
    assert np.array_equal(speed, states[:, 1]) and np.array_equal(turned, turning)
    force = np.where(actions == 1, PUSH, -PUSH)
    swing = POLE * HALF_LENGTH * (turn * np.cos(angle) - turning**2 * np.sin(angle))
    assert (CART + POLE) * push + swing == pytest.approx(force)
    assert 4 / 3 * HALF_LENGTH * turn + push * np.cos(angle) == pytest.approx(
        GRAVITY * np.sin(angle)
    )


def test_episodes_are_those_of_gymnasium():
    theirs = gymnasium.make("CartPole-v1")
    source = np.random.default_rng(0)
    for episode in range(20):
        seen, _ = theirs.reset(seed=episode)
        ours = CartPole(1, seed=0)
        ours.states = np.array([seen], np.float64)
        ended = False
        while not ended:
            action = source.integers(2)
            seen, _, terminated, truncated, _ = theirs.step(action)
            ended = bool(ours.step(np.array([action])).dones[0])
            assert ended == (terminated or truncated)
            # Theirs are rounded to four bytes.
            assert ended or ours.states[0] == pytest.approx(seen, abs=1e-4)


def test_an_episode_ends_after_500_steps():
    env = CartPole(1, seed=0)
    # Upright and at rest it falls, so it is set upright again before each step.
    for step in range(1, MOST_STEPS + 1):
        env.states = np.zeros((1, 4))
        assert env.observe().flat[0, 4] == pytest.approx((step - 1) / MOST_STEPS)
        assert env.step(np.array([step % 2])).dones.tolist() == [step == MOST_STEPS]


@pytest.mark.slow
def test_rainbow_learns_to_balance_and_who_never_learns_does_not():
    trainer = Trainer(CartPole(16, seed=0), RAINBOW, seed=0)
    # An agent that knows nothing pushes to one side.
    assert greedy_score(trainer.agent, seed=1) < 15.0
    solved = False
    while not solved and trainer.steps < 60_000:
        trainer.run(trainer.steps + 5_000)
        solved = greedy_score(trainer.agent, seed=1) >= SOLVED
    assert solved and greedy_score(trainer.agent, seed=2) >= SOLVED - 15.0
