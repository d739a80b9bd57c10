"""Lessons for the pipeline agent: states of generated problems with what their actions are worth.

q*(a) = log(L0 / L) of the best partition that goes on with a:
    two or three actions left   of every candidate that loses at most MOST_LOSS, by search
                                                                -> in: `all_worths`
    more                        of the best one, by the exact solver with the tail frozen
                                                                -> in: `frozen`, `_best_worth`

States are those on the exact solver's path and those that the agent itself comes to (as DAgger),
random ones now and then.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
from automap.pipeline.agent.play import Score, beam
from automap.pipeline.agent.problems import Size, generate
from automap.pipeline.agent.states import State, actions, last_two, next_state
from automap.pipeline.arrays import Arrays
from automap.pipeline.solvers.exact import Partition, solve
from automap.pipeline.solvers.local import improve
from rl.env import EnvShape, Observation, empty_observation
from rl.imitation import Lessons


SHAPE = EnvShape(
    n_envs=1,
    n_actions=N_CANDIDATES,
    n_flat=len(STATE_FEATURES),
    n_features=len(ACTION_FEATURES),
)
SIZES = (
    # (chance, stages, points, servers, devices of each)
    (0.10, (3, 3), (96, 128), (2, 4), (4, 8)),
    (0.45, (4, 4), (64, 128), (2, 4), (4, 8)),
    (0.04, (4, 4), (128, 128), (8, 8), (8, 8)),
    (0.23, (5, 6), (40, 64), (2, 4), (4, 6)),
    (0.18, (7, 8), (32, 48), (2, 4), (4, 5)),
)
MOST_LOSS = 0.2
# So often another of the first candidates is taken, to see states that no player comes to.
_RANDOM = 0.1
# Finite, as infinity times zero bytes would be NaN in the solver's sums.
_ENORMOUS = 1e25
_MOST_WORK = 200_000_000


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
    size = drawn_size(rng)
    problem = generate(seed, size)
    game = new_game(problem.arrays, size.stages)
    if game is None:
        return
    # Up to four stages every state has few enough actions left to be searched whole.
    if size.stages > 4:
        leaf = beam(game, score, 8, 8)
        # A bound near the optimum keeps the exact solver short.
        bound = np.inf if leaf is None else improve(game.arrays, leaf).seconds
        solved = solve(game.arrays, size.stages, bound, most_work=_MOST_WORK)
        if solved.best is None or not solved.proven:
            return
        yield from _path_lessons(game, solved.best)
    state = game.start
    for h in range(size.stages - 1, 1, -1):
        options = candidates(game, state)
        q = score(options)
        if h <= 3:
            lesson = all_worths(game, state, options, q)
            yield lesson
            if h == 3:
                place = int(np.nanargmax(lesson.worth))
                then = next_state(
                    game.arrays, state, int(options.points[place]), int(options.units[place])
                )
                found_then = candidates(game, then)
                yield all_worths(game, then, found_then, score(found_then))
        elif state.decided:
            yield from _best_worth(game, state, score)
        place = int(rng.integers(min(len(q), 16))) if rng.random() < _RANDOM else int(q.argmax())
        state = next_state(
            game.arrays, state, int(options.points[place]), int(options.units[place])
        )


def _path_lessons(game: Game, best: Partition) -> Iterator[Lesson]:
    """The states of the best partition that have four actions or more left."""
    state, stages = game.start, game.stages
    worth = np.log(game.bound_seconds / best.seconds)
    for k in range(stages - 4):
        wanted = int(best.cuts[stages - 1 - k]), int(best.device_cuts[stages - 1 - k])
        yield _lesson(candidates(game, state, wanted), wanted, worth)
        state = next_state(game.arrays, state, *wanted)


def _lesson(options: Candidates, wanted: tuple[int, int], worth: float) -> Lesson:
    row = np.full(len(options.points), np.nan, np.float32)
    # Of all other candidates nothing is known but that they are no better.
    row[(options.points == wanted[0]) & (options.units == wanted[1])] = worth
    return Lesson(options, row)


def all_worths(game: Game, state: State, options: Candidates, q: np.ndarray) -> Lesson:
    """What every candidate is worth that loses at most MOST_LOSS."""
    arrays, heads = game.arrays, game.heads
    steps, best = np.full(len(options.least), np.inf), options.made.min()
    # The best by the player first: their steps bound the search of all others.
    for place in np.argsort(-q, kind="stable"):
        bound = best * (1.0 + MOST_LOSS)
        if options.least[place] > bound:
            continue
        then = next_state(arrays, state, int(options.points[place]), int(options.units[place]))
        if game.stages - then.decided == 2:
            steps[place] = actions(arrays, heads, then)[0].min()
        else:
            steps[place] = last_two(arrays, heads, then, bound)[0]
        best = min(best, steps[place])
    worth = np.where(np.isfinite(steps), np.log(game.bound_seconds) - np.log(steps), np.nan)
    return Lesson(options, worth.astype(np.float32))


def _best_worth(game: Game, state: State, score: Score) -> Iterator[Lesson]:
    """The best action of a state off the path, by the exact solver."""
    stages, k = game.stages, state.decided
    part = Game(game.arrays, game.heads, state, game.bound_seconds)
    leaf = beam(part, score, 8, 8)
    if leaf is None:
        return
    solved = solve(frozen(game.arrays, state), stages, leaf.seconds, most_work=_MOST_WORK)
    best = solved.best
    if best is None or not solved.proven:
        return
    tail = tuple(best.cuts[-k - 1 :]), tuple(best.device_cuts[-k - 1 :])
    if tail != (state.cuts, state.device_cuts):
        raise AssertionError(f"{tail} is not the frozen {state}")
    wanted = int(best.cuts[stages - 1 - k]), int(best.device_cuts[stages - 1 - k])
    worth = np.log(game.bound_seconds / best.seconds)
    yield _lesson(candidates(game, state, wanted), wanted, worth)


def frozen(arrays: Arrays, state: State) -> Arrays:
    """The problem in which only the head of a state is left to decide."""
    n, units = arrays.n_points, arrays.n_units
    j, e = state.cuts[0], state.device_cuts[0]
    stages = set(zip(state.cuts, state.cuts[1:]))
    state_bytes = arrays.state_bytes.copy()
    a, b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    tail = (a < b) & (b > j)
    for pair in stages:
        # The stages that are decided stay allowed; any other that reaches into the tail is not.
        tail[pair] = False
    state_bytes[tail] = np.inf
    reduce = arrays.reduce_seconds_per_byte.copy()
    d, f = np.meshgrid(np.arange(units + 1), np.arange(units + 1), indexing="ij")
    reduce[(d < e) & (f > e)] = _ENORMOUS
    may_cut, may_cut_devices = arrays.may_cut.copy(), arrays.may_cut_devices.copy()
    # In the tail only where it is cut already.
    may_cut[j:], may_cut_devices[e:] = False, False
    may_cut[list(state.cuts)], may_cut_devices[list(state.device_cuts)] = True, True
    limit = min(arrays.memory_limit_bytes, 1e300)
    return arrays._replace(
        state_bytes=state_bytes,
        reduce_seconds_per_byte=reduce,
        may_cut=may_cut,
        may_cut_devices=may_cut_devices,
        gradient_bytes=np.maximum(arrays.gradient_bytes, 1e-12),
        memory_limit_bytes=limit,
    )


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
