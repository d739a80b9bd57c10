"""Networks of the agent, dueling (Wang et al. 2016), on top of what is known beforehand.

    Z(s, a) = V(s) + U(s, a) - mean over allowed a of U(s, a)         -> in: `duel`
    Z(s, a) = U(s, a)                                                 with plain output layers
    Q(s, a) = b(s, a) + value of Z(s, a)                              -> in: `rl.agent.Head`

Z is one number, or with a distribution K logits. The last layers begin at zero: an untrained agent
acts on the baseline b.

flat         V, U from a multilayer perceptron of the flat vector: one weight for each number and
             action
per-action   h(a) = g(features of a), c = k(mean and max of h over allowed a, flat),
             V = v(c), U = u(h(a), c): the same weights for every action and any number of them
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl.config import OutputLayers, RainbowConfig
from rl.env import EnvShape, Observation


@dataclass(frozen=True, slots=True)
class Inputs:
    """An `Observation` as tensors."""

    flat: Tensor
    features: Tensor
    baseline: Tensor
    mask: Tensor


def network_inputs(observation: Observation, device: str = "cpu") -> Inputs:
    """Tensors on the arrays of an observation; on the processor nothing is copied."""
    arrays = observation.arrays().values()
    return Inputs(*(torch.from_numpy(array).to(device) for array in arrays))


def duel(values: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Z [m, A, K] of values [m, 1, K] and advantages [m, A, K] under a mask [m, A]."""
    allowed = mask.unsqueeze(-1)
    # Only over what is allowed: an action that cannot be taken says nothing of the state.
    mean = (advantages * allowed).sum(1, keepdim=True) / allowed.sum(1, keepdim=True)
    return values + advantages - mean


class FlatNetwork(nn.Module):
    """Sees the flat vector."""

    def __init__(
        self,
        shape: EnvShape,
        hidden: Sequence[int],
        n_outputs: int,
        layers: OutputLayers = "dueling",
    ):
        """`n_outputs` is K."""
        super().__init__()
        self.body = _perceptron(shape.n_flat, hidden)
        self.value = _last(hidden[-1], n_outputs) if layers == "dueling" else None
        self.advantage = _last(hidden[-1], n_outputs * shape.n_actions)

    def forward(self, inputs: Inputs) -> Tensor:
        """Z [m, A, K]."""
        h = self.body(inputs.flat)
        advantages = self.advantage(h).view(*inputs.mask.shape, -1)
        if self.value is None:
            return advantages
        return duel(self.value(h).unsqueeze(1), advantages, inputs.mask)


class ActionNetwork(nn.Module):
    """Sees the features of each action, and what they are together."""

    def __init__(
        self,
        shape: EnvShape,
        hidden: Sequence[int],
        n_outputs: int,
        layers: OutputLayers = "dueling",
    ):
        """`n_outputs` is K."""
        super().__init__()
        width = hidden[-1]
        self.action = _perceptron(shape.n_features, hidden)
        self.context = _perceptron(2 * width + shape.n_flat, hidden)
        self.mixed = _perceptron(2 * width, hidden)
        self.value = _last(width, n_outputs) if layers == "dueling" else None
        self.advantage = _last(width, n_outputs)

    def forward(self, inputs: Inputs) -> Tensor:
        """Z [m, A, K]."""
        allowed = inputs.mask.unsqueeze(-1)
        h = self.action(inputs.features)
        mean = (h * allowed).sum(1) / allowed.sum(1)
        greatest = h.masked_fill(~allowed, -torch.inf).amax(1)
        context = self.context(torch.cat([mean, greatest, inputs.flat], dim=-1))
        # Every action sees itself and what all of them are together.
        wide = context.unsqueeze(1).expand(-1, h.shape[1], -1)
        advantages = self.advantage(self.mixed(torch.cat([h, wide], dim=-1)))
        if self.value is None:
            return advantages
        return duel(self.value(context).unsqueeze(1), advantages, inputs.mask)


def build_network(shape: EnvShape, config: RainbowConfig, seed: int) -> nn.Module:
    """The network of a configuration, with first weights that follow from the seed alone."""
    kind = {"flat": FlatNetwork, "per-action": ActionNetwork}[config.network]
    n_outputs = config.distribution.n_atoms if config.distribution else 1
    # The process's own random state is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(shape, config.hidden, n_outputs, config.output_layers)


def network_weights(network: nn.Module) -> dict[str, np.ndarray]:
    """Copies of all weights by name."""
    return {name: t.detach().cpu().numpy().copy() for name, t in network.state_dict().items()}


def _perceptron(n_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    sizes = (n_inputs, *hidden)
    pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in zip(sizes, sizes[1:])]
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


def _last(n_inputs: int, n_outputs: int) -> nn.Linear:
    # Zero: Q of an untrained network is the baseline.
    layer = nn.Linear(n_inputs, n_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
