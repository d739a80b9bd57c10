"""The Rainbow agent: acts epsilon-greedily, learns from weighted batches, keeps a target network.

loss = mean of w_i loss_i, w the weights of prioritized replay             -> in: `Agent.learn`
Adam, gradients clipped to a norm of MOST_GRADIENT; after every `target_every` updates the
target network is made equal to the online one
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rl.config import RainbowConfig
from rl.env import EnvShape, Observation
from rl.networks import build_network, network_inputs
from rl.replay import Batch
from rl.targets import Head, Step, errors


MOST_GRADIENT = 10.0
_ADAM = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Learned:
    """What an update saw: the weighted loss, and the surprise of each transition [m]."""

    loss: float
    surprises: np.ndarray


class Agent:
    """Networks and optimizer; everything random is the caller's."""

    def __init__(self, shape: EnvShape, config: RainbowConfig, seed: int):
        """First weights follow from the seed."""
        self._config = config
        self._online, self._target = (build_network(shape, config, seed) for _ in range(2))
        # The target network is only ever copied to, so its gradients would be work for nothing.
        self._target.requires_grad_(False)
        self._head = Head(config.distribution)
        self._adam = torch.optim.Adam(self._online.parameters(), lr=config.learning_rate)
        self._updates = 0

    @property
    def updates(self) -> int:
        """Batches learnt from."""
        return self._updates

    def values(self, observation: Observation) -> np.ndarray:
        """Q of all actions, float32 [n, A], -inf where not allowed."""
        inputs = network_inputs(observation)
        with torch.inference_mode():
            return self._head.q(self._online(inputs), inputs).numpy()

    def act(
        self, observation: Observation, epsilon: float, source: np.random.Generator
    ) -> np.ndarray:
        """An allowed action [n] for each state: a random one with probability `epsilon`, else the
        best.
        """
        mask = observation.mask
        # Drawn for every state, also for those that take the best: the source then moves alike
        # whatever epsilon is.
        drawn = np.where(mask, source.random(mask.shape), -1.0).argmax(1)
        is_random = source.random(len(mask)) < epsilon
        # While epsilon is 1 the network need not be asked.
        best = drawn if is_random.all() else self.values(observation).argmax(1)
        return np.where(is_random, drawn, best)

    def learn(self, batch: Batch) -> Learned:
        """One update."""
        t = batch.transitions
        step = Step(
            now=network_inputs(t.now),
            actions=torch.from_numpy(t.actions),
            returns=torch.from_numpy(t.returns),
            discounts=torch.from_numpy(t.discounts),
            after=network_inputs(t.after),
        )
        batch_errors = errors(self._online, self._target, self._head, step)
        loss = (torch.from_numpy(batch.weights) * batch_errors.losses).mean()
        self._adam.zero_grad()
        loss.backward()
        # A surprising batch must not throw the weights far away.
        torch.nn.utils.clip_grad_norm_(self._online.parameters(), MOST_GRADIENT)
        self._adam.step()
        self._updates += 1
        if self._updates % self._config.target_every == 0:
            self._target.load_state_dict(self._online.state_dict())
        return Learned(loss.item(), batch_errors.surprises.numpy())

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights of both networks and the optimizer's state, for a checkpoint."""
        named = {"online": self._online.state_dict(), "target": self._target.state_dict()}
        named["adam"] = {
            f"{index}.{name}": state[name]
            for index, state in self._adam.state_dict()["state"].items()
            for name in _ADAM
        }
        arrays = {
            f"{p}.{k}": t.numpy().copy() for p, part in named.items() for k, t in part.items()
        }
        return arrays | {"updates": np.array([self._updates])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""

        def part(name: str) -> dict[str, torch.Tensor]:
            own = {
                k.removeprefix(f"{name}."): v for k, v in arrays.items() if k.startswith(f"{name}.")
            }
            return {k: torch.from_numpy(v.copy()) for k, v in own.items()}

        self._online.load_state_dict(part("online"))
        self._target.load_state_dict(part("target"))
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, tensor in part("adam").items():
            index, _, name = key.partition(".")
            moments.setdefault(int(index), {})[name] = tensor
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
        self._updates = int(arrays["updates"][0])
