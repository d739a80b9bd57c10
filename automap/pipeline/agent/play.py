"""Playing a problem: greedily, by beams, and with local search from the best.

greedy       the best action of Q in each state; the last one by the step that it makes, which is
             known. Of the divisions that are known on this one path, each action's with the good
             one of its head, it has the best
beam w x b   of each state of a level the b best actions of Q (of the first state w); the w best of
             those by Q are the next level. The last two actions of the last level are searched as
             far as they can be below the best step so far; of the divisions that are known on its
             paths it has the best too
infer        greedy, then the beams `BEAMS`, each begun below the best step so far, all improved
             by local search; above TRAINED_STAGES, where a state costs more, greedy only

A beam may lose the greedy path where Q is too hopeful, so the best of several widths is taken. They
come to many of the same states, whose candidates and Q are made once           -> in: `_Looks`
With three stages there are two actions: the search is all there is, and its answer is the optimum.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from automap.action_network import Weights
from automap.pipeline.agent.candidates import Candidates, Game, candidates, new_game
from automap.pipeline.agent.network import values
from automap.pipeline.agent.states import State, actions, completed, last_two, next_state
from automap.pipeline.arrays import Arrays
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import even_split, improve
from automap.pipeline.value import value


# (width, branch), narrow ones first: what they reach is the bound below which the wide ones look.
BEAMS: Final = ((4, 4), (16, 8), (48, 16))
TRAINED_STAGES: Final = 8
Score = Callable[[Candidates], np.ndarray]
"""Q of the candidates of a state."""


class _Looks:
    """A game's states that were looked at, each once: its candidates, and Q of them if it was
    asked.
    """

    def __init__(self, game: Game, score: Score):
        self.game = game
        self._score = score
        self._seen: dict[tuple[tuple[int, ...], tuple[int, ...]], Candidates] = {}
        self._q: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray] = {}

    def candidates(self, state: State) -> Candidates:
        """Of a state."""
        key = state.cuts, state.device_cuts
        if key not in self._seen:
            self._seen[key] = candidates(self.game, state)
        return self._seen[key]

    def q(self, state: State) -> np.ndarray:
        """Of its candidates."""
        key = state.cuts, state.device_cuts
        if key not in self._q:
            self._q[key] = self._score(self.candidates(state))
        return self._q[key]


def greedy(game: Game, score: Score) -> Partition:
    """The best partition that one path knows of."""
    return _greedy(_Looks(game, score))


def _greedy(looks: _Looks) -> Partition:
    game = looks.game
    state, best = game.start, None
    for _ in range(game.stages - 2 - state.decided):
        choices = looks.candidates(state)
        # Each candidate comes with a whole partition that is allowed: the best of all counts.
        best = _best_made(game, state, choices, np.inf if best is None else best.seconds) or best
        place = int(looks.q(state).argmax())
        state = next_state(
            game.arrays, state, int(choices.points[place]), int(choices.units[place])
        )
    end = _finish(game, state)
    return end if best is None or end.seconds < best.seconds else best


def beam(
    game: Game, score: Score, width: int, branch: int, bound_seconds: float = np.inf
) -> Partition | None:
    """The best partition of a beam; None if none of its paths has a step below the bound."""
    return _beam(_Looks(game, score), width, branch, bound_seconds)


def _beam(looks: _Looks, width: int, branch: int, bound_seconds: float) -> Partition | None:
    game = looks.game
    level, best = [game.start], None
    # The last two actions are left to the search at the end.
    for _ in range(game.stages - 3 - game.start.decided):
        reached: list[tuple[float, State, int, int]] = []
        # One state alone has to fill the level.
        most = branch if len(level) > 1 else width
        for state in level:
            choices = looks.candidates(state)
            known = _best_made(game, state, choices, bound_seconds)
            if known is not None:
                best, bound_seconds = known, known.seconds
            hopeful = choices.least < bound_seconds
            # Q takes most of the time, and nothing is asked of a state that cannot be better.
            if not hopeful.any():
                continue
            q = np.where(hopeful, looks.q(state), -np.inf)
            for place in np.argsort(-q, kind="stable")[:most]:
                if np.isinf(q[place]):
                    break
                i, d = int(choices.points[place]), int(choices.units[place])
                reached.append((float(q[place]), state, i, d))
        reached.sort(key=lambda each: -each[0])
        level = [next_state(game.arrays, s, i, d) for _, s, i, d in reached[:width]]
    for state in level:
        leaf = _search_end(game, state, bound_seconds)
        if leaf is not None:
            best, bound_seconds = leaf, leaf.seconds
    return best


def infer(arrays: Arrays, stages: int, weights: Weights) -> Partition | None:
    """What the agent makes of a problem; None if nothing fits."""
    return infer_by(arrays, stages, lambda choices: values(weights, choices))


def infer_by(arrays: Arrays, stages: int, score: Score) -> Partition | None:
    """The same by any Q, so that what the agent's own is worth can be seen."""
    if stages == 1:
        all_in_one = even_split(arrays, 1)
        fits = all_in_one is not None and np.isfinite(all_in_one.seconds)
        return all_in_one if fits else None
    game = new_game(arrays, stages)
    if game is None:
        return None
    looks = _Looks(game, score)
    best = improve(arrays, _greedy(looks))
    for size in BEAMS if 2 < stages <= TRAINED_STAGES else ():
        leaf = _beam(looks, *size, best.seconds)
        if leaf is not None:
            best = improve(arrays, leaf)
    return best


def _best_made(
    game: Game, state: State, choices: Candidates, bound_seconds: float
) -> Partition | None:
    """The best partition that comes with a candidate, if its step is below a bound."""
    place = int(choices.made.argmin())
    if choices.made[place] >= bound_seconds:
        return None
    point, unit = int(choices.points[place]), int(choices.units[place])
    cuts, device_cuts = completed(game.heads, state, point, unit)
    return Partition(cuts, device_cuts, float(choices.made[place]))


def _search_end(game: Game, state: State, bound_seconds: float) -> Partition | None:
    """The state's best end below a bound."""
    if game.stages - state.decided > 2:
        _, point, unit = last_two(game.arrays, game.heads, state, bound_seconds)
        if point < 0:
            return None
        state = next_state(game.arrays, state, point, unit)
    return _finish(game, state)


def _finish(game: Game, state: State) -> Partition:
    """The state with its best last action."""
    # With one stage left to decide `least` is the step itself.
    least, _ = actions(game.arrays, game.heads, state)
    point, unit = (int(each) for each in np.unravel_index(least.argmin(), least.shape))
    cuts = np.array([0, point, *state.cuts], np.int64)
    device_cuts = np.array([0, unit, *state.device_cuts], np.int64)
    return Partition(cuts, device_cuts, float(value(game.arrays, cuts, device_cuts)))
