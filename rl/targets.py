"""What the network is held against: double Q-learning, and its distributional form.

    a* = argmax over allowed a of Q(s', a)    by the online network (van Hasselt et al. 2016)
    y  = R + G Q'(s', a*)                     Q' by the target network; G = g^m, or 0 at the end
    delta = y - Q(s, a)                                                         -> in: `q_errors`

With atoms z_1 .. z_K (Bellemare et al. 2017) of the return less the baseline b, a state's value is
b + sum p_k z_k, and probability p_k of (s', a*) moves to R + G (b(s', a*) + z_k) - b(s, a); what
falls between two atoms is shared by nearness                                    -> in: `projected`
The loss is the cross-entropy to that, which is its own delta
                                                                        -> in: `distribution_errors`
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl.config import Distribution
from rl.networks import Inputs


@dataclass(frozen=True, slots=True)
class Step:
    """m transitions as tensors; fields as in `rl.replay.Transitions`."""

    now: Inputs
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    after: Inputs


@dataclass(frozen=True, slots=True)
class Errors:
    """Of each transition [m]: what is minimised, and how large the surprise was."""

    losses: Tensor
    surprises: Tensor


@dataclass(frozen=True)
class Head:
    """Turns a network's output Z [m, A, K] to Q [m, A], -inf where not allowed."""

    distribution: Distribution | None

    def atoms(self) -> Tensor:
        """z [K]."""
        span = self.distribution
        return torch.linspace(span.low, span.high, span.n_atoms) if span else torch.zeros(1)

    def q(self, z: Tensor, inputs: Inputs) -> Tensor:
        """Values of all actions."""
        if self.distribution is None:
            values = z.squeeze(-1)
        else:
            values = z.softmax(-1) @ self.atoms()
        # Never the best, and never a NaN in a product with a probability of zero.
        return (inputs.baseline + values).masked_fill(~inputs.mask, -torch.inf)


def errors(online: nn.Module, target: nn.Module, head: Head, step: Step) -> Errors:
    """How far the online network is from the targets."""
    with torch.no_grad():
        best = head.q(online(step.after), step.after).argmax(1)
        z_after = target(step.after)
    z_now = online(step.now)
    if head.distribution is None:
        return q_errors(head.q(z_now, step.now), head.q(z_after, step.after), best, step)
    return distribution_errors(z_now, z_after, best, head, step)


def q_errors(q_now: Tensor, q_after: Tensor, best: Tensor, step: Step) -> Errors:
    """Of values [m, A] now and after; `best` [m] are the actions a*."""
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
    rows, atoms = torch.arange(len(best)), head.atoms()
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
    share = position - below
    result = torch.zeros_like(probabilities)
    result.scatter_add_(1, below, probabilities * (1.0 - share))
    result.scatter_add_(1, above, probabilities * share)
    return result


def _chosen(values: Tensor, actions: Tensor) -> Tensor:
    return values.gather(1, actions.unsqueeze(1)).squeeze(1)
