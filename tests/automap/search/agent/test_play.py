"""The agent on small steps: never an invalid point, pins kept, the same plan under other names."""

from dataclasses import replace

import numpy as np
import pytest

from automap.action_network import learnt_values, load_weights, shapes
from automap.errors import InputError
from automap.search.agent.options import MOVE_FEATURES, STATE_FEATURES, Seen
from automap.search.agent.play import (
    CHAINED,
    MESHES_FORMAT,
    MESHES_SHIPPED,
    MOST_TURNS,
    MOVES_FORMAT,
    MOVES_SHIPPED,
    PRICED,
    Player,
    agent,
    beam,
    decided,
    first_roll_out,
    mesh_starts,
    roll_out,
    shipped_player,
    turn,
)
from automap.topology.mesh import Mesh
from tests.automap.search.contexts import best_preset_seconds, search_context, step_seconds
from tests.steps import decoder, mlp


SHIPPED = ((MOVES_SHIPPED, MOVES_FORMAT), (MESHES_SHIPPED, MESHES_FORMAT))


def player(seed):
    """Weights that nothing has taught."""
    rng = np.random.default_rng(seed)
    moves, meshes = (
        {
            name: rng.normal(0, 0.3, shape).astype(np.float32)
            for name, shape in shapes(form, 8).items()
        }
        for form in (MOVES_FORMAT, MESHES_FORMAT)
    )
    return Player(moves, meshes)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_it_thinks_all_that_it_proposes_is_valid(seed):
    context = search_context(*decoder(), topology="v5e:2x4")
    seen, current = Seen(context), mesh_starts(context)[-1]
    for number in range(3):
        reached = turn(context, seen, player(seed), current, number)
        for candidate in reached:
            assert context.space.is_valid(candidate.point)
            # What it was told is what the evaluator says of the point alone.
            split_classes = context.space.split_classes(candidate.point)
            assert candidate.estimate == context.evaluator.evaluate(split_classes)
        current = reached[-1]


@pytest.mark.parametrize("seed", range(2))
def test_pins_are_kept(seed):
    pins = ("[0]['params']['w1']=null,model",)
    mesh = Mesh(("data", "model"), (2, 4))
    context = search_context(*mlp(), topology="v5e:2x4", mesh=mesh, pins=pins)
    seen = Seen(context)
    start = mesh_starts(context)[0]
    for candidate in turn(context, seen, player(seed), start, 0):
        assert context.pinned.allows(candidate.point)
    assert context.pinned.allows(roll_out(context, seen, player(seed), start).point)


def test_it_never_ends_worse_than_it_began():
    context = search_context(*decoder(), topology="2x4xh100")
    best = best_preset_seconds(context)
    agent(context)
    assert step_seconds(context) <= best


def test_the_same_seed_comes_to_the_same_plan():
    plans = []
    for _ in range(2):
        context = search_context(*decoder(), topology="v5e:2x4", seed=3)
        best_preset_seconds(context)
        agent(context)
        plans.append((context.best, context.evaluations))
    assert plans[0] == plans[1]


def test_axes_by_other_names_and_in_another_order_are_seen_alike():
    seen_moves = []
    for names in (("a", "b"), ("b", "a")):
        mesh = Mesh(names, (2, 2))
        context = search_context(*mlp(), topology="4xh100", mesh=mesh)
        own = Mesh(("a", "b"), (2, 2)) if names == ("a", "b") else Mesh(("b", "a"), (2, 2))
        start = context.evaluate(context.space.point(own, [()] * 2), "test")
        options = Seen(context).options(start, 0)
        learnt = learnt_values(player(0)._moves, options.features, options.flat)
        seen_moves.append(np.sort(learnt))
    np.testing.assert_allclose(*seen_moves, rtol=1e-5, atol=1e-6)


def test_the_order_of_options_does_not_matter():
    context = search_context(*decoder(), topology="v5e:2x4")
    options = Seen(context).options(mesh_starts(context)[-1], 0)
    order = np.random.default_rng(0).permutation(len(options.moves))
    weights = player(1)._moves
    values = learnt_values(weights, options.features, options.flat)
    again = learnt_values(weights, options.features[order], options.flat)
    np.testing.assert_allclose(again, values[order], rtol=1e-4, atol=1e-5)


