"""Auto-MAP's inference agent in its own form (sections 3.5.3 and 4.5): it sees a problem as one
flat vector, learns on generated problems, and answers new ones.

    python -m scripts.flat_pipeline_agent FOLDER --episodes 100000
    python -m scripts.flat_pipeline_agent FOLDER --episodes 100000 --returns whole --seed 1

State: C*, A* and W* of 128 points, over the greatest of all; the speed between any two devices,
over the fastest; the boundaries so far. Actions: 128 numbers, in turns the next point and the next
unit, front to back, masked so that every stage has a point and a device. 2 (S - 1) of them are an
episode, its reward L0 / L at the end, L0 the seconds of all work on all devices: the paper's 1 / L.
Every problem is played EPISODES_EACH times, then another takes its place.

gamma, batch, learning rate, capacity, alpha, beta, epsilon's way down and updates between targets
are the paper's (section 5.1; an iteration is a decision), the network and what an update follows on
are not given. It trained for ten million episodes.

With whole returns nothing is discounted and the six decisions count together, so that an update has
no estimate of a next state in it; replay is larger and updates are more frequent too. All else is
as above.

FOLDER keeps the runs, one for each kind of returns and seed, and the weights after KEPT episodes
and at the end; a run that was stopped goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

import click
import numpy as np

from automap.pipeline.agent.problems import Problem, Size, generate_as_paper
from automap.pipeline.online.strategy import CONFIGS
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.value import value
from rl.agent import Agent
from rl.checkpoint import Checkpoint, load, save
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome
from rl.train import Trainer, one_thread


SIZE: Final = Size(stages=4, points=128, servers=4, per_server=8)
# As many games at once as keep numpy busy.
N_ENVS: Final = 64
EPISODES_EACH: Final = 50
KEPT: Final = (10_000, 100_000, 1_000_000)
# Held-out problems are of other seeds.
FIRST_SEED: Final = 3_000_000
_LAST: Final = "last"
_UNITS: Final = SIZE.servers * SIZE.per_server
# A point and a unit for each boundary between stages.
_STEPS: Final = 2 * (SIZE.stages - 1)
# Three lines of costs, the speeds, the boundaries so far, and how far the game is.
_FLAT: Final = 3 * SIZE.points + _UNITS**2 + _STEPS + 1
Returns = Literal["discounted", "whole"]
"""What an action is worth: gamma 0.6 and an estimate of the next state, or the episode's reward."""
# The paper's numbers, with a larger network and as many games at once.
_PAPERS: Final = replace(
    CONFIGS["faithful"], hidden=(256, 256, 256), warm_up=500, steps_per_update=N_ENVS
)
RETURNS: Final[Mapping[Returns, RainbowConfig]] = {
    "discounted": _PAPERS,
    "whole": replace(
        _PAPERS,
        gamma=1.0,
        n_steps=_STEPS,
        capacity=65_536,
        steps_per_update=32,
        epsilon=Linear(1.0, 0.1, 80_000),
    ),
}


def problem_line(problem: Problem) -> np.ndarray:
    """C*, A*, W* and the speeds, float32 [3 n + U^2]: seconds of one device, and of the slowest
    link, over the greatest of all.
    """
    arrays = problem.arrays
    link = arrays.transfer_seconds_per_byte[: _UNITS - 1, 1:_UNITS, -1].max()
    seconds = arrays.microbatches * (arrays.forward[1] + arrays.backward[1])[1:]
    cut = arrays.microbatches * link * arrays.cut_bytes[1:]
    gradients = link * arrays.gradient_bytes[0, 1:]
    lines = np.concatenate([seconds, cut, gradients])
    return np.concatenate([lines / lines.max(), speeds(problem).ravel()]).astype(np.float32)


def speeds(problem: Problem) -> np.ndarray:
    """[U, U] bytes per second between devices, over the fastest; 1 from a device to itself."""
    # The slowest link between neighbours on the way from one to the other.
    between = problem.arrays.transfer_seconds_per_byte[0, 1:_UNITS, _UNITS]
    result = np.ones((_UNITS, _UNITS))
    for device in range(_UNITS - 1):
        slowest = np.maximum.accumulate(between[device:])
        result[device, device + 1 :] = result[device + 1 :, device] = between.min() / slowest
    return result


class FlatEnv:
    """Games of problems, one of each at once; all episodes are equally long."""

    def __init__(self, problems: list[Problem]):
        """All at the first action."""
        self._problems = problems
        self._lines = np.stack([problem_line(problem) for problem in problems])
        self._taken = np.zeros((len(problems), _STEPS), np.int64)
        self._step = 0

    @property
    def shape(self) -> EnvShape:
        """Sizes; there are no features of actions."""
        return EnvShape(len(self._problems), SIZE.points, _FLAT, 0)

    def observe(self) -> Observation:
        """All states."""
        n = len(self._problems)
        so_far = self._taken / np.resize([SIZE.points, _UNITS], _STEPS)
        phase = np.full((n, 1), self._step / _STEPS)
        flat = np.concatenate([self._lines, so_far, phase], 1).astype(np.float32)
        end = SIZE.points if self._step % 2 == 0 else _UNITS
        before = self._taken[:, self._step - 2] if self._step >= 2 else np.zeros(n, np.int64)
        left = SIZE.stages - 1 - self._step // 2
        boundary = np.arange(SIZE.points)
        # Room for a point, or a unit, of each stage that is still to come.
        mask = (boundary > before[:, None]) & (boundary <= end - left)
        nothing = np.zeros((n, SIZE.points), np.float32)
        return Observation(flat, np.zeros((n, SIZE.points, 0), np.float32), nothing, mask)

    def step(self, actions: np.ndarray) -> Outcome:
        """Take the next boundary in each; at the end all begin anew."""
        n = len(actions)
        self._taken[:, self._step] = actions
        self._step += 1
        if self._step < _STEPS:
            return Outcome(np.zeros(n, np.float32), np.zeros(n, bool))
        rewards = [
            _bound_seconds(problem) / partition.seconds
            for problem, partition in zip(self._problems, self.partitions(), strict=True)
        ]
        self._begin()
        return Outcome(np.array(rewards, np.float32), np.ones(n, bool))

    def finish(self, actions: np.ndarray) -> None:
        """Take the last boundary, and stay at the end."""
        self._taken[:, -1] = actions

    def partitions(self) -> list[Partition]:
        """Of every game at its end."""
        ended = []
        for problem, taken in zip(self._problems, self._taken, strict=True):
            cuts = np.array([0, *taken[0::2], SIZE.points], np.int64)
            units = np.array([0, *taken[1::2], _UNITS], np.int64)
            ended.append(Partition(cuts, units, float(value(problem.arrays, cuts, units))))
        return ended

    def _begin(self) -> None:
        self._taken[:], self._step = 0, 0


