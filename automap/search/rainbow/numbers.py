"""The agent's numbers for step time: few episodes, so a fast rate and little that is random."""

from rl.config import RainbowConfig
from rl.schedule import Linear


CONFIG = RainbowConfig(
    network="per-action",
    hidden=(64, 64),
    gamma=1.0,
    n_steps=5,
    capacity=20_000,
    alpha=0.6,
    beta=Linear(0.4, 1.0, 10_000),
    epsilon=Linear(0.15, 0.02, 6_000),
    batch=64,
    learning_rate=1e-3,
    warm_up=200,
    steps_per_update=8,
    target_every=50,
)
