"""A configuration for tests, small and fast."""

from rl.config import Linear, RainbowConfig


SMALL = RainbowConfig(
    network="per-action",
    hidden=(32, 32),
    gamma=0.8,
    n_steps=2,
    capacity=500,
    alpha=0.5,
    beta=Linear(0.4, 1.0, 2_000),
    epsilon=Linear(1.0, 0.2, 2_000),
    batch=32,
    learning_rate=3e-3,
    warm_up=50,
    steps_per_update=8,
    target_every=20,
)
