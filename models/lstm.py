"""LSTM layers of the recurrent models (Hochreiter and Schmidhuber 1997, with the forget gate).

A cell has one kernel [inputs + hidden, 4 * hidden] and one bias; with [i, f, g, o] = [x, h] W + b:

    c' = sigmoid(f + 1) * c + sigmoid(i) * tanh(g),    h' = sigmoid(o) * tanh(c')

A layer runs over time "unrolled" (a Python loop, every step traced) or "scanned" (one step traced
under `jax.lax.scan`); both compute the same from the same parameters.
"""

from typing import Literal, get_args

from flax import nnx
import jax
from jax import numpy as jnp

from models.training import check_choice


Steps = Literal["unrolled", "scanned"]
# The cell's memory c and its output h, both [B, hidden].
LstmState = tuple[jax.Array, jax.Array]

FORGET_BIAS = 1.0


class LstmCell(nnx.Module):
    """One step of one layer."""

    def __init__(self, inputs: int, hidden: int, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.gates = nnx.Linear(inputs + hidden, 4 * hidden, rngs=rngs)

    def __call__(self, state: LstmState, x: jax.Array) -> LstmState:
        """The state after x [B, inputs]."""
        c, h = state
        gates = self.gates(jnp.concatenate([x, h], axis=-1))
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f + FORGET_BIAS) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return c, jax.nn.sigmoid(o) * jnp.tanh(c)


class LstmStack(nnx.Module):
    """`depth` LSTM layers of one width, each reading the outputs of the layer below."""

    def __init__(self, depth: int, hidden: int, *, steps: Steps, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`.

        Raises:
            InputError: `steps` is neither of the two.
        """
        check_choice("steps", steps, get_args(Steps))
        self.hidden = hidden
        self.steps = steps
        self.cells = nnx.List(LstmCell(hidden, hidden, rngs=rngs) for _ in range(depth))

    def __call__(
        self, x: jax.Array, states: list[LstmState] | None = None
    ) -> tuple[jax.Array, list[LstmState]]:
        """Outputs [B, T, hidden] of the top layer over x [B, T, hidden], and the last states.

        `states` are those that the layers start from, zero if none are given.
        """
        zero = jnp.zeros((x.shape[0], self.hidden), x.dtype)
        states = [(zero, zero)] * len(self.cells) if states is None else states
        last = []
        for cell, state in zip(self.cells, states, strict=True):
            x, state = run_layer(cell, x, state, self.steps)
            last.append(state)
        return x, last


def run_layer(
    cell: LstmCell, x: jax.Array, state: LstmState, steps: Steps
) -> tuple[jax.Array, LstmState]:
    """Outputs [B, T, hidden] of a cell over x [B, T, inputs] from a state, and the last state."""
    if steps == "unrolled":
        outputs = []
        for t in range(x.shape[1]):
            state = cell(state, x[:, t])
            outputs.append(state[1])
        return jnp.stack(outputs, axis=1), state

    def body(state: LstmState, x: jax.Array) -> tuple[LstmState, jax.Array]:
        state = cell(state, x)
        return state, state[1]

    state, outputs = jax.lax.scan(body, state, jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(outputs, 0, 1), state
