"""Train the sharding agent: rounds of lessons from searches, and of learning from all lessons so
far.

Round 0 plays without learning, later ones by what has been learnt (as DAgger). The lessons of every
problem and the weights of every finished round are in FOLDER, so a run that was stopped goes on
where it was; the same seed makes the same weights unless `--minutes` ends it. One problem in
`_HELD_EVERY` teaches nothing: the loss on those says when learning turns into memory, and the
weights are those with the least. The metrics of FOLDER/metrics.csv are explained at `METRICS`.

With `--decisions` Rainbow goes on where imitation ended (or, with `--rounds 0`, where the shipped
weights are): games of moves on `GAME_SEEDS` problems, the reward being what the logarithm of the
step falls by under the limit of memory (`scripts.sharding_lessons.MovesEnv`). Its weights are those
after which roll-outs on `JUDGE_SEEDS` other problems gain most, imitation's own among them; the
metrics of FOLDER/reinforcement.csv are explained at `REINFORCED`.

With `--evolution` evolution strategies go on where what was before ended: the output layer of moves
learns from what whole roll-outs of the agent bring on `EVOLVED_PROBLEMS` problems, some of them in
each step. Weights that bring less than those before on all of these are not kept.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
from dataclasses import dataclass
import json
from pathlib import Path
import time

import click
import jax
import numpy as np
from rich.progress import Progress
from safetensors.numpy import save_file

from automap.action_network import Weights, WeightsFormat, load_weights
from automap.search.agent.play import (
    MESHES_FORMAT,
    MESHES_SHIPPED,
    MOVES_FORMAT,
    MOVES_SHIPPED,
    Player,
    roll_out,
)
from rl.checkpoint import Checkpoint, load, save
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation
from rl.evolution import Evolution, evolved
from rl.imitation import Imitator, Lessons
from rl.metrics import Row
from rl.train import Trainer, one_thread
from scripts.pipeline_lessons import joined, rows
from scripts.sharding_lessons import (
    MESHES_SHAPE,
    MOVES_SHAPE,
    Game,
    MovesEnv,
    RollOuts,
    problem_contexts,
    problem_lessons,
    with_prices_hidden,
)
from scripts.train_pipeline_agent import from_arrays


WIDTH = 48
BATCH = 32
LEARNING_RATE = 2e-3
METRICS = ("round", "network", "updates", "lessons", "loss", "held_loss", "untrained_loss")
"""Round done; moves or meshes; batches learnt from; points known; mean loss of the last updates;
that on problems that teach nothing, of the weights kept and of untrained ones.
"""
_HELD_EVERY = 8
_CHECKS = 20
REINFORCED = ("decisions", "updates", "episodes", "mean_return", "loss", "gain", "unlearned_gain")
"""Moves made in all games; batches learnt from; games; their mean sum of rewards, and the loss,
since the last row; what roll-outs on the other problems save of the cost in the mean, of the agent
and of the same player without learning.
"""
GAME_SEEDS, JUDGE_SEEDS = 20, 8
RAINBOW = RainbowConfig(
    network="per-action",
    hidden=(WIDTH, WIDTH),
    gamma=1.0,
    n_steps=2,
    capacity=4_000,
    alpha=0.6,
    beta=Linear(0.4, 1.0, 20_000),
    epsilon=Linear(0.3, 0.05, 10_000),
    batch=BATCH,
    learning_rate=3e-4,
    warm_up=500,
    steps_per_update=8,
    target_every=100,
)
_DECISIONS_OF_A_ROW = 2_000
EVOLUTION = Evolution(names=("advantage.weight",), sigma=0.1, pairs=3, step=0.3)
# Of the roll-outs of all problems so many are a step's.
EVOLVED_PROBLEMS, _EVOLVED_GAMES = 75, 40
# One problem that does not fit at first is not to outweigh all others.
_MOST_REGRET = 0.3


@dataclass(frozen=True)
class Network:
    """One of the two networks: what its lessons look like and where its weights go."""

    name: str
    shape: EnvShape
    format_: WeightsFormat
    shipped: Path
    shown: Callable[[Lessons, np.random.Generator], Lessons]


def as_they_are(lessons: Lessons, rng: np.random.Generator) -> Lessons:
    """Lessons that are learnt from with all that is in them."""
    return lessons


NETWORKS = (
    Network("moves", MOVES_SHAPE, MOVES_FORMAT, MOVES_SHIPPED, with_prices_hidden),
    Network("meshes", MESHES_SHAPE, MESHES_FORMAT, MESHES_SHIPPED, as_they_are),
)


def seed_lessons(seed: int, player: Player, folder: Path) -> tuple[Lessons, ...]:
    """The lessons of a problem for each network, kept in files."""
    paths = [folder / f"{network.name}-{seed}.safetensors" for network in NETWORKS]
    if not all(path.exists() for path in paths):
        for path, lessons in zip(paths, problem_lessons(seed, player), strict=True):
            save(path, Checkpoint({**lessons.states.arrays(), "worth": lessons.worth}, {}))
    return tuple(from_arrays(load(path).arrays) for path in paths)


def collect(
    seeds: Sequence[int], player: Player, folder: Path, ended: float, progress: Progress
) -> list[tuple[Lessons, ...]]:
    """The lessons of problems, as many as there is time for."""
    lots = []
    for seed in progress.track(seeds, description="lessons"):
        if time.monotonic() > ended:
            break
        lots.append(seed_lessons(seed, player, folder))
    return lots


def learn(
    network: Network, lots: Sequence[Lessons], updates: int, seed: int, progress: Progress
) -> tuple[Imitator, dict[str, float]]:
    """A network after at most so many updates, with a row of metrics.

    Each round learns anew from all lessons: what an earlier one knew is in them.
    """
    # As wide as any lesson is, and not as one may be.
    used = [np.flatnonzero(lot.states.mask.any(axis=0)) for lot in lots]
    width = max(int(places.max(initial=0)) + 1 for places in used)
    cut = [_narrowed(lot, width) for lot in lots]
    taught = joined([lot for n, lot in enumerate(cut) if n % _HELD_EVERY])
    held = joined([lot for n, lot in enumerate(cut) if n % _HELD_EVERY == 0])
    rng = np.random.default_rng(seed)
    held = network.shown(held, rng)
    imitator = Imitator(network.shape, (WIDTH, WIDTH), seed, LEARNING_RATE, updates)
    untrained = least = imitator.loss(held)
    kept, losses = imitator.arrays(), list[float]()
    with one_thread():
        for number in progress.track(range(1, updates + 1), description=network.name):
            chosen = rows(taught, rng.integers(len(taught.worth), size=BATCH))
            losses.append(imitator.learn(network.shown(chosen, rng)))
            if number % max(updates // _CHECKS, 1) == 0:
                now = imitator.loss(held)
                if now < least:
                    least, kept = now, imitator.arrays()
    imitator.restore(kept)
    return imitator, {
        "updates": imitator.updates,
        "lessons": len(taught.worth),
        "loss": float(np.mean(losses[-max(updates // _CHECKS, 1) :])),
        "held_loss": least,
        "untrained_loss": untrained,
    }


def _narrowed(lessons: Lessons, width: int) -> Lessons:
    states = lessons.states
    return Lessons(
        Observation(
            states.flat,
            states.features[:, :width],
            states.baseline[:, :width],
            states.mask[:, :width],
        ),
        lessons.worth[:, :width],
    )


def write_metrics(path: Path, row: Mapping[str, float | str], names: Sequence[str]) -> None:
    """Add a line to the metrics."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(names)
        writer.writerow([row[name] for name in names])


