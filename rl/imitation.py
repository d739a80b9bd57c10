"""Learning Q of actions from an oracle: what the best action is, and where it is known, what each
action is worth.

    loss = WEIGHT CE(softmax(q* / TEMPERATURE), softmax(Q / TEMPERATURE))    which action is best
         + (Q(a*) - q*(a*))^2                                                what it is worth
         + mean over the actions a that are known to lose at most NEAR of (Q(a) - q*(a))^2

q* is NaN where it is not known: such an action is taken to be worse than every known one. Adam; the
learning rate falls linearly to a tenth over the run                         -> in: `Imitator.learn`
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rl.checkpoint import adam_arrays, restore_adam
from rl.env import EnvShape, Observation
from rl.networks import ActionNetwork, network_inputs, network_weights


# Actions whose worth differs by more than a temperature are clearly told apart. The weight is as
# large: the gradient of the cross-entropy has the factor 1 / TEMPERATURE, which it takes back.
WEIGHT = 0.004
TEMPERATURE = 0.004
NEAR = 0.2
MOST_GRADIENT = 1.0


@dataclass(frozen=True, slots=True)
class Lessons:
    """m states [m, ...] with q* [m, A] float32; in each row at least one is known, of an allowed
    action.
    """

    states: Observation
    worth: np.ndarray


class Imitator:
    """A per-action network that learns from lessons."""

    def __init__(
        self,
        shape: EnvShape,
        hidden: tuple[int, ...],
        seed: int,
        learning_rate: float,
        updates: int,
        device: str = "cpu",
    ):
        """First weights follow from the seed; the learning rate falls over so many updates. The
        network is on `device`, as `torch.device` names it.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._network = ActionNetwork(shape, hidden, 1).to(device)
        self._device = device
        self._adam = torch.optim.Adam(self._network.parameters(), lr=learning_rate)
        self._rate, self._most, self._done = learning_rate, updates, 0

    @property
    def updates(self) -> int:
        """Batches learnt from."""
        return self._done

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the network's weights by name."""
        return network_weights(self._network)

    def values(self, states: Observation) -> np.ndarray:
        """Q [m, A], -inf where not allowed."""
        with torch.inference_mode():
            return self._q(states).cpu().numpy()

    def loss(self, lessons: Lessons) -> float:
        """The loss of lessons that are not learnt from."""
        with torch.inference_mode():
            return self._loss(lessons).item()

    def learn(self, lessons: Lessons) -> float:
        """One update; returns the loss."""
        loss = self._loss(lessons)
        share = min(self._done / self._most, 1.0)
        self._adam.param_groups[0]["lr"] = self._rate * (1.0 - 0.9 * share)
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._network.parameters(), MOST_GRADIENT)
        self._adam.step()
        self._done += 1
        return loss.item()

    def _loss(self, lessons: Lessons) -> torch.Tensor:
        q, worth = self._q(lessons.states), torch.from_numpy(lessons.worth).to(self._device)
        known = ~worth.isnan()
        worth = worth.masked_fill(~known, -torch.inf)
        best, at = worth.max(1, keepdim=True)
        target = ((worth - best) / TEMPERATURE).softmax(1)
        # Actions that are not allowed have -inf, which times a target of zero would be NaN.
        allowed = torch.from_numpy(lessons.states.mask).to(self._device)
        logs = (q / TEMPERATURE).log_softmax(1).masked_fill(~allowed, 0.0)
        ranking = -(target * logs).sum(1)
        value = (q.gather(1, at) - best).squeeze(1) ** 2
        # Far from the best only the order counts; there the network need not be exact.
        near = known & (worth >= best - NEAR)
        errors = torch.where(near, q - worth, 0.0) ** 2
        return (WEIGHT * ranking + value + errors.sum(1) / near.sum(1)).mean()

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights and the optimizer's state, for a checkpoint."""
        weights = {f"network.{name}": array for name, array in self.weights().items()}
        return weights | adam_arrays(self._adam) | {"updates": np.array([self._done])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        own = {
            name.removeprefix("network."): torch.from_numpy(array.copy())
            for name, array in arrays.items()
            if name.startswith("network.")
        }
        self._network.load_state_dict(own)
        restore_adam(self._adam, arrays)
        self._done = int(arrays["updates"][0])

    def _q(self, states: Observation) -> torch.Tensor:
        inputs = network_inputs(states, self._device)
        q = inputs.baseline + self._network(inputs).squeeze(-1)
        return q.masked_fill(~inputs.mask, -torch.inf)
