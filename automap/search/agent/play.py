"""Playing: the agent changes a point turn by turn, and looks at what it thinks most of.

turn       score all moves of the point unpriced; price the PRICED best of them together; score
           again; make those that are thought better than leaving the point, the best first, one
           upon the other: a chain of at most CHAINED points, priced together. The best of all that
           was priced is where the turn leads                             -> in: `turn`
roll-out   turns until one brings nothing better, at most MOST_TURNS      -> in: `roll_out`
beam       of the points of all turns of a level the best WIDTH are the next one
                                                                          -> in: `beam`
`agent`    roll-outs from the best start of each mesh, the most promising mesh first; beams on the
           best meshes; climbs from the best point of each of the best meshes

What a move is worth is learnt as the advantage over keeping what it changes, everything else free:

    Q(x, move) = min over plans p that keep it of c(p) - min over plans p that make it of c(p)

of c = `Objective.cost`. Without learning it is what the move saves at once, 0 if it is not priced.
Weights come with the package (WEIGHTS.md beside this file says how they were made); inference needs
numpy alone.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
import math
from pathlib import Path
from typing import Final

import numpy as np

from automap.action_network import Weights, WeightsFormat, learnt_values, load_weights
from automap.search.agent.options import (
    MOST_LOG,
    MOVE_FEATURES,
    STATE_FEATURES,
    Options,
    Seen,
    log_ratio,
)
from automap.search.context import LEAST_SECONDS, Candidate, SearchContext
from automap.search.greedy import climb
from automap.search.moves import AxisSwap
from automap.space.point import Point, SplitClasses
from automap.space.space import Space
from automap.topology.mesh import Mesh


PRICED: Final = 12
CHAINED: Final = 6
MOST_TURNS: Final = 5
WIDTH: Final = 4
_BEAM_MESHES: Final = 2
_CLIMBED: Final = 5

MESH_FEATURES: Final = 15
_TRAINED_BY: Final = "scripts/train_sharding_agent.py"
MOVES_FORMAT: Final = WeightsFormat(
    name="automap-sharding-agent-moves 1",
    n_features=MOVE_FEATURES,
    n_flat=STATE_FEATURES,
    trained_by=_TRAINED_BY,
)
MESHES_FORMAT: Final = WeightsFormat(
    name="automap-sharding-agent-meshes 1",
    n_features=MESH_FEATURES,
    n_flat=STATE_FEATURES,
    trained_by=_TRAINED_BY,
)
MOVES_SHIPPED: Final = Path(__file__).with_name("moves.safetensors")
MESHES_SHIPPED: Final = Path(__file__).with_name("meshes.safetensors")

Score = Callable[[Options], np.ndarray]
"""Q of the options of a point; -inf of those that are not allowed."""


def mesh_features(
    context: SearchContext, seen: Seen, chosen: Sequence[Candidate]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The start of each mesh as [meshes, MESH_FEATURES], the best of them as [STATE_FEATURES], and
    how far each is behind the best, negative or 0.
    """
    costs = np.array([context.objective.cost(c.estimate) for c in chosen])
    features = np.zeros((len(chosen), MESH_FEATURES), np.float32)
    for row, candidate in enumerate(chosen):
        estimate, mesh = candidate.estimate, candidate.point.mesh
        step = max(estimate.step_seconds, LEAST_SECONDS)
        axes = seen.axes(candidate)
        presets = seen.presets(mesh)
        second = presets[min(1, len(presets) - 1)] if presets else candidate
        sizes = sorted(mesh.sizes)
        features[row] = [
            min(costs[row] - costs.min(), MOST_LOG),
            estimate.collective_seconds / step,
            estimate.hidden_seconds / step,
            log_ratio(estimate.peak_bytes, context.objective.memory_limit_bytes, 1.0),
            float(context.objective.fits(estimate)),
            len(sizes) / 3.0,
            math.log2(sizes[0]) / 4.0,
            math.log2(sizes[-1]) / 4.0,
            max(a.reduced for a in axes),
            min(a.reduced for a in axes),
            log_ratio(second.estimate.step_seconds, estimate.step_seconds, LEAST_SECONDS),
            sum(a.has_batch for a in axes) / len(axes),
            sum(a.bytes_share for a in axes) / len(axes),
            sum(a.stored for a in axes) / len(axes),
            float(context.evaluator.backend.collectives == "beside kernels"),
        ]
    flat = np.array(seen.state(chosen[int(costs.argmin())], 0), np.float32)
    return features, flat, (costs.min() - costs).astype(np.float32)


