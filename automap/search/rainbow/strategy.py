"""`rainbow`: learn on this one problem, from the best presets, and climb at the end.

1. price presets and empty points of all meshes
2. play and learn: MOST_EPISODES episodes, or until PATIENCE of them have brought nothing better, or
   until the last `_SECOND_STAGE` of the budget begins
3. second thoughts: climb from the best points of the best meshes
                                                            -> in: `automap.search.greedy.climb`

Numbers of episodes, not seconds, end it where the budget allows: then the same seed finds the same
plan.
"""

from typing import TYPE_CHECKING

from automap.search.context import SearchContext
from automap.search.greedy import climb, starts
from automap.search.torch_needed import need_torch


if TYPE_CHECKING:
    from rl.config import RainbowConfig


N_TABLES = 8
MOST_EPISODES = 160
PATIENCE = 64
_SECOND_STAGE = 0.25
_CLIMBED_MESHES = 3
_ENDLESS = 2**62


def rainbow(context: SearchContext) -> None:
    """Search with a Rainbow agent. Raises `InputError` if torch is not installed."""
    need_torch()
    # Torch loads here, and nothing of `rl` before: every other strategy works without both.
    from automap.search.rainbow.env import CONFIG

    searched_by(context, CONFIG)


def searched_by(context: SearchContext, config: "RainbowConfig") -> None:
    """The same with an agent of another configuration, as one that never learns."""
    from automap.search.rainbow.env import StepTimeEnv
    from rl.train import Trainer

    # Before the starts are priced, so that the second stage is a share of the whole budget.
    whole_seconds = context.seconds_left
    candidates = starts(context)
    if not candidates:
        return
    env = StepTimeEnv(context, candidates, N_TABLES)
    trainer = Trainer(env, config, context.seed)
    best, since = context.best, 0

    def ended() -> bool:
        nonlocal best, since
        if context.best is not best:
            best, since = context.best, env.episodes
        # The only end that depends on the machine; the other two give the same plan for the same
        # seed.
        is_late = context.seconds_left < _SECOND_STAGE * whole_seconds
        return env.episodes >= MOST_EPISODES or env.episodes - since >= PATIENCE or is_late

    trainer.run(_ENDLESS, ended)
    for candidate in env.best_by_mesh[:_CLIMBED_MESHES]:
        climb(context, candidate)
