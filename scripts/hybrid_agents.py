"""All three plans of Auto-MAP at once, by agents alone: which stages there are (pipeline), and how
each is sharded inside (operator partitioning, data parallelism), beside the exact search.

    python -m scripts.hybrid_agents -o docs/reports/automap_tables.md

The paper has an agent for each of its plans, and leaves their hybrid to the future. Here

1. of every part of the machine the sharding agent's roll-outs, one from each mesh, give inner
   plans for a stage of average size; data parallelism is a move like others there
                                                                         -> in: `Case.inners`
2. an agent learns on the one problem which kind of stage comes next, on which devices, and where
   it ends (Rainbow, with the settings of `--strategy rainbow`)          -> in: `KindGame`

The game. S stages, from the first on; decision 2 s is the kind k of stage s, replicas or an inner
plan, which says its units; decision 2 s + 1 the point j where it ends. The last stage has all
points that are left.

    state     the decision's number as zeros and a one; of each stage so far j / n, e / U, and the
              seconds of its microbatch, its sums, in parts of L0's
    reward    0 until the end, then L0 / L, or -sqrt(L0 / L) if it does not fit
    baseline  the reward if what is left were divided evenly: for k stages the kinds whose units are
              nearest to a k-th, of equal ones the fastest; points by the work of a unit
                                                                         -> in: `KindGame.finished`

with L0 the step of the even division from the beginning. *Second thoughts* moves one boundary of
points, or changes one kind for another of as many units, as long as that helps; the paper has none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
import platform
import statistics
import time

import click
import jax
import numpy as np
from rich.progress import track
import torch

from automap.backends import backend_for
from automap.config import Options
from automap.deadline import Deadline
from automap.pipeline.hybrid.average import Setting, candidate
from automap.pipeline.hybrid.inner_plans import (
    StageKinds,
    preset_inner_plans,
    roll_out_inner_plans,
)
from automap.pipeline.hybrid.pricing import InnerPlan, Pricer
from automap.pipeline.hybrid.search import find_hybrid
from automap.pipeline.online.strategy import CONFIGS
from automap.pipeline.schedules import GPIPE, in_flight, pass_order
from automap.pipeline.solvers.exact import solve
from automap.pipeline.solvers.stage_options import StageOptions, price_stages
from automap.planner.pipeline import Setup, set_up
from automap.program.trace import trace_step
from automap.search.agent.play import Player, shipped_player
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.parts import sub_topology
from models.gpt import gpt_124m
from models.moe import moe_8x
from models.t5 import t5_11b, t5_base
from models.training import Target
from rl.env import EnvShape, Observation, Outcome, empty_observation
from rl.train import Trainer
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.hybrid_agents -o docs/reports/automap_tables.md"
SEEDS = range(3)
STAGES, MICROBATCHES = 4, 16
EXACT_SECONDS = 120.0
MOST_DECISIONS, PATIENCE, GAMES = 48_000, 4_000, 16
_FEATURES = 4
CASES: Mapping[str, tuple[Callable[[], Target], str]] = {
    "gpt-124m": (lambda: gpt_124m(batch=64), "4x8xv100"),
    "t5-base": (t5_base, "4x8xv100"),
    "moe-8x": (lambda: moe_8x(batch=64), "2x8xh100"),
    "t5-11b": (t5_11b, "8x8xh100"),
}


class KindGame:
    """Games of a partition into stages of kinds, `n_games` at once; the best is kept."""

    def __init__(self, options: StageOptions, stages: int, n_games: int):
        """All games at their beginning, nothing found."""
        self.options, self.stages = options, stages
        n, units = options.n_points, options.n_units
        ends = options.units[:, None] + np.arange(units + 1)
        starts = np.isfinite(options.rate) & options.may_cut_devices & (ends <= units)
        # [stages left, unit]: whether what is left divides; the kind of an even division.
        self._divides = np.zeros((stages + 1, units + 1), bool)
        self._even = np.full((stages + 1, units + 1), -1)
        self._divides[0, units] = True
        self._may_start, total = starts, options.forward[:, -1] + options.backward[:, -1]
        for left in range(1, stages + 1):
            for d in range(units):
                kinds = [k for k in np.flatnonzero(starts[:, d]) if self._leads(int(k), d, left)]
                if kinds:
                    fair = (units - d) / left
                    off = np.abs(options.units[kinds] - fair)
                    self._even[left, d] = kinds[np.lexsort((total[kinds], off))[0]]
                    self._divides[left, d] = True
        self._may_cut = options.may_cut.copy()
        self._may_cut[[0, -1]] = False
        self._work = options.forward[0] + options.backward[0]
        self._games: list[tuple[int, ...]] = [()] * n_games
        self._seen: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.best: tuple[float, tuple[int, ...]] = (np.inf, ())
        self.episodes = self.best_at = 0
        self.shape = EnvShape(
            n_games, max(n, len(options.units)), 2 * stages - 1 + _FEATURES * stages, 0
        )
        self.even_seconds = self._priced(self.finished(()))[1]

    def _leads(self, kind: int, d: int, left: int) -> bool:
        return bool(self._divides[left - 1, d + self.options.units[kind]])

    def finished(self, game: tuple[int, ...]) -> tuple[int, ...]:
        """A game to whose end what is left is divided evenly."""
        n, units = self.options.n_points, self.options.n_units
        while len(game) < 2 * self.stages - 1:
            kinds, points = game[::2], game[1::2]
            d = int(sum(self.options.units[k] for k in kinds))
            left = self.stages - len(kinds)
            if len(kinds) == len(points):
                game = (*game, int(self._even[left, d]))
                continue
            i = points[-1] if points else 0
            before = d - int(self.options.units[kinds[-1]])
            share = (d - before) / (units - before)
            wanted = self._work[i] + (self._work[n] - self._work[i]) * share
            allowed = self._ends(i, left)
            game = (*game, int(allowed[np.abs(self._work[allowed] - wanted).argmin()]))
        return game

    def _ends(self, i: int, left: int) -> np.ndarray:
        """Where a stage that begins at point i may end with so many stages after it."""
        ends = np.flatnonzero(self._may_cut)
        ends = ends[ends > i]
        return ends[: len(ends) - left + 1]

    def priced(self, game: tuple[int, ...]) -> float:
        """The step of a whole game in seconds; inf if it does not fit."""
        over, seconds = self._priced(game)
        return seconds if over <= 0 else np.inf

    def _priced(self, game: tuple[int, ...]) -> tuple[float, float]:
        kinds = np.array(game[::2], np.int64)
        cuts = np.array([0, *game[1::2], self.options.n_points], np.int64)
        device_cuts = np.concatenate([[0], np.cumsum(self.options.units[kinds])])
        return price_stages(self.options, cuts, device_cuts, kinds)

    def _reward(self, game: tuple[int, ...]) -> float:
        over, seconds = self._priced(game)
        share = self.even_seconds / seconds
        return share if over <= 0 else -float(np.sqrt(share))

    def _state(self, game: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(flat, baseline, mask)."""
        if game in self._seen:
            return self._seen[game]
        options, shape = self.options, self.shape
        flat = np.zeros(shape.n_flat, np.float32)
        baseline, mask = np.zeros(shape.n_actions, np.float32), np.zeros(shape.n_actions, bool)
        kinds, points = game[::2], game[1::2]
        flat[len(game)], d, i = 1.0, 0, 0
        for s, kind in enumerate(kinds):
            d += int(options.units[kind])
            j = points[s] if s < len(points) else options.n_points
            line = options.forward[kind] + options.backward[kind]
            sums = options.reduce[kind, j] - options.reduce[kind, i]
            seconds = options.microbatches * (line[j] - line[i])
            at = 2 * self.stages - 1 + _FEATURES * s
            parts = seconds / self.even_seconds, sums / self.even_seconds
            flat[at : at + _FEATURES] = j / options.n_points, d / options.n_units, *parts
            i = j
        left = self.stages - len(kinds)
        if len(kinds) == len(points):
            allowed = [
                k for k in np.flatnonzero(self._may_start[:, d]) if self._leads(int(k), d, left)
            ]
        else:
            allowed = self._ends(points[-1] if points else 0, left)
        mask[allowed] = True
        baseline[allowed] = [self._reward(self.finished((*game, int(a)))) for a in allowed]
        self._seen[game] = flat, baseline, mask
        return self._seen[game]

    def observe(self) -> Observation:
        """All games."""
        seen = empty_observation(self.shape, len(self._games))
        for row, game in enumerate(self._games):
            seen.flat[row], seen.baseline[row], seen.mask[row] = self._state(game)
        return seen

    def step(self, actions: np.ndarray) -> Outcome:
        """Make a decision in each game; those that end begin anew."""
        outcome = Outcome(np.zeros(len(actions), np.float32), np.zeros(len(actions), bool))
        for row, action in enumerate(actions.tolist()):
            game = (*self._games[row], action)
            if len(game) == 2 * self.stages - 1:
                self.episodes += 1
                outcome.rewards[row], outcome.dones[row] = self._reward(game), True
                seconds = self.priced(game)
                if seconds < self.best[0]:
                    self.best, self.best_at = (seconds, game), self.episodes
                game = ()
            self._games[row] = game
        return outcome

    def improved(self) -> float:
        """Seconds after second thoughts of the best game."""
        least, game = self.best
        is_better = np.isfinite(least)
        while is_better:
            is_better = False
            for place, old in enumerate(game):
                for other in self._others(game, place):
                    changed = (*game[:place], other, *game[place + 1 :])
                    seconds = self.priced(changed)
                    if other != old and seconds < least * (1 - 1e-12):
                        least, game, is_better = seconds, changed, True
        return least

    def _others(self, game: tuple[int, ...], place: int) -> Iterable[int]:
        if place % 2 == 0:
            units = self.options.units
            return [int(k) for k in np.flatnonzero(units == units[game[place]])]
        after = game[place + 2] if place + 2 < len(game) else self.options.n_points
        before = game[place - 2] if place > 1 else 0
        return [j for j in range(before + 1, after) if self._may_cut[j]]