def games(first: int, count: int, progress: Progress) -> list[Game]:
    """A game of each problem of so many seeds, on each of its machines."""
    return [
        Game(context, seed)
        for seed in progress.track(range(first, first + count), description="problems")
        for context in problem_contexts(seed)
    ]


def gain(player: Player, judged: Sequence[Game]) -> float:
    """What a roll-out saves of the cost of the best preset, in the mean of problems."""
    saved = []
    for game in judged:
        context, start = game.is_reset(), game.starts[0]
        reached = roll_out(context, game.seen, player, start)
        cost = context.objective.cost
        saved.append(cost(start.estimate) - cost(reached.estimate))
    return float(np.mean(saved))


class _Last:
    """A log that keeps the last row."""

    row: Row | None = None

    def write(self, row: Row) -> None:
        self.row = row


def reinforced(
    begun: Weights, decisions: int, seed: int, folder: Path, ended: float, progress: Progress
) -> Weights:
    """Weights of moves after Rainbow, or those that it began with if they were best."""
    # Seeds of no lesson and of no test.
    first = 1_000_000 * (seed + 1) + 500_000
    played = games(first, GAME_SEEDS, progress)
    judged = games(first + GAME_SEEDS, JUDGE_SEEDS, progress)
    unlearned = gain(Player(), judged)
    log, path, kept = _Last(), folder / "reinforced.safetensors", folder / "best.safetensors"
    trainer = Trainer(MovesEnv(played), RAINBOW, seed, log, _DECISIONS_OF_A_ROW)
    if path.exists():
        trainer.restore(path)
        best = load(kept)
        weights, most = dict(best.arrays), best.scalars["gain"]
    else:
        trainer.agent.begin_with(begun)
        weights, most = begun, -np.inf
    task = progress.add_task("decisions", total=decisions, completed=trainer.steps)
    while trainer.steps < decisions and time.monotonic() < ended or most == -np.inf:
        if most > -np.inf:
            trainer.run(trainer.steps + _DECISIONS_OF_A_ROW)
        gained = gain(Player(trainer.agent.weights()), judged)
        if gained > most:
            weights, most = trainer.agent.weights(), gained
            save(kept, Checkpoint(weights, {"gain": most}))
        row = log.row
        write_metrics(
            folder / "reinforcement.csv",
            {
                "decisions": trainer.steps,
                "updates": trainer.agent.updates,
                "episodes": row.episodes if row else 0,
                "mean_return": row.mean_return if row else np.nan,
                "loss": row.loss if row else np.nan,
                "gain": gained,
                "unlearned_gain": unlearned,
            },
            REINFORCED,
        )
        trainer.save(path)
        progress.update(task, completed=trainer.steps)
    return weights


