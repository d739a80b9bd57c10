"""The sharding agent's player with the nearest training problem in the network's place: what a
network adds to remembering.

    problem    the one of the lesson whose state is nearest to the state that is played
    Q(move)    what the move saves at once, plus what the lesson had to add to that for the most
               alike move of that problem, by all that is known of moves without their prices
                                                                 -> in: `NearestPlayer.score`
    meshes     in the same way                                   -> in: `NearestPlayer.ranked`

Distances are Euclidean, each number over its standard deviation in all lessons. A lesson's move
that was not priced saves nothing that is known, so its whole worth is what there is to add; a move
that is priced is compared with priced ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from automap.search import SearchContext
from automap.search.agent.options import PRICE_FEATURES, Options, Seen
from automap.search.agent.play import Player, mesh_features
from automap.search.context import Candidate
from rl.checkpoint import load


@dataclass(frozen=True)
class Memory:
    """The lessons of one network. Of lesson l: `states` [L, D] and its `problems` [L]. Of the
    options of all lessons, one after the other: `features` [M, F], what is to be `added` [M] to
    what they save, whether they were `priced` [M], and their `owners` [M], problems.
    """

    states: np.ndarray
    problems: np.ndarray
    features: np.ndarray
    added: np.ndarray
    priced: np.ndarray
    owners: np.ndarray

    def additions(self, state: np.ndarray, features: np.ndarray, priced: np.ndarray) -> np.ndarray:
        """For the options of a state [A, F], what the most alike ones had to add, [A]."""
        away = (((self.states - state) / _scale(self.states)) ** 2).sum(1)
        own = self.owners == self.problems[away.argmin()]
        scale = _scale(self.features)
        result = np.zeros(len(features))
        for is_priced in (False, True):
            mine = priced == is_priced
            # Where nothing was priced, all that the problem has is better than nothing.
            pool = np.flatnonzero(own & self.priced if is_priced else own)
            pool = pool if len(pool) else np.flatnonzero(own)
            between = (features[mine, None] - self.features[None, pool]) / scale
            result[mine] = self.added[pool[(between**2).sum(2).argmin(1)]]
        return result


def _scale(numbers: np.ndarray) -> np.ndarray:
    deviation = numbers.std(0)
    return np.where(deviation > 0.0, deviation, 1.0)


def read_memory(folder: Path, network: str, price_features: int) -> Memory:
    """The lessons of `scripts.train_sharding_agent` in a folder; the last features are prices,
    the first of which says whether there is one. Raises `ClickException` for a folder without.
    """
    states, problems, features, added, priced, owners = ([] for _ in range(6))
    for number, path in enumerate(sorted(folder.glob(f"{network}-[0-9]*.safetensors"))):
        lesson = load(path).arrays
        mask = lesson["mask"]
        states.append(lesson["flat"])
        problems.append(np.full(len(mask), number))
        shown = lesson["features"][mask]
        is_priced = shown[:, -price_features] > 0 if price_features else np.ones(len(shown), bool)
        features.append(shown[:, : shown.shape[1] - price_features])
        priced.append(is_priced)
        saved = np.where(is_priced, lesson["baseline"][mask], 0.0)
        added.append(lesson["worth"][mask] - saved)
        owners.append(np.full(len(shown), number))
    if not states:
        raise click.ClickException(
            f"{folder} has no lessons {network}-*.safetensors; make them with "
            "scripts.train_sharding_agent"
        )
    joined = (np.concatenate(part) for part in (states, problems, features, added, priced, owners))
    return Memory(*joined)


class NearestPlayer(Player):
    """Remembers the lessons of a folder."""

    def __init__(self, folder: Path):
        """Read them."""
        super().__init__()
        self._moves_memory = read_memory(folder, "moves", PRICE_FEATURES)
        self._meshes_memory = read_memory(folder, "meshes", 0)

    def score(self, options: Options) -> np.ndarray:
        """Q of the options; to leave the point is worth nothing."""
        priced = options.features[:, -PRICE_FEATURES] > 0
        structure = options.features[:, :-PRICE_FEATURES]
        added = self._moves_memory.additions(options.flat, structure, priced)
        added[0] = 0.0
        return options.saved + added

    def ranked(
        self, context: SearchContext, seen: Seen, starts: Sequence[Candidate]
    ) -> list[Candidate]:
        """Starts, each of another mesh, the most promising first."""
        features, flat, behind = mesh_features(context, seen, starts)
        behind = behind + self._meshes_memory.additions(flat, features, np.ones(len(starts), bool))
        return [starts[place] for place in np.argsort(-behind, kind="stable")]
