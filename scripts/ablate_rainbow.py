"""What each part of Rainbow, and each of Auto-MAP's prunings, is worth to its agents.

    python -m scripts.ablate_rainbow --kept ROWS -o docs/reports/rainbow.md

A player with one thing changed plays a problem of which the exact optimum is known, five seeds:

    parts       double Q-learning, dueling layers, prioritized replay, n steps, a distribution of
                returns: each left out alone, or put in where the player has none
                                                                         -> in: `_changed_parts`
    prunings    linkage groups, their order, masks, what is implied, the second stage, the radius:
                each left out alone, or put in                         -> in: `COUNT_CHANGES`

Beside every changed player is the same one whose network is never updated. A run ends when the
optimum is found, or so many decisions are made. Kept rows are not made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
import platform
import time
from typing import Final

import click
import numpy as np
import torch

from automap.deadline import Deadline
from automap.pipeline.arrays import Arrays
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.online.game import RADIUS
from automap.pipeline.online.strategy import CONFIGS, find as find_pipeline
from automap.pipeline.profile.points import coarsen
from automap.pipeline.solvers.local import optimum as best_partition
from automap.search.counts.agent import PLAYERS, Player, play
from automap.search.counts.choices import Choices
from automap.search.counts.game import (
    SPLIT_REWARD,
    WRONG_REWARD,
    Game,
    Mode,
    Moved,
    View,
    make_view,
)
from automap.search.counts.solvers import optimum
from automap.topology import get_topology
from rl.config import Distribution, RainbowConfig
from rl.env import EnvShape, Observation
from scripts.automap_puzzles import (
    chosen,
    puzzles,
    smallest_first,
    ungrouped,
    with_nothing_implied,
)
from scripts.reproduce_automap import spread
from scripts.reproduce_pipelines import CONFIGURATIONS, MODELS as PIPELINED, Case, profile
from scripts.tables import keep_row, kept_rows, made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.ablate_rainbow --kept ROWS -o docs/reports/rainbow.md"
UNCHANGED: Final = "nothing"
# Decisions without a better plan.
_SHORT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a player reached: `score` as its problem scores, after so many decisions and seconds of
    the processor.
    """

    problem: str
    changed: str
    seed: int
    score: float
    is_optimal: bool
    decisions: int
    seconds: float
    learns: bool = True


