"""Studies beside ColocRL's tables: a model that no GPU holds, several controllers, and rewards that
are measured.

    python -m scripts.colocrl_studies --table large --kept ROWS -o docs/reports/colocrl.md

large        the paper's policy on the large RNNLM, and three other ways to learn what fits:
               excess      what does not fit costs failing signal * (1 + share of memory missing)
               curriculum  the memory is WIDEST times what it is, and falls to that over the first
                           half of the updates
               memory      the policy begins at the placement of `memory`, which fits
controllers  the same number of updates by 1, 2 and 4 controllers, each in a process of its own
measured     rewards by seconds of steps on fake CPU devices, as `colocrl-measured` has them
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
import time
from typing import Final

import jax
import numpy as np

import automap
from automap.deadline import Deadline
from automap.placement import baselines, colocrl
from automap.placement.dataflow import step_dataflow
from automap.placement.operators import step_operators
from automap.placement.prices import price_all
from automap.placement.search import Placed, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.strategies import least_seconds, mcmc
from automap.placement.tasks import placement_problem
from automap.program.trace import trace_step
from automap.runtime.placement import measured_seconds
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import get_topology, topology_graph
from models.lenet import lenet_tiny
from rl.fleets import ProcessFleet
from rl.metrics import CsvLog, SequenceRow
from rl.reinforce import Crew, Fleet, LocalFleet, Reinforce
from rl.sequences import ReinforceConfig
from scripts.reproduce_colocrl import MODELS, searched, text, traced
from scripts.tables import Table, kept, tables_command


COMMAND: Final = "python -m scripts.colocrl_studies"
WIDEST: Final = 3.0
CONTROLLERS: Final = (1, 2, 4)
SEARCH_SECONDS: Final = 60.0
MEASURED_UPDATES: Final = 6


@dataclass
class Score:
    """Costs of sequences as one of the ways of `large` has them, which remembers what fits: the
    best placement, and for each turn the share that fits.
    """

    search: Search
    group: np.ndarray
    failing_signal: float
    pays_excess: bool = False
    turns: int = 0
    """Turns of the curriculum; 0 for none."""
    best: Placed | None = None
    fitting: list[float] = field(default_factory=list)

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        """Costs [K] of sequences [K, groups]."""
        simulator = self.search.simulator
        placements = sequences[:, self.group]
        seconds, overflow = price_all(simulator.step, simulator.machine, placements)
        self.fitting.append(float((overflow == 0.0).mean()))
        for row in np.flatnonzero(overflow == 0.0):
            if self.best is None or seconds[row] < self.best.seconds:
                self.best = self.search.place(placements[row].tolist())
        if self.turns:
            done = min(len(self.fitting) / (self.turns / 2), 1.0)
            wide = simulator.machine.memory_bytes * (WIDEST - (WIDEST - 1.0) * done)
            machine = simulator.machine._replace(memory_bytes=wide)
            seconds, overflow = price_all(simulator.step, machine, placements)
        missing = self.failing_signal * (1.0 + overflow) if self.pays_excess else np.inf
        return np.where(overflow == 0.0, np.sqrt(seconds), missing)


@dataclass(frozen=True)
class Way:
    """A way to learn what fits."""

    pays_excess: bool = False
    has_curriculum: bool = False
    begins_at_memory: bool = False


WAYS: Final[Mapping[str, Way]] = {
    "the paper's": Way(),
    "excess": Way(pays_excess=True),
    "curriculum": Way(has_curriculum=True),
    "memory": Way(begins_at_memory=True),
}
LARGE_HEADER = [
    "the large RNNLM, 4 GPUs",
    "learning off",
    "learning",
    "draws that fit: first tenth",
    "last tenth",
]


def _large(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    def search() -> Search:
        return searched(traced(MODELS["large RNNLM"].target), "haswell-4xk80")

    def row(name: str) -> list[str]:
        way, one = WAYS[name], search()
        known = baselines.memory(one) if way.begins_at_memory else None
        config = colocrl.FROM_HEFT if known else colocrl.PAPERS
        cells, shares = [], []
        for rate in (None, config.learning_rate):
            runs = []
            for seed in range(seeds):
                score = _way_run(
                    one, way, replace(config, learning_rate=rate), known, seed, updates
                )
                runs.append(score.best)
                if rate is not None:
                    shares.append(score.fitting)
            fitting = [run for run in runs if run is not None]
            cells.append(text(fitting) if len(fitting) == seeds else "does not fit")
        tenth = max(updates // 10, 1)
        first, last = ([s[:tenth] for s in shares], [s[-tenth:] for s in shares])
        return [name, *cells, f"{np.mean(first):.0%}", f"{np.mean(last):.0%}"]

    rows = [kept(folder, f"large {n} {seeds} {updates}", lambda n=n: row(n)) for n in WAYS]

    def others() -> list[list[str]]:
        one = search()
        placed = baselines.memory(one)
        one.deadline = Deadline.after(SEARCH_SECONDS)
        found = mcmc(one)
        bound = least_seconds(one)
        return [
            ["`memory` alone", text([placed]), "", "", ""],
            ["`auto`", text([found]), "", "", ""],
            ["no placement takes less than", f"{bound:.3f}", "", "", ""],
        ]

    return rows + kept(folder, "large others", others)


def _way_run(
    search: Search,
    way: Way,
    config: ReinforceConfig,
    known: Placed | None,
    seed: int,
    updates: int,
) -> Score:
    group = colocrl.branch_groups(search.simulator.problem)
    game = colocrl.placement_game(search, group, known)
    turns = updates if way.has_curriculum else 0
    score = Score(search, group, game.task.failing_signal, way.pays_excess, turns)
    Reinforce(game.task, score, config, seed).run(updates)
    return score


CONTROLLERS_HEADER = [
    "Inception-v3, 4 GPUs: controllers",
    "updates",
    "seconds of the run",
    "best step",
    "GPUs used",
]


def _controllers(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    def row(count: int) -> list[str]:
        search = searched(traced(MODELS["Inception-v3"].target), "haswell-4xk80")
        game = colocrl.placement_game(search, colocrl.branch_groups(search.simulator.problem), None)
        log = CsvLog(folder / f"controllers-{count}.csv", row_type=SequenceRow)
        run = Reinforce(game.task, game.score, colocrl.PAPERS, 0, n_controllers=count)
        fleet: Callable[[Crew], Fleet] = LocalFleet if count == 1 else ProcessFleet
        begin = time.monotonic()
        run.run(updates, fleet=fleet, log=log)
        seconds = time.monotonic() - begin
        best, _ = run.store.best
        placed = search.place(best[game.score.group].tolist())
        used = len(set(placed.device) - {0})
        return [str(count), str(updates), f"{seconds:.0f}", text([placed]), str(used)]

    return [
        kept(folder, f"controllers {count} {updates}", lambda c=count: row(c))
        for count in CONTROLLERS
    ]


@dataclass
class MeasuredScore:
    """Costs by the seconds of steps on this process's devices."""

    plan: automap.Plan
    call: TracedCall
    homes: Sequence[int | None]
    group: np.ndarray
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        """Costs [K] of sequences [K, groups]."""
        return np.sqrt([self.seconds(row[self.group]) for row in sequences])

    def seconds(self, placement: np.ndarray) -> float:
        """Of a step of one placement, measured once."""
        if placement.tobytes() not in self.known:
            self.known[placement.tobytes()] = self._measured(placement)
        return self.known[placement.tobytes()]

    def _measured(self, placement: np.ndarray) -> float:
        record = self.plan.placement
        assert record is not None  # noqa: S101 - it is a plan of placement
        operators = tuple(
            replace(one, device=int(device))
            for one, device in zip(record.operators, placement, strict=True)
        )
        inputs = tuple(None if home is None else int(placement[home]) for home in self.homes)
        placed = replace(record, operators=operators, input_devices=inputs, transfers=())
        plan = replace(self.plan, placement=placed)
        return measured_seconds(plan, self.call, jax.devices()[:4])


