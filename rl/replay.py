"""Prioritized replay (Schaul et al. 2016, the proportional variant).

p_i = (|delta_i| + EPSILON)^alpha    delta: the error of the last time i was learnt from; a new one
                                     has the greatest p so far                -> in: `Replay.update`
P(i) = p_i / sum p                   drawn from equal strata of the sum       -> in: `Replay.sample`
w_i = (N P(i))^-beta / max w               undoes what drawing unequally does to the expectation
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl.env import EnvShape, Observation, empty_observation
from rl.sum_tree import SumTree


# So that nothing is forgotten for good.
EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class Transitions:
    """m transitions: from `now` by `actions` [m] int64 with `returns` [m] to `after`.

    Q of `after` counts times `discounts` [m], zero where the episode ended on the way.
    """

    now: Observation
    actions: np.ndarray
    returns: np.ndarray
    discounts: np.ndarray
    after: Observation


@dataclass(frozen=True, slots=True)
class Batch:
    """A sample: the transitions, their places in the replay [m], their weights [m] float32."""

    items: np.ndarray
    weights: np.ndarray
    transitions: Transitions


class Replay:
    """The last `capacity` transitions."""

    def __init__(self, capacity: int, shape: EnvShape, alpha: float):
        """Empty; `alpha` in [0, 1] says how much priorities count."""
        self._alpha, self._capacity = alpha, capacity
        self._now, self._after = (empty_observation(shape, capacity) for _ in range(2))
        self._actions = np.zeros(capacity, np.int64)
        self._returns, self._discounts = np.zeros((2, capacity), np.float32)
        self._tree = SumTree(capacity)
        # As arrays, which a checkpoint can take and write over in place.
        self._greatest = np.ones(1)
        self._added = np.zeros(1, np.int64)

    def __len__(self) -> int:
        """How many transitions are held."""
        return min(int(self._added[0]), self._capacity)

    def add(self, new: Transitions) -> None:
        """Put transitions in, over the oldest; more than `capacity` at once lose the first of
        them.
        """
        count = len(new.actions)
        # A ring: the oldest are written over.
        items = (int(self._added[0]) + np.arange(count)) % self._capacity
        self._now.put(items, new.now)
        self._after.put(items, new.after)
        self._actions[items], self._returns[items] = new.actions, new.returns
        self._discounts[items] = new.discounts
        self._tree.set(items, np.full(count, self._greatest[0]))
        self._added += count

    def sample(self, size: int, beta: float, source: np.random.Generator) -> Batch:
        """`size` transitions, some perhaps more than once; the replay is not empty."""
        # One draw from each of `size` equal parts of the sum varies less than as many from all of
        # it.
        targets = (np.arange(size) + source.random(size)) * (self._tree.total / size)
        items = self._tree.find(targets)
        weights = (self._tree.priorities[items] * (len(self) / self._tree.total)) ** -beta
        return Batch(
            items=items,
            weights=(weights / weights.max()).astype(np.float32),
            transitions=Transitions(
                self._now.rows(items),
                self._actions[items],
                self._returns[items],
                self._discounts[items],
                self._after.rows(items),
            ),
        )

    def update(self, items: np.ndarray, errors: np.ndarray) -> None:
        """Give the transitions `items` [m] the priorities of their errors [m]."""
        priorities = (np.abs(errors.astype(np.float64)) + EPSILON) ** self._alpha
        self._greatest[0] = max(self._greatest[0], priorities.max())
        self._tree.set(items, priorities)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint; only rows that are filled."""
        held = slice(len(self))
        parts = {"now": self._now, "after": self._after}
        rows = {f"{p}.{k}": v[held] for p, o in parts.items() for k, v in o.arrays().items()}
        return rows | {
            "actions": self._actions[held],
            "returns": self._returns[held],
            "discounts": self._discounts[held],
            "priorities": self._tree.priorities[held],
            "greatest": self._greatest,
            "added": self._added,
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        self._added[:] = arrays["added"]
        for name, array in self.arrays().items():
            if name != "priorities":
                array[...] = arrays[name]
        self._tree.set(np.arange(len(self)), arrays["priorities"])
