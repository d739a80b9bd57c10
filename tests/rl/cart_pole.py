"""CartPole-v1 (Barto, Sutton and Anderson 1983, with Gymnasium's numbers) as n environments.

A cart of mass M on a track is pushed with force F to the left or to the right at each step; a pole
of mass m and half length l stands on it. Its place x and the pole's angle a follow from

    (M + m) x'' + m l (a'' cos a - a'^2 sin a) = F
    4/3 l a'' + x'' cos a = g sin a                                               -> in: `rates`

by Euler's method. Every step is worth 1; an episode ends where |x| > 2.4 or |a| > 12 degrees, or
after 500 steps. It counts as solved at a mean of 475 over 100 episodes.
"""

from collections.abc import Callable
import math

import numpy as np

from rl.agent import Agent
from rl.config import Distribution, Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome, empty_observation
from rl.train import one_thread


MOST_STEPS = 500
SOLVED = 475.0
EPISODES = 100
GRAVITY, CART, POLE, HALF_LENGTH, PUSH, STEP_SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_ENDS = np.array([2.4, np.inf, math.radians(12), np.inf])
# About as far as states get, so that the network's inputs are about as large as each other.
_USUAL = np.array([2.4, 2.0, 0.2, 2.0])

RAINBOW = RainbowConfig(
    network="flat",
    hidden=(64, 64),
    gamma=0.98,
    n_steps=10,
    capacity=20_000,
    alpha=0.5,
    beta=Linear(0.4, 1.0, 40_000),
    epsilon=Linear(1.0, 0.04, 8_000),
    batch=64,
    learning_rate=2e-3,
    warm_up=1_000,
    steps_per_update=8,
    target_every=50,
)
# No return is above 1 / (1 - gamma).
ATOMS = Distribution(n_atoms=51, low=0.0, high=50.0)


def rates(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """What the states [n, 4] (x, x', a, a') change by in a second."""
    _, speed, angle, turning = states.T
    force = np.where(actions == 1, PUSH, -PUSH)
    total = CART + POLE
    pull = (force + POLE * HALF_LENGTH * turning**2 * np.sin(angle)) / total
    turn = (GRAVITY * np.sin(angle) - np.cos(angle) * pull) / (
        HALF_LENGTH * (4 / 3 - POLE * np.cos(angle) ** 2 / total)
    )
    push = pull - POLE * HALF_LENGTH * turn * np.cos(angle) / total
    return np.stack([speed, push, turning, turn], axis=1)


class CartPole:
    """n carts; episodes begin near the middle, by the environments' own generator."""

    def __init__(self, n_envs: int, seed: int):
        self._source = np.random.default_rng(seed)
        self.states = self._begin(n_envs)
        self._steps = np.zeros(n_envs, np.int64)

    def _begin(self, count: int) -> np.ndarray:
        return self._source.uniform(-0.05, 0.05, (count, 4))

    @property
    def shape(self) -> EnvShape:
        return EnvShape(n_envs=len(self.states), n_actions=2, n_flat=5, n_features=0)

    def observe(self) -> Observation:
        seen = empty_observation(self.shape, len(self.states))
        seen.flat[:, :4] = self.states / _USUAL
        # What is left of an episode: without it, the last of 500 steps looks like a fall.
        seen.flat[:, 4] = self._steps / MOST_STEPS
        return seen

    def step(self, actions: np.ndarray) -> Outcome:
        self.states = self.states + STEP_SECONDS * rates(self.states, actions)
        self._steps += 1
        dones = (np.abs(self.states) > _ENDS).any(1) | (self._steps == MOST_STEPS)
        self.states[dones] = self._begin(int(dones.sum()))
        self._steps[dones] = 0
        return Outcome(np.ones(len(actions), np.float32), dones)


def mean_score(chosen_actions: Callable[[CartPole], np.ndarray], seed: int) -> float:
    """Mean sum of rewards of the first episodes of EPISODES carts."""
    env = CartPole(EPISODES, seed)
    scores, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while running.any():
        outcome = env.step(chosen_actions(env))
        scores += outcome.rewards * running
        running &= ~outcome.dones
    return float(scores.mean())


def greedy_score(agent: Agent, seed: int) -> float:
    """That of an agent without exploration."""
    source = np.random.default_rng(0)
    with one_thread():
        return mean_score(lambda env: agent.act(env.observe(), 0.0, source), seed)