MEASURED_HEADER = [
    "LeNet on 4 CPU devices",
    "placements",
    "measured step, ms",
    "learning off: placements",
    "measured step, ms",
]


def _measured(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    def rows() -> list[list[str]]:
        step, args = lenet_tiny(batch=256)
        graph = topology_graph(get_topology("cpu:4"))
        flow = step_operators(step_dataflow(trace_step(step, args, platform="cpu")))
        problem = placement_problem(flow, graph.platform, graph.kinds)
        search = Search(Simulator(problem, placed_machine(graph)))
        plan = automap.plan(step, args, topology="cpu:4", space="placement", strategy="single")
        game = colocrl.placement_game(search, np.arange(problem.n_operators), None)
        homes = [problem.homes.get(array) for array in flow.dataflow.inputs]
        call = traced_call(step, args)
        score = MeasuredScore(plan, call, homes, game.score.group)
        learns = replace(colocrl.PAPERS, samples=4)
        columns = []
        for config in (learns, replace(learns, learning_rate=None)):
            run = Reinforce(game.task, score, config, 0)
            run.run(MEASURED_UPDATES)
            best, _ = run.store.best
            drawn = np.array(list(score.known.values())) * 1e3
            # Once more: of many measured steps the least is chosen for its luck too.
            score.known.clear()
            columns.append((best[game.score.group], drawn))
        one_device = 1e3 * score.seconds(np.zeros(problem.n_operators, np.int64))
        drawn = [[str(len(ms)), f"{np.median(ms):.2f}"] for _, ms in columns]
        best = [
            [
                f"1, on {len(set(placement.tolist()))} devices",
                f"{1e3 * score.seconds(placement):.2f}",
            ]
            for placement, _ in columns
        ]
        return [
            ["one device", "1", f"{one_device:.2f}", "", ""],
            ["all that were drawn, median", *drawn[0], *drawn[1]],
            ["the best", *best[0], *best[1]],
        ]

    return kept(folder, "measured", rows)


TABLES: Final[Mapping[str, Table]] = {
    "large": Table(LARGE_HEADER, _large),
    "controllers": Table(CONTROLLERS_HEADER, _controllers),
    "measured": Table(MEASURED_HEADER, _measured),
}


main = tables_command(TABLES, COMMAND, __doc__)


if __name__ == "__main__":
    main()
