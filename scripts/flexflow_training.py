"""FlexFlow's figure 9, as far as it goes without GPUs: the loss of a training run over simulated
seconds.

A plan changes when a step ends and not what it computes, so a run has one curve of the loss by
steps, and over seconds one for each plan: step n ends at n times the simulated seconds of the plan.
The losses are those of a real run of the same step for a small configuration of the model, on this
machine's processor, over four batches of random numbers in turn; the seconds are those of the
model of the paper on the cluster. What is learnt is of no meaning beside the paper's ImageNet.
"""

from collections.abc import Callable, Mapping

import jax
import numpy as np

from models import inception, nmt
from models.training import TrainStep, random_batch


STEPS, BATCHES = 80, 4


def _inception() -> TrainStep:
    return inception.inception(inception.TINY, batch=16)


def _nmt() -> TrainStep:
    return nmt.nmt_step(nmt.TINY, batch=16, seq=8)


TRAINED: Mapping[str, Callable[[], TrainStep]] = {"inception-v3": _inception, "nmt": _nmt}


def losses(model: str) -> list[float]:
    """The loss of each step."""
    made = TRAINED[model]()
    state = made.init(jax.random.key(0))
    batches = [random_batch(made.args[1], seed) for seed in range(BATCHES)]
    result = list[float]()
    for number in range(STEPS):
        state, metrics = made.step(state, batches[number % BATCHES])
        result.append(float(np.asarray(metrics["loss"])))
    return result