@dataclass(frozen=True)
class Case:
    """A step on a machine, ready to be cut."""

    pricer: Pricer
    setup: Setup

    def options(self, inners: tuple[InnerPlan, ...]) -> StageOptions:
        """The kinds of stages that there are with these inner plans, which come last."""
        setup = self.setup
        kinds = StageKinds(self.pricer, setup.points, setup.fabric, inners)
        limit = setup.limits.memory_limit_bytes
        return kinds.options(MICROBATCHES, limit).scheduled(GPIPE).options

    def inners(self, player: Player) -> tuple[InnerPlan, ...]:
        """What a player's roll-outs come to on the parts of the machine."""
        pricer, flight = self.pricer, in_flight(pass_order(GPIPE), MICROBATCHES, STAGES)
        setting = Setting(
            stages=STAGES,
            microbatches=MICROBATCHES,
            in_flight=flight,
            memory_limit_bytes=self.setup.limits.memory_limit_bytes,
        )
        chosen: dict[object, InnerPlan] = {}
        for count in range(2, pricer.topology.device_count):
            if (
                count % self.setup.fabric.unit_devices
                or sub_topology(pricer.topology, count) is None
            ):
                continue
            presets = preset_inner_plans(pricer, count)
            candidates = [c for c in (candidate(pricer, p, setting) for p in presets) if c]
            if not candidates:
                continue
            never = Deadline.never()
            for inner in roll_out_inner_plans(pricer, candidates, setting, never, 0, player):
                chosen.setdefault(inner.split_classes, inner)
        return tuple(chosen.values())

    def exact_seconds(self) -> float:
        """The step of the product's search of hybrids with so many stages and microbatches."""
        setup, nothing = self.setup, lambda progress: None
        limits = replace(setup.limits, deadline=Deadline.after(EXACT_SECONDS))
        found = find_hybrid(self.pricer, setup.points, setup.fabric, limits, np.inf, nothing)
        return np.inf if found.best is None else found.best.step_seconds


