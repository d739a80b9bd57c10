"""Lessons for the sharding agent: points of training problems with what their moves are worth.

A problem is a generated step (`scripts.sharding_problems`) or one of the zoo's first half
(`scripts.halves`), on two machines of `MACHINES`, none of which the agent is judged on, with the
memory of the device or less. The agent plays it as it will be played, from two meshes and from a
point that was changed at random; climbs then price some hundreds of plans around the best, and of
all that was priced on a mesh, K,

    b(p) = c(p) + NEAR d(p, x)       d: decisions in which p is not the point x
    Q(x, move) = min over p in K that keep what the move changes of b(p)
               - min over p in K that have it as the move makes it of b(p)     -> in: `worths`

With NEAR > 0 of equal plans the nearest is wanted. Meshes are worth how much the best plan on each
is behind the best of all                                                    -> in: `_mesh_worth`

After imitation the agent may learn from what comes of its own moves: games of single moves of the
same problems, the reward being what c falls by                              -> in: `MovesEnv`
or from where whole roll-outs end                                            -> in: `RollOuts`
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
import importlib
from random import Random

import numpy as np

from automap.action_network import Weights
from automap.config import Options as PlanOptions
from automap.deadline import Deadline
from automap.errors import AutomapError
from automap.planner.sharding import find
from automap.program.trace import Workload, trace_step
from automap.search import OutOfBudget, SearchContext
from automap.search.agent.options import (
    MOVE_FEATURES,
    PRICE_FEATURES,
    STATE_FEATURES,
    Options,
    Seen,
)
from automap.search.agent.play import (
    MESH_FEATURES,
    Player,
    decided,
    mesh_features,
    mesh_starts,
    roll_out,
    turn,
)
from automap.search.context import Candidate
from automap.search.greedy import climb, climb_meshes
from automap.search.mcmc import change_randomly
from automap.topology import get_topology
from rl.env import EnvShape, Observation, Outcome, empty_observation
from rl.imitation import Lessons
from scripts.halves import is_held_out
from scripts.plan_matrix import MODELS
from scripts.sharding_problems import generated_step


MACHINES = {
    "tpu": ("v5e:4x4", "v5e:2x2", "v6e:2x4", "v6e:4x4", "v4:2x2x2", "v4:2x2x4", "tpu7x:2x2x1"),
    "cuda": (
        "4xh100",
        "8xa100",
        "2x8xa100",
        "4x4xv100",
        "2x8xv100-32gb",
        "2x4xp100",
        "8xb200",
        "4x8xa100-40gb",
        "2x4xh200",
    ),
}
ZOO = tuple(target for target in MODELS if not is_held_out(target))
# One problem in so many is of the zoo.
_ZOO_EVERY = 10
_MACHINES_OF_A_STEP = 2
# Parts of the memory that data parallelism takes; none is the device's own.
_MEMORY = (None, None, None, 0.7, 0.45, 0.3)
NEAR = 0.002
MOST_OPTIONS, MOST_MESHES = 160, 24
MOVES_SHAPE = EnvShape(1, MOST_OPTIONS, STATE_FEATURES, MOVE_FEATURES)
MESHES_SHAPE = EnvShape(1, MOST_MESHES, STATE_FEATURES, MESH_FEATURES)
_BUDGET_SECONDS = 20.0
# Of a roll-out, and of the options of one of its points: enough to learn from.
_TURNS, _PRICED = 3, 40
# Moves of a game, the share of its starts that are of the next mesh, and how many of the options of
# a point are priced when it is seen: none before the agent chooses, then those of a turn.
GAME_MOVES, _NEXT_MESH, _SEEN_PRICED = 5, 0.5, (0, 12, 12, 40)
# The place, among all plans by their price, of another start of a climb on the same mesh.
_SECOND_START = 25


def problem_contexts(seed: int) -> Iterator[SearchContext]:
    """Searches that have priced presets and nothing else."""
    rng = Random(seed)
    platform = rng.choice(tuple(MACHINES))
    workload = _workload(seed, platform)
    for machine in rng.sample(MACHINES[platform], _MACHINES_OF_A_STEP):
        part = rng.choice(_MEMORY)
        topology = get_topology(machine)
        try:
            options = PlanOptions(preset="data-parallel", memory_limit_bytes=1e15, seed=seed)
            outcome = find(workload, topology, options)
        # A batch that no axis divides has no such preset; the next machine may suit it.
        except AutomapError:
            continue
        context, peak_bytes = outcome.context, outcome.best.estimate.peak_bytes
        limit = topology.device.memory_bytes if part is None else part * peak_bytes
        context.objective = replace(context.objective, memory_limit_bytes=limit)
        context.deadline = Deadline.after(_BUDGET_SECONDS)
        context.best = None
        for preset in context.best_per_preset.values():
            context.consider(preset.point, preset.origin)
        yield context


def _workload(seed: int, platform: str) -> Workload:
    if seed % _ZOO_EVERY:
        step, args = generated_step(seed)
    else:
        target = ZOO[seed // _ZOO_EVERY % len(ZOO)]
        module, _, function = target.partition(":")
        step, args = getattr(importlib.import_module(module), function)(**MODELS[target])
    return trace_step(step, args, platform=platform)


def problem_lessons(seed: int, player: Player) -> tuple[Lessons, Lessons]:
    """Lessons of moves and of meshes of one step on its machines."""
    moves: list[tuple[Options, np.ndarray]] = []
    meshes: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    for context in problem_contexts(seed):
        seen = Seen(context)
        starts = player.ranked(context, seen, mesh_starts(context))
        about = mesh_features(context, seen, starts)
        states = list(_states(context, seen, player, starts, Random(seed)))
        _search(context, [current for current, _ in states])
        moves += [(options, worths(context, current, options)) for current, options in states]
        meshes.append((*about, _mesh_worth(context, starts)))
    return _moves_batched(moves), _meshes_batched(meshes)


def _states(
    context: SearchContext,
    seen: Seen,
    player: Player,
    starts: Sequence[Candidate],
    rng: Random,
) -> Iterator[tuple[Candidate, Options]]:
    """Points that the player comes to, with all their options priced."""
    # The mesh that it thinks most of, and any other.
    chosen = [*starts[:1], *rng.sample(starts[1:], min(1, len(starts) - 1))]
    point = starts[0].point
    for _ in range(3):
        point = change_randomly(context.space, point, rng)
    changed = context.evaluate(context.pinned.impose(point), "lesson")
    for start in (*chosen, *([changed] if changed else [])):
        current = start
        for number in range(_TURNS):
            best = context.best
            options = seen.options(current, number)
            places = rng.sample(range(1, len(options.moves)), min(_PRICED, len(options.moves) - 1))
            candidates = list(context.evaluate_all([options.points[p] for p in places], "lesson"))
            # The player has not seen all of these.
            context.best = best
            yield current, options.priced(context, current, places, candidates)
            reached = min(
                turn(context, seen, player, current, number),
                key=lambda c: context.objective.key(c.estimate),
                default=None,
            )
            if reached is None or not context.is_better(reached, current):
                break
            current = reached


def _search(context: SearchContext, around: Sequence[Candidate]) -> None:
    """Price what is good: climbs on all meshes, and from second starts on those of the lessons."""
    try:
        climb_meshes(context, context.distinct_meshes)
        for mesh in dict.fromkeys(c.point.mesh for c in around):
            for start in context.priced_on(mesh)[::_SECOND_START][:2]:
                climb(context, start)
    except OutOfBudget:
        pass


def worths(context: SearchContext, current: Candidate, options: Options) -> np.ndarray:
    """Q of the options, float32 [A]; NaN of those that are not allowed."""
    space, objective = context.space, context.objective
    known = context.priced_on(current.point.mesh)
    all_decided = np.array([decided(space, c.point) for c in known])
    here = decided(space, current.point)
    differs = all_decided != here
    costs = np.array([objective.cost(c.estimate) for c in known])
    costs = costs + NEAR * differs.sum(1)
    worth = np.full(len(options.moves), np.nan, np.float32)
    worth[0] = 0.0
    for place, point in enumerate(options.points):
        there = decided(space, point)
        changes = np.flatnonzero(there != here)
        made = (all_decided[:, changes] == there[changes]).all(1)
        kept = ~differs[:, changes].any(1)
        if len(changes) and np.isfinite(options.saved[place]) and made.any():
            worth[place] = costs[kept].min() - costs[made].min()
    return worth


def _mesh_worth(context: SearchContext, starts: Sequence[Candidate]) -> np.ndarray:
    """How much the best plan of each mesh is behind the best of all, float32 [meshes]."""
    objective = context.objective
    best = [objective.cost(context.priced_on(s.point.mesh)[0].estimate) for s in starts]
    return (min(best) - np.array(best)).astype(np.float32)


def _moves_batched(lessons: Sequence[tuple[Options, np.ndarray]]) -> Lessons:
    states, worth = _empty(MOVES_SHAPE, len(lessons))
    for row, (options, own) in enumerate(lessons):
        count = min(len(own), MOST_OPTIONS)
        states.flat[row], states.features[row, :count] = options.flat, options.features[:count]
        states.mask[row, :count] = np.isfinite(own[:count])
        states.baseline[row, :count] = np.nan_to_num(options.saved[:count], neginf=0.0)
        worth[row, :count] = own[:count]
    return Lessons(states, worth)


def _meshes_batched(
    lessons: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
) -> Lessons:
    states, worth = _empty(MESHES_SHAPE, len(lessons))
    for row, (features, flat, behind, own) in enumerate(lessons):
        count = min(len(own), MOST_MESHES)
        states.flat[row], states.features[row, :count] = flat, features[:count]
        states.mask[row, :count] = True
        states.baseline[row, :count], worth[row, :count] = behind[:count], own[:count]
    return Lessons(states, worth)


def _empty(shape: EnvShape, count: int) -> tuple[Observation, np.ndarray]:
    states = empty_observation(shape, count)
    states.mask[:] = False
    return states, np.full((count, shape.n_actions), np.nan, np.float32)


def with_prices_hidden(lessons: Lessons, rng: np.random.Generator) -> Lessons:
    """Lessons of moves with the prices of some options, of all or of none hidden."""
    states = lessons.states
    # As they are seen when the agent plays: none before it chooses what to price, a part after.
    share = rng.choice([0.0, 0.15, 0.3, 0.6, 1.0], size=(len(lessons.worth), 1))
    shown = rng.random(states.mask.shape) < share
    shown[:, 0] = True
    features = states.features.copy()
    features[..., -PRICE_FEATURES:] *= shown[..., None]
    baseline = np.where(shown, states.baseline, 0.0).astype(np.float32)
    return Lessons(Observation(states.flat, features, baseline, states.mask), lessons.worth)


class Game:
    """Moves of one problem: `GAME_MOVES` times a point is changed by a move, or left as it is."""

    def __init__(self, context: SearchContext, seed: int):
        """`context` has priced presets alone; it is moved by nobody else."""
        context.deadline = Deadline.never()
        self.context, self.seen, self._seed = context, Seen(context), seed
        self.starts = Player().ranked(context, self.seen, mesh_starts(context))
        self._begun_with = context.best
        self.episode, self.taken = 0, list[int]()
        self.current = self._start()
        self.options = self._options()

    def is_reset(self) -> SearchContext:
        """The context as it was when nothing but presets was known to be good."""
        self.context.best = self._begun_with
        return self.context

    def take(self, action: int) -> float:
        """What the move saves of the cost; a move that is not allowed leaves the point."""
        context, before = self.is_reset(), self.current
        moved = context.evaluate(self.options.points[action], "game") if action else None
        self.current = moved or before
        self.taken.append(action)
        saved = context.objective.cost(before.estimate) - context.objective.cost(
            self.current.estimate
        )
        if self.is_over:
            return saved
        self.options = self._options()
        return saved

    @property
    def is_over(self) -> bool:
        """Whether all moves are made."""
        return len(self.taken) == GAME_MOVES

    def begin(self, episode: int) -> None:
        """The game of that number."""
        self.episode, self.taken = episode, []
        self.current = self._start()
        self.options = self._options()

    def _start(self) -> Candidate:
        # A better mesh more often.
        place = int(self._source().geometric(_NEXT_MESH)) - 1
        return self.starts[min(place, len(self.starts) - 1)]

    def _options(self) -> Options:
        context, source = self.is_reset(), self._source()
        options = self.seen.options(self.current, len(self.taken))
        count = min(int(source.choice(_SEEN_PRICED)), len(options.moves) - 1)
        places = (1 + source.permutation(len(options.moves) - 1)[:count]).tolist()
        candidates = list(context.evaluate_all([options.points[p] for p in places], "game"))
        return options.priced(self.is_reset(), self.current, places, candidates)

    def _source(self) -> np.random.Generator:
        # Of the place in the run alone, so that a run that is resumed sees the same.
        return np.random.default_rng([self._seed, self.episode, len(self.taken)])


class MovesEnv:
    """Games of several problems, one of each at once, for `rl.train.Trainer`.

    With h moves left and c*(x, h) the least cost that they lead to, Q(x, move) - Q(x, leave) is
    c*(x, h - 1) - c*(x after the move, h - 1): what the move is worth, and 0 where it can wait.
    """

    def __init__(self, games: Sequence[Game]):
        """At least one."""
        self.games = games

    @property
    def shape(self) -> EnvShape:
        """Sizes that no problem changes."""
        return replace(MOVES_SHAPE, n_envs=len(self.games))

    def observe(self) -> Observation:
        """All points."""
        states, _ = _empty(MOVES_SHAPE, len(self.games))
        for row, game in enumerate(self.games):
            options = game.options
            count = min(len(options.moves), MOST_OPTIONS)
            states.flat[row], states.features[row, :count] = options.flat, options.features[:count]
            states.mask[row, :count] = np.isfinite(options.saved[:count])
            states.baseline[row, :count] = np.nan_to_num(options.saved[:count], neginf=0.0)
        return states

    def step(self, actions: np.ndarray) -> Outcome:
        """A move of each game; those that are over begin anew."""
        rewards = [game.take(int(action)) for game, action in zip(self.games, actions, strict=True)]
        dones = np.array([game.is_over for game in self.games])
        for game in self.games:
            if game.is_over:
                game.begin(game.episode + 1)
        return Outcome(np.array(rewards, np.float32), dones)

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Numbers of the games, and the moves that were made in them."""
        taken = np.full((len(self.games), GAME_MOVES), -1)
        for row, game in enumerate(self.games):
            taken[row, : len(game.taken)] = game.taken
        return {"episodes": np.array([game.episode for game in self.games]), "taken": taken}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for game, episode, taken in zip(self.games, arrays["episodes"], arrays["taken"]):
            game.begin(int(episode))
            for action in taken[taken >= 0].tolist():
                game.take(action)


class RollOuts:
    """Roll-outs on games' problems, each from the mesh that a network says promises most."""

    def __init__(self, played: Sequence[Game], meshes: Weights):
        """Played by nobody else."""
        ranking = Player(None, meshes)
        self._games = [
            (game, ranking.ranked(game.is_reset(), game.seen, game.starts)[0]) for game in played
        ]

    def __len__(self) -> int:
        """Of problems."""
        return len(self._games)

    def costs(self, moves: Weights | None, places: Sequence[int]) -> np.ndarray:
        """Of the plans that roll-outs on the problems at `places` end at, float [places]."""
        player, reached = Player(moves), []
        for game, start in (self._games[place] for place in places):
            context = game.is_reset()
            best = roll_out(context, game.seen, player, start)
            reached.append(context.objective.cost(best.estimate))
        return np.array(reached)
