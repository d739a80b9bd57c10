"""The command line and the log of an example.

--steps 60 --every 20 --devices 8 --checkpoint FOLDER
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import logging
import math

import jax


LOG = logging.getLogger("examples")


@dataclass(frozen=True)
class Options:
    """What one run does: steps in all, how often it evaluates and saves, and where."""

    steps: int
    every: int
    checkpoint: str | None


def read_options(arguments: Sequence[str] | None) -> Options:
    """Those of the command line; before anything asks JAX for its devices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--devices", type=int, help="make so many devices of the processor")
    parser.add_argument("--checkpoint", help="a folder to save in, and to go on from")
    parser.add_argument("--process", type=int, default=0, help="the number of this process")
    parser.add_argument("--processes", type=int, default=1, help="how many there are")
    parser.add_argument("--coordinator", help="where the first one listens, as host:port")
    given = parser.parse_args(arguments)
    if given.devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", given.devices)
    if given.processes > 1:
        # What CPU devices talk by; GPUs and TPUs have ways of their own and leave it alone.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(given.coordinator, given.processes, given.process)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    # The others would say the same.
    LOG.setLevel(logging.INFO if given.process == 0 else logging.WARNING)
    return Options(given.steps, given.every, given.checkpoint)


def log_progress(number: int, loss: float, held_out: float, rate: float) -> None:
    """A line: the step, the loss of its batch, bits per byte of held-out text, learning rate."""
    bits = held_out / math.log(2)
    LOG.info("step %d  loss %.3f  held out %.3f bits/byte  rate %.1e", number, loss, bits, rate)