def case(make: Callable[[], Target], machine: str) -> Case:
    """Profile a model."""
    topology = get_topology(machine)
    step, args = make()
    workload = trace_step(step, args, platform=topology.platform)
    options = Options(space="hybrid", stages=STAGES, microbatches=MICROBATCHES)
    setup = set_up(workload, topology, options, Deadline.never())
    setup = replace(setup, limits=replace(setup.limits, schedules=(GPIPE,)))
    space = Space(workload.problem, backend_for(topology.platform).stored_multiple)
    return Case(Pricer(setup.points.profile, space, topology), setup)


@dataclass(frozen=True)
class Run:
    """One run of the agent."""

    seconds: float
    improved_seconds: float
    games: int
    processor_seconds: float
    best: tuple[int, ...]


def played(
    options: StageOptions,
    seed: int,
    *,
    learns: bool,
    stages: int = STAGES,
    most_decisions: int = MOST_DECISIONS,
) -> Run:
    """Learn on the one problem, or play as often without learning."""
    config = CONFIGS["ours"] if learns else replace(CONFIGS["ours"], steps_per_update=None)
    begin, game = time.process_time(), KindGame(options, stages, GAMES)
    trainer = Trainer(game, config, seed)
    trainer.run(most_decisions, lambda: game.episodes - game.best_at >= PATIENCE)
    seconds = time.process_time() - begin
    return Run(game.best[0], game.improved(), game.episodes, seconds, game.best[1])


