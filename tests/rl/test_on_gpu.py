"""Rainbow with its networks on a GPU: an update is the processor's, the exact values and a control
task are learnt, and a resumed run is the same run.

    python -m pytest -m gpu tests/rl/test_on_gpu.py
"""

from dataclasses import replace

import numpy as np
import pytest


torch = pytest.importorskip("torch")

from rl.train import Trainer  # noqa: E402
from tests.rl.cart_pole import RAINBOW, SOLVED, CartPole, greedy_score  # noqa: E402
from tests.rl.configs import SMALL  # noqa: E402
from tests.rl.test_train import KINDS, environment  # noqa: E402


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch shows no GPU"),
]
GPU = "cuda"


def values(trainer: Trainer) -> np.ndarray:
    return trainer.agent.values(environment().states_as_seen(np.arange(6)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_that_of_a_processor(kind):
    runs = [Trainer(environment(), KINDS[kind], seed=0, device=device) for device in ("cpu", GPU)]
    for trainer in runs:
        # Roundings grow from update to update, so that the first one is what is compared.
        while trainer.agent.updates == 0:
            trainer.step()
    on_processor, on_gpu = map(values, runs)
    assert on_gpu == pytest.approx(on_processor, rel=1e-3, abs=1e-3)


def test_learns_what_the_exact_policy_is_worth():
    env, config = environment(), replace(SMALL, n_steps=1, gamma=0.6, hidden=(32,))
    trainer = Trainer(env, config, seed=0, device=GPU)
    trainer.run(6_000)
    exact = env.exact_q(config.gamma)
    greedy = trainer.agent.values(env.states_as_seen(np.arange(6))).argmax(1)
    worth = env.policy_values(greedy, config.gamma)
    assert worth == pytest.approx(exact.max(1), rel=5e-4)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    env = environment()
    whole = Trainer(env, SMALL, seed=5, device=GPU)
    whole.run(400)
    whole.save(tmp_path / "run.safetensors")
    whole.run(800)
    later = environment()
    resumed = Trainer(later, SMALL, seed=99, device=GPU)
    resumed.restore(tmp_path / "run.safetensors")
    resumed.run(800)
    assert (np.array(env.chosen[-20:]) == np.array(later.chosen[-20:])).all()
    assert (values(whole) == values(resumed)).all()


def test_cart_pole_is_learnt():
    trainer = Trainer(CartPole(16, seed=0), RAINBOW, seed=0, device=GPU)
    best = 0.0
    for steps in range(5_000, 65_000, 5_000):
        trainer.run(steps)
        best = max(best, greedy_score(trainer.agent, seed=1))
        if best >= SOLVED:
            break
    assert best >= SOLVED
