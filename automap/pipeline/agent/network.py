"""The agent's values of candidates: its network (`automap.action_network`) on top of what is known
without it.

    Q(a) = baseline(a) + z(a), z clipped to what is known: between 0, the partition that comes with
           the action, and log(made / least), its bound                       -> in: `values`
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from automap.action_network import Weights, WeightsFormat, learnt_values, load_weights
from automap.pipeline.agent.candidates import ACTION_FEATURES, STATE_FEATURES, Candidates


# Another number for other features or another network: files of the old one are then refused.
FORMAT: Final = WeightsFormat(
    name="automap-pipeline-agent 2",
    n_features=len(ACTION_FEATURES),
    n_flat=len(STATE_FEATURES),
    trained_by="scripts/train_pipeline_agent.py",
)
SHIPPED: Final = Path(__file__).with_name("weights.safetensors")


@lru_cache(maxsize=1)
def shipped_weights() -> Weights:
    """The weights that come with the package."""
    return load_weights(SHIPPED, FORMAT)


def values(weights: Weights, candidates: Candidates) -> np.ndarray:
    """Q of the candidates of a state, float32 [A]: what the agent thinks that log(L0 / L) can be
    made.
    """
    learnt = learnt_values(weights, candidates.features, candidates.flat)
    # Never below the partition that is known, nor above what the bound allows.
    most = np.log(candidates.made / candidates.least).astype(np.float32)
    return candidates.baseline + np.clip(learnt, 0.0, most)
