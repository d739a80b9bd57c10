"""What moves are worth, against their definition on a space that is priced whole."""

import numpy as np
import pytest
from rich.progress import Progress


pytest.importorskip("torch")

from automap.action_network import load_weights
from automap.search.agent.options import PRICE_FEATURES, Seen
from automap.search.agent.play import (
    MESHES_FORMAT,
    MESHES_SHIPPED,
    MOVES_FORMAT,
    MOVES_SHIPPED,
    Player,
    decided,
    first_roll_out,
    mesh_features,
    mesh_starts,
)
from automap.search.exhaustive import exhaustive
from automap.search.presets import price_presets
from rl.checkpoint import Checkpoint, save
from scripts.nearest_lesson import NearestPlayer
from scripts.sharding_lessons import GAME_MOVES, NEAR, Game, MovesEnv, RollOuts, worths
from scripts.sharding_problems import generated_step
from scripts.train_sharding_agent import evolved_moves
from tests.automap.search.contexts import search_context
from tests.steps import mlp


def test_worths_are_differences_of_least_costs():
    context = search_context(*mlp(batch=4096, width=1024, hidden=4096), topology="v5e:2x2")
    start = mesh_starts(context)[-1]
    options = Seen(context).options(start, 0)
    exhaustive(context)
    own = decided(context.space, start.point)

    plans = [
        (decided(context.space, c.point), context.objective.cost(c.estimate))
        for c in context.priced_on(start.point.mesh)
    ]

    def least(point, changes):
        """The least cost of all plans that decide some things as a point does."""
        wanted = decided(context.space, point)[changes]
        return min(
            cost + NEAR * int((plan != own).sum())
            for plan, cost in plans
            if (plan[changes] == wanted).all()
        )

    worth = worths(context, start, options)
    assert worth[0] == 0.0
    checked = 0
    for place in np.flatnonzero(np.isfinite(worth)).tolist()[1:]:
        changes = decided(context.space, options.points[place]) != own
        expected = least(start.point, changes) - least(options.points[place], changes)
        assert worth[place] == pytest.approx(expected, abs=1e-5)
        checked += 1
    assert checked > 3


def test_a_generated_step_follows_from_its_seed():
    for seed in range(12):
        _, first = generated_step(seed)
        _, again = generated_step(seed)
        assert first == again


def test_the_nearest_player_says_what_a_lesson_said_of_the_same_move(tmp_path):
    context = search_context(*mlp(batch=4096, width=1024, hidden=4096), topology="v5e:2x2")
    seen = Seen(context)
    starts = mesh_starts(context)
    options = seen.options(starts[-1], 0)
    source = np.random.default_rng(0)
    structure = options.features.shape[1] - PRICE_FEATURES
    features = options.features[None].copy()
    features[..., structure:] = 0.0
    # Two problems of moves that look the same, which are worth other things: the first is of this
    # state and prefers the last mesh.
    said = source.normal(size=(2, structure)).astype(np.float32) @ features[0, :, :structure].T
    mesh, flat, behind = mesh_features(context, seen, starts)
    for number, sign in enumerate((1.0, -1.0)):
        away = np.float32(5.0 * number)
        moves = {
            "flat": options.flat[None] + away,
            "features": features,
            "mask": np.isfinite(options.saved)[None],
            "baseline": np.zeros((1, len(options.moves)), np.float32),
            "worth": said[number : number + 1],
        }
        meshes = {
            "flat": flat[None] + away,
            "features": mesh[None],
            "mask": np.ones((1, len(starts)), bool),
            "baseline": behind[None],
            "worth": sign * np.arange(len(starts), dtype=np.float32)[None],
        }
        for name, arrays in {"moves": moves, "meshes": meshes}.items():
            save(tmp_path / f"{name}-{number}.safetensors", Checkpoint(arrays, {}))
    player = NearestPlayer(tmp_path)
    allowed = np.isfinite(options.saved)
    scores = player.score(options)
    assert scores[0] == 0.0 and np.array_equal(np.isfinite(scores), allowed)
    assert scores[allowed][1:] == pytest.approx(said[0, allowed][1:], abs=1e-5)
    assert player.ranked(context, seen, starts)[0] is starts[-1]


