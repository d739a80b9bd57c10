"""What a run logs: one row now and then, to a CSV file, to TensorBoard, or nowhere; and the counts
and sums that it is made of.

`MEANINGS` and `SEQUENCE_MEANINGS` explain each number; the docs have the same lists.
"""

from collections.abc import Mapping
import csv
from dataclasses import asdict, dataclass, fields
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from rl.env import Outcome
from rl.errors import RlError


if TYPE_CHECKING:
    from rl.agent import Learned


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the log; `MEANINGS` says what the fields are. NaN where there was nothing to
    measure.
    """

    steps: int
    episodes: int
    mean_return: float
    best_return: float
    epsilon: float
    beta: float
    updates: int
    loss: float
    surprise: float
    held: int


MEANINGS: Mapping[str, str] = {
    "steps": "steps of single environments so far",
    "episodes": "episodes that have ended so far",
    "mean_return": (
        "mean sum of rewards, without discount, of the episodes that ended since the last row"
    ),
    "best_return": "the greatest sum of rewards of any episode so far",
    "epsilon": "share of actions that are random now",
    "beta": "how much of the bias of prioritized replay is undone now",
    "updates": "batches learnt from so far",
    "loss": (
        "mean weighted loss of the updates since the last row (Huber of delta, or cross-entropy)"
    ),
    "surprise": (
        "mean error of the updates since the last row: |delta|, or the cross-entropy; what "
        "priorities are made of"
    ),
    "held": "transitions in the replay",
}


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """One row of the log of `rl.reinforce`; `SEQUENCE_MEANINGS` says what the fields are. NaN where
    there was nothing to measure.
    """

    steps: int
    mean_cost: float
    best_cost: float
    possible: float
    baseline: float
    entropy: float


SEQUENCE_MEANINGS: Mapping[str, str] = {
    "steps": "updates so far, of all controllers",
    "mean_cost": "mean cost of the possible sequences since the last row",
    "best_cost": "the least cost of any sequence so far",
    "possible": "share of the sequences since the last row that are possible",
    "baseline": "moving average that costs are held against, mean over controllers",
    "entropy": "mean entropy of a choice since the last row, in nats",
}


class Progress:
    """Counts of one run. A sum of rewards belongs to the episode that an environment is in."""

    def __init__(self, n_envs: int):
        """Nothing has happened."""
        self._counts = np.zeros(2, np.int64)  # steps, episodes
        self._rewards = np.zeros(n_envs)
        self._best = np.full(1, -np.inf)
        # Since the last row: (sum, number) of returns, losses, surprises.
        self._sums = np.zeros((3, 2))

    @property
    def steps(self) -> int:
        """Steps of single environments."""
        return int(self._counts[0])

    def played(self, outcome: Outcome) -> None:
        """Count a step of all environments."""
        self._rewards += outcome.rewards
        # The sums of the episodes that this step has ended.
        ended = self._rewards[outcome.dones]
        self._counts += len(outcome.dones), len(ended)
        self._best[0] = max(self._best[0], ended.max(initial=-np.inf))
        self._sums[0] += ended.sum(), len(ended)
        self._rewards[outcome.dones] = 0.0

    def learned(self, learned: "Learned") -> None:
        """Count an update."""
        self._sums[1:, 0] += learned.loss, float(learned.surprises.mean())
        self._sums[1:, 1] += 1

    def row(self, *, epsilon: float, beta: float, updates: int, held: int) -> Row:
        """A row of the log; sums begin anew."""
        # No episode ended, or nothing was learnt: there is no mean.
        means = [total / count if count else math.nan for total, count in self._sums.tolist()]
        self._sums[:] = 0.0
        steps, episodes = self._counts.tolist()
        return Row(
            steps=steps,
            episodes=episodes,
            mean_return=means[0],
            best_return=float(self._best[0]) if episodes else math.nan,
            epsilon=epsilon,
            beta=beta,
            updates=updates,
            loss=means[1],
            surprise=means[2],
            held=held,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint."""
        return {
            "counts": self._counts,
            "rewards": self._rewards,
            "best": self._best,
            "sums": self._sums,
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for name, array in self.arrays().items():
            array[...] = arrays[name]


_Written = TypeVar("_Written", contravariant=True)


class Log(Protocol[_Written]):
    """Where rows of one type go."""

    def write(self, row: _Written) -> None:
        """Add a row."""
        ...


class CsvLog:
    """A CSV file with one line for each row; it is complete after each."""

    def __init__(
        self, path: Path, resumed_at: int = 0, row_type: type[Row] | type[SequenceRow] = Row
    ):
        """Start a file of rows of that type, or go on after the rows up to step `resumed_at` of the
        one that is there.
        """
        self._path = path
        # A run that is resumed writes the rows after its checkpoint again.
        kept: list[dict[str, str]] = []
        if resumed_at and path.exists():
            with path.open(newline="") as file:
                kept = [line for line in csv.DictReader(file) if int(line["steps"]) <= resumed_at]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(row_type)])
            writer.writeheader()
            writer.writerows(kept)

    def write(self, row: Row | SequenceRow) -> None:
        """Append a line."""
        # Opened for each row, so that a run which is ended loses none.
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow(asdict(row).values())


class TensorBoardLog:
    """A folder that TensorBoard shows; `steps` is its horizontal axis."""

    def __init__(self, folder: Path):
        """Raises `RlError` if TensorBoard is not installed."""
        try:
            from torch.utils import tensorboard
        except ImportError as error:
            raise RlError(
                "TensorBoard is not installed: pip install tensorboard, or log to a CSV file"
            ) from error
        self._writer: Any = tensorboard.SummaryWriter(str(folder))

    def write(self, row: Row | SequenceRow) -> None:
        """Add a point to each curve."""
        for name, number in asdict(row).items():
            self._writer.add_scalar(name, number, row.steps)
        self._writer.flush()
