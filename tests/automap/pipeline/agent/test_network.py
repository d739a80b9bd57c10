"""The network in numpy against torch, and files of weights that are refused."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from automap.action_network import load_weights, shapes
from automap.errors import InputError
from automap.pipeline.agent.candidates import ACTION_FEATURES, STATE_FEATURES, Candidates
from automap.pipeline.agent.network import FORMAT, SHIPPED, values


def random_weights(width, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes(FORMAT, width).items()
    }


def write(path, weights, header=FORMAT.name):
    save_file(weights, path, metadata={"format": header})
    return path


def random_candidates(count, seed=0):
    rng = np.random.default_rng(seed)
    return Candidates(
        points=np.arange(count),
        units=np.arange(count),
        least=rng.uniform(0.5, 1.0, count),
        made=rng.uniform(1.0, 2.0, count),
        features=rng.normal(size=(count, len(ACTION_FEATURES))).astype(np.float32),
        flat=rng.normal(size=len(STATE_FEATURES)).astype(np.float32),
        baseline=rng.normal(size=count).astype(np.float32),
    )


@pytest.mark.parametrize("count", [1, 7, 192])
def test_values_equal_torch(count):
    torch = pytest.importorskip("torch")
    from rl.env import EnvShape, Observation
    from rl.networks import ActionNetwork, network_inputs

    weights, found = random_weights(16), random_candidates(count)
    shape = EnvShape(1, count, len(STATE_FEATURES), len(ACTION_FEATURES))
    network = ActionNetwork(shape, (16, 16), 1)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    inputs = network_inputs(
        Observation(
            flat=found.flat[None],
            features=found.features[None],
            baseline=found.baseline[None],
            mask=np.ones((1, count), bool),
        )
    )
    with torch.inference_mode():
        expected = inputs.baseline + network(inputs).squeeze(-1)
    # A step is between the two that are known without learning.
    most = found.baseline + np.log(found.made / found.least)
    expected = np.clip(expected[0].numpy(), found.baseline, most)
    np.testing.assert_allclose(values(weights, found), expected, rtol=1e-4, atol=1e-5)


def test_the_shipped_weights_are_small_and_load():
    assert SHIPPED.stat().st_size < 2_000_000
    weights = load_weights(SHIPPED, FORMAT)
    assert set(weights) == set(shapes(FORMAT, len(weights["action.0.bias"])))


def test_weights_survive_their_file(tmp_path):
    weights = random_weights(8)
    again = load_weights(write(tmp_path / "w.safetensors", weights), FORMAT)
    assert all(np.array_equal(again[name], array) for name, array in weights.items())


def _without(weights):
    del weights["mixed.2.bias"]


def _with_another(weights):
    weights["more"] = np.zeros(1, np.float32)


def _of_another_width(weights):
    weights["context.0.weight"] = np.zeros((8, 5), np.float32)


def _not_finite(weights):
    weights["value.weight"][0, 3] = np.nan


def _of_another_type(weights):
    weights["advantage.bias"] = np.zeros(1, np.float64)


def _empty(weights):
    weights["action.0.bias"] = np.zeros(0, np.float32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without, "missing or too many: mixed.2.bias"),
        (_with_another, "missing or too many: more"),
        (_of_another_width, r"context.0.weight is float32 \[8, 5\], allowed: float32 \[8, 28\]"),
        (_not_finite, "value.weight has numbers that are not finite"),
        (_of_another_type, "advantage.bias is F64"),
        (_empty, "allowed: float32"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, damage, message):
    weights = random_weights(8)
    damage(weights)
    with pytest.raises(InputError, match=message):
        load_weights(write(tmp_path / "w.safetensors", weights), FORMAT)


def test_files_that_are_no_weights_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match="no weights of an agent"):
        load_weights(path, FORMAT)
    for content in (b"", b"no safetensors at all", SHIPPED.read_bytes()[:-100]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="no weights of an agent"):
            load_weights(path, FORMAT)
    with pytest.raises(InputError, match="its format is 'another'"):
        load_weights(write(path, random_weights(8), "another"), FORMAT)
    save_file(load_file(SHIPPED), path)
    with pytest.raises(InputError, match="its format is None"):
        load_weights(path, FORMAT)
