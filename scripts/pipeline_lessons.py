"""Lessons for the pipeline agent: states of generated problems with what their actions are worth.

q*(a) = log(L0 / L) of the best partition that goes on with a, of what loses at most MOST_LOSS:
    two actions left    of every candidate, by search of all that is left
    three               of the FIRST best by the player and by what is known without it, likewise
    more                of as many, by a beam of LOOK without learning, and of the best known
                        partition as it is
                                                                -> in: `all_worths`, `_step_after`

States are those of the best known partition and those that the agent itself comes to (as DAgger),
random ones now and then.

`GamesEnv` has the same games for reinforcement: the reward is log(L0 / L) of the best partition
that the path knew of, at its end, so that Q is what a lesson says of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from automap.pipeline.agent.candidates import (
    ACTION_FEATURES,
    N_CANDIDATES,
    STATE_FEATURES,
    Candidates,
    Game,
    candidates,
    new_game,
)
from automap.pipeline.agent.play import TRAINED_STAGES, Score, beam, greedy
from automap.pipeline.agent.problems import Size, generate
from automap.pipeline.agent.states import State, actions, last_two, next_state
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import improve
from rl.env import EnvShape, Observation, Outcome, empty_observation
from rl.imitation import Lessons


SHAPE = EnvShape(
    n_envs=1,
    n_actions=N_CANDIDATES,
    n_flat=len(STATE_FEATURES),
    n_features=len(ACTION_FEATURES),
)
SIZES = (
    # (chance, stages, points, servers, devices of each)
    (0.16, (3, 3), (96, 128), (2, 4), (4, 8)),
    (0.30, (4, 4), (64, 128), (2, 4), (4, 8)),
    (0.04, (4, 4), (96, 128), (8, 8), (8, 8)),
    (0.23, (5, 6), (40, 64), (2, 4), (4, 6)),
    (0.20, (7, 8), (32, 48), (2, 4), (4, 5)),
    (0.05, (6, 8), (48, 64), (8, 8), (8, 8)),
    (0.02, (6, 8), (48, 64), (16, 32), (8, 8)),
)
MOST_LOSS = 0.03
FIRST = 16
"""So many actions are searched of the best by the player, and as many by `made`."""
LOOK = (4, 4)
"""(width, branch) of the beam, without learning, that says what they are worth."""
# So often another of the first candidates is taken, to see states that no player comes to.
_RANDOM = 0.1


@dataclass(frozen=True)
class Lesson:
    """One state: its candidates, and q* of each, NaN if unknown."""

    candidates: Candidates
    worth: np.ndarray


def drawn_size(rng: np.random.Generator) -> Size:
    """A size at random: most of four stages."""
    chances = np.array([row[0] for row in SIZES])
    _, *ranges = SIZES[int(rng.choice(len(SIZES), p=chances / chances.sum()))]
    stages, points, servers, per_server = (int(rng.integers(a, b + 1)) for a, b in ranges)
    return Size(stages=stages, points=points, servers=servers, per_server=per_server)


def problem_lessons(seed: int, score: Score) -> Iterator[Lesson]:
    """The lessons of one problem: on the best path, and on the one that `score` plays."""
    rng = np.random.default_rng([seed, 1])
    game = drawn_game(seed)
    best = None
    # Up to four stages every state has few enough actions left to be searched whole.
    if game.stages > 4:
        best = best_known(game)
        yield from _path_lessons(game, best, score)
    state = game.start
    for h in range(game.stages - 1, 1, -1):
        options = candidates(game, state)
        q = score(options)
        if best is None or h <= 3 or _rest(best, state.decided) != (state.cuts, state.device_cuts):
            lesson = all_worths(game, state, options, score)
            yield lesson
            if h == 3:
                place = int(np.nanargmax(lesson.worth))
                then = _taken(game, state, options, place)
                yield all_worths(game, then, candidates(game, then), score)
        place = int(rng.integers(min(len(q), 16))) if rng.random() < _RANDOM else int(q.argmax())
        state = _taken(game, state, options, place)


def drawn_game(seed: int) -> Game:
    """The problem of a seed, of a size that the seed draws."""
    size = drawn_size(np.random.default_rng([seed, 0]))
    game = new_game(generate(seed, size).arrays, size.stages)
    if game is None:
        raise AssertionError(f"no partition of the problem of seed {seed} fits, of size {size}")
    return game


def unlearned(options: Candidates) -> np.ndarray:
    """Q without learning: the step with the good division of what is left."""
    return options.baseline


def best_known(game: Game) -> Partition:
    """The best of a greedy path and a beam without learning, improved by local search."""
    first = greedy(game, unlearned)
    leaf = beam(game, unlearned, 8, 8, first.seconds)
    return improve(game.arrays, first if leaf is None else leaf)


def _rest(best: Partition, decided: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The boundaries of a partition's last stages."""
    return (
        tuple(best.cuts[-decided - 1 :].tolist()),
        tuple(best.device_cuts[-decided - 1 :].tolist()),
    )


def _taken(game: Game, state: State, options: Candidates, place: int) -> State:
    return next_state(game.arrays, state, int(options.points[place]), int(options.units[place]))


def _path_lessons(game: Game, best: Partition, score: Score) -> Iterator[Lesson]:
    """The states of the best partition that have four actions or more left."""
    state = game.start
    for k in range(game.stages - 4):
        (i, *_), (d, *_) = _rest(best, k + 1)
        options = candidates(game, state, (i, d))
        yield all_worths(game, state, options, score, best)
        state = next_state(game.arrays, state, i, d)


