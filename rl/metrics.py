"""What a run logs: one row now and then, to a CSV file, to TensorBoard, or nowhere.

`MEANINGS` explains each number; the docs have the same list.
"""

from collections.abc import Mapping
import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from rl.errors import RlError


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


class Log(Protocol):
    """Where rows go."""

    def write(self, row: Row) -> None:
        """Add a row."""
        ...


class CsvLog:
    """A CSV file with one line for each row; it is complete after each."""

    def __init__(self, path: Path, resumed_at: int = 0):
        """Start a file, or go on after the rows up to step `resumed_at` of the one that is
        there.
        """
        self._path = path
        # A run that is resumed writes the rows after its checkpoint again.
        kept: list[dict[str, str]] = []
        if resumed_at and path.exists():
            with path.open(newline="") as file:
                kept = [line for line in csv.DictReader(file) if int(line["steps"]) <= resumed_at]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            writer.writeheader()
            writer.writerows(kept)

    def write(self, row: Row) -> None:
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

    def write(self, row: Row) -> None:
        """Add a point to each curve."""
        for name, number in asdict(row).items():
            self._writer.add_scalar(name, number, row.steps)
        self._writer.flush()
