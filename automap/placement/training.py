"""A run of a ColocRL policy: progress, metrics, and where it is kept.

A run ends after its updates or at the deadline. Where the search has a folder the run is kept there
under a name made of all that it depends on, beside its metrics (CSV), and goes on from there: one
that was ended and went on is the same to the bit as one that was not.       -> in: `trained`
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
import csv
from dataclasses import asdict, dataclass
from functools import partial
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
import warnings

import numpy as np

from automap.deadline import Deadline
from automap.errors import CacheWarning, PlanError
from automap.placement.colocrl import PlacementGame
from automap.placement.search import Search
from automap.search.context import OutOfBudget
from automap.search.progress import ChoiceProgress
from automap.search.torch_needed import need_torch
from rl.errors import CheckpointError
from rl.metrics import CsvLog, Log, SequenceRow
from rl.sequences import ReinforceConfig, Score


if TYPE_CHECKING:
    from rl.reinforce import Reinforce


# Updates between two rows of the metrics, after each of which the run is kept.
_KEPT_EVERY: Final = 10


@dataclass(frozen=True)
class Run:
    """A run of a policy: its game, where costs are from, and when it ends."""

    search: Search
    game: PlacementGame
    score: Score
    config: ReinforceConfig
    updates: int
    rewards: str
    deadline: Deadline

    def file(self, folder: Path) -> Path:
        """Where it is kept: a name made of all that it depends on."""
        digest, simulator = hashlib.sha256(), self.search.simulator
        for array in _arrays((simulator.step, simulator.machine, self.game.score.group)):
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        named = [asdict(self.config), self.search.seed, self.rewards]
        digest.update(json.dumps(named).encode())
        return folder / f"colocrl-{digest.hexdigest()[:32]}.safetensors"


def _arrays(values: Sequence[Any]) -> Iterator[np.ndarray]:
    for value in values:
        if isinstance(value, tuple):
            yield from _arrays(value)
        else:
            yield np.asarray(value)


def trained(run: Run) -> tuple[np.ndarray, float]:
    """The best sequence of a run at its end, and its cost; infinite where nothing was possible."""
    need_torch()
    from rl.reinforce import Reinforce  # torch loads here

    search, path = run.search, None
    begin = partial(Reinforce, run.game.task, run.score, run.config, search.seed)
    agent, log = begin(), None
    if search.folder is not None:
        path = run.file(search.folder)
        agent = kept(path, lambda file: _resumed(begin, file)) or agent
        log = kept(path, lambda file: _metrics(agent, file))
    before = agent.store.updates

    def is_over() -> bool:
        done, cost = agent.store.updates, agent.store.best[1]
        search.on_progress(ChoiceProgress("training a policy", done, run.updates, cost**2))
        if path is not None and log is not None and done % _KEPT_EVERY == 0:
            kept(path, agent.save)
        return run.deadline.is_over

    # What is out of its budget in the middle of an update does that again when the run goes on.
    with suppress(OutOfBudget):
        agent.run(run.updates, is_over, log=log, log_every=_KEPT_EVERY)
    done = agent.store.updates
    if path is not None and log is not None:
        kept(path, agent.save)
        if done < run.updates:
            so_far = f"{done} of {run.updates} updates are done and kept"
            search.notes.append(f"{so_far}; the same command goes on from there")
    search.priced += (done - before) * run.config.samples
    return agent.store.best


def _resumed(begin: Callable[[], "Reinforce"], file: Path) -> "Reinforce":
    """A run where it is kept, or at its beginning."""
    agent = begin()
    try:
        agent.restore(file)
    except CheckpointError:
        # As of any cache, what cannot be read or is of another version is made again; a part of it
        # may have been read by then.
        return begin()
    return agent


def _metrics(agent: "Reinforce", file: Path) -> Log[SequenceRow]:
    path = file.with_suffix(".csv")
    try:
        return CsvLog(path, agent.store.updates, SequenceRow)
    except (KeyError, ValueError, TypeError, csv.Error):
        # As a checkpoint that cannot be read, rows that cannot are no longer kept.
        return CsvLog(path, row_type=SequenceRow)


def kept(file: Path, write: Callable[[Path], Any]) -> Any:
    """What `write` gives; a `CacheWarning` and None where it cannot."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return write(file)
    except (OSError, PlanError, CheckpointError) as error:
        warnings.warn(
            f"what is learnt is not kept in {str(file.parent)!r}: {error}; give a --cache-dir that "
            "can be written to, or --no-cache",
            CacheWarning,
            stacklevel=2,
        )
        return None
