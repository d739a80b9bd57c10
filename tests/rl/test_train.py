"""Whole runs: what is learnt, what never happens, and that a resumed run is the same run."""

import csv
from dataclasses import replace
import json
import os
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest


pytest.importorskip("torch")

from rl.config import Distribution, RainbowConfig  # noqa: E402
from rl.errors import CheckpointError, ConfigError, RlError  # noqa: E402
from rl.metrics import MEANINGS, CsvLog, TensorBoardLog  # noqa: E402
from rl.train import Trainer  # noqa: E402
from tests.rl.configs import SMALL  # noqa: E402
from tests.rl.mdp import TableEnv  # noqa: E402


DISTRIBUTED = replace(SMALL, distribution=Distribution(n_atoms=41, low=-8.0, high=8.0))
KINDS: dict[str, RainbowConfig] = {
    "per-action": SMALL,
    "flat": replace(SMALL, network="flat"),
    "distributional": DISTRIBUTED,
}


def environment() -> TableEnv:
    return TableEnv(n_states=6, n_actions=3, n_envs=8, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_learns_the_q_of_value_iteration(kind):
    # Rewards of several steps would hold what exploring costs against the best actions.
    env, config = environment(), replace(KINDS[kind], n_steps=1, gamma=0.6, hidden=(32,))
    trainer = Trainer(env, config, seed=0)
    trainer.run(6_000)
    exact = env.exact_q(config.gamma)
    values = trainer.agent.values(env.states_as_seen(np.arange(6)))
    assert (np.isinf(values) == np.isinf(exact)).all()
    greedy = values.argmax(1)
    rows = np.arange(6)
    assert np.abs(values[rows, greedy] - exact.max(1)).max() < 0.3
    # What the greedy policy is worth, solved as a linear system: that of the best, to three digits.
    worth = env.policy_values(greedy, config.gamma)
    assert worth == pytest.approx(exact.max(1), rel=5e-4)


def test_an_untrained_agent_acts_on_the_baseline_and_only_on_what_is_allowed():
    env = environment()
    agent = Trainer(env, SMALL, seed=0).agent
    seen = env.states_as_seen(np.arange(6))
    greedy = agent.act(seen, 0.0, np.random.default_rng(0))
    assert (greedy == np.where(env.allowed, env.reward, -np.inf).argmax(1)).all()
    source = np.random.default_rng(1)
    drawn = np.array([agent.act(seen, 1.0, source) for _ in range(500)])
    for state in range(6):
        counts = np.bincount(drawn[:, state], minlength=3)
        assert ((counts > 0) == env.allowed[state]).all()


def remaining_run(trainer: Trainer, env: TableEnv, until: int) -> tuple[np.ndarray, np.ndarray]:
    trainer.run(until)
    return np.array(env.chosen[-20:]), trainer.agent.values(env.states_as_seen(np.arange(6)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one(kind, tmp_path):
    config = KINDS[kind]
    env = environment()
    log = CsvLog(tmp_path / "whole.csv")
    whole = Trainer(env, config, seed=5, log=log, log_every_steps=160)
    whole.run(800)
    whole.save(tmp_path / "run.safetensors")
    (tmp_path / "resumed.csv").write_bytes((tmp_path / "whole.csv").read_bytes())
    expected = remaining_run(whole, env, 1_600)

    env = environment()
    log = CsvLog(tmp_path / "resumed.csv", resumed_at=800)
    resumed = Trainer(env, config, seed=99, log=log, log_every_steps=160)
    resumed.restore(tmp_path / "run.safetensors")
    resumed_run = remaining_run(resumed, env, 1_600)
    assert all((a == b).all() for a, b in zip(resumed_run, expected))
    assert (tmp_path / "resumed.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_rows_after_the_checkpoint_are_written_anew(tmp_path):
    path = tmp_path / "log.csv"
    Trainer(environment(), SMALL, seed=0, log=CsvLog(path), log_every_steps=80).run(400)
    lines = path.read_text().splitlines()
    CsvLog(path, resumed_at=240)
    assert path.read_text().splitlines() == lines[:4]
    with path.open() as file:
        assert list(next(csv.DictReader(file))) == list(MEANINGS)


def test_the_docs_explain_every_metric():
    docs = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "agents.md").read_text()
    for name, meaning in MEANINGS.items():
        assert f"| `{name}` | {meaning} |" in docs.replace("\\|", "|")


_RUN = """
from tests.rl.test_train import SMALL, Trainer, environment
env = environment()
trainer = Trainer(env, SMALL, seed=7)
trainer.run(800)
print(repr(trainer.agent.values(env.observe()).tolist()))
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_in_another_process():
    env = environment()
    trainer = Trainer(env, SMALL, seed=7)
    trainer.run(800)
    run = subprocess.run(
        [sys.executable, "-c", _RUN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == repr(trainer.agent.values(env.observe()).tolist())


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    Trainer(environment(), SMALL, seed=0).save(path)
    other = Trainer(environment(), replace(SMALL, gamma=0.5), seed=0)
    with pytest.raises(CheckpointError, match="its config is .* resume with"):
        other.restore(path)
    with pytest.raises(CheckpointError, match="its shape is"):
        Trainer(TableEnv(5, 3, 8, 0), SMALL, seed=0).restore(path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    trainer = Trainer(environment(), SMALL, seed=0)
    path = tmp_path / "run.safetensors"
    trainer.save(path)
    whole = path.read_bytes()
    broken = {
        "absent": None,
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "text": b"import os",
        "of another format": whole.replace(b"automap-rl 1", b"automap-rl 9"),
    }
    for content in broken.values():
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"run\.safetensors"):
            trainer.restore(path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        trainer.save(tmp_path / "nowhere" / "run.safetensors")


def test_a_checkpoint_whose_arrays_do_not_fit_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    trainer = Trainer(environment(), SMALL, seed=0)
    path = tmp_path / "run.safetensors"
    trainer.save(path)
    arrays = load_file(path)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    del arrays["n-step/open"]
    save_file(arrays, path, metadata=header["__metadata__"])
    with pytest.raises(CheckpointError, match="does not fit this run"):
        trainer.restore(path)


def test_environments_that_cannot_be_saved_say_so(tmp_path):
    class Fleeting:
        def __init__(self):
            env = environment()
            self.shape, self.observe, self.step = env.shape, env.observe, env.step

    with pytest.raises(CheckpointError, match="Fleeting cannot be saved"):
        Trainer(Fleeting(), SMALL, seed=0).save(tmp_path / "run.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", [-1, 2**80])
def test_any_whole_number_is_a_seed(seed):
    runs = [Trainer(environment(), SMALL, s) for s in (seed, seed, 1)]
    for trainer in runs:
        trainer.run(160)
    seen = environment().observe()
    first, same, other = (trainer.agent.values(seen) for trainer in runs)
    assert (first == same).all()
    assert (first != other).any()


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RlError, match="pip install tensorboard"):
        TensorBoardLog(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"network": "round"},
        {"bootstrap": "triple"},
        {"output_layers": "thick"},
        {"gamma": 1.5},
        {"alpha": float("nan")},
        {"batch": 0},
        {"hidden": ()},
        {"learning_rate": 0.0},
        {"warm_up": 501},
        {"distribution": Distribution(1, 0.0, 1.0)},
    ],
    ids=str,
)
def test_impossible_configurations_are_refused(change):
    with pytest.raises(ConfigError, match="give|choose"):
        replace(SMALL, **change)
