"""Every number of a Rainbow agent, with the papers' symbols and what is allowed."""

from dataclasses import dataclass
import math
from typing import Literal, get_args

from rl.errors import ConfigError


Network = Literal["flat", "per-action"]
"""What a network sees: the flat vector of a state, or the features of each action (`rl.networks`).
"""

Bootstrap = Literal["double", "single"]
"""Which network chooses the action after: the online one (van Hasselt et al. 2016), or the target
network, which then says its worth too (Mnih et al. 2015).
"""
OutputLayers = Literal["dueling", "plain"]
"""Value and advantages apart (Wang et al. 2016), or one output for each action."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A number that changes in the course of a run: from `start` to `end` in equal parts over
    `steps` steps, then `end`.
    """

    start: float
    end: float
    steps: int

    def at(self, step: int) -> float:
        """The number after `step` steps."""
        # Without steps it is at its end from the start.
        done = min(step / self.steps, 1.0) if self.steps else 1.0
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True, slots=True)
class Distribution:
    """C51 (Bellemare et al. 2017): returns less the baseline as probabilities of `n_atoms` values
    from `low` to `high`.
    """

    n_atoms: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RainbowConfig:
    """A Rainbow agent (Hessel et al. 2018) with epsilon-greedy exploration instead of noisy layers.

    Attributes:
        network: what it sees of a state.
        hidden: sizes of hidden layers.
        gamma: discount of a reward for each step it comes later, in [0, 1].
        n_steps: rewards taken together, n.
        capacity: transitions that replay holds.
        alpha: how much priorities count when drawing, in [0, 1].
        beta: how much of it is undone by weights, in [0, 1], by steps.
        epsilon: share of actions that are random, by steps.
        batch: transitions learnt from at once.
        learning_rate: of Adam.
        warm_up: transitions that are held before learning begins.
        steps_per_update: steps of a single environment for each batch learnt from; None: the agent
            never learns, for tables that show what learning adds.
        target_every: updates after which the target network is made equal to the online one.
        distribution: the distributional head; None for plain Q values.
        bootstrap: which network chooses the action that a target counts on.
        output_layers: how a network's outputs are made.

    Raises:
        ConfigError: a number out of its range.
    """

    network: Network
    hidden: tuple[int, ...]
    gamma: float
    n_steps: int
    capacity: int
    alpha: float
    beta: Linear
    epsilon: Linear
    batch: int
    learning_rate: float
    warm_up: int
    steps_per_update: int | None
    target_every: int
    distribution: Distribution | None = None
    bootstrap: Bootstrap = "double"
    output_layers: OutputLayers = "dueling"

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, kinds in (
            ("network", Network),
            ("bootstrap", Bootstrap),
            ("output_layers", OutputLayers),
        ):
            kind = getattr(self, name)
            if kind not in get_args(kinds):
                raise ConfigError(f"{name} {kind!r}: choose one of {', '.join(get_args(kinds))}")
        # Ends of a schedule are checked with its start: a run reaches both.
        shares = {
            "gamma": self.gamma,
            "alpha": self.alpha,
            "beta": self.beta.start,
            "beta's end": self.beta.end,
            "epsilon": self.epsilon.start,
            "epsilon's end": self.epsilon.end,
        }
        for name, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"{name} is {share}; give a number from 0 to 1")
        counts = {
            "n_steps": self.n_steps,
            "capacity": self.capacity,
            "batch": self.batch,
            "warm_up": self.warm_up,
            "steps_per_update": 1 if self.steps_per_update is None else self.steps_per_update,
            "target_every": self.target_every,
            "hidden sizes": min(self.hidden, default=0),
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is {count}; give a positive whole number")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise ConfigError(f"learning_rate is {self.learning_rate}; give a positive number")
        if self.warm_up > self.capacity:
            raise ConfigError(
                f"warm_up is {self.warm_up}, but only {self.capacity} transitions are held; give "
                "at most that"
            )
        span = self.distribution
        if span is not None and (span.n_atoms < 2 or not span.low < span.high):
            raise ConfigError(f"{span}: give at least 2 atoms and low < high")
