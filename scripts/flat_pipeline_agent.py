"""The baseline: Auto-MAP's agent in its own form, which sees a problem as one flat vector.

State: C, A, W of 128 points, divided by the greatest of all, and the boundaries so far; actions:
128 numbers, in turns the next point and the next unit, front to back, masked so that every stage
has a point and a device; 2 (S - 1) actions are an episode, its reward -log(L / L0) at the end, L0
the seconds of all work on all devices. A perceptron of 3 x 256, Rainbow without noise (`rl`). This
is a reading of the paper, whose code is not published.
"""

import numpy as np

from automap.pipeline.agent.problems import Problem, Size, generate_plain
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.value import value
from rl.agent import Agent
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome
from rl.train import Trainer, one_thread


SIZE = Size(stages=4, points=128, servers=4, per_server=8)
# As many games at once as keep numpy busy.
N_ENVS = 64
EPISODES = 40_000
POOL = 2_000
_UNITS = SIZE.servers * SIZE.per_server
# A point and a unit for each boundary between stages.
_STEPS = 2 * (SIZE.stages - 1)
# Three lines of costs, the boundaries so far, and how far the game is.
_FLAT = 3 * SIZE.points + _STEPS + 1


def config(episodes: int) -> RainbowConfig:
    """The notes of docs/reports/pipeline_agent.md say where it differs from the paper."""
    steps = episodes * _STEPS
    return RainbowConfig(
        network="flat",
        hidden=(256, 256, 256),
        # The reward comes at the end only: a discount would punish long games.
        gamma=1.0,
        n_steps=2,
        capacity=16_384,
        alpha=0.6,
        beta=Linear(0.4, 1.0, steps),
        epsilon=Linear(1.0, 0.05, steps // 3),
        batch=128,
        learning_rate=5e-4,
        warm_up=2_048,
        steps_per_update=64,
        target_every=50,
    )


def cost_lines(problem: Problem) -> np.ndarray:
    """C, A and W, float32 [3 n]: seconds of one device, and of the slowest link, over the greatest
    of all.
    """
    arrays = problem.arrays
    link = arrays.transfer_seconds_per_byte[: _UNITS - 1, 1:_UNITS, -1].max()
    seconds = arrays.microbatches * (arrays.forward[1] + arrays.backward[1])[1:]
    cut = arrays.microbatches * link * arrays.cut_bytes[1:]
    gradients = link * arrays.gradient_bytes[0, 1:]
    lines = np.concatenate([seconds, cut, gradients])
    return (lines / lines.max()).astype(np.float32)


class FlatEnv:
    """N_ENVS problems at once, drawn from a pool; all episodes are equally long."""

    def __init__(self, problems: list[Problem], n_envs: int, seed: int):
        """All at the first action."""
        self._problems = problems
        self._lines = np.stack([cost_lines(problem) for problem in problems])
        self._source = np.random.default_rng(seed)
        self._drawn = np.zeros(n_envs, np.int64)
        self._taken = np.zeros((n_envs, _STEPS), np.int64)
        self.begin(self._source.integers(len(problems), size=n_envs))

    @property
    def shape(self) -> EnvShape:
        """Sizes; there are no features of actions."""
        return EnvShape(len(self._drawn), SIZE.points, _FLAT, 1)

    def begin(self, drawn: np.ndarray) -> None:
        """Start these problems [n]."""
        self._drawn[:], self._taken[:], self._step = drawn, 0, 0

    def observe(self) -> Observation:
        """All states."""
        n = len(self._drawn)
        so_far = self._taken / np.resize([SIZE.points, _UNITS], _STEPS)
        phase = np.full((n, 1), self._step / _STEPS)
        flat = np.concatenate([self._lines[self._drawn], so_far, phase], 1).astype(np.float32)
        end = SIZE.points if self._step % 2 == 0 else _UNITS
        before = self._taken[:, self._step - 2] if self._step >= 2 else np.zeros(n, np.int64)
        left = SIZE.stages - 1 - self._step // 2
        boundary = np.arange(SIZE.points)
        # Room for a point, or a unit, of each stage that is still to come.
        mask = (boundary > before[:, None]) & (boundary <= end - left)
        nothing = np.zeros((n, SIZE.points), np.float32)
        return Observation(flat, nothing[:, :, None], nothing, mask)

    def step(self, actions: np.ndarray) -> Outcome:
        """Take the next boundary in each."""
        n = len(actions)
        self._taken[:, self._step] = actions
        self._step += 1
        if self._step < _STEPS:
            return Outcome(np.zeros(n, np.float32), np.zeros(n, bool))
        rewards = [
            -np.log(partition.seconds / self._bound(row)) for row, partition in self.partitions()
        ]
        self.begin(self._source.integers(len(self._problems), size=n))
        return Outcome(np.array(rewards, np.float32), np.ones(n, bool))

    def finish(self, actions: np.ndarray) -> None:
        """Take the last boundary, and stay at the end."""
        self._taken[:, -1] = actions

    def partitions(self) -> list[tuple[int, Partition]]:
        """(number of the problem, partition) of every environment at its end."""
        ended = []
        for row, taken in zip(self._drawn, self._taken):
            cuts = np.array([0, *taken[0::2], SIZE.points], np.int64)
            parts = np.array([0, *taken[1::2], _UNITS], np.int64)
            seconds = value(self._problems[row].arrays, cuts, parts)
            ended.append((int(row), Partition(cuts, parts, seconds)))
        return ended

    def _bound(self, row: int) -> float:
        arrays = self._problems[row].arrays
        # L0: all work, evenly over all devices, without bubble or transfers.
        return arrays.microbatches * (arrays.forward[-1, -1] + arrays.backward[-1, -1])


def trained(episodes: int, seed: int) -> Agent:
    """An agent after so many episodes."""
    pool = [generate_plain(1_000_000 + number, SIZE) for number in range(POOL)]
    trainer = Trainer(FlatEnv(pool, N_ENVS, seed), config(episodes), seed)
    trainer.run(episodes * _STEPS)
    return trainer.agent


def played(agent: Agent, problems: list[Problem]) -> list[Partition]:
    """What the agent makes of problems, greedily."""
    env = FlatEnv(problems, len(problems), 0)
    env.begin(np.arange(len(problems)))
    source = np.random.default_rng(0)
    with one_thread():
        for _ in range(_STEPS - 1):
            env.step(agent.act(env.observe(), 0.0, source))
        # The last step would begin new episodes.
        last = agent.act(env.observe(), 0.0, source)
    env.finish(last)
    return [partition for _, partition in env.partitions()]
