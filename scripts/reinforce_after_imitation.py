"""Ideas for reinforcement after imitation of the sharding agent, each held against imitation alone.

    python -m scripts.reinforce_after_imitation FOLDER

Every idea begins with the shipped weights, plays games of the same problems and is judged, by one
roll-out on problems of other seeds, against the shipped weights and the player without learning.
Rows are kept in FOLDER/rows.jsonl.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import json
from pathlib import Path
import time

import click
import jax
import numpy as np
import torch
from torch import nn

from automap.action_network import load_weights
from automap.search import OutOfBudget
from automap.search.agent.options import Seen
from automap.search.agent.play import (
    MESHES_FORMAT,
    MESHES_SHIPPED,
    MOVES_FORMAT,
    MOVES_SHIPPED,
    Player,
    roll_out,
    turn,
)
from automap.search.greedy import climb, climb_meshes
from rl.agent import MOST_GRADIENT, Agent, Learned, errors, step_on
from rl.config import Linear
from rl.imitation import Imitator, Lessons
from rl.networks import network_inputs
from rl.replay import Batch
from rl.train import Trainer, one_thread
from scripts.pipeline_lessons import rows
from scripts.sharding_lessons import (
    MOVES_SHAPE,
    Game,
    MovesEnv,
    _moves_batched,
    problem_contexts,
    with_prices_hidden,
    worths,
)
from scripts.train_sharding_agent import BATCH, RAINBOW, WIDTH

MOVES = load_weights(MOVES_SHIPPED, MOVES_FORMAT)
MESHES = load_weights(MESHES_SHIPPED, MESHES_FORMAT)
FIRST_PLAYED, FIRST_JUDGED = 7_000_000, 8_000_000
DECISIONS = int(__import__("os").environ.get("DECISIONS", 8_000))
CONFIG = replace(
    RAINBOW, warm_up=300, steps_per_update=4, epsilon=Linear(0.3, 0.05, DECISIONS // 2), beta=Linear(0.4, 1.0, DECISIONS)
)


class KeptSeen(Seen):
    """Descriptions of points that are looked at again and again."""

    def options(self, current, turn: int):
        kept = self.__dict__.setdefault("kept", {})
        if current.point not in kept:
            kept[current.point] = super().options(current, turn)
        # What is known of the search changes.
        flat = np.array(self.state(current, turn), np.float32)
        return replace(kept[current.point], flat=flat)


class KeptGame(Game):
    """A game that is played in several runs, as if each were the first."""

    def again(self, kind: type) -> "KeptGame":
        """From the first episode on."""
        self.__class__, self.seen.__class__ = kind, KeptSeen
        self.begin(0)
        return self


class EndedGame(KeptGame):
    """A game that ends when its point is left as it is."""

    @property
    def is_over(self) -> bool:
        return super().is_over or self.taken[-1:] == [0]


class Anchored(Agent):
    """An agent whose loss has one more part."""

    more: Callable[[nn.Module, Batch], torch.Tensor]

    def learn(self, batch: Batch) -> Learned:
        step = step_on(batch, "cpu")
        found = errors(self._online, self._target, self._head, step, self._config.bootstrap)
        loss = (torch.from_numpy(batch.weights) * found.losses).mean()
        loss = loss + self.more(self._online, batch)
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._online.parameters(), MOST_GRADIENT)
        self._adam.step()
        self._updates += 1
        if self._updates % self._config.target_every == 0:
            self._target.load_state_dict(self._online.state_dict())
        return Learned(loss.item(), found.surprises.numpy())


def advantages(network: nn.Module, states) -> tuple[torch.Tensor, torch.Tensor]:
    """Q less that of leaving, with the mask."""
    inputs = network_inputs(states)
    q = inputs.baseline + network(inputs).squeeze(-1)
    return (q - q[:, :1]).masked_fill(~inputs.mask, 0.0), inputs.mask


@dataclass
class Played:
    """Problems of games and what was searched on them."""

    games: list
    lessons: Lessons | None = None
    filtered: Lessons | None = None


def with_lessons(played: Played) -> None:
    """Lessons of the points that the shipped agent's own roll-outs come to, worth what climbs make
    of them; those of roll-outs that the climbs beat by more than half a percent apart.
    """
    all_lots, beaten, player = [], [], Player(MOVES, MESHES)
    for game in played.games:
        context = game.context
        for start in game.starts[:3]:
            current, states = start, []
            for number in range(5):
                game.is_reset()
                options = game.seen.options(current, number)
                places = list(range(1, min(len(options.moves), 160)))
                points = [options.points[p] for p in places]
                candidates = list(context.evaluate_all(points, "lesson"))
                game.is_reset()
                states.append((current, options.priced(context, current, places, candidates)))
                reached = min(
                    turn(context, game.seen, player, current, number),
                    key=lambda c: context.objective.key(c.estimate),
                    default=None,
                )
                if reached is None or not context.is_better(reached, current):
                    break
                current = reached
            try:
                climb(context, current)
                climb(context, context.priced_on(start.point.mesh)[0])
            except OutOfBudget:
                pass
            best = context.priced_on(start.point.mesh)[0]
            cost = context.objective.cost
            lot = [(options, worths(context, at, options)) for at, options in states]
            all_lots += lot
            if cost(current.estimate) - cost(best.estimate) > 0.005:
                beaten += lot
        game.is_reset()
    played.lessons, played.filtered = _moves_batched(all_lots), _moves_batched(beaten)


def rainbow(
    played: Played, seed: int, *, gamma: float = 1.0, ends: bool = False, kind: str = "",
    rate: float = 3e-4,
) -> dict[str, np.ndarray]:
    """Weights after Rainbow on games of the problems."""
    game_kind = EndedGame if ends else KeptGame
    env = MovesEnv([game.again(game_kind) for game in played.games])
    config = replace(CONFIG, gamma=gamma, learning_rate=rate)
    trainer = Trainer(env, config, seed)
    agent = trainer.agent
    agent.begin_with(MOVES)
    if kind == "frozen":
        for name, parameter in agent._online.named_parameters():
            parameter.requires_grad_(name.startswith(("value", "advantage")))
    if kind in ("anchor", "lessons"):
        agent.__class__ = Anchored
        first = Agent(env.shape, config, 0)
        first.begin_with(MOVES)
        source = np.random.default_rng(seed)
        imitator = Imitator(MOVES_SHAPE, (WIDTH, WIDTH), 0, 1e-3, 1)

        def more(network: nn.Module, batch: Batch) -> torch.Tensor:
            if kind == "anchor":
                states = batch.transitions.now
                now, mask = advantages(network, states)
                with torch.no_grad():
                    then, _ = advantages(first._online, states)
                return (((now - then) ** 2).sum(1) / mask.sum(1)).mean()
            lot = rows(played.lessons, source.integers(len(played.lessons.worth), size=BATCH))
            imitator._network = network
            return imitator._loss(with_prices_hidden(lot, source))

        agent.more = more
    trainer.run(DECISIONS)
    return agent.weights()


class AnchoredImitator(Imitator):
    """Learns from lessons and stays near the advantages that it began with."""

    first: nn.Module

    def _loss(self, lessons: Lessons) -> torch.Tensor:
        now, mask = advantages(self._network, lessons.states)
        with torch.no_grad():
            then, _ = advantages(self.first, lessons.states)
        return super()._loss(lessons) + (((now - then) ** 2).sum(1) / mask.sum(1)).mean()


def imitated(
    lessons: Lessons, seed: int, updates: int = 300, rate: float = 3e-4, *, is_anchored: bool
) -> dict[str, np.ndarray]:
    """Weights after imitation goes on with lessons."""
    kind = AnchoredImitator if is_anchored else Imitator
    imitator = kind(MOVES_SHAPE, (WIDTH, WIDTH), seed, rate, updates)
    if is_anchored:
        first = Agent(MOVES_SHAPE, CONFIG, 0)
        first.begin_with(MOVES)
        imitator.first = first._online
    imitator._network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in MOVES.items()})
    source = np.random.default_rng(seed)
    with one_thread():
        for _ in range(updates):
            lot = rows(lessons, source.integers(len(lessons.worth), size=BATCH))
            imitator.learn(with_prices_hidden(lot, source))
    return imitator.weights()


SPREAD, PAIRS, STEPS, GREATEST = 0.1, 4, 12, 0.15
_SEARCHED = ("advantage.weight", "advantage.bias", "mixed.2.weight", "mixed.2.bias")


def searched(played: Played, seed: int, names: Sequence[str] = _SEARCHED) -> dict:
    """Weights after evolution strategies (Salimans et al. 2017): steps along what pairs of opposite
    changes of the last layers gain in roll-outs of all problems, in parts of each layer's spread;
    the weights are those of the best of all that was tried.
    """
    games = [game.again(KeptGame) for game in played.games]
    source = np.random.default_rng(seed)
    units = {name: SPREAD * max(float(MOVES[name].std()), 1e-3) for name in names}
    least = [game.context.objective.cost(game.starts[0].estimate) for game in games]

    def gained(weights) -> np.ndarray:
        player, saved = Player(weights), []
        for game, before in zip(games, least):
            context = game.is_reset()
            reached = roll_out(context, game.seen, player, game.starts[0])
            # One problem that does not fit at first is not to outweigh all others.
            saved.append(min(before - context.objective.cost(reached.estimate), 1.0))
        return np.array(saved)

    now = {name: array.copy() for name, array in MOVES.items()}
    best, most = now, float(gained(now).mean())
    begun = most
    for _ in range(STEPS):
        drawn = [
            {name: source.standard_normal(MOVES[name].shape).astype(np.float32) for name in names}
            for _ in range(PAIRS)
        ]
        slope = {name: np.zeros_like(MOVES[name]) for name in names}
        for noise in drawn:
            both = []
            for sign in (1.0, -1.0):
                tried = now | {n: now[n] + np.float32(sign * units[n]) * noise[n] for n in names}
                both.append(float(np.mean(gained(tried))))
                if both[-1] > most:
                    best, most = tried, both[-1]
            for name in names:
                slope[name] += (both[0] - both[1]) * noise[name]
        size = np.sqrt(sum(float((slope[n] ** 2).sum()) for n in names))
        count = np.sqrt(sum(slope[n].size for n in names))
        if size > 0:
            moved = {n: now[n] + np.float32(units[n] * count / size) * slope[n] for n in names}
            now = now | moved
            reached = float(gained(now).mean())
            if reached > most:
                best, most = now, reached
    print(f"    gain of games {begun:.4f} -> {most:.4f}", flush=True)
    return best


IDEAS = {
    "policy search": searched,
    "policy search, output layer": lambda p, s: searched(p, s, _SEARCHED[:2]),
    "as it was": lambda p, s: rainbow(p, s),
    "order counts": lambda p, s: rainbow(p, s, gamma=0.7, ends=True),
    "output layers alone": lambda p, s: rainbow(p, s, kind="frozen", rate=1e-4),
    "anchor": lambda p, s: rainbow(p, s, kind="anchor", rate=1e-4),
    "order counts, anchor": lambda p, s: rainbow(
        p, s, gamma=0.7, ends=True, kind="anchor", rate=1e-4
    ),
    "lessons beside": lambda p, s: rainbow(p, s, kind="lessons"),
    "expert iteration": lambda p, s: imitated(p.lessons, s, is_anchored=False),
    "expert iteration, beaten": lambda p, s: imitated(p.filtered, s, is_anchored=False),
    "expert iteration, anchor": lambda p, s: imitated(p.lessons, s, is_anchored=True),
}


class Judge:
    """Roll-outs on problems that nobody played, against the best known."""

    def __init__(self, count: int):
        self.games = []
        for seed in range(FIRST_JUDGED, FIRST_JUDGED + count):
            for context in problem_contexts(seed):
                game = Game(context, seed)
                game.seen.__class__ = KeptSeen
                self.games.append((game, self._ranked(game)))
        self.best = None

    @staticmethod
    def _ranked(game: Game):
        return Player(None, MESHES).ranked(game.context, game.seen, game.starts)[0]

    def costs(self, weights) -> np.ndarray:
        """Of a roll-out from the mesh that the shipped network ranks first."""
        player = Player(weights, MESHES)
        result = []
        for game, start in self.games:
            context = game.is_reset()
            reached = roll_out(context, game.seen, player, start)
            result.append(context.objective.cost(reached.estimate))
        return np.array(result)

    def find_best(self) -> None:
        """After all players: climbs."""
        least = []
        for game, _ in self.games:
            context = game.is_reset()
            try:
                climb_meshes(context, context.distinct_meshes)
            except OutOfBudget:
                pass
            cost = context.objective.cost
            meshes = context.distinct_meshes
            least.append(min(cost(context.priced_on(m)[0].estimate) for m in meshes
                             if context.priced_on(m)))
            game.is_reset()
        self.best = np.array(least)


def show(name: str, gaps: np.ndarray, against: np.ndarray) -> str:
    diff = gaps - against
    error = diff.std() / np.sqrt(len(diff))
    return (
        f"{name}: mean {gaps.mean():.4f} <=1% {np.mean(gaps <= .01):.3f} <=3% "
        f"{np.mean(gaps <= .03):.3f} <=10% {np.mean(gaps <= .10):.3f}; less imitation "
        f"{diff.mean():+.4f} +- {error:.4f}, better {np.sum(diff < -1e-3)}, "
        f"worse {np.sum(diff > 1e-3)} of {len(diff)}"
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--played", "n_played", default=20)
@click.option("--judged", "n_judged", default=30)
@click.option("--seeds", default=3)
@click.option("--idea", "ideas", multiple=True, default=tuple(IDEAS))
def main(folder: Path, n_played: int, n_judged: int, seeds: int, ideas: Sequence[str]) -> None:
    jax.config.update("jax_platforms", "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    judge = Judge(n_judged)
    print(f"{len(judge.games)} judged {time.monotonic() - begin:.0f} s", flush=True)
    imitation, unlearned = judge.costs(MOVES), judge.costs(None)
    judge.find_best()
    base = imitation - judge.best
    print(f"best known {time.monotonic() - begin:.0f} s", flush=True)
    print(show("imitation", base, base), flush=True)
    print(show("learning off", unlearned - judge.best, base), flush=True)
    games = [
        KeptGame(context, seed)
        for seed in range(FIRST_PLAYED, FIRST_PLAYED + n_played)
        for context in problem_contexts(seed)
    ]
    played = Played(games)
    print(f"{len(games)} played {time.monotonic() - begin:.0f} s", flush=True)
    for name in ideas:
        for seed in range(seeds):
            if played.lessons is None and ("lessons" in name or "expert" in name):
                with_lessons(played)
                print(f"{len(played.lessons.worth)} lessons, {len(played.filtered.worth)} beaten, "
                      f"{time.monotonic() - begin:.0f} s", flush=True)
            weights = IDEAS[name](played, seed)
            gaps = judge.costs(weights) - judge.best
            half = {k: (MOVES[k] + weights[k]) / 2 for k in weights}
            halfway = judge.costs(half) - judge.best
            print(show(f"    half way, seed {seed}", halfway, base), flush=True)
            line = show(f"{name}, seed {seed}", gaps, base)
            print(line, f"{time.monotonic() - begin:.0f} s", flush=True)
            np.savez(folder / f"{name}-{seed}.npz".replace(" ", "_"), **weights)
            with (folder / "rows.jsonl").open("a") as file:
                file.write(json.dumps([name, seed, gaps.tolist(), halfway.tolist(), base.tolist()]) + "\n")


if __name__ == "__main__":
    main()
