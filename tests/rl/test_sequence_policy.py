"""The policy against its formulas in numpy, and against all sequences that there are."""

from dataclasses import replace
import itertools

import numpy as np
import pytest


pytest.importorskip("torch")

import torch  # noqa: E402

from rl.errors import ConfigError  # noqa: E402
from rl.sequence_policy import SequencePolicy, build_policy  # noqa: E402
from rl.sequences import ReinforceConfig, SequenceTask  # noqa: E402
from tests.rl.copying import chain  # noqa: E402


CONFIG = ReinforceConfig(hidden=5, kind_size=3, option_size=4)


def policy_with_all_weights(task: SequenceTask, config: ReinforceConfig) -> SequencePolicy:
    """One whose last layer is not at its first zeros."""
    policy = build_policy(task, config, seed=1)
    with torch.no_grad():
        policy.logits.weight.copy_(torch.randn(policy.logits.weight.shape))
    return policy


def all_sequences(task: SequenceTask) -> torch.Tensor:
    options = [np.flatnonzero(row) for row in task.allowed]
    return torch.tensor(list(itertools.product(*options)))


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lstm_step(x, state, cell, w):
    gates = w["weight_ih"] @ x + w["bias_ih"] + w["weight_hh"] @ state + w["bias_hh"]
    i, f, g, o = np.split(gates, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def log_chance_by_hand(task, config, weights, sequence) -> float:
    """Mirhoseini et al.'s model written out for one sequence."""
    n, hidden = task.n_elements, config.hidden
    described = np.concatenate([np.log1p(task.sizes), task.adjacency()], 1)
    x = np.concatenate([weights["kinds.weight"][task.kinds], described], 1)
    encoder = {
        k.removeprefix("encoder.").removesuffix("_l0"): w
        for k, w in weights.items()
        if k.startswith("encoder.")
    }
    decoder = {
        k.removeprefix("decoder."): w for k, w in weights.items() if k.startswith("decoder.")
    }
    state, cell, states = np.zeros(hidden), np.zeros(hidden), []
    for element in x:
        state, cell = lstm_step(element, state, cell, encoder)
        states.append(state)
    states, last, total = np.array(states), task.n_options, 0.0
    for i in range(n):
        asked = weights["query.weight"] @ state + weights["query.bias"]
        energies = np.tanh(states @ weights["keys.weight"].T + asked) @ weights["energy.weight"][0]
        attention = np.exp(energies - energies.max())
        context = attention / attention.sum() @ states
        own = [states[i]] if config.is_aligned else []
        read = np.concatenate([weights["options.weight"][last], context, *own])
        state, cell = lstm_step(read, state, cell, decoder)
        both = np.concatenate([state, context])
        logits = task.prior[i] + weights["logits.weight"] @ both + weights["logits.bias"]
        logits = np.where(task.allowed[i], logits, -np.inf)
        last = int(sequence[i])
        total += logits[last] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return total


@pytest.mark.parametrize("is_aligned", [False, True])
def test_chances_are_those_of_the_formulas_and_sum_to_one(is_aligned):
    task = chain(4, 3)
    allowed = task.allowed.copy()
    allowed[1] = [True, False, True]
    prior = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    task, config = (
        replace(task, allowed=allowed, prior=prior),
        replace(CONFIG, is_aligned=is_aligned),
    )
    policy = policy_with_all_weights(task, config)
    sequences = all_sequences(task)
    with torch.no_grad():
        logs = policy.judge(sequences).log_chances.numpy()
    assert np.exp(logs).sum() == pytest.approx(1.0, abs=1e-5)
    weights = {k: w.numpy().astype(float) for k, w in policy.state_dict().items()}
    for sequence, log in zip(sequences[::7], logs[::7]):
        by_hand = log_chance_by_hand(task, config, weights, sequence.numpy())
        assert log == pytest.approx(by_hand, abs=1e-4)


def test_draws_are_as_frequent_as_their_chances():
    task = chain(2, 3)
    allowed = task.allowed.copy()
    allowed[0] = [False, True, True]
    policy = policy_with_all_weights(replace(task, allowed=allowed), CONFIG)
    n = 10_000
    noise = np.random.default_rng(0).gumbel(size=(n, 2, 3)).astype(np.float32)
    with torch.no_grad():
        drawn = policy.draw(torch.from_numpy(noise))
        sequences = all_sequences(replace(task, allowed=allowed))
        chances = policy.judge(sequences).log_chances.exp().numpy()
        again = policy.judge(drawn.sequences).log_chances
    assert torch.allclose(again, drawn.log_chances, atol=1e-5)
    codes = drawn.sequences.numpy() @ [3, 1]
    counts = np.bincount(codes, minlength=9)
    shares = counts[sequences.numpy() @ [3, 1]] / n
    assert counts[:3].sum() == 0
    assert np.abs(shares - chances).max() < 5 * np.sqrt(0.25 / n)


def test_an_untrained_policy_draws_from_the_prior():
    task = replace(chain(3, 2), prior=np.log(np.array([[0.9, 0.1]] * 3, np.float32)))
    drawn = build_policy(task, CONFIG, seed=0).judge(torch.tensor([[0, 0, 1], [1, 1, 1]]))
    assert drawn.log_chances.exp().tolist() == pytest.approx([0.081, 0.001], rel=1e-4)
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert float(drawn.entropy) == pytest.approx(entropy, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allowed": np.zeros((3, 2), bool)}, "allow at least one"),
        ({"edges": np.array([[0, 3]])}, "edges are 0 to 3; give 0 to 2"),
        ({"kinds": np.array([0, 1, 3])}, "kinds are 0 to 3; give 0 to 2"),
        ({"prior": np.zeros((2, 2), np.float32)}, "prior has the shape"),
        ({"failing_signal": np.inf}, "failing_signal is inf; give a finite cost"),
    ],
    ids=["allowed", "edges", "kinds", "prior", "failing_signal"],
)
def test_tasks_that_do_not_fit_together_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(chain(3, 2), **change)


@pytest.mark.parametrize(
    "change",
    [{"hidden": 0}, {"samples": 0}, {"learning_rate": 0.0}, {"baseline_decay": 1.0}],
    ids=str,
)
def test_impossible_configurations_are_refused(change):
    with pytest.raises(ConfigError, match="give"):
        replace(CONFIG, **change)
