"""RNNLM and NMT with everything step by step, as the ColocRL paper places them (Mirhoseini et al.
2017): each time step looks its tokens up, runs its cells, attends and predicts on its own.

The modules, their parameters and the loss are those of `models.rnnlm` and `models.nmt`, which look
up, attend and predict for all steps at once; only the order of the work differs.
"""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from models.lstm import LstmStack, LstmState
from models.nmt import NMT, TINY as NMT_TINY, Nmt, NmtConfig
from models.rnnlm import RNNLM, TINY as RNNLM_TINY, Rnnlm, RnnlmConfig
from models.training import Batch, Target, check_size, cross_entropy, train_step


States = list[LstmState]


def rnnlm_loss(model: Rnnlm, batch: Batch) -> jax.Array:
    """`models.rnnlm.loss`, a step after the other."""
    states, losses = _zeros(model.lstm, batch["tokens"]), []
    for t in range(batch["tokens"].shape[1]):
        x, states = _cells(model.lstm, states, model.tokens(batch["tokens"][:, t]))
        losses.append(cross_entropy(model.output(x), batch["targets"][:, t]).mean())
    return jnp.stack(losses).mean()


def nmt_loss(model: Nmt, batch: Batch) -> jax.Array:
    """`models.nmt.loss`, a step after the other; attention reads all of the encoder's outputs."""
    source, target = batch["encoder_tokens"], batch["decoder_tokens"]
    states, outputs = _zeros(model.encoder, source), []
    for t in range(source.shape[1]):
        x, states = _cells(model.encoder, states, model.encoder_embedding(source[:, t]))
        outputs.append(x)
    memory, losses = jnp.stack(outputs, axis=1), []
    for t in range(target.shape[1]):
        x, states = _cells(model.decoder, states, model.decoder_embedding(target[:, t]))
        logits = model.output(model.attention(x[:, None], memory)[:, 0])
        losses.append(cross_entropy(logits, batch["targets"][:, t]).mean())
    return jnp.stack(losses).mean()


def _zeros(lstm: LstmStack, tokens: jax.Array) -> States:
    zero = jnp.zeros((tokens.shape[0], lstm.hidden))
    return [(zero, zero)] * len(lstm.cells)


def _cells(lstm: LstmStack, states: Sequence[LstmState], x: jax.Array) -> tuple[jax.Array, States]:
    """One step of all layers: what the top one gives, and the states."""
    new = []
    for cell, state in zip(lstm.cells, states, strict=True):
        new.append(cell(state, x))
        x = new[-1][1]
    return x, new


def _rnnlm(config: RnnlmConfig, batch: int, seq: int) -> Target:
    tokens = _tokens(batch, seq)
    shapes = {"tokens": tokens, "targets": tokens}
    return train_step(lambda rngs: Rnnlm(config, rngs=rngs), rnnlm_loss, shapes).target


def _nmt(config: NmtConfig, batch: int, seq: int) -> Target:
    tokens = _tokens(batch, seq)
    shapes = {"encoder_tokens": tokens, "decoder_tokens": tokens, "targets": tokens}
    return train_step(lambda rngs: Nmt(config, rngs=rngs), nmt_loss, shapes).target


def _tokens(batch: int, seq: int) -> tuple[tuple[int, int], str]:
    check_size("batch", batch)
    check_size("seq", seq)
    return (batch, seq), "int32"


def rnnlm_stepwise(batch: int = 64, seq: int = 40) -> Target:
    """RNNLM of the papers, step by step."""
    return _rnnlm(RNNLM, batch, seq)


def rnnlm_stepwise_tiny(batch: int = 16, seq: int = 8) -> Target:
    """Everything divisible by 8, for tests."""
    return _rnnlm(RNNLM_TINY, batch, seq)


def nmt_stepwise(batch: int = 64, seq: int = 40) -> Target:
    """NMT of the papers, step by step."""
    return _nmt(NMT, batch, seq)


def nmt_stepwise_tiny(batch: int = 16, seq: int = 8) -> Target:
    """Everything divisible by 8, for tests."""
    return _nmt(NMT_TINY, batch, seq)
