"""Train the pipeline agent: rounds of lessons from searches and of learning from all lessons so
far, and then reinforcement.

Round 0 plays by what is known without learning, later ones by what has been learnt. Lessons and
weights of every finished round are in FOLDER, so a run that was stopped goes on after its last one;
the same seed makes the same weights, on a processor and however many processes make the lessons,
unless `--minutes` ends it. The metrics of FOLDER/metrics.csv are explained at `METRICS`.

With `--decisions` Rainbow goes on where imitation ended (`scripts.pipeline_lessons.GamesEnv`). Of
all weights, imitation's too, those are kept with which greedy ends best on `JUDGED` other problems;
the metrics of FOLDER/reinforcement.csv are explained at `REINFORCED`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
import csv
from dataclasses import dataclass
from functools import partial
import json
from multiprocessing import get_context
from pathlib import Path
import time
from typing import NamedTuple, TypeVar

import click
import numpy as np
from rich.progress import Progress
from safetensors.numpy import save_file

from automap.action_network import Weights
from automap.pipeline.agent.candidates import Game
from automap.pipeline.agent.network import FORMAT, SHIPPED, values
from automap.pipeline.agent.play import Score, greedy
from rl.checkpoint import Checkpoint, load, save
from rl.config import Linear, RainbowConfig
from rl.env import Observation
from rl.imitation import Imitator, Lessons
from rl.train import Trainer, one_thread
from scripts.pipeline_lessons import (
    SHAPE,
    GamesEnv,
    Lesson,
    batched,
    drawn_game,
    joined,
    problem_lessons,
    rows,
    unlearned,
)


BATCH = 64
LEARNING_RATE = 1e-3
METRICS = ("round", "updates", "lessons", "loss", "gain", "lesson_seconds", "learning_seconds")
"""Round done; batches learnt from; states known; mean loss of the round; what greedy with its
weights saves of the logarithm of the step beside greedy without learning, in the mean of the judged
problems; seconds of both parts.
"""
REINFORCED = ("decisions", "updates", "gain")
"""Decisions made in all games; batches learnt from; the gain as in `METRICS`."""
JUDGED = 400
_GAMES = 16
_DECISIONS_OF_A_ROW = 1_000

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """What a folder's rounds are made with."""

    folder: Path
    rounds: int
    problems: int
    updates: int
    seed: int
    processes: int


class Seeds(NamedTuple):
    """The first seeds of each use: far from the seeds of held-out problems."""

    lessons: int
    judged: int
    games: int


def first_seeds(seed: int) -> Seeds:
    """Of a run."""
    first = 1_000_000 * (seed + 1)
    return Seeds(first, first + 400_000, first + 500_000)


def round_paths(number: int, folder: Path) -> tuple[Path, Path]:
    """(lessons, weights) of a round."""
    return folder / f"lessons-{number}.safetensors", folder / f"weights-{number}.safetensors"


def score_by(weights: Weights | None) -> Score:
    """Q by weights; what is known without learning if there are none."""
    return unlearned if weights is None else partial(values, weights)


def seed_lessons(weights: Weights | None, seed: int) -> list[Lesson]:
    """The lessons of one problem, in whichever process."""
    return list(problem_lessons(seed, score_by(weights)))


def mapped(work: Callable[[int], T], seeds: Sequence[int], processes: int) -> Iterator[T]:
    """Work on every seed, in their order."""
    if processes == 1:
        yield from map(work, seeds)
        return
    # Begun anew rather than forked: torch has threads of its own.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(work, seeds, chunksize=4)
        finally:
            pool.shutdown(cancel_futures=True)


