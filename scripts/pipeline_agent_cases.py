"""What the pipeline agent is judged on: gaps of every method to the proven optimum of held-out
problems.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import json
from pathlib import Path
import time

import numpy as np

from automap.pipeline.agent.candidates import Candidates, new_game
from automap.pipeline.agent.network import shipped_weights, values
from automap.pipeline.agent.play import Score, beam, greedy, infer, infer_by
from automap.pipeline.agent.problems import Problem, Size, generate
from automap.pipeline.solvers.exact import Partition, solve
from automap.pipeline.solvers.local import at_servers, even_split, local_search
from scripts.tables import spread


# Sums in another order differ by less.
HIT = 1e-6
MOST_WORK = 300_000_000
"""Of the exact solver for one problem, about two seconds."""
_METRICS = {
    "mean gap": "{:.2%}",
    "median": "{:.2%}",
    "worst": "{:.2%}",
    "within 1 %": "{:.2f}",
    "optimum hit": "{:.2f}",
    "none": "{:.0f}",
    "ms": "{:.1f}",
}
"""How each is written."""
AGENT, UNLEARNED = "agent", "without learning"
METHOD_HEADER = [
    "method",
    *(column for metric in _METRICS for column in (metric, UNLEARNED)),
    "agent better",
    "equal",
    "without learning better",
]
"""Of every metric the same player's without learning is the next column."""
BASELINES = ("even split", "at servers", "13-start local search")
PLAYED = ("greedy", "one path, last two searched", "beam 16 x 8", "beams and local search")
"""Methods that the agent and the same player without learning have."""
PAIRED = ("greedy", "beam 16 x 8", "beams and local search")
"""Those that are shown where nothing is proven."""
PAIRED_NAMES = tuple(f"{who}, {method}" for method in PAIRED for who in (AGENT, UNLEARNED))
PAIRED_HEADER = [
    "method",
    "agent, over the best known",
    "without learning",
    "difference ± its standard error",
    "agent better",
    "equal",
    "without learning better",
    "agent, ms",
    "without learning, ms",
]
Method = Callable[[Problem], Partition | None]


def score(options: Candidates) -> np.ndarray:
    """Q of the shipped agent."""
    return values(shipped_weights(), options)


def bound_score(options: Candidates) -> np.ndarray:
    """Without learning: the step with the good division of what is left."""
    return options.baseline


def _greedy(problem: Problem, of: Score) -> Partition | None:
    game = new_game(problem.arrays, problem.stages)
    return None if game is None else greedy(game, of)


def _beam(problem: Problem, of: Score, width: int, branch: int) -> Partition | None:
    game = new_game(problem.arrays, problem.stages)
    return None if game is None else beam(game, of, width, branch)


METHODS: dict[str, Method] = {
    "even split": lambda p: even_split(p.arrays, p.stages),
    "at servers": lambda p: at_servers(p.arrays, p.stages, p.fabric.boundary_level).best,
    "13-start local search": lambda p: local_search(p.arrays, p.stages),
    "without learning, greedy": lambda p: _greedy(p, bound_score),
    "without learning, beam 16 x 8": lambda p: _beam(p, bound_score, 16, 8),
    "without learning, one path, last two searched": lambda p: _beam(p, bound_score, 1, 1),
    "without learning, beams and local search": lambda p: infer_by(p.arrays, p.stages, bound_score),
    "agent, greedy": lambda p: _greedy(p, score),
    "agent, one path, last two searched": lambda p: _beam(p, score, 1, 1),
    "agent, beam 16 x 8": lambda p: _beam(p, score, 16, 8),
    "agent, beams and local search": lambda p: infer(p.arrays, p.stages, shipped_weights()),
}


@dataclass
class Gaps:
    """Of one method: shares above the optimum, inf where it found nothing that fits, and process
    seconds.
    """

    gaps: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def numbers(self) -> list[float]:
        """As `_METRICS` says, nan where there is none."""
        # Not below the optimum: a rounding would count as a better plan.
        gaps = np.maximum(self.gaps, 0.0)
        fits = gaps[np.isfinite(gaps)]
        shares = [np.mean(fits), np.median(fits), np.max(fits)] if len(fits) else [np.nan] * 3
        hits = (gaps <= 0.01).mean(), (gaps <= HIT).mean()
        took = 1e3 * np.median(self.seconds) if self.seconds else np.nan
        return [float(n) for n in (*shares, *hits, len(gaps) - len(fits), took)]


def _metric_cells(runs: Sequence[Gaps]) -> list[str]:
    """Of runs that differ by their seeds: medians, and the least and greatest."""
    columns = zip(*(run.numbers() for run in runs), strict=True)
    return [
        "-" if np.isnan(values).any() else spread(values, text.format)
        for text, values in zip(_METRICS.values(), columns, strict=True)
    ]


def paired_cells(runs: Sequence[Gaps], unlearned: Gaps | None) -> list[str]:
    """As `METHOD_HEADER` says after the method, which may have nothing to learn; problems are
    counted once for each of the runs, which differ by their seeds.
    """
    cells = _metric_cells(runs)
    if unlearned is None:
        return [*(cell for own in cells for cell in (own, "-")), *"---"]
    columns = zip(cells, _metric_cells([unlearned]), strict=True)
    own = [gap for run in runs for gap in run.gaps]
    counts = compared(own, unlearned.gaps * len(runs))
    return [*(cell for pair in columns for cell in pair), *counts]


