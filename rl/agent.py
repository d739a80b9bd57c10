"""The Rainbow agent: acts epsilon-greedily, learns from weighted batches, keeps a target network.

loss = mean of w_i loss_i, w the weights of prioritized replay             -> in: `Agent.learn`
Adam, gradients clipped to a norm of MOST_GRADIENT; after every `target_every` updates the
target network is made equal to the online one

What the network is held against is double Q-learning's target, or its distributional form.

    a* = argmax over allowed a of Q(s', a)    by the online network (van Hasselt et al. 2016), or by
                                              the target network if the bootstrap is single
    y  = R + G Q'(s', a*)                     Q' by the target network; G = g^m, or 0 at the end
    delta = y - Q(s, a)                                                         -> in: `q_errors`

With atoms z_1 .. z_K (Bellemare et al. 2017) of the return less the baseline b, a state's value is
b + sum p_k z_k, and probability p_k of (s', a*) moves to R + G (b(s', a*) + z_k) - b(s, a); what
falls between two atoms is shared by nearness                                    -> in: `projected`
The loss is the cross-entropy to that, which is its own delta
                                                                        -> in: `distribution_errors`
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl.checkpoint import adam_arrays, restore_adam
from rl.config import Bootstrap, Distribution, RainbowConfig
from rl.env import EnvShape, Observation
from rl.networks import Inputs, build_network, network_inputs, network_weights
from rl.replay import Batch


MOST_GRADIENT = 10.0


@dataclass(frozen=True, slots=True)
class Learned:
    """What an update saw: the weighted loss, and the surprise of each transition [m]."""

    loss: float
    surprises: np.ndarray


class Agent:
    """Networks and optimizer; everything random is the caller's."""

    def __init__(self, shape: EnvShape, config: RainbowConfig, seed: int, device: str = "cpu"):
        """First weights follow from the seed; networks live on a device of torch, all that goes in
        and out is in the memory of the host.
        """
        self._config, self._device = config, device
        networks = (build_network(shape, config, seed).to(device) for _ in range(2))
        self._online, self._target = networks
        # The target network is only ever copied to, so its gradients would be work for nothing.
        self._target.requires_grad_(False)
        self._head = Head(config.distribution)
        self._adam = torch.optim.Adam(self._online.parameters(), lr=config.learning_rate)
        self._updates = 0

    @property
    def updates(self) -> int:
        """Batches learnt from."""
        return self._updates

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the online network's weights by name."""
        return network_weights(self._online)

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take weights that were learnt elsewhere, as by imitation, in place of the first ones."""
        tensors = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
        self._online.load_state_dict(tensors)
        self._target.load_state_dict(tensors)

    def values(self, observation: Observation) -> np.ndarray:
        """Q of all actions, float32 [n, A], -inf where not allowed."""
        inputs = network_inputs(observation, self._device)
        with torch.inference_mode():
            return self._head.q(self._online(inputs), inputs).cpu().numpy()

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
        step = step_on(batch, self._device)
        batch_errors = errors(self._online, self._target, self._head, step, self._config.bootstrap)
        weights = torch.from_numpy(batch.weights).to(self._device)
        loss = (weights * batch_errors.losses).mean()
        self._adam.zero_grad()
        loss.backward()
        # A surprising batch must not throw the weights far away.
        torch.nn.utils.clip_grad_norm_(self._online.parameters(), MOST_GRADIENT)
        self._adam.step()
        self._updates += 1
        if self._updates % self._config.target_every == 0:
            self._target.load_state_dict(self._online.state_dict())
        return Learned(loss.item(), batch_errors.surprises.cpu().numpy())

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights of both networks and the optimizer's state, for a checkpoint."""
        named = {"online": self._online.state_dict(), "target": self._target.state_dict()}
        weights = {
            f"{p}.{k}": t.cpu().numpy().copy() for p, part in named.items() for k, t in part.items()
        }
        return weights | adam_arrays(self._adam) | {"updates": np.array([self._updates])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""

        def part(name: str) -> dict[str, torch.Tensor]:
            own = {
                k.removeprefix(f"{name}."): v for k, v in arrays.items() if k.startswith(f"{name}.")
            }
            return {k: torch.from_numpy(v.copy()) for k, v in own.items()}

        self._online.load_state_dict(part("online"))
        self._target.load_state_dict(part("target"))
        restore_adam(self._adam, arrays)
        self._updates = int(arrays["updates"][0])


@dataclass(frozen=True, slots=True)
class Step:
    """m transitions as tensors; fields as in `rl.replay.Transitions`."""

    now: Inputs
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    after: Inputs
    any_goes_on: bool = True
    """Whether a state after counts for any of them."""


def step_on(batch: Batch, device: str) -> Step:
    """The transitions of a batch on a device."""
    t = batch.transitions
    actions, returns, discounts = (
        torch.from_numpy(array).to(device) for array in (t.actions, t.returns, t.discounts)
    )
    now, after = (network_inputs(states, device) for states in (t.now, t.after))
    # Asked on the host, which does not wait for the device.
    return Step(now, actions, returns, discounts, after, any_goes_on=bool(t.discounts.any()))


@dataclass(frozen=True, slots=True)
class Errors:
    """Of each transition [m]: what is minimised, and how large the surprise was."""

    losses: Tensor
    surprises: Tensor


@dataclass(frozen=True)
class Head:
    """Turns a network's output Z [m, A, K] to Q [m, A], -inf where not allowed."""

    distribution: Distribution | None

    def atoms(self, device: torch.device) -> Tensor:
        """z [K]."""
        span = self.distribution
        if span is None:
            return torch.zeros(1, device=device)
        return torch.linspace(span.low, span.high, span.n_atoms, device=device)

    def q(self, z: Tensor, inputs: Inputs) -> Tensor:
        """Values of all actions."""
        if self.distribution is None:
            values = z.squeeze(-1)
        else:
            values = z.softmax(-1) @ self.atoms(z.device)
        # Never the best, and never a NaN in a product with a probability of zero.
        return (inputs.baseline + values).masked_fill(~inputs.mask, -torch.inf)


def errors(
    online: nn.Module, target: nn.Module, head: Head, step: Step, bootstrap: Bootstrap = "double"
) -> Errors:
    """How far the online network is from the targets."""
    z_now = online(step.now)
    with torch.no_grad():
        if step.any_goes_on:
            z_after = target(step.after)
            # Double Q-learning: one network chooses the action, the other says what it is worth.
            z_choosing = online(step.after) if bootstrap == "double" else z_after
        else:
            # With whole returns no state after counts, and asking the networks is most of the work.
            z_after = z_choosing = torch.zeros_like(z_now)
        best = head.q(z_choosing, step.after).argmax(1)
    if head.distribution is None:
        return q_errors(head.q(z_now, step.now), head.q(z_after, step.after), best, step)
    return distribution_errors(z_now, z_after, best, head, step)


def q_errors(q_now: Tensor, q_after: Tensor, best: Tensor, step: Step) -> Errors:
    """Of values [m, A] now and after; `best` [m] are the actions a*."""
    # A discount of zero ends the episode: whatever is after it does not count.
    targets = step.returns + step.discounts * _chosen(q_after, best)
    deltas = targets.detach() - _chosen(q_now, step.actions)
    return Errors(
        losses=nn.functional.huber_loss(deltas, torch.zeros_like(deltas), reduction="none"),
        surprises=deltas.detach().abs(),
    )


def distribution_errors(
    z_now: Tensor, z_after: Tensor, best: Tensor, head: Head, step: Step
) -> Errors:
    """Of logits [m, A, K] now and after."""
    # Atoms are values less the baseline, so places are taken to and from it by both baselines.
    rows, atoms = torch.arange(len(best), device=best.device), head.atoms(best.device)
    baseline_after = _chosen(step.after.baseline, best).unsqueeze(1)
    baseline_now = _chosen(step.now.baseline, step.actions).unsqueeze(1)
    moved = step.discounts.unsqueeze(1) * (baseline_after + atoms)
    places = step.returns.unsqueeze(1) + moved - baseline_now
    wanted = projected(z_after[rows, best].softmax(-1).detach(), places, atoms)
    losses = -(wanted * z_now[rows, step.actions].log_softmax(-1)).sum(1)
    return Errors(losses=losses, surprises=losses.detach())


def projected(probabilities: Tensor, places: Tensor, atoms: Tensor) -> Tensor:
    """Probabilities [m, K] at `places` [m, K] put on evenly spaced atoms [K]; beyond the ends, on
    the end.
    """
    gap = atoms[1] - atoms[0]
    position = ((places - atoms[0]) / gap).clamp(0.0, len(atoms) - 1.0)
    below = position.floor().long()
    above = (below + 1).clamp(max=len(atoms) - 1)
    # At the last atom `above` is `below`, and the share of it is zero.
    share = position - below
    result = torch.zeros_like(probabilities)
    result.scatter_add_(1, below, probabilities * (1.0 - share))
    result.scatter_add_(1, above, probabilities * share)
    return result


def _chosen(values: Tensor, actions: Tensor) -> Tensor:
    return values.gather(1, actions.unsqueeze(1)).squeeze(1)
