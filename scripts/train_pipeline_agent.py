"""Train the pipeline agent: rounds of lessons from the exact solver and of learning from all
lessons so far.

Round 0 plays by what is known without learning, later ones by what has been learnt. Lessons and
weights of every finished round are in FOLDER, so a run that was stopped goes on after its last one;
the same seed makes the same weights unless `--minutes` ends it. The metrics of FOLDER/metrics.csv
are explained at `METRICS`.
"""

from collections.abc import Mapping
import csv
import json
from pathlib import Path
import time

import click
import numpy as np
from rich.progress import Progress
from safetensors.numpy import save_file

from automap.pipeline.agent.network import FORMAT, SHIPPED, values
from automap.pipeline.agent.play import Score
from rl.checkpoint import Checkpoint, load, save
from rl.env import Observation
from rl.imitation import Imitator, Lessons
from rl.train import one_thread
from scripts.pipeline_lessons import SHAPE, Lesson, batched, joined, problem_lessons, rows


# Small enough that the shipped weights answer in milliseconds without torch.
WIDTH = 64
BATCH = 64
LEARNING_RATE = 1e-3
METRICS = ("round", "updates", "lessons", "loss", "lesson_seconds", "learning_seconds")
"""Round done; batches learnt from; states known; mean loss of the round; process seconds of both
parts.
"""


def round_paths(number: int, folder: Path) -> tuple[Path, Path]:
    """(lessons, weights) of a round."""
    return folder / f"lessons-{number}.safetensors", folder / f"weights-{number}.safetensors"


def choose_score(imitator: Imitator) -> Score:
    """Q by the weights of now; what is known without learning if nothing was learnt."""
    if not imitator.updates:
        return lambda options: options.baseline
    weights = imitator.weights()
    return lambda options: values(weights, options)


def make_lessons(
    seeds: range, score: Score, path: Path, ended: float, progress: Progress
) -> Lessons | None:
    """The lessons of problems, kept in a file; None if time was up before."""
    # Made by an earlier run with the same seed.
    if path.exists():
        return from_arrays(load(path).arrays)
    collected: list[Lesson] = []
    for seed in progress.track(seeds, description="lessons"):
        if time.monotonic() > ended:
            return None
        collected += problem_lessons(seed, score)
    lessons = batched(collected)
    save(path, Checkpoint({**lessons.states.arrays(), "worth": lessons.worth}, {}))
    return lessons


def from_arrays(arrays: Mapping[str, np.ndarray]) -> Lessons:
    """Lessons as they were kept."""
    named = dict(arrays)
    worth = named.pop("worth")
    return Lessons(Observation(**named), worth)


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


def write_metrics(path: Path, row: Mapping[str, float]) -> None:
    """Add a line to the metrics."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(METRICS)
        writer.writerow([row[name] for name in METRICS])


def write_weights(weights: dict[str, np.ndarray], path: Path, made: dict[str, object]) -> None:
    """The file that the package ships; its header says how it was made."""
    save_file(weights, path, metadata={"format": FORMAT.name, "made": json.dumps(made)})


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--rounds", default=6, show_default=True)
@click.option("--problems", default=500, show_default=True, help="new problems of each round")
@click.option("--updates", default=1000, show_default=True, help="batches of each round")
@click.option("--seed", default=0, show_default=True)
@click.option("--minutes", default=600.0, show_default=True, help="no round begins after them")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=SHIPPED)
def main(
    folder: Path, rounds: int, problems: int, updates: int, seed: int, minutes: float, output: Path
) -> None:
    """Go on where the folder's last finished round ended."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = time.monotonic() + 60 * minutes
    imitator = Imitator(SHAPE, (WIDTH, WIDTH), seed, LEARNING_RATE, rounds * updates)
    lots: list[Lessons] = []
    with Progress(transient=True) as progress:
        for number in progress.track(range(rounds), description="rounds"):
            lessons_path, weights_path = round_paths(number, folder)
            begin = time.process_time()
            # Far from the seeds of held-out problems, and never the same in two rounds.
            first = 1_000_000 * (seed + 1) + number * problems
            lot = make_lessons(
                range(first, first + problems),
                choose_score(imitator),
                lessons_path,
                ended,
                progress,
            )
            if lot is None:
                break
            lots.append(lot)
            # A finished round: its weights are where the next one goes on.
            if weights_path.exists():
                imitator.restore(load(weights_path).arrays)
                continue
            middle = time.process_time()
            everything = joined(lots)
            loss = learn(imitator, everything, updates, seed, progress)
            save(weights_path, Checkpoint(imitator.arrays(), {}))
            row = (
                number,
                imitator.updates,
                len(everything.worth),
                loss,
                middle - begin,
                time.process_time() - middle,
            )
            write_metrics(folder / "metrics.csv", dict(zip(METRICS, row)))
    if imitator.updates:
        made = {
            "script": "scripts/train_pipeline_agent.py",
            "seed": seed,
            "rounds": len(lots),
            "of_rounds": rounds,
            "problems": len(lots) * problems,
            "lessons": sum(len(lot.worth) for lot in lots),
            "updates": imitator.updates,
        }
        write_weights(imitator.weights(), output, made)
        click.echo(f"{output}: {json.dumps(made)}")


if __name__ == "__main__":
    main()
