"""The agent's targets by hand and against brute force."""

from dataclasses import replace

import numpy as np
import pytest


torch = pytest.importorskip("torch")

from rl.agent import Head, Step, errors, projected, step_on  # noqa: E402
from rl.config import Distribution  # noqa: E402
from rl.env import EnvShape, Observation  # noqa: E402
from rl.networks import build_network, duel, network_inputs  # noqa: E402
from rl.replay import Batch, Transitions  # noqa: E402
from tests.rl.configs import SMALL  # noqa: E402


def inputs(rows, baseline=(0.0, 0.0), mask=(True, True)):
    return network_inputs(
        Observation(
            flat=np.array(rows, np.float32),
            features=np.zeros((len(rows), 2, 1), np.float32),
            baseline=np.tile(np.array(baseline, np.float32), (len(rows), 1)),
            mask=np.tile(np.array(mask), (len(rows), 1)),
        )
    )


class Table(torch.nn.Module):
    """Z [m, A, 1] straight from the flat vector, times a factor."""

    def __init__(self, factors):
        super().__init__()
        self.factors = torch.tensor(factors)

    def forward(self, seen):
        return (seen.flat * self.factors).unsqueeze(-1)


STEP = Step(
    now=inputs([[1.0, 2.0], [3.0, 5.0]], baseline=(10.0, 20.0)),
    actions=torch.tensor([0, 1]),
    returns=torch.tensor([1.0, -1.0]),
    discounts=torch.tensor([0.5, 0.0]),
    after=inputs([[4.0, 3.0], [6.0, 8.0]], baseline=(0.25, 0.5)),
)


def test_double_q_by_hand():
    # Online after: 0.25 + 4, 0.5 + 3: the first is best. Target after: 0.25 - 4. Target 1 + 0.5 *
    # -3.75 = -0.875, online now 10 + 1. The second has ended: target -1, online now 20 + 5.
    result = errors(Table([1.0, 1.0]), Table([-1.0, 100.0]), Head(None), STEP)
    assert result.surprises.tolist() == [11.875, 26.0]
    assert result.losses.tolist() == [11.375, 25.5]


def test_single_q_by_hand():
    # The target network chooses too. After: 0.25 - 4, 0.5 + 300: target 1 + 0.5 * 300.5, now 11.
    # The second has ended, as above.
    result = errors(Table([1.0, 1.0]), Table([-1.0, 100.0]), Head(None), STEP, "single")
    assert result.surprises.tolist() == [151.25 - 11.0, 26.0]


class Unasked(torch.nn.Module):
    """A target network that nobody may ask."""

    def forward(self, seen):
        raise AssertionError("asked")


class Tilted(Table):
    """Z [m, A, 3], of which the atoms differ."""

    def forward(self, seen):
        return super().forward(seen) * torch.tensor([0.0, 0.5, -0.25])


@pytest.mark.parametrize("distribution", [None, Distribution(n_atoms=3, low=-30.0, high=30.0)])
def test_where_all_episodes_end_no_network_is_asked_of_the_states_after(distribution):
    online, target = ((Tilted if distribution else Table)([1.0, 1.0]) for _ in range(2))
    # The first goes on in one of them, so that both networks are asked there.
    ended = replace(STEP, discounts=torch.zeros(2), any_goes_on=False)
    asked = errors(online, target, Head(distribution), STEP)
    alone = errors(online, Unasked(), Head(distribution), ended)
    assert alone.losses[1].item() == pytest.approx(asked.losses[1].item(), rel=1e-6)
    assert alone.losses[0].item() != pytest.approx(asked.losses[0].item(), rel=1e-3)


@pytest.mark.parametrize("kind", ["flat", "per-action"])
def test_plain_output_layers_are_the_advantages_alone(kind):
    shape = EnvShape(n_envs=1, n_actions=2, n_flat=2, n_features=1)
    seen, networks = inputs([[1.0, 2.0], [3.0, 5.0]]), {}
    for layers in ("dueling", "plain"):
        config = replace(SMALL, network=kind, output_layers=layers)
        networks[layers] = build_network(shape, config, seed=0)
        torch.manual_seed(1)
        # Untrained, the last layers are zero.
        torch.nn.init.normal_(networks[layers].advantage.weight)
    dueling, plain = networks["dueling"], networks["plain"]
    assert plain.value is None
    # The layers before the last begin alike.
    z = plain(seen)
    assert torch.equal(dueling(seen), z - z.mean(1, keepdim=True))