def all_worths(
    game: Game,
    state: State,
    options: Candidates,
    score: Score,
    known: Partition | None = None,
) -> Lesson:
    """What the candidates are worth that lose at most MOST_LOSS; `known` goes on from the state
    with one of them.
    """
    q = score(options)
    order = np.argsort(-q, kind="stable")
    # With more than two actions left the search takes too long for all of them.
    if game.stages - state.decided > 3:
        looked_at = {*order[:FIRST].tolist(), *np.argsort(options.made)[:FIRST].tolist()}
        order = np.array([place for place in order if place in looked_at])
    steps, best = np.full(len(options.least), np.inf), options.made.min()
    if known is not None:
        (i, *_), (d, *_) = _rest(known, state.decided + 1)
        steps[(options.points == i) & (options.units == d)] = known.seconds
        best = min(best, known.seconds)
    # The best by the player first: their steps bound the search of all others.
    for place in order:
        bound = best * (1.0 + MOST_LOSS)
        if options.least[place] > bound:
            continue
        step = _step_after(game, _taken(game, state, options, place), bound)
        if options.made[place] <= bound:
            step = min(step, options.made[place])
        steps[place] = min(steps[place], step)
        best = min(best, steps[place])
    worth = np.where(np.isfinite(steps), np.log(game.bound_seconds) - np.log(steps), np.nan)
    return Lesson(options, worth.astype(np.float32))


def _step_after(game: Game, state: State, bound: float) -> float:
    """The best step that a state leads to, inf if none is known below a bound."""
    left = game.stages - state.decided
    if left == 2:
        return float(actions(game.arrays, game.heads, state)[0].min())
    if left == 3:
        return last_two(game.arrays, game.heads, state, bound)[0]
    part = Game(game.arrays, game.heads, state, game.bound_seconds)
    leaf = beam(part, unlearned, *LOOK, bound)
    return np.inf if leaf is None else leaf.seconds


class GamesEnv:
    """Games of generated problems, `count` at once, for `rl.train.Trainer`; each is played once."""

    def __init__(self, first_seed: int, count: int):
        """Problems of the seeds from the first on."""
        self._first = first_seed
        self._episodes = [0] * count
        self._taken: list[list[int]] = [[] for _ in range(count)]
        self._games = [drawn_game(first_seed + row) for row in range(count)]
        self._states = [game.start for game in self._games]
        self._options = [candidates(game, game.start) for game in self._games]
        # The best step that each path knows of so far.
        self._least = [float(options.made.min()) for options in self._options]

    @property
    def shape(self) -> EnvShape:
        """Sizes that no problem changes."""
        return replace(SHAPE, n_envs=len(self._games))

    def observe(self) -> Observation:
        """The states of all games."""
        unknown = (np.full(len(each.points), np.nan, np.float32) for each in self._options)
        return batched([Lesson(*each) for each in zip(self._options, unknown)]).states

    def step(self, actions: np.ndarray) -> Outcome:
        """An action of each game; a game that is over makes room for the next problem."""
        rewards, dones = np.zeros(len(actions), np.float32), np.zeros(len(actions), bool)
        for row, place in enumerate(actions.tolist()):
            self._take(row, place)
            game, state = self._games[row], self._states[row]
            if game.stages - state.decided == 2:
                rewards[row], dones[row] = np.log(game.bound_seconds / self._least[row]), True
                self._begin(row, self._episodes[row] + 1)
        return Outcome(rewards, dones)

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Numbers of the games, and the actions that were taken in them."""
        taken = np.full((len(self._games), TRAINED_STAGES), -1)
        for row, places in enumerate(self._taken):
            taken[row, : len(places)] = places
        return {"episodes": np.array(self._episodes), "taken": taken}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for row, (episode, taken) in enumerate(zip(arrays["episodes"], arrays["taken"])):
            self._begin(row, int(episode))
            for place in taken[taken >= 0].tolist():
                self._take(row, place)

    def _begin(self, row: int, episode: int) -> None:
        self._episodes[row], self._taken[row] = episode, []
        game = drawn_game(self._first + episode * len(self._games) + row)
        self._games[row], self._states[row] = game, game.start
        self._options[row] = candidates(game, game.start)
        self._least[row] = float(self._options[row].made.min())

    def _take(self, row: int, place: int) -> None:
        game = self._games[row]
        state = _taken(game, self._states[row], self._options[row], place)
        self._states[row] = state
        self._taken[row].append(place)
        if game.stages - state.decided == 2:
            made = actions(game.arrays, game.heads, state)[1].min()
        else:
            self._options[row] = candidates(game, state)
            made = self._options[row].made.min()
        self._least[row] = min(self._least[row], float(made))


def batched(lessons: list[Lesson]) -> Lessons:
    """Lessons as arrays, rows filled up to N_CANDIDATES."""
    states = empty_observation(SHAPE, len(lessons))
    worth = np.full((len(lessons), N_CANDIDATES), np.nan, np.float32)
    states.mask[:] = False
    for row, lesson in enumerate(lessons):
        options, count = lesson.candidates, len(lesson.worth)
        states.flat[row], states.features[row, :count] = options.flat, options.features
        states.baseline[row, :count], states.mask[row, :count] = options.baseline, True
        worth[row, :count] = lesson.worth
    return Lessons(states, worth)


def rows(lessons: Lessons, chosen: np.ndarray) -> Lessons:
    """Those lessons."""
    return Lessons(lessons.states.rows(chosen), lessons.worth[chosen])


def joined(parts: list[Lessons]) -> Lessons:
    """All lessons of several lots."""
    fields = zip(*(part.states.arrays().values() for part in parts))
    return Lessons(
        Observation(*(np.concatenate(each) for each in fields)),
        np.concatenate([part.worth for part in parts]),
    )
