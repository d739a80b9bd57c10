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

A full simulation that is restarted from a state kept before the first change has the share b of the
tasks done that start before any task starts at another time, and takes at least

    draw + note + write + (1 - b) simulate                                 -> in: `done_before`
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


def done_before(it: Case, count: int) -> float:
    """b, the mean over the proposals of a walk as `profile` makes it."""
    simulator = it.simulator(data_parallel(it.graph, it.n_devices))
    rng, source = np.random.default_rng(0), random.Random(0)
    at, known, shares = simulator.makespan_seconds, simulator.timeline(), list[float]()
    for _ in range(count):
        limit = at * (1.0 - source.random()) ** (-1.0 / _BETA)
        number = int(rng.integers(len(it.graph.operators)))
        before = simulator.configurations[number]
        simulator.place(number, random_configuration(it.graph.operators[number], it.n_devices, rng))
        simulator.rebuild()
        simulator.simulate()
        now = simulator.timeline()
        shares.append(share_before_change(known, now))
        if simulator.makespan_seconds <= limit:
            at, known = simulator.makespan_seconds, now
        else:
            simulator.place(number, before)
    return float(np.mean(shares))


def share_before_change(known: PlacedTimeline, now: PlacedTimeline) -> float:
    """The share of the tasks of a timeline that start before the first which another one has not at
    that time, or which it has not itself.
    """
    _, then, same = np.intersect1d(known.ident, now.ident, return_indices=True)
    is_alike = known.start_seconds[then] == now.start_seconds[same]
    is_alike &= known.end_seconds[then] == now.end_seconds[same]
    first = np.inf
    for line, alike in ((known, then[is_alike]), (now, same[is_alike])):
        changed = np.delete(line.start_seconds, alike)
        first = min(first, float(changed.min(initial=np.inf)))
    return float(np.count_nonzero(now.start_seconds < first)) / len(now.ident)


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
