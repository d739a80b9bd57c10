"""Environments as arrays: n of them with A actions each, one row for each environment.

A state is described twice, for the two networks (`rl.networks`): as one flat vector of D numbers,
and as F numbers for each action. b(s, a), the *baseline*, is what is known of Q(s, a) beforehand,
say a bound; the network learns the rest. It is zero where nothing is known.

Episodes start again by themselves: after a step that ends one, `observe` shows the first state of
the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True)
class EnvShape:
    """n, A, D and F of the module docstring."""

    n_envs: int
    n_actions: int
    n_flat: int
    n_features: int


@dataclass(frozen=True, slots=True)
class Observation:
    """States of n environments: `flat` [n, D], `features` [n, A, F], `baseline` [n, A], all
    float32.

    `mask` [n, A] bool marks the actions that are allowed, in each row at least one.
    """

    flat: np.ndarray
    features: np.ndarray
    baseline: np.ndarray
    mask: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # numpy's rule: a slice is a view, a list of numbers is a copy.
    def rows(self, rows: Any) -> "Observation":
        """Those rows; a copy where numpy makes one."""
        return Observation(*(array[rows] for array in self.arrays().values()))

    def put(self, rows: Any, other: "Observation") -> None:
        """Write `other` over those rows."""
        for mine, theirs in zip(self.arrays().values(), other.arrays().values(), strict=True):
            # In place: the arrays of a replay are never made anew.
            mine[rows] = theirs


def empty_observation(shape: EnvShape, *leading: int) -> Observation:
    """Zeros with room for `leading` rows; all actions allowed."""
    actions = (*leading, shape.n_actions)
    return Observation(
        flat=np.zeros((*leading, shape.n_flat), np.float32),
        features=np.zeros((*actions, shape.n_features), np.float32),
        baseline=np.zeros(actions, np.float32),
        mask=np.ones(actions, bool),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of all environments brought: `rewards` [n] float32, `dones` [n] bool."""

    rewards: np.ndarray
    dones: np.ndarray


class Env(Protocol):
    """n environments that move together. All that happens in them follows from the actions and
    their own seed.
    """

    @property
    def shape(self) -> EnvShape:
        """Sizes, the same for ever."""
        ...

    def observe(self) -> Observation:
        """The states now."""
        ...

    def step(self, actions: np.ndarray) -> Outcome:
        """Take an action [n] int64 in each environment; `actions` are allowed by the mask."""
        ...


@runtime_checkable
class ResumableEnv(Env, Protocol):
    """Environments whose runs can be saved and resumed."""

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Everything that changes, for a checkpoint."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        ...
