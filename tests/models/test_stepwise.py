"""Models step by step compute what they compute for all steps at once."""

from flax import nnx
import jax
import numpy as np
import pytest

from models import nmt, rnnlm, stepwise
from models.training import random_batch


@pytest.mark.parametrize(
    ("build", "whole", "each"),
    [
        (lambda rngs: rnnlm.Rnnlm(rnnlm.TINY, rngs=rngs), rnnlm, stepwise.rnnlm_loss),
        (lambda rngs: nmt.Nmt(nmt.TINY, rngs=rngs), nmt, stepwise.nmt_loss),
    ],
    ids=["rnnlm", "nmt"],
)
def test_loss_and_gradient_are_those_of_all_steps_at_once(build, whole, each):
    model = build(nnx.Rngs(0))
    target = {rnnlm: stepwise.rnnlm_stepwise_tiny, nmt: stepwise.nmt_stepwise_tiny}[whole]
    batch = random_batch(target(batch=2, seq=2)[1][1], 0)
    for one, other in zip(
        jax.tree.leaves(nnx.jit(nnx.value_and_grad(each))(model, batch)),
        jax.tree.leaves(nnx.jit(nnx.value_and_grad(whole.loss))(model, batch)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
