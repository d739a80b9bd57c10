"""Levers on steps whose results are no new arrays of their own: constants, one array twice, what
came in; they compute what the plain step computes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from automap.jax_compat import open_jaxpr
from automap.jaxpr import in_parts
from automap.jaxpr.in_parts import hosted_updates
from tests.corpus.entry import Call
from tests.levered_steps import LeveredStep, compare


RESULTS = {
    "constants": lambda loss, old, new: (jnp.float32(3.0), 3, True),
    "one array twice": lambda loss, old, new: (loss, loss),
    "an input": lambda loss, old, new: old["frozen"],
    "state as it came in": lambda loss, old, new: old["opt"][0].mu["in"],
    "new state once more": lambda loss, old, new: new["opt"][0].mu,
}
LEVERS = [("state",), ("remat",), ("batch",), ("batch", "state"), ("remat", "state")]


def _step(result):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 0.3, shape), jnp.float32)

    optimizer = optax.adam(1e-2)

    def loss(params, x):
        x = x @ params["in"]
        for a, b in params["layers"]:
            x = x + jnp.tanh(x @ a) @ b
        return (x**2).mean()

    def step(state, x):
        value, gradients = jax.value_and_grad(loss)(state["params"], x)
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        new = {"params": params, "opt": opt, "frozen": state["frozen"]}
        return new, result(value, state, new)

    params = {"in": normal(32, 16), "layers": [(normal(16, 64), normal(64, 16)) for _ in range(3)]}
    state = {"params": params, "opt": optimizer.init(params), "frozen": normal(16)}
    return Call(jax.jit(step), (state, normal(32, 32)), {})


STEPS = [LeveredStep(name, lambda result=result: _step(result)) for name, result in RESULTS.items()]


@pytest.mark.parametrize("levers", LEVERS, ids="+".join)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_levers_compute_what_the_step_computes(step, levers, monkeypatch):
    # Leaves of a few kilobytes are updated in parts too.
    for name in ("_PART_BYTES", "_ROWS", "_LANES", "_TILE"):
        monkeypatch.setattr(in_parts, name, 1)
    comparison = compare(step, levers)
    assert comparison.excess <= 1, comparison.where


def test_what_an_update_makes_is_in_the_order_of_the_results_without_constants():
    def step(m, g):
        new = 0.9 * m + g
        return 2.0, new * 2, new, m.shape[0], new

    jaxpr, _ = open_jaxpr(jax.make_jaxpr(step)(jnp.ones((4, 4)), jnp.ones((4, 4))))
    (update,) = hosted_updates(jaxpr, [0])
    assert update.outputs == (jaxpr.outvars[1], jaxpr.outvars[2])