def row(name: str) -> dict[str, str]:
    """A model: agents with learning and without, and the exact searches."""
    machine, made = CASES[name][1], case(*CASES[name])
    inners = made.inners(shipped_player())
    options, unlearnt_options = made.options(inners), made.options(made.inners(Player()))
    learnt = [played(options, seed, learns=True) for seed in SEEDS]
    unlearnt = [played(unlearnt_options, seed, learns=False) for seed in SEEDS]
    exact = made.exact_seconds()
    solved, plain = (solve(each, STAGES) for each in (options, made.options(())))

    def over(runs: Iterable[float]) -> str:
        gaps = sorted(seconds / exact - 1 for seconds in runs)
        low, middle, high = (f"{gap:+.1%}" for gap in (gaps[0], statistics.median(gaps), gaps[-1]))
        return middle if low == high else f"{middle} ({low} to {high})"

    middle = sorted(learnt, key=lambda run: run.seconds)[len(learnt) // 2]
    n_replicated = len(options.units) - len(inners)
    stages = []
    for kind in middle.best[::2]:
        mesh = "replicas"
        if kind >= n_replicated:
            axes = inners[kind - n_replicated].split_classes.mesh.axes
            mesh = " x ".join(f"{axis}={size}" for axis, size in axes)
        stages.append(f"{options.units[kind] * made.setup.fabric.unit_devices} ({mesh})")
    return {
        "model": name,
        "machine": machine,
        "exact, s": f"{exact:.4g}",
        "exact, the agent's inner plans": over([solved.best.seconds]) if solved.best else "none",
        "agents": over(run.seconds for run in learnt),
        "without learning": over(run.seconds for run in unlearnt),
        "agents, second thoughts": over(run.improved_seconds for run in learnt),
        "without learning, second thoughts": over(run.improved_seconds for run in unlearnt),
        "replicas alone, exact": over([plain.best.seconds]) if plain.best else "none fits",
        "games": f"{statistics.median(run.games for run in learnt):,.0f}",
        "processor s": f"{statistics.median(run.processor_seconds for run in learnt):.0f}",
        "the agents' stages": " + ".join(stages),
    }


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", "chosen", multiple=True, type=click.Choice(list(CASES)))
def main(output: Path | None, chosen: tuple[str, ...]) -> None:
    """Play all cases."""
    jax.config.update("jax_platforms", "cpu")
    rows = []
    for name in track(chosen or list(CASES), "models"):
        rows.append(row(name))
        click.echo(rows[-1], err=True)
    where = f"torch {torch.__version__}, {platform.machine()}, one thread, {len(SEEDS)} seeds"
    table = made_by(COMMAND, where) + markdown(list(rows[0]), [list(r.values()) for r in rows])
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "hybrid")


if __name__ == "__main__":
    main()