class GeneratedEnv(FlatEnv):
    """Games of generated problems, each EPISODES_EACH times."""

    def __init__(self) -> None:
        """The first problems; they are replaced one after another, not all at once."""
        self._seeds = FIRST_SEED + np.arange(N_ENVS)
        self._left = np.arange(N_ENVS) % EPISODES_EACH + 1
        super().__init__([generate_as_paper(int(seed), SIZE) for seed in self._seeds])

    def arrays(self) -> Mapping[str, np.ndarray]:
        """All that changes."""
        now = np.array([self._step])
        return {"seeds": self._seeds, "left": self._left, "taken": self._taken, "step": now}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        self._seeds, self._left = arrays["seeds"].copy(), arrays["left"].copy()
        super().__init__([generate_as_paper(int(seed), SIZE) for seed in self._seeds])
        self._taken[:], self._step = arrays["taken"], int(arrays["step"][0])

    def _begin(self) -> None:
        super()._begin()
        self._left -= 1
        for row in np.flatnonzero(self._left == 0):
            self._seeds[row] += N_ENVS
            self._left[row] = EPISODES_EACH
            self._problems[row] = generate_as_paper(int(self._seeds[row]), SIZE)
            self._lines[row] = problem_line(self._problems[row])


def _bound_seconds(problem: Problem) -> float:
    """L0: all work, evenly over all devices, without bubble or transfers."""
    arrays = problem.arrays
    return arrays.microbatches * float(arrays.forward[-1, -1] + arrays.backward[-1, -1])


@dataclass(frozen=True)
class Kept:
    """What a run of a seed had learnt after so many episodes."""

    returns: Returns
    seed: int
    episodes: int
    agent: Agent

    @property
    def name(self) -> str:
        """What it is, whatever its seed."""
        what = {"discounted": "paper's form", "whole": "with whole returns"}[self.returns]
        return f"{what}, {self.episodes:,} episodes"


def untrained() -> Agent:
    """The paper's form before it learns; it plays alike with every seed and kind of returns."""
    return Agent(GeneratedEnv().shape, _PAPERS, 0)


def keep(folder: Path, kept: Kept) -> None:
    """Write its weights."""
    path = folder / f"{kept.returns}-{kept.seed}-{kept.episodes}.safetensors"
    save(path, Checkpoint(kept.agent.weights(), {}))


def all_kept(folder: Path) -> list[Kept]:
    """Of all runs of a folder, by kind of returns, episodes and seed."""
    shape, found = GeneratedEnv().shape, list[Kept]()
    for returns, config in RETURNS.items():
        for path in folder.glob(f"{returns}-*-*.safetensors"):
            _, seed, episodes = path.stem.split("-")
            if episodes != _LAST:
                agent = Agent(shape, config, 0)
                agent.begin_with(load(path).arrays)
                found.append(Kept(returns, int(seed), int(episodes), agent))
    return sorted(found, key=lambda kept: (kept.returns, kept.episodes, kept.seed))


def played(agent: Agent, problems: list[Problem]) -> list[Partition]:
    """What the agent makes of problems, greedily."""
    env, source = FlatEnv(problems), np.random.default_rng(0)
    with one_thread():
        for _ in range(_STEPS - 1):
            env.step(agent.act(env.observe(), 0.0, source))
        # The last step would begin new episodes.
        last = agent.act(env.observe(), 0.0, source)
    env.finish(last)
    return env.partitions()


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--episodes", default=100_000, show_default=True)
@click.option("--returns", type=click.Choice(get_args(Returns)), default="discounted")
@click.option("--seed", default=0, show_default=True)
def main(folder: Path, episodes: int, returns: Returns, seed: int) -> None:
    """Train, or go on where the folder's run is."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer, part = Trainer(GeneratedEnv(), RETURNS[returns], seed), 10_000
    last = folder / f"{returns}-{seed}-{_LAST}.safetensors"
    if last.exists():
        trainer.restore(last)
    while trainer.steps < episodes * _STEPS:
        # Whole rounds of all games: what is kept has played a few episodes more.
        done = trainer.steps // _STEPS // part * part + part
        trainer.run(done * _STEPS)
        trainer.save(last)
        if done in KEPT or done >= episodes:
            keep(folder, Kept(returns, seed, done, trainer.agent))
        click.echo(f"{done:,} episodes")


if __name__ == "__main__":
    main()