def _changed_parts(
    config: RainbowConfig, returns: tuple[float, float]
) -> Mapping[str, RainbowConfig]:
    """The config with each part changed; `returns` are the least and the greatest return."""
    every = {
        "no double Q-learning": replace(config, bootstrap="single"),
        "no dueling layers": replace(config, output_layers="plain"),
        "no priorities": replace(config, alpha=0.0),
        "single steps": replace(config, n_steps=1),
        "three steps together": replace(config, n_steps=3),
        "a distribution of returns": replace(config, distribution=Distribution(51, *returns)),
    }
    # Where a player has several steps, three of them are no change of what it is made of.
    if config.n_steps > 1:
        del every["three steps together"]
    return {name: changed for name, changed in every.items() if changed != config}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is decided, who plays, and what the player sees."""

    choices: Choices
    player: Player
    view: Callable[[Choices], View]


@dataclass(frozen=True)
class MaskedView:
    """A view that leaves out the moves that contradict earlier ones."""

    view: View

    def shape(self, n_tables: int) -> EnvShape:
        """That of the view."""
        return self.view.shape(n_tables)

    def observe(self, game: Game) -> Observation:
        """With its mask."""
        return replace(self.view.observe(game), mask=game.right_moves())

    def rewards(self, moved: Moved) -> np.ndarray:
        """Those of the view."""
        return self.view.rewards(moved)


Change = Callable[[Setting, int], Setting]


def _with_choices(change: Callable[[Choices], Choices]) -> Change:
    return lambda setting, seed: replace(setting, choices=change(setting.choices))


def _in_random_order(setting: Setting, seed: int) -> Setting:
    order = np.random.default_rng(seed).permutation(len(setting.choices))
    return replace(setting, choices=chosen(setting.choices, order))


def _masked(setting: Setting, seed: int) -> Setting:
    view = setting.view
    return replace(setting, view=lambda choices: MaskedView(view(choices)))


def _one_stage(setting: Setting, seed: int) -> Setting:
    return replace(setting, player=replace(setting.player, second_stage="none"))


def _short_stages(setting: Setting, seed: int) -> Setting:
    # By the player's own patience no first stage ends before the optimum is found here.
    return replace(setting, player=replace(setting.player, patience=_SHORT))


def _one_short_stage(setting: Setting, seed: int) -> Setting:
    return _one_stage(_short_stages(setting, seed), seed)


COUNT_CHANGES: Final[Mapping[Mode, Mapping[str, Change]]] = {
    "faithful": {
        "no linkage groups": _with_choices(ungrouped),
        "smallest groups first": _with_choices(smallest_first),
        "groups in random order": _in_random_order,
        "nothing is implied": _with_choices(with_nothing_implied),
        "wrong moves are masked": _masked,
        f"stages end after {_SHORT:,} decisions": _short_stages,
        f"they end after {_SHORT:,}, no second stage": _one_short_stage,
    },
    "ours": {
        "no groups": _with_choices(ungrouped),
        "smallest first": _with_choices(smallest_first),
        "random order": _in_random_order,
        "no second thoughts": _one_stage,
    },
}
"""What can be changed besides the parts, by who plays; by the seed where something is drawn."""


@dataclass(frozen=True)
class CountProblem:
    """Operator partitioning of a puzzle; a score is what the plan counts."""

    puzzle: str
    mode: Mode
    most_decisions: int

    @cached_property
    def _setting(self) -> Setting:
        mode = self.mode
        return Setting(
            choices=puzzles(self.puzzle)[0].choices,
            player=PLAYERS[mode, "operator partitioning"],
            view=lambda choices: make_view(mode, choices),
        )

    @cached_property
    def _most(self) -> int:
        return self._setting.choices.count(optimum(self._setting.choices))

    @cached_property
    def _parts(self) -> Mapping[str, RainbowConfig]:
        choices, config = self._setting.choices, self._setting.player.config
        if self.mode == "ours":
            # Of what greed brings, as a share of all.
            return _changed_parts(config, (-0.25, 0.25))
        largest = np.sort(choices.weights)[::-1]
        most = SPLIT_REWARD * float(largest @ config.gamma ** np.arange(len(largest)))
        return _changed_parts(config, (WRONG_REWARD, most))

    @property
    def changes(self) -> Sequence[str]:
        """The parts, then the prunings."""
        return UNCHANGED, *self._parts, *COUNT_CHANGES[self.mode]

    def run(self, name: str, changed: str, seed: int, *, learns: bool) -> Run:
        """Until the optimum is found, or all decisions are made."""
        setting, parts = self._setting, self._parts
        if changed in parts:
            setting = replace(setting, player=replace(setting.player, config=parts[changed]))
        elif changed != UNCHANGED:
            setting = COUNT_CHANGES[self.mode][changed](setting, seed)
        choices, player = setting.choices, setting.player
        if not learns:
            player = replace(player, config=replace(player.config, steps_per_update=None))
        result = play(
            choices,
            player,
            setting.view(choices),
            seed=seed,
            most_steps=self.most_decisions,
            target_count=self._most,
        )
        count = choices.count(result.split)
        return Run(
            problem=name,
            changed=changed,
            seed=seed,
            score=count,
            is_optimal=count == self._most,
            decisions=result.steps,
            seconds=result.seconds,
            learns=learns,
        )

    def shown(self, scores: Sequence[float]) -> str:
        """Counts, of the greatest."""
        return f"{spread(scores)} of {self._most}"


_RADII: Final = {"no radius": 10**6, "radius 1": 1}


@dataclass(frozen=True)
class PipelineProblem:
    """A pipeline of a model on one of the paper's configurations, by the faithful agent; a score is
    what it takes over the optimum, less 1.
    """

    model: str
    configuration: str

    @cached_property
    def _case(self) -> Case:
        topology, stages = CONFIGURATIONS[self.configuration]
        return Case(
            model=self.model,
            configuration=self.configuration,
            points=coarsen(profile(PIPELINED[self.model])),
            fabric=pipeline_fabric(get_topology(topology), "adjacent"),
            stages=stages,
        )

    @cached_property
    def _arrays(self) -> Arrays:
        return self._case.arrays()

    @cached_property
    def _least_seconds(self) -> float:
        best = best_partition(self._arrays, self._case.stages).best
        assert best is not None  # noqa: S101 - memory is no limit here
        return best.seconds

    @cached_property
    def _parts(self) -> Mapping[str, RainbowConfig]:
        # I / L, or -sqrt(I / L).
        return _changed_parts(CONFIGS["faithful"], (-1.0, 1.0))

    @property
    def changes(self) -> Sequence[str]:
        """The parts, then the prunings."""
        return UNCHANGED, *self._parts, *_RADII

    def run(self, name: str, changed: str, seed: int, *, learns: bool) -> Run:
        """Until nothing better comes any more."""
        case, least_seconds = self._case, self._least_seconds
        config = self._parts.get(changed, CONFIGS["faithful"])
        begin = time.process_time()
        result = find_pipeline(
            self._arrays,
            case.stages,
            case.fabric.boundary_level,
            "faithful",
            seed=seed,
            deadline=Deadline.after(1e6),
            radius=_RADII.get(changed, RADIUS),
            config=config if learns else replace(config, steps_per_update=None),
        )
        played = result.played
        assert played is not None  # noqa: S101 - a game is always played to its end
        gap = played.seconds / least_seconds - 1
        return Run(
            problem=name,
            changed=changed,
            seed=seed,
            score=gap,
            is_optimal=gap < 1e-9,
            decisions=result.episodes * (case.stages - 1),  # pivots, which device cuts follow
            seconds=time.process_time() - begin,
            learns=learns,
        )

    def shown(self, scores: Sequence[float]) -> str:
        """In percent."""
        return f"{spread([100 * score for score in scores], digits=1)} %"


Problem = CountProblem | PipelineProblem
PROBLEMS: Final[Mapping[str, Problem]] = {
    "faithful": CountProblem("T5-base", "faithful", most_decisions=3_000),
    "pipeline": PipelineProblem("T5-base", "C"),
    "ours": CountProblem("random, 87", "ours", most_decisions=20_000),
}
"""By the names of their tables."""
_COLUMNS: Final = ("optimum found", "reached", "decisions", "processor s")
HEADER: Final = ["changed", *(c for column in _COLUMNS for c in (column, "learning off"))]


def runs(name: str, seeds: int, kept: Path, *, is_shown: bool) -> Iterator[Run]:
    """All runs of a problem; those that are kept are not made again, and are all if only they are
    shown.
    """
    made = [Run(**row) for row in kept_rows(kept)]
    known = {(run.problem, run.changed, run.learns, run.seed): run for run in made}
    problem = PROBLEMS[name]
    for changed, learns, seed in product(problem.changes, (True, False), range(seeds)):
        run = known.get((name, changed, learns, seed))
        if run is None and not is_shown:
            run = problem.run(name, changed, seed, learns=learns)
            keep_row(kept, asdict(run))
            click.echo(run, err=True)
        if run is not None:
            yield run


def table(problem: Problem, made: Sequence[Run]) -> str:
    """One row for each change."""
    rows = []
    for changed in problem.changes:
        own = [run for run in made if run.changed == changed]
        pair = (_cells(problem, [run for run in own if run.learns == on]) for on in (True, False))
        rows.append([changed, *(cell for both in zip(*pair) for cell in both)])
    return markdown(HEADER, rows)


def _cells(problem: Problem, seeds: Sequence[Run]) -> list[str]:
    if not seeds:
        return ["-"] * len(_COLUMNS)
    return [
        f"{sum(run.is_optimal for run in seeds)} of {len(seeds)}",
        problem.shown([run.score for run in seeds]),
        spread([run.decisions for run in seeds]),
        spread([run.seconds for run in seeds], digits=1),
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--only", multiple=True, type=click.Choice(list(PROBLEMS)), help="These alone.")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--show", "is_shown", is_flag=True, help="Only runs that are kept.")
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(
    *, only: tuple[str, ...], seeds: int, kept: Path, is_shown: bool, output: Path | None
) -> None:
    """Print the tables, or put them in OUTPUT."""
    machine = f"torch {torch.__version__}, {platform.machine()}, one thread, {seeds} seeds"
    for name in only or PROBLEMS:
        made = list(runs(name, seeds, kept, is_shown=is_shown))
        text = made_by(COMMAND + " --show" * is_shown, machine) + table(PROBLEMS[name], made)
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)


if __name__ == "__main__":
    main()