class Player:
    """What plays: Q of moves, and the order of meshes; without weights nothing is learnt."""

    def __init__(self, moves: Weights | None = None, meshes: Weights | None = None):
        """Weights of both networks."""
        self._moves, self._meshes = moves, meshes

    def score(self, options: Options) -> np.ndarray:
        """Q of the options."""
        if self._moves is None:
            return options.saved
        learnt = learnt_values(self._moves, options.features, options.flat)
        return options.saved + learnt

    def ranked(
        self, context: SearchContext, seen: Seen, starts: Sequence[Candidate]
    ) -> list[Candidate]:
        """Starts, each of another mesh, the most promising first."""
        features, flat, behind = mesh_features(context, seen, starts)
        if self._meshes is not None:
            behind = behind + learnt_values(self._meshes, features, flat)
        return [starts[place] for place in np.argsort(-behind, kind="stable")]


@cache
def shipped_player() -> Player:
    """The agent that comes with the package."""
    return Player(
        load_weights(MOVES_SHIPPED, MOVES_FORMAT), load_weights(MESHES_SHIPPED, MESHES_FORMAT)
    )


def turn(
    context: SearchContext, seen: Seen, player: Player, current: Candidate, number: int
) -> list[Candidate]:
    """Everything that a turn from a point has priced."""
    options = seen.options(current, number)
    # Of equal ones any, so that a player without learning does not see the first axis alone.
    shuffled = np.random.default_rng([context.seed, number]).permutation(len(options.moves))
    q = player.score(options)
    ranked = [p for p in shuffled[np.argsort(-q[shuffled], kind="stable")].tolist() if p]
    places = ranked[:PRICED]
    candidates = list(context.evaluate_all([options.points[p] for p in places], "agent"))
    options = options.priced(context, current, places, candidates)
    q = player.score(options)
    chain = list(_chained(context, current.point, options, q))
    chained = context.evaluate_all(chain, "agent")
    return [c for c in (*candidates, *chained) if c is not None]


def decided(space: Space, point: Point) -> np.ndarray:
    """Every decision of a point as a number, int [decisions]: of two points of one mesh those that
    differ are what has to change.
    """
    masks = [
        sum(1 << axis for axis, classes in enumerate(point.compute) if c in classes)
        for c in space.candidates
    ]
    sides = [c in point.last_dim_classes for c in space.repeated_classes]
    whole = [c in point.small_whole_classes for c in space.small_part_classes]
    levels = [int(level) for storage in point.storage for level in storage]
    return np.array([*masks, *sides, *whole, *levels], np.int16)


def _chained(
    context: SearchContext, point: Point, options: Options, q: np.ndarray
) -> Iterable[Point]:
    """Points after one, two, and more of the moves that are worth more than none."""
    start = decided(context.space, point)
    changed, made = np.zeros(len(start), bool), 0
    for place in np.argsort(-q, kind="stable").tolist():
        move = options.moves[place]
        # The first is None, to leave the point: what comes after it is worth less.
        if move is None or made == CHAINED or np.isinf(q[place]):
            return
        # Of moves that change the same decision only one is made in a turn.
        changes = decided(context.space, options.points[place]) != start
        if (changes & changed).any():
            continue
        moved = context.pinned.impose(move.apply(context.space, point))
        if moved == point or not context.space.is_valid(moved):
            continue
        changed |= changes
        point, made = moved, made + 1
        yield point
        # After it all others would be on the wrong axes.
        if isinstance(move, AxisSwap):
            return


