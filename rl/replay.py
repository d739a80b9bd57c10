"""Prioritized replay of n-step transitions (Schaul et al. 2016, the proportional variant).

p_i = (|delta_i| + EPSILON)^alpha    delta: the error of the last time i was learnt from; a new one
                                     has the greatest p so far                -> in: `Replay.update`
P(i) = p_i / sum p                   drawn from equal strata of the sum       -> in: `Replay.sample`
w_i = (N P(i))^-beta / max w               undoes what drawing unequally does to the expectation

Transitions span n steps (Sutton 1988): rewards of n steps together, for n environments at once.

    R = r_t + g r_{t+1} + ... + g^{m-1} r_{t+m-1}      m = n, or fewer where the episode ends
    Q(s_t, a_t) is held against R + g^m max Q(s_{t+m}) where it does not end
                                                                                 -> in: `NStep.push`

Items are drawn in proportion to their priorities in O(log n) by a sum tree. Node 1 is the root,
node k has the children 2k and 2k + 1, item i is node n + i, n a power of two.

    total of a node = sum of its children, added up anew on every change: nothing drifts
                                                                                       -> in: `_set`
    item of t in [0, total): go left if t is below the left child's total, else take that off t and
                             go right                                                 -> in: `_find`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from rl.env import EnvShape, Observation, Outcome, empty_observation


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


def _set(tree: Any, n: int, items: Any, values: Any) -> None:
    for k in range(len(items)):
        node = n + items[k]
        tree[node] = values[k]
        node >>= 1
        while node:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node >>= 1


def _find(tree: Any, n: int, targets: Any, items: Any) -> None:
    for k in range(len(targets)):
        target, node = targets[k], 1
        while node < n:
            node *= 2
            # Rounding may leave a target at the very end of the left part: never into an empty
            # right one.
            if target >= tree[node] and tree[node + 1] > 0.0:
                target -= tree[node]
                node += 1
        items[k] = node - n


# Kept on disk by numba they would need a place to write; they compile in less than a second.
_set_compiled: Any = numba.njit(_set)
_find_compiled: Any = numba.njit(_find)


class SumTree:
    """Priorities of items 0 .. capacity - 1, zero at first."""

    def __init__(self, capacity: int):
        """Room for `capacity` items."""
        # The next power of two, at least 2; items past the capacity keep a priority of zero.
        self._n = 1 << max(capacity - 1, 1).bit_length()
        self._capacity = capacity
        self._tree = np.zeros(2 * self._n)

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._tree[1])

    @property
    def priorities(self) -> np.ndarray:
        """Of every item, float64 [capacity]; a view."""
        return self._tree[self._n : self._n + self._capacity]

    def set(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities of items [m] int64; of an item that is named twice the last counts."""
        _set_compiled(self._tree, self._n, items, np.asarray(priorities, np.float64))

    def find(self, targets: np.ndarray) -> np.ndarray:
        """The items, int64 [m], at the targets [m] in [0, total): those of priority zero are never
        found.
        """
        items = np.empty(len(targets), np.int64)
        _find_compiled(self._tree, self._n, np.asarray(targets, np.float64), items)
        return items


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


class NStep:
    """The open steps of all environments.

    A window holds the last n steps of every environment, step t in slot t mod n, and adds each
    reward to all that are still open.
    """

    def __init__(self, shape: EnvShape, n_steps: int, gamma: float):
        """Nothing open; rewards count `gamma` times as much each step later."""
        self._n_steps, self._gamma = n_steps, gamma
        window = (n_steps, shape.n_envs)
        self._now = empty_observation(shape, *window)
        self._actions = np.zeros(window, np.int64)
        self._returns = np.zeros(window, np.float32)
        self._ages = np.zeros(window, np.int64)
        self._open = np.zeros(window, bool)
        self._pushed = np.zeros(1, np.int64)

    def push(
        self, now: Observation, actions: np.ndarray, outcome: Outcome, after: Observation
    ) -> Transitions:
        """Add a step of every environment; returns the transitions that it completes, oldest
        first.
        """
        slot = int(self._pushed[0]) % self._n_steps
        self._pushed += 1
        self._now.put(slot, now)
        self._actions[slot], self._returns[slot] = actions, 0.0
        self._ages[slot], self._open[slot] = 0, True
        # What this reward counts for each open step: its age is how long ago it was taken.
        factor = np.float32(self._gamma) ** self._ages.astype(np.float32)
        self._returns += np.where(self._open, factor * outcome.rewards, np.float32(0.0))
        self._ages += self._open
        complete = self._open & (outcome.dones | (self._ages == self._n_steps))
        # Oldest first: the slot after the current one is the one that was written longest ago.
        by_age = (slot + 1 + np.arange(self._n_steps)) % self._n_steps
        places, envs = np.nonzero(complete[by_age])
        at = by_age[places], envs
        self._open &= ~complete
        discounts = np.float32(self._gamma) ** self._ages[at].astype(np.float32)
        return Transitions(
            now=self._now.rows(at),
            actions=self._actions[at],
            returns=self._returns[at],
            discounts=np.where(outcome.dones[envs], np.float32(0.0), discounts),
            # After an end this is the next episode's first state, which a discount of zero leaves
            # out.
            after=after.rows(envs),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint."""
        return {f"now.{name}": array for name, array in self._now.arrays().items()} | {
            "actions": self._actions,
            "returns": self._returns,
            "ages": self._ages,
            "open": self._open,
            "pushed": self._pushed,
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for name, array in self.arrays().items():
            array[...] = arrays[name]
