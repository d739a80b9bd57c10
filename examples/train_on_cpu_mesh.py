"""A small GPT trained on eight CPU devices under its plan, its loss beside that of the
single-device step.

python -m examples.train_on_cpu_mesh

What it prints is the same on any machine: the plan is that for the nominal machine `cpu:8`, and
losses have as many digits as do not depend on how a processor sums.
"""

import jax
from rich.console import Console
from rich.table import Table

import automap
from models.gpt import GptConfig, gpt
from models.training import random_batch


STEPS = 8
ALLOWED_DIFFERENCE = 1e-4


def main() -> None:
    """Train both ways and print what they did."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    config = GptConfig(depth=4, d_model=128, heads=8, positions=64, vocab=512)
    model = gpt(config, batch=32, seq=64)
    batch = random_batch(model.args[1], seed=0)

    # The nominal machine, not "local": the plan, and so the output, is the same everywhere.
    parallel_step = automap.parallelize(model.step, topology="cpu:8", budget=300)
    parallel_step.plan_for(model.args[0], batch)
    state = parallel_step.init(model.init, jax.random.key(0))
    alone = model.init(jax.random.key(0))

    table = Table("step", "loss on 8 devices", "loss on 1 device", f"equal to {ALLOWED_DIFFERENCE}")
    for number in range(1, STEPS + 1):
        state, metrics = parallel_step(state, batch)
        alone, expected = model.step(alone, batch)
        # Sums over devices are in another order, so the last digits may differ.
        pair = float(metrics["loss"]), float(expected["loss"])
        is_equal = abs(pair[0] - pair[1]) <= ALLOWED_DIFFERENCE
        table.add_row(str(number), *(f"{x:.2f}" for x in pair), "yes" if is_equal else "NO")

    console = Console(width=100)
    console.print(parallel_step.plan.explain(), highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    kernel = state["params"]["layers"][0]["mlp"]["up"]["kernel"]
    console.print(
        f"mlp.up.kernel {kernel.shape} is {kernel.sharding.spec}: "
        f"{kernel.addressable_shards[0].data.shape} on each device",
        highlight=False,
        markup=False,
    )


if __name__ == "__main__":
    main()