def compared(agent: Sequence[float], unlearned: Sequence[float]) -> list[str]:
    """How many problems the agent is better on, equal, and worse."""
    pairs = list(zip(agent, unlearned, strict=True))
    better = sum(own < other - HIT for own, other in pairs)
    worse = sum(other < own - HIT for own, other in pairs)
    return [str(better), str(len(pairs) - better - worse), str(worse)]


def method_rows(
    problems: Iterable[tuple[Problem, float]],
    baselines: Sequence[str] = BASELINES,
    played: Sequence[str] = PLAYED,
) -> list[list[str]]:
    """A row for each method on (problem, V of its optimum in seconds)."""
    names = [f"{who}, {method}" for method in played for who in (AGENT, UNLEARNED)]
    gaps = measured(problems, {name: METHODS[name] for name in (*baselines, *names)})
    rows = [[name, *paired_cells([gaps[name]], None)] for name in baselines]
    for method in played:
        own, other = (gaps[f"{who}, {method}"] for who in (AGENT, UNLEARNED))
        rows.append([method, *paired_cells([own], other)])
    return rows


def measured(
    problems: Iterable[tuple[Problem, float]], methods: dict[str, Method]
) -> dict[str, Gaps]:
    """Every method on (problem, V of its optimum in seconds)."""
    gaps_by_method = {name: Gaps() for name in methods}
    for problem, least in problems:
        for name, method in methods.items():
            begin = time.process_time()
            best = method(problem)
            gaps_by_method[name].seconds.append(time.process_time() - begin)
            seconds = np.inf if best is None else best.seconds
            gaps_by_method[name].gaps.append(seconds / least - 1.0)
    return gaps_by_method


class Optima:
    """Proven optima by name, in a file: they need not be solved again to judge other weights."""

    def __init__(self, path: Path | None):
        """Those of the file; none without one."""
        self._path = path
        self._found: dict[str, float | None] = {}
        if path is not None and path.exists():
            self._found = json.loads(path.read_text())

    def least(self, name: str, problem: Problem) -> float | None:
        """V of the optimum in seconds; None if it is not proven within MOST_WORK."""
        if name not in self._found:
            arrays, stages = problem.arrays, problem.stages
            # A good bound to begin with makes the proof many times shorter.
            others = local_search(arrays, stages), infer(arrays, stages, shipped_weights())
            bound = min((other.seconds for other in others if other is not None), default=np.inf)
            solved = solve(arrays, stages, bound, most_work=MOST_WORK)
            best = solved.best if solved.proven else None
            self._found[name] = None if best is None else best.seconds
            if self._path is not None:
                self._path.write_text(json.dumps(self._found))
        return self._found[name]


@dataclass
class HeldOut:
    """Problems of the seeds that the exact solver proves; `n_unproven` were left out."""

    seeds: Iterable[int]
    size: Size
    optima: Optima
    n_unproven: int = 0

    def __iter__(self) -> Iterator[tuple[Problem, float]]:
        """(problem, V of its optimum in seconds)."""
        for seed in self.seeds:
            problem = generate(seed, self.size)
            least = self.optima.least(f"{seed} {self.size}", problem)
            if least is None:
                self.n_unproven += 1
            else:
                yield problem, least


def paired_seconds(problem: Problem) -> dict[str, tuple[float, float]]:
    """(step, process) seconds of every method of `PAIRED`, with learning and without."""
    # Over one second, so that a gap and 1 are the step's.
    measures = measured([(problem, 1.0)], {name: METHODS[name] for name in PAIRED_NAMES})
    return {name: (one.gaps[0] + 1.0, one.seconds[0]) for name, one in measures.items()}


def beside_unlearned(problems: Sequence[Mapping[str, Sequence[float]]]) -> list[list[str]]:
    """The agent and the same player without learning, a row for each of `PAIRED`, from
    `paired_seconds`; the best known is the best that any of them reached.
    """
    pairs = np.array([[each[name] for name in PAIRED_NAMES] for each in problems])
    steps, times = pairs[:, :, 0], np.median(pairs[:, :, 1], axis=0)
    over = steps / steps.min(axis=1, keepdims=True) - 1.0
    rows = []
    for i, method in enumerate(PAIRED):
        agent, unlearned = over[:, 2 * i], over[:, 2 * i + 1]
        difference = np.log(steps[:, 2 * i] / steps[:, 2 * i + 1])
        error = difference.std(ddof=1) / np.sqrt(len(problems)) if len(problems) > 1 else np.nan
        rows.append(
            [
                method,
                *(f"{np.mean(gaps):.2%}" for gaps in (agent, unlearned)),
                f"{difference.mean():+.2%} ± {error:.2%}",
                *compared(agent.tolist(), unlearned.tolist()),
                *(f"{1e3 * seconds:.0f}" for seconds in times[2 * i : 2 * i + 2]),
            ]
        )
    return rows
