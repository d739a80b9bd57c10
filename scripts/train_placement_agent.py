"""Train the placement agent: rounds of lessons from searches, and of learning from all lessons so
far.

Round 0 plays without learning, later ones by what has been learnt (as DAgger). The lessons of every
block of problems and the weights of every finished round are in FOLDER, so a run that was stopped
goes on where it was, and the same seed makes the same weights unless `--minutes` ends it. One block
in eight teaches nothing: the weights are those with the least loss on them. FOLDER/metrics.csv has
the metrics of `scripts.train_sharding_agent`, which this is the same learning as.
"""

import json
from pathlib import Path
import time

import click
from rich.progress import Progress
from safetensors.numpy import save_file

from automap.action_network import Weights
from automap.placement.agent import FORMAT, SHIPPED
from rl.checkpoint import Checkpoint, load, save
from rl.imitation import Imitator, Lessons
from scripts.pipeline_lessons import joined
from scripts.placement_lessons import SHAPE, problem_lessons
from scripts.train_pipeline_agent import from_arrays
from scripts.train_sharding_agent import Network, as_they_are, trained


NETWORK = Network("placement", SHAPE, FORMAT, SHIPPED, as_they_are)
BLOCK = 20


def block_lessons(first: int, weights: Weights | None, folder: Path) -> Lessons:
    """The lessons of a block of problems, kept in a file."""
    path = folder / f"lessons-{first}.safetensors"
    if not path.exists():
        lessons = joined([problem_lessons(seed, weights) for seed in range(first, first + BLOCK)])
        save(path, Checkpoint({**lessons.states.arrays(), "worth": lessons.worth}, {}))
    return from_arrays(load(path).arrays)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--rounds", default=2, show_default=True)
@click.option("--problems", default=1000, show_default=True, help="new problems of each round")
@click.option("--updates", default=4000, show_default=True, help="batches of each round")
@click.option("--seed", default=0, show_default=True)
@click.option("--minutes", default=600.0, show_default=True, help="no block begins after them")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=SHIPPED)
def main(
    *,
    folder: Path,
    rounds: int,
    problems: int,
    updates: int,
    seed: int,
    minutes: float,
    output: Path,
) -> None:
    """Go on where FOLDER ended; the weights of the last round are put in OUTPUT."""
    folder.mkdir(parents=True, exist_ok=True)
    # Before hours of work, not behind them.
    output.parent.mkdir(parents=True, exist_ok=True)
    ended = time.monotonic() + 60 * minutes
    lots: list[Lessons] = []
    imitator: Imitator | None = None
    with Progress(transient=True) as progress:
        for number in range(rounds):
            weights = imitator.weights() if imitator else None
            # Far from the seeds of any test, and never the same in two rounds.
            start = 1_000_000 * (seed + 1) + number * problems
            for first in progress.track(range(start, start + problems, BLOCK)):
                if time.monotonic() > ended:
                    break
                lots.append(block_lessons(first, weights, folder))
            if not lots:
                raise click.UsageError(
                    f"no lessons: got --problems {problems}, --minutes {minutes:g}; allowed: more"
                )
            imitator = trained(NETWORK, number, lots, updates, seed, folder, progress)
    if imitator is None:
        raise click.UsageError("nothing to train: got --rounds 0; allowed: 1 or more")
    made = {
        "script": "scripts/train_placement_agent.py",
        "seed": seed,
        "rounds": rounds,
        "problems": len(lots) * BLOCK,
        "lessons": sum(len(lot.worth) for lot in lots),
    }
    header = {"format": FORMAT.name, "made": json.dumps(made)}
    save_file(imitator.weights(), output, metadata=header)
    click.echo(f"{output}: {json.dumps(made)}")


if __name__ == "__main__":
    main()
