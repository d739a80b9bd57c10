"""Choosing one of D options for each of N elements, one after the other: the task of a
sequence-to-sequence policy, as arrays.

An element is described by its kind, by the sizes of what it gives, padded with zeros, and by the
elements that it reads from and gives to (Mirhoseini et al. 2017, section 3.2). `prior` is what is
known of the logarithm of each option's chance beforehand; zeros where nothing is known.

A whole sequence has a *cost*, to be made small; one that is not possible costs infinity, and counts
as the *failing signal* while the policy learns from such at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
import math

import numpy as np

from rl.errors import ConfigError


Score = Callable[[np.ndarray], np.ndarray]
"""Costs [K] float64 of sequences [K, N] int64; infinite where a sequence is not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTask:
    """N elements with D options each.

    Attributes:
        kinds: of each element, int64 [N], below `n_kinds`.
        n_kinds: how many kinds there are.
        sizes: of what an element gives, float32 [N, S], zeros where there are fewer.
        edges: pairs of (giver, reader), int64 [E, 2].
        allowed: options that an element may have, bool [N, D], in each row at least one.
        prior: logarithm of each option's chance beforehand up to a constant, float32 [N, D].
        failing_signal: what a sequence that is not possible counts as.

    Raises:
        ConfigError: arrays that do not belong together.
    """

    kinds: np.ndarray
    n_kinds: int
    sizes: np.ndarray
    edges: np.ndarray
    allowed: np.ndarray
    prior: np.ndarray
    failing_signal: float

    def __post_init__(self) -> None:
        """Check that the arrays belong together."""
        n = len(self.kinds)
        shapes = {
            "sizes": (self.sizes, (n, self.sizes.shape[-1])),
            "edges": (self.edges, (len(self.edges), 2)),
            "allowed": (self.allowed, (n, self.n_options)),
            "prior": (self.prior, (n, self.n_options)),
        }
        for name, (array, expected) in shapes.items():
            if array.shape != expected:
                raise ConfigError(f"{name} has the shape {array.shape}; give {expected}")
        if n == 0 or not self.allowed.any(1).all():
            raise ConfigError("an element without an option; allow at least one for each of them")
        for name, array, below in (("kinds", self.kinds, self.n_kinds), ("edges", self.edges, n)):
            if array.size and not 0 <= array.min() <= array.max() < below:
                raise ConfigError(
                    f"{name} are {array.min()} to {array.max()}; give 0 to {below - 1}"
                )
        if not math.isfinite(self.failing_signal):
            raise ConfigError(f"failing_signal is {self.failing_signal}; give a finite cost")

    @property
    def n_elements(self) -> int:
        """N."""
        return len(self.kinds)

    @property
    def n_options(self) -> int:
        """D."""
        return self.allowed.shape[-1]

    def adjacency(self) -> np.ndarray:
        """Ones at the readers and, in the second half, at the givers of each element: float32
        [N, 2N].
        """
        n = self.n_elements
        table = np.zeros((n, 2 * n), np.float32)
        giver, reader = self.edges.T
        table[giver, reader] = 1.0
        table[reader, n + giver] = 1.0
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    """REINFORCE with a sequence-to-sequence policy; the paper gives neither sizes nor rates.

    Attributes:
        hidden: size of the encoder's and of the decoder's state.
        kind_size: size of the embedding of a kind.
        option_size: size of the embedding of an option, which the decoder reads of the last one.
        is_aligned: the decoder also reads the encoder's state of the element that it decides on;
            the paper's has to find it by attention.
        samples: sequences that a controller draws for an update, K.
        learning_rate: of Adam; None: nothing is learnt, for tables that show what learning adds.
        baseline_decay: share of the moving average that stays after an update, in [0, 1).
        failing_updates: updates that still learn from sequences that are not possible.

    Raises:
        ConfigError: a number out of its range.
    """

    hidden: int = 64
    kind_size: int = 16
    option_size: int = 16
    is_aligned: bool = False
    samples: int = 8
    learning_rate: float | None = 3e-3
    baseline_decay: float = 0.9
    failing_updates: int = 5_000

    def __post_init__(self) -> None:
        """Check the ranges."""
        counts = {
            "hidden": self.hidden,
            "kind_size": self.kind_size,
            "option_size": self.option_size,
            "samples": self.samples,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is {count}; give a positive whole number")
        if self.failing_updates < 0:
            raise ConfigError(f"failing_updates is {self.failing_updates}; give 0 or more")
        if not 0.0 <= self.baseline_decay < 1.0:
            raise ConfigError(f"baseline_decay is {self.baseline_decay}; give 0 to less than 1")
        rate = self.learning_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0.0):
            raise ConfigError(f"learning_rate is {rate}; give a positive number, or None")