def evolved_moves(
    begun: Weights, roll_outs: RollOuts, steps: int, seed: int, progress: Progress
) -> Weights:
    """Weights of moves after so many steps, or those that they began with if they were best."""
    source, every = np.random.default_rng(seed), range(len(roll_outs))
    known = np.minimum(roll_outs.costs(begun, every), roll_outs.costs(None, every))

    def gained(weights: Weights, places: Sequence[int]) -> float:
        regrets = roll_outs.costs(weights, places) - known[list(places)]
        return -float(np.clip(regrets, -_MOST_REGRET, _MOST_REGRET).mean())

    path: list[Weights] = [begun]
    for _ in progress.track(range(steps), description="evolution"):
        count = min(_EVOLVED_GAMES, len(roll_outs))
        places = np.sort(source.choice(len(roll_outs), count, replace=False)).tolist()
        path.append(evolved(path[-1], lambda w, p=places: gained(w, p), EVOLUTION, source))
    half = path[len(path) // 2 :]
    mean = {name: np.asarray(sum(w[name] for w in half) / len(half), np.float32) for name in begun}
    return max((begun, mean, path[-1]), key=lambda weights: gained(weights, every))


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--rounds", default=2, show_default=True)
@click.option("--problems", default=64, show_default=True, help="new problems of each round")
@click.option("--updates", default=1000, show_default=True, help="batches of each round")
@click.option("--decisions", default=0, show_default=True, help="of Rainbow, after imitation")
@click.option("--evolution", "steps", default=0, show_default=True, help="steps of it, at last")
@click.option("--seed", default=0, show_default=True)
@click.option("--minutes", default=600.0, show_default=True, help="no problem begins after them")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=MOVES_SHIPPED.parent)
def main(
    folder: Path,
    rounds: int,
    problems: int,
    updates: int,
    decisions: int,
    steps: int,
    seed: int,
    minutes: float,
    output: Path,
) -> None:
    """Go on where FOLDER ended; the weights of the last round are put in OUTPUT."""
    jax.config.update("jax_platforms", "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    # Before hours of work, not behind them.
    output.mkdir(parents=True, exist_ok=True)
    ended = time.monotonic() + 60 * minutes
    lots: list[tuple[Lessons, ...]] = []
    imitators: list[Imitator] = []
    with Progress(transient=True) as progress:
        for number in progress.track(range(rounds), description="rounds"):
            weights = [imitator.weights() for imitator in imitators]
            # Far from the seeds of any test, and never the same in two rounds.
            first = 1_000_000 * (seed + 1) + number * problems
            seeds = range(first, first + problems)
            new = collect(seeds, Player(*weights), folder, ended, progress)
            if not new:
                break
            lots += new
            imitators = [
                trained(network, number, [lot[n] for lot in lots], updates, seed, folder, progress)
                for n, network in enumerate(NETWORKS)
            ]
        weights = [imitator.weights() for imitator in imitators] or [
            load_weights(network.shipped, network.format_) for network in NETWORKS
        ]
        if decisions:
            weights[0] = reinforced(weights[0], decisions, seed, folder, ended, progress)
        if steps:
            # Seeds of no lesson, no game of Rainbow's and of no test.
            played = games(1_000_000 * (seed + 1) + 600_000, EVOLVED_PROBLEMS, progress)
            roll_outs = RollOuts(played, weights[1])
            weights[0] = evolved_moves(weights[0], roll_outs, steps, seed, progress)
    made: dict[str, object] = {
        "script": "scripts/train_sharding_agent.py",
        "seed": seed,
        "rounds": rounds,
        "problems": len(lots),
        "lessons": sum(len(lot[0].worth) for lot in lots),
        "decisions": decisions,
        "evolution": steps,
    }
    for network, arrays in zip(NETWORKS, weights, strict=True):
        header = {"format": network.format_.name, "made": json.dumps(made)}
        save_file(dict(arrays), output / network.shipped.name, metadata=header)
    click.echo(f"{output}: {json.dumps(made)}")


def trained(
    network: Network,
    number: int,
    lots: Sequence[Lessons],
    updates: int,
    seed: int,
    folder: Path,
    progress: Progress,
) -> Imitator:
    """A network after a round: as its file has it, or learnt now."""
    path = folder / f"{network.name}-weights-{number}.safetensors"
    if path.exists():
        imitator = Imitator(network.shape, (WIDTH, WIDTH), seed, LEARNING_RATE, updates)
        imitator.restore(load(path).arrays)
        return imitator
    imitator, row = learn(network, lots, updates, seed, progress)
    save(path, Checkpoint(imitator.arrays(), {}))
    write_metrics(
        folder / "metrics.csv", {"round": number, "network": network.name, **row}, METRICS
    )
    return imitator


if __name__ == "__main__":
    main()