def test_numbers_have_no_units():
    """A step of the same sizes on a machine that is twice as fast in everything is the same."""
    values = []
    for factor in (1.0, 2.0):
        context = search_context(*mlp(batch=4096, width=4096, hidden=8192), topology="2x4xp100")
        topology = context.evaluator.topology
        device = replace(
            topology.device,
            hbm_bytes_per_s=topology.device.hbm_bytes_per_s * factor,
            flops_per_s=tuple((n, f * factor) for n, f in topology.device.flops_per_s),
            launch_seconds=topology.device.launch_seconds / factor,
            measured="",
        )
        levels = tuple(
            replace(
                level,
                bytes_per_s=level.bytes_per_s * factor,
                latency_seconds=level.latency_seconds / factor,
            )
            for level in topology.levels
        )
        faster = replace(topology, device=device, levels=levels)
        context.evaluator = replace(context.evaluator, topology=faster, _costs={})
        start = mesh_starts(context)[0]
        values.append(Seen(context).options(start, 0).features)
    np.testing.assert_allclose(*values, atol=0.02)


def test_decisions_tell_points_apart():
    context = search_context(*mlp(), topology="v5e:2x4")
    current = mesh_starts(context)[-1]
    options = Seen(context).options(current, 0)
    told = {decided(context.space, point).tobytes() for point in options.points}
    assert len(told) == len(set(options.points))


def test_a_beam_is_no_worse_than_its_starts():
    context = search_context(*decoder(), topology="v5e:2x4")
    starts = mesh_starts(context)[:2]
    best = min(context.objective.key(s.estimate) for s in starts)
    reached = beam(context, Seen(context), player(0), starts)
    assert context.objective.key(reached.estimate) <= best


@pytest.mark.parametrize(("path", "form"), SHIPPED)
def test_shipped_weights_are_small_and_load(path, form):
    assert path.stat().st_size < 2_000_000
    weights = load_weights(path, form)
    assert set(weights) == set(shapes(form, len(weights["action.0.bias"])))


@pytest.mark.parametrize(("path", "form"), SHIPPED)
def test_truncated_weights_and_those_of_another_network_are_refused(path, form, tmp_path):
    short = tmp_path / "short.safetensors"
    short.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="no weights of an agent"):
        load_weights(short, form)
    (other,) = (own for own, _ in SHIPPED if own != path)
    with pytest.raises(InputError, match="its format is 'automap-sharding-agent"):
        load_weights(other, form)
    with pytest.raises(InputError, match=r"action.0.weight is float32 .*allowed"):
        load_weights(path, replace(form, n_features=form.n_features + 1))


def test_values_equal_torch():
    torch = pytest.importorskip("torch")
    from rl.env import EnvShape, Observation
    from rl.networks import ActionNetwork, network_inputs

    rng, weights, count = np.random.default_rng(2), player(2)._moves, 37
    features = rng.normal(size=(count, MOVE_FEATURES)).astype(np.float32)
    flat = rng.normal(size=STATE_FEATURES).astype(np.float32)
    network = ActionNetwork(EnvShape(1, count, STATE_FEATURES, MOVE_FEATURES), (8, 8), 1)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    observation = Observation(
        flat[None], features[None], np.zeros((1, count), np.float32), np.ones((1, count), bool)
    )
    with torch.inference_mode():
        expected = network(network_inputs(observation)).squeeze(-1)[0].numpy()
    np.testing.assert_allclose(
        learnt_values(weights, features, flat), expected, rtol=1e-4, atol=1e-5
    )


def test_what_is_learnt_decides_where_it_goes():
    """With the shipped weights a roll-out asks for no more points than one without learning may."""
    context = search_context(*mlp(batch=4096, width=4096, hidden=16384), topology="v5e:2x4")
    best_preset_seconds(context)
    before = context.evaluations
    began = {start.point.mesh: start for start in mesh_starts(context)}
    reached = first_roll_out(context, shipped_player())
    assert reached is not None
    assert context.evaluations - before <= MOST_TURNS * (PRICED + CHAINED) + len(context.meshes)
    start = began[reached.point.mesh]
    assert reached.estimate.step_seconds < start.estimate.step_seconds
