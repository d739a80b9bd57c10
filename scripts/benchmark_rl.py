"""The agents of `rl/` on a control task with a known score, and how fast they learn it beside a
known implementation of deep Q-learning, that of Stable-Baselines3.

    python -m scripts.benchmark_rl --kept ROWS -o docs/reports/rainbow.md

CartPole-v1 by 16 carts at once, with the numbers of `tests/rl/cart_pole.py` for all: networks of
two layers of 64, batches of 64, an update for every 8 steps, one thread. Every EVERY_STEPS steps an
agent plays 100 episodes without exploration; it has solved the task at a mean of 475 there, and
plays 100 others then. Seconds are of the processor, without these episodes, with the environment,
of which each has its own: numpy's for `rl/`, Gymnasium's for the other.

Rows are kept as they are made, and a second run goes on. Stable-Baselines3 and Gymnasium are no
part of an extra: its rows are made where they are installed, and left out elsewhere.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
import platform
import time
from typing import Final

import click
import numpy as np
import torch

from rl.config import RainbowConfig
from rl.train import Trainer, one_thread
from scripts.reproduce_automap import spread
from scripts.tables import keep_row, kept_rows, made_by, markdown, replace_table
from tests.rl.cart_pole import ATOMS, RAINBOW, SOLVED, CartPole, greedy_score, mean_score


COMMAND: Final = "python -m scripts.benchmark_rl --kept ROWS -o docs/reports/rainbow.md"
N_ENVS: Final = 16
EVERY_STEPS: Final = 5_000
MOST_STEPS: Final = 60_000
# Seeds of the episodes that say whether the task is solved, and of those that are played then.
JUDGED, OTHERS = 1, 2
DQN: Final = replace(RAINBOW, bootstrap="single", output_layers="plain", alpha=0.0)
AGENTS: Final[Mapping[str, RainbowConfig]] = {
    "deep Q-learning, ten steps together": DQN,
    "Rainbow: double, dueling, priorities, ten steps": RAINBOW,
    "the same with a distribution of returns": replace(RAINBOW, distribution=ATOMS),
}
PEER: Final = "Stable-Baselines3: deep Q-learning, ten steps together"
HEADER: Final = [
    "agent",
    "solved",
    "after steps",
    "score of 100 other episodes",
    "its score without learning",
    "steps per second of the processor",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`score` is the mean of 100 episodes after the last step, `unlearned` that of the same player
    whose network is never updated, None where there is none.
    """

    agent: str
    seed: int
    is_solved: bool
    steps: int
    seconds: float
    score: float
    unlearned: float | None


def own_run(name: str, seed: int) -> Run:
    """By an agent of `rl/`."""
    config = AGENTS[name]
    trainer, seconds, solved = Trainer(CartPole(N_ENVS, seed), config, seed), 0.0, False
    while not solved and trainer.steps < MOST_STEPS:
        begin = time.process_time()
        trainer.run(trainer.steps // EVERY_STEPS * EVERY_STEPS + EVERY_STEPS)
        seconds += time.process_time() - begin
        solved = greedy_score(trainer.agent, JUDGED) >= SOLVED
    still = Trainer(CartPole(N_ENVS, seed), replace(config, steps_per_update=None), seed)
    still.run(trainer.steps)
    return Run(
        agent=name,
        seed=seed,
        is_solved=solved,
        steps=trainer.steps,
        seconds=seconds,
        score=greedy_score(trainer.agent, OTHERS),
        unlearned=greedy_score(still.agent, OTHERS),
    )


def peer_run(name: str, seed: int) -> Run:
    """By the other implementation, with the numbers of `DQN`."""
    from stable_baselines3 import DQN as PeerDQN  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_vec_env,
    )

    per_update = DQN.steps_per_update
    assert per_update is not None  # noqa: S101 - it learns
    model = PeerDQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=N_ENVS, seed=seed),
        learning_rate=DQN.learning_rate,
        buffer_size=DQN.capacity,
        learning_starts=DQN.warm_up,
        batch_size=DQN.batch,
        gamma=DQN.gamma,
        n_steps=DQN.n_steps,
        train_freq=1,
        gradient_steps=N_ENVS // per_update,
        target_update_interval=DQN.target_every * per_update,
        exploration_fraction=DQN.epsilon.steps / MOST_STEPS,
        exploration_final_eps=DQN.epsilon.end,
        policy_kwargs={"net_arch": list(DQN.hidden)},
        seed=seed,
        device="cpu",
    )

    def score(episodes: int) -> float:
        # It sees the state as it is, and not how far the episode is.
        return mean_score(
            lambda env: model.predict(env.states.astype(np.float32), deterministic=True)[0],
            episodes,
        )

    begin, judging, solved, judged = time.process_time(), 0.0, False, 0

    def on_step(*_: object) -> bool:
        nonlocal judging, solved, judged
        if model.num_timesteps // EVERY_STEPS > judged:
            judged += 1
            before = time.process_time()
            solved = score(JUDGED) >= SOLVED
            judging += time.process_time() - before
        return not solved

    with one_thread():
        model.learn(MOST_STEPS, callback=on_step)
        seconds = time.process_time() - begin - judging
        last = score(OTHERS)
    return Run(
        agent=name,
        seed=seed,
        is_solved=solved,
        steps=model.num_timesteps,
        seconds=seconds,
        score=last,
        unlearned=None,
    )


def runs(seeds: int, kept: Path) -> Iterator[Run]:
    """All runs that can be made here; those that are kept are not made again."""
    known = {(run.agent, run.seed): run for run in (Run(**row) for row in kept_rows(kept))}
    players: dict[str, Callable[[str, int], Run]] = dict.fromkeys(AGENTS, own_run)
    has_peer = find_spec("stable_baselines3") is not None
    players[PEER] = peer_run
    for name, player in players.items():
        for seed in range(seeds):
            run = known.get((name, seed))
            if run is None and name == PEER and not has_peer:
                continue
            if run is None:
                run = player(name, seed)
                keep_row(kept, asdict(run))
                click.echo(run, err=True)
            yield run


def table(made: list[Run]) -> str:
    """One row for each agent."""
    rows = []
    for name in dict.fromkeys(run.agent for run in made):
        mine = [run for run in made if run.agent == name]
        unlearned = [run.unlearned for run in mine if run.unlearned is not None]
        rows.append(
            [
                name,
                f"{sum(run.is_solved for run in mine)} of {len(mine)}",
                spread([run.steps for run in mine]),
                spread([run.score for run in mine]),
                spread(unlearned) if unlearned else "",
                spread([run.steps / run.seconds for run in mine]),
            ]
        )
    return markdown(HEADER, rows)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(seeds: int, kept: Path, output: Path | None) -> None:
    """Print the table, or put it in OUTPUT."""
    # What replay compiles is no part of a run.
    Trainer(CartPole(N_ENVS, 0), RAINBOW, 0).run(2 * RAINBOW.warm_up)
    made = list(runs(seeds, kept))
    machine = f"torch {torch.__version__}, {platform.machine()}, one thread, {seeds} seeds"
    text = made_by(COMMAND, machine) + table(made)
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "control")


if __name__ == "__main__":
    main()