def test_what_is_not_allowed_is_never_the_best_action_after():
    masked = replace(STEP, after=inputs([[4.0, 3.0], [6.0, 8.0]], mask=(False, True)))
    result = errors(Table([1.0, 1.0]), Table([-1.0, 100.0]), Head(None), masked)
    assert result.surprises[0].item() == abs(1.0 + 0.5 * 300.0 - 11.0)


def test_advantages_are_free_of_what_is_not_allowed():
    values, advantages = torch.tensor([[[7.0]]]), torch.tensor([[[1.0], [100.0], [5.0]]])
    mask = torch.tensor([[True, False, True]])
    assert duel(values, advantages, mask)[0, [0, 2], 0].tolist() == [5.0, 9.0]


def project_by_hand(probabilities, places, atoms):
    result = np.zeros(len(atoms))
    for p, place in zip(probabilities, places):
        place = min(max(place, atoms[0]), atoms[-1])
        for k, atom in enumerate(atoms):
            result[k] += p * max(0.0, 1.0 - abs(place - atom) / (atoms[1] - atoms[0]))
    return result


def test_projection_against_brute_force():
    source = np.random.default_rng(0)
    atoms = np.linspace(-2.0, 3.0, 11)
    probabilities = source.dirichlet(np.ones(11), size=50)
    places = source.normal(scale=3.0, size=(50, 11))
    places[0] = atoms
    result = projected(*(torch.from_numpy(a) for a in (probabilities, places, atoms)))
    expected = [project_by_hand(p, x, atoms) for p, x in zip(probabilities, places)]
    assert np.allclose(result, np.array(expected))
    assert np.allclose(result[0], probabilities[0])


class Logits(torch.nn.Module):
    """The same logits [A, K] in every state."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, seen):
        return self.logits.expand(len(seen.flat), -1, -1)


def test_distributional_loss_is_a_cross_entropy_to_the_moved_distribution():
    head = Head(Distribution(n_atoms=3, low=-1.0, high=1.0))
    online, target = Logits([[0.0, 0.0, 9.0], [0.0, 1.0, 2.0]]), Logits([[0.0, 0.0, 3.0]] * 2)
    step = replace(STEP, now=inputs([[0.0, 0.0]] * 2), after=inputs([[0.0, 0.0]] * 2, (0.5, 0.0)))
    step = replace(step, returns=torch.tensor([0.25, 5.0]))
    result = errors(online, target, head, step)
    after = np.exp([0.0, 0.0, 3.0]) / np.exp([0.0, 0.0, 3.0]).sum()
    # Atoms -1, 0, 1 of the best action, its baseline 0.5: 0.25 + 0.5 * (0.5 + z).
    first = project_by_hand(after, [0.0, 0.5, 1.0], [-1.0, 0.0, 1.0])
    logs = np.log(np.exp([[0.0, 0.0, 9.0], [0.0, 1.0, 2.0]]))
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    # The second has ended with 5: all on the last atom.
    assert np.allclose(result.losses, [-(first * logs[0]).sum(), -logs[1, 2]])


@pytest.mark.parametrize("kind", ["flat", "per-action"])
@pytest.mark.parametrize("distribution", [None, Distribution(5, -1.0, 1.0)])
def test_an_update_is_all_on_the_device_of_the_networks(kind, distribution):
    """On torch's device without numbers, which does not work with tensors of another one."""
    config = replace(SMALL, network=kind, distribution=distribution)
    shape, source = EnvShape(1, 4, 3, 2), np.random.default_rng(0)
    states = [
        Observation(
            source.normal(size=(6, 3)).astype(np.float32),
            source.normal(size=(6, 4, 2)).astype(np.float32),
            source.normal(size=(6, 4)).astype(np.float32),
            np.ones((6, 4), bool),
        )
        for _ in range(2)
    ]
    numbers = np.ones(6, np.float32)
    transitions = Transitions(states[0], np.arange(6) % 4, numbers, numbers, states[1])
    batch = Batch(np.arange(6), numbers, transitions)
    online, target = (build_network(shape, config, seed).to("meta") for seed in (0, 1))
    result = errors(online, target, Head(distribution), step_on(batch, "meta"))
    assert result.losses.device.type == result.surprises.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        errors(online, target, Head(distribution), step_on(batch, "cpu"))
