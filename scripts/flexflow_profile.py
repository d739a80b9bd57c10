"""Where the seconds of a proposal go, in FlexFlow's search over single operators.

    draw       a random configuration of a random operator
    note       checked, and its degrees, devices, seconds and bytes put into arrays
    write      the tasks and edges of what has changed since, written
    within     simulated as far as it may be accepted
    construct  the whole task graph written
    simulate   the whole task graph simulated

so a proposal by full simulation takes draw + note + construct + simulate, one within a limit draw +
note + write + within. Of the timeline a share m of the tasks has other times than that of the
configurations before. A delta simulation looks at each of these at least once; were it as quick
with a task as the full simulation, and each looked at once, it would take

    draw + note + write + m simulate                                       -> in: `Profile.ideal`
"""

from collections.abc import Iterator, Sequence
import contextlib
from dataclasses import dataclass
import random
import time

import numpy as np

from automap.simulate.operators.configuration import data_parallel, random_configuration
from automap.simulate.operators.simulator import PlacedTimeline
from scripts.flexflow_cases import Case


PARTS: Sequence[str] = ("draw", "note", "write", "within", "construct", "simulate")
# Proposals of which the tasks with other times are counted.
_COMPARED = 30
# As the walk's: a step that is 1 % longer is accepted with chance 1/e.
_BETA = 100.0


@dataclass(frozen=True)
class Profile:
    """Seconds of a proposal by part, the mean over a walk; `moved` is m, `tasks` at its end."""

    seconds: dict[str, float]
    moved: float
    tasks: int

    def full(self) -> float:
        """Seconds by full simulation."""
        return sum(self.seconds[part] for part in ("draw", "note", "construct", "simulate"))

    def ideal(self) -> float:
        """Seconds by a delta simulation that looks at each task that it must once."""
        own = sum(self.seconds[part] for part in ("draw", "note", "write"))
        return own + self.moved * self.seconds["simulate"]


def profile(it: Case, count: int) -> Profile:
    """Of a walk of so many proposals from data parallelism."""
    simulator = it.simulator(data_parallel(it.graph, it.n_devices))
    rng, source = np.random.default_rng(0), random.Random(0)
    seconds, moved = dict.fromkeys(PARTS, 0.0), list[float]()
    at, known = simulator.makespan_seconds, simulator.timeline()
    for made in range(count):
        limit = at * (1.0 - source.random()) ** (-1.0 / _BETA)
        with _timed(seconds, "draw"):
            number = int(rng.integers(len(it.graph.operators)))
            drawn = random_configuration(it.graph.operators[number], it.n_devices, rng)
        before = simulator.configurations[number]
        with _timed(seconds, "note"):
            simulator.place(number, drawn)
        with _timed(seconds, "write"):
            simulator.write_changes()
        with _timed(seconds, "within"):
            simulator.simulate_within(limit)
        with _timed(seconds, "construct"):
            simulator.rebuild()
        with _timed(seconds, "simulate"):
            simulator.simulate()
        if made < _COMPARED:
            moved.append(_moved(known, simulator.timeline()))
        if simulator.makespan_seconds <= limit:
            at = simulator.makespan_seconds
            known = simulator.timeline() if made < _COMPARED else known
        else:
            with _timed(seconds, "note"):
                simulator.place(number, before)
    means = {part: total / count for part, total in seconds.items()}
    return Profile(means, float(np.mean(moved)), simulator.n_tasks)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.process_time()
    yield
    seconds[part] += time.process_time() - begin


def _moved(known: PlacedTimeline, now: PlacedTimeline) -> float:
    """The share of the tasks whose ready time or end is another than it was, or that are new."""
    _, then, same = np.intersect1d(known.ident, now.ident, return_indices=True)
    kept = (known.ready_seconds[then] == now.ready_seconds[same]) & (
        known.end_seconds[then] == now.end_seconds[same]
    )
    return 1.0 - float(np.count_nonzero(kept)) / len(now.ident)
