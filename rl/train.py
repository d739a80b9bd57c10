"""Playing and learning: one loop over n environments, exact to the bit when it is resumed.

Each step: observe, act epsilon-greedily, step all environments, put completed n-step transitions in
the replay, and for every `steps_per_update` steps of single environments learn from one batch
                                                                               -> in: `Trainer.step`

All randomness comes from one generator of the seed; torch works in one thread meanwhile, as sums in
several would come out in another order                                         -> in: `one_thread`
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
import json
from pathlib import Path

import numpy as np
import torch

from rl.agent import Agent
from rl.checkpoint import Checkpoint, load, part, prefixed, save
from rl.config import RainbowConfig
from rl.env import Env, ResumableEnv
from rl.errors import CheckpointError
from rl.metrics import Log, Progress, Row
from rl.replay import NStep, Replay


class Trainer:
    """One run of an agent in an environment; `env` is moved by nobody else."""

    def __init__(
        self,
        env: Env,
        config: RainbowConfig,
        seed: int,
        log: Log[Row] | None = None,
        log_every_steps: int = 1_000,
        device: str = "cpu",
    ):
        """Begin a run; the same seed gives the same run, to the bit on a processor. `log` gets a
        row every `log_every_steps` steps; the networks are on `device`, as `torch.device` names it.
        """
        self._env, self._config, self._log, self._log_every = env, config, log, log_every_steps
        shape = env.shape
        # Any whole number is a seed; numpy takes those from 0, torch those of 64 bits.
        self._source = np.random.Generator(np.random.PCG64([int(seed < 0), abs(seed)]))
        self.agent = Agent(shape, config, int(self._source.integers(2**62)), device)
        self._replay = Replay(config.capacity, shape, config.alpha)
        self._n_step = NStep(shape, config.n_steps, config.gamma)
        self._progress = Progress(shape.n_envs)

    @property
    def steps(self) -> int:
        """Steps of single environments so far."""
        return self._progress.steps

    def run(self, most_steps: int, ended: Callable[[], bool] = lambda: False) -> None:
        """Go on until `most_steps` steps are done since the run began, or `ended` says so after a
        step.
        """
        with one_thread():
            while self.steps < most_steps:
                self.step()
                if ended():
                    break

    def step(self) -> None:
        """One step of all environments, and the learning that is due."""
        progress, config = self._progress, self._config
        before = progress.steps
        epsilon, beta = config.epsilon.at(before), config.beta.at(before)
        now = self._env.observe()
        actions = self.agent.act(now, epsilon, self._source)
        outcome = self._env.step(actions)
        self._replay.add(self._n_step.push(now, actions, outcome, self._env.observe()))
        progress.played(outcome)
        if config.steps_per_update is not None and len(self._replay) >= config.warm_up:
            # Counted from the first step on, so that a run that is resumed learns at the same
            # steps.
            due = progress.steps // config.steps_per_update - before // config.steps_per_update
            for _ in range(due):
                batch = self._replay.sample(config.batch, beta, self._source)
                learned = self.agent.learn(batch)
                self._replay.update(batch.items, learned.surprises)
                progress.learned(learned)
        if self._log and progress.steps // self._log_every > before // self._log_every:
            row = progress.row(
                epsilon=epsilon, beta=beta, updates=self.agent.updates, held=len(self._replay)
            )
            self._log.write(row)

    def save(self, path: Path) -> None:
        """Write everything that the rest of the run depends on.

        Raises `CheckpointError` if that cannot be written, or the environments cannot be saved.
        """
        arrays = {
            **prefixed("agent", self.agent.arrays()),
            **prefixed("replay", self._replay.arrays()),
            **prefixed("n-step", self._n_step.arrays()),
            **prefixed("progress", self._progress.arrays()),
            **prefixed("env", self._resumable().arrays()),
        }
        save(
            path,
            Checkpoint(arrays, self._identity() | {"source": self._source.bit_generator.state}),
        )

    def restore(self, path: Path) -> None:
        """Go on where a run of the same environments and configuration was saved.

        Raises `CheckpointError` for a file that cannot be read, or is of another run; this one is
        of no use then.
        """
        checkpoint = load(path)
        # Another shape or configuration would be read without an error, and mean something else.
        for name, mine in self._identity().items():
            if checkpoint.scalars.get(name) != mine:
                raise CheckpointError(
                    f"{path}: its {name} is {checkpoint.scalars.get(name)}, this run's is {mine}; "
                    "resume with the environments and the configuration that it was made with"
                )
        try:
            self.agent.restore(part(checkpoint, "agent"))
            self._replay.restore(part(checkpoint, "replay"))
            self._n_step.restore(part(checkpoint, "n-step"))
            self._progress.restore(part(checkpoint, "progress"))
            self._resumable().restore(part(checkpoint, "env"))
            self._source.bit_generator.state = checkpoint.scalars["source"]
        except (KeyError, ValueError, IndexError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{path}: does not fit this run: {error}") from error

    def _resumable(self) -> ResumableEnv:
        if not isinstance(self._env, ResumableEnv):
            raise CheckpointError(
                f"{type(self._env).__name__} cannot be saved; only a `ResumableEnv` can"
            )
        return self._env

    def _identity(self) -> dict[str, object]:
        """Sizes and configuration as JSON gives them back."""
        named = {"shape": asdict(self._env.shape), "config": asdict(self._config)}
        # Through JSON, as a checkpoint's is: tuples have become lists there.
        return json.loads(json.dumps(named))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch in a single thread, then as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
