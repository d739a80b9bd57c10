"""REINFORCE: its gradient against the exact one, what it learns, exact resume, many controllers."""

import csv
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest


pytest.importorskip("torch")

import torch  # noqa: E402

from rl.controllers import Controller  # noqa: E402
from rl.errors import CheckpointError, RlError  # noqa: E402
from rl.fleets import ProcessFleet, RayFleet  # noqa: E402
from rl.metrics import SEQUENCE_MEANINGS, CsvLog, SequenceRow  # noqa: E402
from rl.networks import network_weights  # noqa: E402
from rl.reinforce import Crew, Reinforce  # noqa: E402
from rl.sequence_policy import build_policy  # noqa: E402
from rl.sequences import ReinforceConfig  # noqa: E402
from rl.train import one_thread  # noqa: E402
from tests.rl.copying import Failing, Mismatches, chain  # noqa: E402
from tests.rl.test_sequence_policy import all_sequences, policy_with_all_weights  # noqa: E402


CONFIG = ReinforceConfig(hidden=12, kind_size=4, option_size=4, samples=8, learning_rate=1e-2)
WANTED = np.array([2, 0, 1, 1])


@pytest.fixture(autouse=True)
def _single_thread():
    with one_thread():
        yield


def run(
    seed: int = 0, config: ReinforceConfig = CONFIG, score=Mismatches(WANTED), **more
) -> Reinforce:
    return Reinforce(chain(4, 3), score, config, seed, **more)


def test_the_known_best_sequence_is_learnt_and_not_without_learning(tmp_path):
    log = CsvLog(tmp_path / "log.csv", row_type=SequenceRow)
    learner = run()
    learner.run(200, log=log, log_every=50)
    best, cost = learner.store.best
    assert (best == WANTED).all()
    assert cost == 0.0
    off = run(config=replace(CONFIG, learning_rate=None))
    off.run(60)
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Chance gets 8/3 of four elements wrong.
    assert float(rows[-1]["mean_cost"]) < 0.8
    assert off.store.row().mean_cost == pytest.approx(8 / 3, abs=0.15)


def test_the_gradient_is_that_of_the_expected_cost():
    # Over enough draws the mean of the estimates is the gradient of sum p(P) R(P), and the baseline
    # changes nothing of it.
    task, wanted = chain(3, 2, failing_signal=0.3), Mismatches(np.array([1, 0, 1]))

    def score(sequences):
        return 0.1 * wanted(sequences)

    config = replace(CONFIG, hidden=3, samples=60_000)
    policy = policy_with_all_weights(task, config)
    sequences = all_sequences(task)
    chances = policy.judge(sequences).log_chances.exp()
    (chances @ torch.from_numpy(score(sequences.numpy())).float()).backward()
    exact = {name: w.grad.numpy() for name, w in policy.named_parameters() if w.grad is not None}
    norm = np.sqrt(sum((g**2).sum() for g in exact.values()))
    assert norm < 1.0, "the estimate would be clipped"
    turn = Controller(task, score, config, seed=0).turn(network_weights(policy), 0)
    assert turn.gradients is not None
    error = np.sqrt(sum(((turn.gradients[name] - g) ** 2).sum() for name, g in exact.items()))
    # One draw deviates by some times the norm; 60,000 draws divide that by 245.
    assert error < 0.1 * norm


def test_sequences_that_are_not_possible_count_as_the_failing_signal_and_later_for_nothing():
    task, score = chain(3, 2), Mismatches(np.array([0, 0, 0]), forbidden=1)
    weights = network_weights(build_policy(task, CONFIG, seed=0))
    early = Controller(task, score, CONFIG, seed=3)
    late = Controller(task, score, replace(CONFIG, failing_updates=10), seed=3)
    first, second = early.turn(weights, 10), late.turn(weights, 10)
    possible = np.isfinite(first.costs)
    assert (first.costs == second.costs).all()
    assert 0 < possible.sum() < len(possible)
    all_rewards = np.where(possible, first.costs, task.failing_signal)
    decay = CONFIG.baseline_decay
    expected = [
        decay * task.failing_signal + (1 - decay) * rewards.mean()
        for rewards in (all_rewards, first.costs[possible])
    ]
    assert [first.state.baseline, second.state.baseline] == pytest.approx(expected)
    nothing = Controller(
        task, lambda s: np.full(len(s), np.inf), replace(CONFIG, failing_updates=0), 0
    )
    turn = nothing.turn(weights, 0)
    assert turn.gradients is None
    assert turn.state.baseline == task.failing_signal


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    score = Mismatches(WANTED, forbidden=0)
    whole = run(5, score=score)
    whole.run(20)
    whole.save(tmp_path / "run.safetensors")
    whole.run(40)
    resumed = run(99, score=score)
    resumed.restore(tmp_path / "run.safetensors")
    assert resumed.store.updates == 20
    resumed.run(40)
    expected = whole.store.weights()
    assert all((w == expected[name]).all() for name, w in resumed.store.weights().items())
    assert resumed.store.row() == whole.store.row()
    assert (resumed.store.best[0] == whole.store.best[0]).all()


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    run().save(path)
    with pytest.raises(CheckpointError, match="its config is .* resume with"):
        run(config=replace(CONFIG, samples=4)).restore(path)
    other = replace(chain(4, 3), failing_signal=9.0)
    with pytest.raises(CheckpointError, match="its task is"):
        Reinforce(other, Mismatches(WANTED), CONFIG, 0).restore(path)


def test_controllers_in_processes_share_the_weights(tmp_path):
    learner = run(n_controllers=2)

    def both_had_a_turn() -> bool:
        return None not in learner.store.states

    learner.run(10_000, both_had_a_turn, fleet=ProcessFleet)
    first, second = learner.store.states
    assert both_had_a_turn()
    assert first != second
    # Both have moved the same weights, and a run of two can be saved and gone on with.
    learner.save(tmp_path / "run.safetensors")
    again = run(n_controllers=2)
    again.restore(tmp_path / "run.safetensors")
    assert again.store.states == [first, second]
    untrained = run(n_controllers=2).store.weights()
    assert any((w != untrained[name]).any() for name, w in again.store.weights().items())


@pytest.mark.slow
def test_a_controller_that_fails_ends_the_run():
    with pytest.raises(RlError, match="controller 0 has failed: OSError: the device is gone"):
        run(score=Failing()).run(1, fleet=ProcessFleet)


@pytest.mark.slow
def test_controllers_on_a_ray_cluster():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        learner = run(n_controllers=2)
        learner.run(30, fleet=lambda crew: RayFleet(crew, ray))
        assert learner.store.updates >= 30
        with pytest.raises(RlError, match=r"controller 0 has failed: .*the device is gone"):
            run(score=Failing()).run(1, fleet=lambda crew: RayFleet(crew, ray))
    finally:
        ray.shutdown()


def test_the_docs_explain_every_metric():
    docs = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "agents.md").read_text()
    assert [field.name for field in fields(SequenceRow)] == list(SEQUENCE_MEANINGS)
    for name, meaning in SEQUENCE_MEANINGS.items():
        assert f"| `{name}` | {meaning} |" in docs


def test_a_crew_makes_its_controllers_from_seeds():
    crew = Crew(chain(3, 2), Mismatches(np.zeros(3)), CONFIG, [1, 2], [None, None])
    weights = network_weights(policy_with_all_weights(crew.task, CONFIG))
    one, other, again = (crew.controller(i).turn(weights, 0) for i in (0, 1, 0))
    assert (one.costs == again.costs).all()
    assert one.state.source != other.state.source