def roll_out(context: SearchContext, seen: Seen, player: Player, start: Candidate) -> Candidate:
    """Where the turns from a start lead."""
    current = start
    for number in range(MOST_TURNS):
        reached = _best(context, turn(context, seen, player, current, number))
        if reached is None or not context.is_better(reached, current):
            break
        current = reached
    return current


def beam(
    context: SearchContext, seen: Seen, player: Player, starts: Sequence[Candidate]
) -> Candidate:
    """The best point that a beam from starts comes to."""
    level = list(starts)
    best = _best(context, level)
    if best is None:
        raise ValueError("a beam needs a start")
    for number in range(MOST_TURNS):
        reached: dict[SplitClasses, Candidate] = {}
        for current in level:
            # By what they split: different points may be one plan, and would fill the beam with
            # copies of it.
            for candidate in (current, *turn(context, seen, player, current, number)):
                reached.setdefault(context.space.split_classes(candidate.point), candidate)
        ranked = sorted(reached.values(), key=lambda c: context.objective.key(c.estimate))
        level = ranked[:WIDTH]
        if not context.is_better(level[0], best):
            break
        best = level[0]
    return best


def _best(context: SearchContext, candidates: Iterable[Candidate]) -> Candidate | None:
    return min(candidates, key=lambda c: context.objective.key(c.estimate), default=None)


def mesh_starts(context: SearchContext, meshes: Sequence[Mesh] | None = None) -> list[Candidate]:
    """The best point of each of the meshes, all that differ by default: of what was priced, or the
    empty one.
    """
    chosen = []
    for mesh in context.distinct_meshes if meshes is None else meshes:
        empty = context.evaluate(context.empty(mesh), "agent")
        chosen += context.priced_on(mesh)[:1] or ([empty] if empty else [])
    return chosen


def first_roll_out(context: SearchContext, player: Player) -> Candidate | None:
    """One roll-out on the mesh that promises most; None where no point is allowed."""
    seen = Seen(context)
    ranked = player.ranked(context, seen, mesh_starts(context))
    return roll_out(context, seen, player, ranked[0]) if ranked else None


def roll_outs(player: Player, context: SearchContext, meshes: Sequence[Mesh]) -> list[Candidate]:
    """Where one roll-out on each of the meshes leads, the most promising mesh first."""
    starts, seen = mesh_starts(context, meshes), Seen(context)
    if not starts:
        return []
    return [
        roll_out(context, seen, player, start) for start in player.ranked(context, seen, starts)
    ]


def play(context: SearchContext, player: Player) -> Candidate | None:
    """Roll-outs on all meshes, beams on the best ones, and climbs at the end; returns the best
    before the climbs.
    """
    seen = Seen(context)
    reached = roll_outs(player, context, context.distinct_meshes)
    key = context.objective.key
    reached.sort(key=lambda c: key(c.estimate))
    for candidate in reached[:_BEAM_MESHES]:
        beam(context, seen, player, context.priced_on(candidate.point.mesh)[:WIDTH])
    led_to = context.best
    # The best plans of all are often of one mesh, which may be a wrong one.
    best = [context.priced_on(candidate.point.mesh)[0] for candidate in reached]
    for candidate in sorted(best, key=lambda c: key(c.estimate))[:_CLIMBED]:
        climb(context, candidate)
    return led_to


def agent(context: SearchContext) -> None:
    """The strategy: the shipped agent plays, and a note says what it gave."""
    before = context.best
    led_to = play(context, shipped_player())
    if before is None or led_to is None or context.best is None:
        return
    gains = [
        first.estimate.step_seconds / then.estimate.step_seconds - 1
        for first, then in ((before, led_to), (led_to, context.best))
    ]
    context.notes.append(
        f"the pretrained agent led to a plan that is {gains[0]:.1%} faster than the best preset, "
        f"climbs from there to one that is {gains[1]:.1%} faster"
    )
