"""Controllers: each draws K sequences by the weights of a shared store, has them scored, and says
which way the weights go (Mirhoseini et al. 2017, section 3.4).

    grad J ~ (1/K) sum_k (R(P_k) - B) grad log p(P_k)                 -> in: `Controller.turn`
    B <- decay B + (1 - decay) mean R, one for each controller, begun at the failing signal
                                                                      -> in: `_moved`

After `failing_updates` updates a sequence that is not possible counts for nothing: neither for the
gradient nor for B.

A controller scores its K sequences itself; a score that measures on K workers is a function that
asks them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl.sequence_policy import build_policy
from rl.sequences import ReinforceConfig, Score, SequenceTask


# A round with one surprising cost must not throw the weights far away.
MOST_GRADIENT = 1.0


@dataclass(frozen=True, slots=True)
class ControllerState:
    """What a controller carries from turn to turn: its baseline, and where its draws are."""

    baseline: float
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one controller did: K costs (infinite where not possible), the best of its sequences,
    the gradients by name (None: nothing to learn from), the mean entropy of a choice in nats, and
    the controller's state after it.
    """

    costs: np.ndarray
    best: np.ndarray
    gradients: Mapping[str, np.ndarray] | None
    entropy: float
    state: ControllerState


class Controller:
    """Draws K sequences by given weights, has them scored, and says which way the weights go."""

    def __init__(self, task: SequenceTask, score: Score, config: ReinforceConfig, seed: int):
        """Its draws follow from the seed; its baseline begins at the failing signal."""
        self._task, self._score, self._config = task, score, config
        self._policy = build_policy(task, config, seed=0)
        self._source = np.random.Generator(np.random.PCG64([int(seed < 0), abs(seed)]))
        self._baseline = task.failing_signal

    def turn(self, weights: Mapping[str, np.ndarray], updates: int) -> Turn:
        """One round of draws by weights that have seen so many updates."""
        task, config, policy = self._task, self._config, self._policy
        policy.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
        shape = config.samples, task.n_elements, task.n_options
        noise = torch.from_numpy(self._source.gumbel(size=shape).astype(np.float32))
        with torch.set_grad_enabled(config.learning_rate is not None):
            drawn = policy.draw(noise)
        sequences = drawn.sequences.numpy()
        costs = self._score(sequences)
        used = (
            np.isfinite(costs) if updates >= config.failing_updates else np.ones(len(costs), bool)
        )
        rewards = np.where(np.isfinite(costs), costs, task.failing_signal)
        gradients = None
        if used.any() and config.learning_rate is not None:
            gaps = torch.from_numpy(
                np.where(used, rewards - self._baseline, 0.0).astype(np.float32)
            )
            policy.zero_grad()
            ((gaps * drawn.log_chances).sum() / int(used.sum())).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), MOST_GRADIENT)
            gradients = {
                name: parameter.grad.numpy().copy()
                for name, parameter in policy.named_parameters()
                if parameter.grad is not None
            }
        self._baseline = _moved(self._baseline, rewards[used], config.baseline_decay)
        return Turn(
            costs=costs,
            best=sequences[int(costs.argmin())],
            gradients=gradients,
            entropy=float(drawn.entropy),
            state=ControllerState(self._baseline, self._source.bit_generator.state),
        )

    def resume(self, state: ControllerState) -> None:
        """Go on after a turn that ended with that state."""
        self._baseline = state.baseline
        self._source.bit_generator.state = dict(state.source)


def _moved(baseline: float, rewards: np.ndarray, decay: float) -> float:
    """The moving average after the rewards of a turn, which may be none."""
    if not len(rewards):
        return baseline
    return decay * baseline + (1.0 - decay) * float(rewards.mean())
