"""REINFORCE on whole sequences (Mirhoseini et al. 2017, section 3): make the expected cost small.

    J = E[R(P)],  grad J ~ (1/K) sum_k (R(P_k) - B) grad log p(P_k)   -> in: `rl.controllers`
    weights <- Adam(weights, grad J)                                   -> in: `ParameterStore.apply`

A *fleet* is where controllers run: `LocalFleet` one in this process; those of `rl.fleets` several,
at the same time. Controllers draw and score; the `ParameterStore` holds the weights, moves them by
one turn after the other, and remembers the best sequence. With one controller a run is exact to the
bit when it is resumed; with several it depends on which is ready first, and a resumed one has lost
the turns that were under way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
import hashlib
import json
import math
from pathlib import Path
from statistics import mean
from typing import Protocol

import numpy as np
import torch

from rl.checkpoint import (
    Checkpoint,
    adam_arrays,
    load,
    part,
    prefixed,
    restore_adam,
    save,
)
from rl.controllers import Controller, ControllerState, Turn
from rl.errors import CheckpointError, RlError
from rl.metrics import Log, SequenceRow
from rl.networks import network_weights
from rl.sequence_policy import build_policy
from rl.sequences import ReinforceConfig, Score, SequenceTask
from rl.train import one_thread


class ParameterStore:
    """Weights, Adam, and what came of all turns so far."""

    def __init__(self, task: SequenceTask, config: ReinforceConfig, seed: int, n_controllers: int):
        """First weights follow from the seed."""
        self._policy = build_policy(task, config, seed)
        # Its learning rate is of no use where nothing is learnt.
        self._adam = torch.optim.Adam(self._policy.parameters(), lr=config.learning_rate or 1.0)
        self._best = np.zeros(task.n_elements, np.int64)
        self._best_cost = np.full(1, np.inf)
        self._updates = np.zeros(n_controllers, np.int64)
        self._states: list[ControllerState | None] = [None] * n_controllers
        # Since the last row: sequences, possible ones, sum of their costs, turns, sum of entropies.
        self._sums = np.zeros(5)

    @property
    def updates(self) -> int:
        """Turns so far, of all controllers."""
        return int(self._updates.sum())

    @property
    def best(self) -> tuple[np.ndarray, float]:
        """The best sequence [N] and its cost, which is infinite while none was possible."""
        return self._best.copy(), float(self._best_cost[0])

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the policy's weights by name."""
        return network_weights(self._policy)

    def apply(self, controller: int, turn: Turn) -> None:
        """Move the weights by a turn, and remember what it gave."""
        if turn.gradients is not None:
            for name, parameter in self._policy.named_parameters():
                gradient = turn.gradients.get(name)
                parameter.grad = None if gradient is None else torch.tensor(gradient)
            self._adam.step()
        possible = turn.costs[np.isfinite(turn.costs)]
        if len(possible) and possible.min() < self._best_cost[0]:
            self._best[:], self._best_cost[0] = turn.best, possible.min()
        self._updates[controller] += 1
        self._states[controller] = turn.state
        self._sums += len(turn.costs), len(possible), possible.sum(), 1, turn.entropy

    @property
    def states(self) -> list[ControllerState | None]:
        """Of each controller after its last turn; None before its first."""
        return list(self._states)

    def row(self) -> SequenceRow:
        """A row of the log; sums begin anew."""
        sequences, possible, cost, turns, entropy = self._sums.tolist()
        self._sums[:] = 0.0
        baselines = [state.baseline for state in self._states if state is not None]
        return SequenceRow(
            steps=self.updates,
            mean_cost=cost / possible if possible else math.nan,
            best_cost=float(self._best_cost[0]),
            possible=possible / sequences if sequences else math.nan,
            baseline=mean(baselines) if baselines else math.nan,
            entropy=entropy / turns if turns else math.nan,
        )

    def save(self, path: Path, identity: Mapping[str, object]) -> None:
        """Write everything that the rest of the run depends on. Raises `CheckpointError`."""
        weights = {f"policy.{name}": array for name, array in self.weights().items()}
        arrays = prefixed("store", weights | adam_arrays(self._adam) | self._counts())
        states = [None if state is None else asdict(state) for state in self._states]
        save(path, Checkpoint(arrays, {**identity, "states": states}))

    def restore(self, path: Path, identity: Mapping[str, object]) -> None:
        """Go back to where a run of the same identity was saved. Raises `CheckpointError`."""
        checkpoint = load(path)
        for name, mine in identity.items():
            if checkpoint.scalars.get(name) != mine:
                raise CheckpointError(
                    f"{path}: its {name} is {checkpoint.scalars.get(name)}, this run's is {mine}; "
                    "resume with the task and the configuration that it was made with"
                )
        try:
            arrays = part(checkpoint, "store")
            weights = {
                name.removeprefix("policy."): torch.from_numpy(array.copy())
                for name, array in arrays.items()
                if name.startswith("policy.")
            }
            self._policy.load_state_dict(weights)
            restore_adam(self._adam, arrays)
            for name, array in self._counts().items():
                array[...] = arrays[name]
            self._states[:] = [
                None if state is None else ControllerState(**state)
                for state in checkpoint.scalars["states"]
            ]
        except (KeyError, ValueError, IndexError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{path}: does not fit this run: {error}") from error

    def _counts(self) -> dict[str, np.ndarray]:
        return {
            "best": self._best,
            "best_cost": self._best_cost,
            "updates": self._updates,
            "sums": self._sums,
        }


@dataclass(frozen=True, slots=True)
class Crew:
    """What the controllers of a fleet are made from; each needs a seed of its own.

    `states`: where a resumed run's controllers go on; None where one begins.
    """

    task: SequenceTask
    score: Score
    config: ReinforceConfig
    seeds: Sequence[int]
    states: Sequence[ControllerState | None]

    def controller(self, index: int) -> Controller:
        """The controller of that index."""
        controller = Controller(self.task, self.score, self.config, self.seeds[index])
        state = self.states[index]
        if state is not None:
            controller.resume(state)
        return controller


class Fleet(Protocol):
    """Controllers at work, one turn at a time each."""

    def start(self, index: int, weights: Mapping[str, np.ndarray], updates: int) -> None:
        """Have a controller do a turn by weights that have seen so many updates."""
        ...

    def next(self) -> tuple[int, Turn]:
        """Wait for a turn that was started. Raises `RlError` if a controller has failed."""
        ...

    def close(self) -> None:
        """End the controllers; what was started is lost."""
        ...


class LocalFleet:
    """One controller, in this process."""

    def __init__(self, crew: Crew):
        """A crew of one."""
        self._controller = crew.controller(0)
        self._started: tuple[Mapping[str, np.ndarray], int] | None = None

    def start(self, index: int, weights: Mapping[str, np.ndarray], updates: int) -> None:
        """See `Fleet`; the turn is done when it is asked for."""
        self._started = weights, updates

    def next(self) -> tuple[int, Turn]:
        """See `Fleet`."""
        if self._started is None:
            raise RlError("no turn was started")
        weights, updates = self._started
        self._started = None
        return 0, self._controller.turn(weights, updates)

    def close(self) -> None:
        """Nothing is to be ended."""


class Reinforce:
    """One run of a fleet of controllers on a shared store."""

    def __init__(
        self,
        task: SequenceTask,
        score: Score,
        config: ReinforceConfig,
        seed: int,
        *,
        n_controllers: int = 1,
    ):
        """Begin a run; the same seed gives the same run of one controller."""
        first, *drawn = _seeds(seed, 1 + n_controllers)
        self.store = ParameterStore(task, config, first, n_controllers)
        self._crew = Crew(task, score, config, drawn, [None] * n_controllers)
        self._identity = _identity(task, config, n_controllers)

    def run(
        self,
        updates: int,
        ended: Callable[[], bool] = lambda: False,
        fleet: Callable[[Crew], Fleet] = LocalFleet,
        *,
        log: Log[SequenceRow] | None = None,
        log_every: int = 10,
    ) -> None:
        """Go on until so many updates are done since the run began, or `ended` says so, which is
        asked before each; `log` gets a row every `log_every` updates.

        Raises `RlError` if a controller of the fleet has failed.
        """
        store, crew = self.store, replace(self._crew, states=self.store.states)
        with one_thread():
            at_work = fleet(crew)
            try:
                for index in range(len(crew.seeds)):
                    at_work.start(index, store.weights(), store.updates)
                while store.updates < updates and not ended():
                    index, turn = at_work.next()
                    store.apply(index, turn)
                    at_work.start(index, store.weights(), store.updates)
                    if log and store.updates % log_every == 0:
                        log.write(store.row())
            finally:
                at_work.close()

    def save(self, path: Path) -> None:
        """Write everything that the rest of the run depends on. Raises `CheckpointError`."""
        self.store.save(path, self._identity)

    def restore(self, path: Path) -> None:
        """Go on where a run of the same task and configuration was saved.

        Raises `CheckpointError` for a file that cannot be read, or is of another run.
        """
        self.store.restore(path, self._identity)


def _identity(task: SequenceTask, config: ReinforceConfig, n_controllers: int) -> dict[str, object]:
    """What a checkpoint must agree with, as JSON gives it back."""
    digest = hashlib.sha256()
    for array in (task.kinds, task.sizes, task.edges, task.allowed, task.prior):
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(f"{task.n_kinds} {task.failing_signal!r}".encode())
    named = {"config": asdict(config), "task": digest.hexdigest(), "controllers": n_controllers}
    # Through JSON, as a checkpoint's is.
    return json.loads(json.dumps(named))


def _seeds(seed: int, n: int) -> list[int]:
    """n seeds that follow from any whole number."""
    source = np.random.Generator(np.random.PCG64([int(seed < 0), abs(seed)]))
    return source.integers(2**62, size=n).tolist()
