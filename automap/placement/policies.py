"""ColocRL's policies, trained on the step that they are about with simulated rewards.

colocrl       the paper's: nothing is known beforehand
colocrl-heft  begins at HEFT's placement, or at that of `memory` where that does not fit: the device
              that it gives a group has a chance of CHANCE, and the decoder sees the element that it
              decides on

The game is in `automap.placement.colocrl`.
"""

import math

from automap.placement.baselines import heft, memory
from automap.placement.colocrl import (
    FROM_HEFT,
    PAPERS,
    UPDATES,
    branch_groups,
    placement_game,
)
from automap.placement.search import Placed, Search
from automap.placement.training import Run, trained
from rl.sequences import ReinforceConfig


def colocrl(search: Search) -> Placed:
    """The best placement that the paper's policy draws while it learns."""
    return learnt(search, PAPERS, prior=None)


def colocrl_from_heft(search: Search) -> Placed:
    """The best that a policy draws that begins at `start`; never worse than that."""
    known = start(search)
    return min(known, learnt(search, FROM_HEFT, prior=known), key=lambda p: p.rank)


def start(search: Search) -> Placed:
    """HEFT's placement, or where that does not fit that of `memory`."""
    placed = heft(search)
    return placed if placed.fits else memory(search)


def learnt(
    search: Search, config: ReinforceConfig, prior: Placed | None, updates: int = UPDATES
) -> Placed:
    """The best placement of a run; the best single device where nothing that it drew fits.

    Raises `InputError` without torch.
    """
    game = placement_game(search, branch_groups(search.simulator.problem), prior)
    run = Run(search, game, game.score, config, updates, "simulated", search.deadline)
    best, cost = trained(run)
    if math.isinf(cost):
        count = search.simulator.problem.n_operators
        return min(
            (search.place([d] * count) for d in range(search.n_devices)), key=lambda p: p.rank
        )
    return search.place(best[game.score.group].tolist())
