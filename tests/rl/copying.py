"""A task whose best sequence is known: each element has a wanted option, or copies another's."""

from dataclasses import dataclass

import numpy as np

from rl.sequences import SequenceTask


@dataclass(frozen=True)
class Mismatches:
    """The number of elements whose option is not the wanted one; a sequence that begins with option
    `forbidden` is not possible.
    """

    wanted: np.ndarray
    forbidden: int | None = None

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        costs = (sequences != self.wanted).sum(1).astype(float)
        if self.forbidden is not None:
            costs[sequences[:, 0] == self.forbidden] = np.inf
        return costs


class Failing:
    """A score that cannot be had."""

    def __call__(self, sequences: np.ndarray) -> np.ndarray:
        raise OSError("the device is gone")


def chain(n: int, n_options: int, failing_signal: float = 8.0) -> SequenceTask:
    """n elements, each of which reads the one before it."""
    source = np.random.default_rng(n)
    return SequenceTask(
        kinds=source.integers(3, size=n),
        n_kinds=3,
        sizes=source.integers(0, 2048, size=(n, 2)).astype(np.float32),
        edges=np.stack([np.arange(n - 1), np.arange(1, n)], 1),
        allowed=np.ones((n, n_options), bool),
        prior=np.zeros((n, n_options), np.float32),
        failing_signal=failing_signal,
    )
