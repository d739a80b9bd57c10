"""A policy that reads all elements of a task and then chooses an option for each of them: an LSTM
that encodes, and an attentional LSTM that decodes (Mirhoseini et al. 2017, section 3.2; additive
attention of Bahdanau et al. 2015).

    x_j  = [embedding of j's kind; log(1 + sizes of j); adjacency of j]          -> in: `_elements`
    h_j  = encoder(x_j, h_{j-1})
    a_ij = softmax over j of v tanh(W h_j + U s_{i-1}),  c_i = sum_j a_ij h_j   -> in: `_attended`
    s_i  = decoder([embedding of the last option; c_i; h_i if aligned], s_{i-1})
    p_i  = softmax over allowed options of prior_i + V [s_i; c_i]
    log p(P) = sum_i log p_i(P_i)                                                -> in: `_decoded`

s_0 is the encoder's last state. V begins at zero: an untrained policy draws from the prior. Sizes
are taken by their logarithm, as an LSTM that is fed with thousands only saturates; the paper does
not say what it does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl.sequences import ReinforceConfig, SequenceTask


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sequences [K, N] with the logarithms of their chances [K], and the mean entropy of a choice
    in nats.
    """

    sequences: Tensor
    log_chances: Tensor
    entropy: Tensor


class SequencePolicy(nn.Module):
    """The network for one task, whose arrays are its constants."""

    def __init__(self, task: SequenceTask, config: ReinforceConfig):
        """First weights are torch's, from its random state."""
        super().__init__()
        hidden, self._is_aligned = config.hidden, config.is_aligned
        described = task.sizes.shape[1] + 2 * task.n_elements
        self.kinds = nn.Embedding(task.n_kinds, config.kind_size)
        self.encoder = nn.LSTM(config.kind_size + described, hidden)
        read = config.option_size + hidden * (2 if config.is_aligned else 1)
        self.decoder = nn.LSTMCell(read, hidden)
        self.keys = nn.Linear(hidden, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.energy = nn.Linear(hidden, 1, bias=False)
        # The last row is what is read before the first choice.
        self.options = nn.Embedding(task.n_options + 1, config.option_size)
        self.logits = nn.Linear(2 * hidden, task.n_options)
        nn.init.zeros_(self.logits.weight)
        nn.init.zeros_(self.logits.bias)
        self._kinds = torch.tensor(task.kinds)
        described_by = [np.log1p(task.sizes), task.adjacency()]
        self._described = torch.tensor(np.concatenate(described_by, 1).astype(np.float32))
        prior = np.where(task.allowed, task.prior, -np.inf).astype(np.float32)
        self._prior = torch.tensor(prior)

    def draw(self, noise: Tensor) -> Drawn:
        """Draw K sequences by standard Gumbel noise [K, N, D]: the option with the greatest sum of
        logarithm and noise is as likely as its chance.
        """
        return self._decoded(len(noise), lambda i, logits: (logits + noise[:, i]).argmax(1))

    def judge(self, sequences: Tensor) -> Drawn:
        """The chances of K given sequences [K, N]."""
        return self._decoded(len(sequences), lambda i, _: sequences[:, i])

    def _decoded(self, k: int, choose: Callable[[int, Tensor], Tensor]) -> Drawn:
        """K sequences; `choose` takes the options [K] of i by their logits [K, D]."""
        states, (last, cell) = self.encoder(self._elements().unsqueeze(1))
        states = states.squeeze(1)
        keys = self.keys(states)
        state, cell = last[0].expand(k, -1), cell[0].expand(k, -1)
        option = torch.full((k,), self.options.num_embeddings - 1)
        options, logits = [], []
        for i, own in enumerate(states):
            context = self._attended(state, keys, states)
            read = [self.options(option), context]
            if self._is_aligned:
                read.append(own.expand(k, -1))
            state, cell = self.decoder(torch.cat(read, 1), (state, cell))
            logits.append(self._prior[i] + self.logits(torch.cat([state, context], 1)))
            option = choose(i, logits[-1])
            options.append(option)
        sequences, logs = torch.stack(options, 1), torch.stack(logits, 1).log_softmax(2)
        log_chances = logs.gather(2, sequences.unsqueeze(2)).squeeze(2).sum(1)
        entropy = torch.special.entr(logs.detach().exp()).sum(2).mean()
        return Drawn(sequences, log_chances, entropy)

    def _elements(self) -> Tensor:
        """x [N, ...]."""
        return torch.cat([self.kinds(self._kinds), self._described], 1)

    def _attended(self, state: Tensor, keys: Tensor, states: Tensor) -> Tensor:
        """c_i [K, hidden] of the decoder's state before i."""
        energies = self.energy(torch.tanh(keys + self.query(state).unsqueeze(1))).squeeze(-1)
        return energies.softmax(1) @ states


def build_policy(task: SequenceTask, config: ReinforceConfig, seed: int) -> SequencePolicy:
    """A policy with first weights that follow from the seed alone."""
    # The process's own random state is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SequencePolicy(task, config)
