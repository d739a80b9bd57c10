"""A small GPT trained on eight CPU devices under its plan, its loss beside that of the single-device step.

python -m examples.train_on_cpu_mesh
"""

import jax
from rich.console import Console
from rich.table import Table

import automap
from models.gpt import GptConfig, gpt
from models.training import random_batch


STEPS = 8


def main() -> None:
    """Train both ways and print what they did."""
    jax.config.update("jax_num_cpu_devices", 8)
    config = GptConfig(depth=4, d_model=128, heads=8, positions=64, vocab=512)
    model = gpt(config, batch=32, seq=64)
    batch = random_batch(model.args[1], seed=0)

    parallel_step = automap.parallelize(model.step, topology="local")
    parallel_step.plan_for(model.args[0], batch)
    state = parallel_step.init(model.init, jax.random.key(0))
    alone = model.init(jax.random.key(0))

    table = Table("step", "loss on 8 devices", "loss on 1 device", "difference")
    for number in range(1, STEPS + 1):
        state, metrics = parallel_step(state, batch)
        alone, expected = model.step(alone, batch)
        pair = float(metrics["loss"]), float(expected["loss"])
        table.add_row(str(number), *(f"{x:.6f}" for x in pair), f"{abs(pair[0] - pair[1]):.1e}")

    console = Console(width=100)
    console.print(parallel_step.plan.explain(), highlight=False, markup=False)
    console.print(table)
    kernel = state["params"]["layers"][0]["mlp"]["up"]["kernel"]
    console.print(
        f"mlp.up.kernel {kernel.shape} is {kernel.sharding.spec}: {kernel.addressable_shards[0].data.shape} "
        "on each device",
        highlight=False, markup=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