def contexts(count):
    """Searches of one problem that have priced the presets."""
    made = [
        search_context(*mlp(batch=4096, width=1024, hidden=4096), topology="v5e:2x2")
        for _ in range(count)
    ]
    for context in made:
        price_presets(context)
    return made


def games(count):
    """Games of one problem with other numbers."""
    return [Game(context, number) for number, context in enumerate(contexts(count))]


def test_rewards_of_a_game_add_up_to_what_the_cost_falls_by():
    env, source = MovesEnv(games(3)), np.random.default_rng(0)
    costs = [[g.context.objective.cost(g.current.estimate)] for g in env.games]
    paid = np.zeros(3)
    for number in range(GAME_MOVES):
        mask = env.observe().mask
        actions = np.where(mask, source.random(mask.shape), -1.0).argmax(1)
        reached = [
            g.context.estimate(g.options.points[a]) if a else g.current.estimate
            for g, a in zip(env.games, actions, strict=True)
        ]
        outcome = env.step(actions)
        paid += outcome.rewards
        for game, own, estimate in zip(env.games, costs, reached, strict=True):
            # A move that is not allowed leaves the point.
            own.append(own[-1] if estimate is None else game.context.objective.cost(estimate))
        assert outcome.dones.all() == outcome.dones.any() == (number == GAME_MOVES - 1)
    assert paid == pytest.approx([own[0] - own[-1] for own in costs], abs=1e-5)
    assert all(game.episode == 1 and not game.taken for game in env.games)


def test_games_go_on_where_they_were():
    env, again = MovesEnv(games(2)), MovesEnv(games(2))
    source = np.random.default_rng(1)
    for _ in range(GAME_MOVES + 2):
        mask = env.observe().mask
        env.step(np.where(mask, source.random(mask.shape), -1.0).argmax(1))
    again.restore(env.arrays())
    for mine, other in zip(
        env.observe().arrays().values(), again.observe().arrays().values(), strict=True
    ):
        assert np.array_equal(mine, other)


def test_roll_outs_are_those_of_the_agent():
    moves = load_weights(MOVES_SHIPPED, MOVES_FORMAT)
    meshes = load_weights(MESHES_SHIPPED, MESHES_FORMAT)
    (context,), played = contexts(1), games(2)
    roll_outs = RollOuts(played, meshes)
    costs = roll_outs.costs(moves, [0, 1])
    reached = first_roll_out(context, Player(moves, meshes))
    assert reached is not None
    assert costs == pytest.approx([context.objective.cost(reached.estimate)] * 2)
    # What other weights have priced in between changes nothing.
    roll_outs.costs(None, [0, 1])
    assert (roll_outs.costs(moves, [1, 0]) == costs[::-1]).all()


class Valley(RollOuts):
    """Problems whose cost is how far the output layer is from a place of the problem's own."""

    def __init__(self, sign):
        self.sign, self.places = sign, np.random.default_rng(0).normal(3.0, 0.1, 60)

    def __len__(self):
        return len(self.places)

    def costs(self, moves, places):
        at = 0.0 if moves is None else float(moves["advantage.weight"].mean())
        return self.sign * 0.01 * np.abs(at - self.places[list(places)])


def test_evolution_keeps_what_brings_more_on_all_problems():
    source = np.random.default_rng(2)
    begun = {
        "advantage.weight": source.normal(size=(1, 8)).astype(np.float32),
        "value.weight": np.ones((1, 8), np.float32),
    }
    with Progress(disable=True) as progress:
        weights = evolved_moves(begun, Valley(1.0), 40, 0, progress)
        none = evolved_moves(begun, Valley(1.0), 0, 0, progress)
        # Nothing is better or worse: the weights are the first ones.
        same = evolved_moves(begun, Valley(0.0), 5, 0, progress)
    every = range(60)
    first, last = (Valley(1.0).costs(w, every).mean() for w in (begun, weights))
    assert last < 0.9 * first
    assert (weights["value.weight"] == 1.0).all() and weights["value.weight"].dtype == np.float32
    for kept in (none, same):
        assert (kept["advantage.weight"] == begun["advantage.weight"]).all()