def make_lessons(
    seeds: range,
    weights: Weights | None,
    path: Path,
    processes: int,
    ended: float,
    progress: Progress,
) -> Lessons | None:
    """The lessons of problems, kept in a file if time was not up before; None if there are none."""
    # Made by an earlier run with the same seed.
    if path.exists():
        return from_arrays(load(path).arrays)
    collected: list[Lesson] = []
    made = mapped(partial(seed_lessons, weights), seeds, processes)
    for lessons in progress.track(made, total=len(seeds), description="lessons"):
        collected += lessons
        if time.monotonic() > ended:
            return batched(collected) if collected else None
    everything = batched(collected)
    save(path, Checkpoint({**everything.states.arrays(), "worth": everything.worth}, {}))
    return everything


def from_arrays(arrays: Mapping[str, np.ndarray]) -> Lessons:
    """Lessons as they were kept."""
    named = dict(arrays)
    worth = named.pop("worth")
    return Lessons(Observation(**named), worth)


class Judge:
    """Problems of no lesson and of no held-out table, and greedy without learning on them."""

    def __init__(self, first_seed: int, processes: int):
        """`JUDGED` problems."""
        seeds = range(first_seed, first_seed + JUDGED)
        self._games: list[Game] = list(mapped(drawn_game, seeds, processes))
        self._unlearned = self._logs(unlearned)
        self._most, self._weights = -np.inf, dict[str, np.ndarray]()

    def gain(self, weights: Weights) -> float:
        """What greedy with weights saves of log L, in the mean; the best weights are kept."""
        gained = float(np.mean(self._unlearned - self._logs(score_by(weights))))
        if gained > self._most:
            self._most, self._weights = gained, weights
        return gained

    @property
    def best(self) -> tuple[float, Weights]:
        """The most that was gained, and the weights."""
        return self._most, self._weights

    def _logs(self, score: Score) -> np.ndarray:
        return np.log([greedy(game, score).seconds for game in self._games])


def learn(
    imitator: Imitator, lessons: Lessons, updates: int, seed: int, progress: Progress
) -> float:
    """So many updates; returns the mean loss."""
    # By what is done already, so that a resumed run draws as one that was never stopped.
    rng = np.random.default_rng([seed, imitator.updates])
    losses = []
    with one_thread():
        for _ in progress.track(range(updates), description="learning"):
            losses.append(
                imitator.learn(rows(lessons, rng.integers(len(lessons.worth), size=BATCH)))
            )
    return float(np.mean(losses))


def rainbow(width: int) -> RainbowConfig:
    """Rainbow after imitation: whole returns, as no game has more than six decisions."""
    return RainbowConfig(
        network="per-action",
        hidden=(width, width),
        gamma=1.0,
        n_steps=6,
        capacity=4_000,
        alpha=0.6,
        beta=Linear(0.4, 1.0, 20_000),
        epsilon=Linear(0.1, 0.02, 10_000),
        batch=BATCH,
        learning_rate=1e-4,
        warm_up=500,
        steps_per_update=4,
        target_every=200,
    )


def reinforce(
    begun: Weights, decisions: int, seed: int, device: str, folder: Path, judge: Judge, ended: float
) -> int:
    """Rainbow from weights on; the judge sees its weights now and then. Returns decisions made."""
    path, kept = folder / "reinforced.safetensors", folder / "reinforced-best.safetensors"
    config = rainbow(len(begun["action.0.bias"]))
    env = GamesEnv(first_seeds(seed).games, _GAMES)
    trainer = Trainer(env, config, seed, device=device)
    if path.exists():
        trainer.restore(path)
        judge.gain(dict(load(kept).arrays))
    else:
        trainer.agent.begin_with(begun)
    while trainer.steps < decisions and time.monotonic() < ended:
        most = min(trainer.steps + _DECISIONS_OF_A_ROW, decisions)
        trainer.run(most, lambda: time.monotonic() > ended)
        gained = judge.gain(trainer.agent.weights())
        row = (trainer.steps, trainer.agent.updates, gained)
        write_metrics(folder / "reinforcement.csv", dict(zip(REINFORCED, row)))
        save(kept, Checkpoint(judge.best[1], {}))
        trainer.save(path)
    return trainer.steps


def write_metrics(path: Path, row: Mapping[str, float]) -> None:
    """Add a line to the metrics."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(row)
        writer.writerow(row.values())


def write_weights(weights: Weights, path: Path, made: dict[str, object]) -> None:
    """The file that the package ships; its header says how it was made."""
    save_file(weights, path, metadata={"format": FORMAT.name, "made": json.dumps(made)})


def imitate(
    imitator: Imitator, run: Run, judge: Judge, ended: float, progress: Progress
) -> list[Lessons]:
    """Rounds of lessons and of learning, from the last finished one on; returns the lessons."""
    lots: list[Lessons] = []
    for number in progress.track(range(run.rounds), description="rounds"):
        if time.monotonic() > ended:
            break
        lessons_path, weights_path = round_paths(number, run.folder)
        begin = time.monotonic()
        # Never the same problems in two rounds.
        first = first_seeds(run.seed).lessons + number * run.problems
        seeds = range(first, first + run.problems)
        weights = imitator.weights() if imitator.updates else None
        lot = make_lessons(seeds, weights, lessons_path, run.processes, ended, progress)
        if lot is None:
            break
        lots.append(lot)
        # A finished round: its weights are where the next one goes on.
        if weights_path.exists():
            imitator.restore(load(weights_path).arrays)
            judge.gain(imitator.weights())
            continue
        middle = time.monotonic()
        everything = joined(lots)
        loss = learn(imitator, everything, run.updates, run.seed, progress)
        # A round that was cut short is none to go on from.
        if lessons_path.exists():
            save(weights_path, Checkpoint(imitator.arrays(), {}))
        row = (
            number,
            imitator.updates,
            len(everything.worth),
            loss,
            judge.gain(imitator.weights()),
            middle - begin,
            time.monotonic() - middle,
        )
        write_metrics(run.folder / "metrics.csv", dict(zip(METRICS, row)))
    return lots


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--rounds", default=3, show_default=True)
@click.option("--problems", default=500, show_default=True, help="new problems of each round")
@click.option("--updates", default=1000, show_default=True, help="batches of each round")
@click.option("--width", default=64, show_default=True, help="of the network's hidden layers")
@click.option("--decisions", default=0, show_default=True, help="of Rainbow, after imitation")
@click.option("--seed", default=0, show_default=True)
@click.option("--processes", default=1, show_default=True, help="that make lessons")
@click.option("--device", default="cpu", show_default=True, help="of torch, to learn on")
@click.option("--minutes", default=600.0, show_default=True, help="nothing begins after them")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=SHIPPED)
def main(
    folder: Path,
    rounds: int,
    problems: int,
    updates: int,
    width: int,
    decisions: int,
    seed: int,
    processes: int,
    device: str,
    minutes: float,
    output: Path,
) -> None:
    """Go on where the folder's last finished round ended."""
    folder.mkdir(parents=True, exist_ok=True)
    # Before hours of work, not behind them.
    output.parent.mkdir(parents=True, exist_ok=True)
    ended = time.monotonic() + 60 * minutes
    run = Run(folder, rounds, problems, updates, seed, processes)
    judge = Judge(first_seeds(seed).judged, processes)
    imitator = Imitator(SHAPE, (width, width), seed, LEARNING_RATE, rounds * updates, device)
    with Progress(transient=True) as progress:
        lots = imitate(imitator, run, judge, ended, progress)
    if not imitator.updates:
        return
    done = 0
    if decisions:
        done = reinforce(judge.best[1], decisions, seed, device, folder, judge, ended)
    gained, weights = judge.best
    made = {
        "script": "scripts/train_pipeline_agent.py",
        "seed": seed,
        "rounds": len(lots),
        "of_rounds": rounds,
        "problems": len(lots) * problems,
        "lessons": sum(len(lot.worth) for lot in lots),
        "updates": imitator.updates,
        "decisions": done,
        "width": width,
        "gain": gained,
    }
    write_weights(weights, output, made)
    click.echo(f"{output}: {json.dumps(made)}")


if __name__ == "__main__":
    main()
