"""`advise`: the command `automap advise` as a function."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from automap.advise import rows
from automap.advise.picture import save_advice
from automap.advise.request import Wanted, read_batches, read_machines, read_prices
from automap.advise.search import AdviceRequest, find_advice
from automap.api.call_plans import own_version
from automap.api.records import FromRecord
from automap.choices import DEFAULT_ADVICE_SECONDS
from automap.program.trace import Workload, lower_call
from automap.step.call import TracedCall
from automap.step.step import as_step
from automap.topology.model import Platform


class Advice(FromRecord, rows.Advice):
    """A row for each machine and batch, and the best of them; frozen.

    `rows`, `smallest`, `cheapest` and `front` are as `automap.advise.rows` says; money is in the
    currency of the prices.
    """

    __slots__ = ()

    def save(self, path: str | Path) -> None:
        """Write all rows (.json), or a picture of them (.svg, .png, .pdf).

        Raises `InputError` for another ending, or without matplotlib for a picture.
        """
        save_advice(self, path)


def advise(
    make: Callable[..., tuple[Callable[..., Any], Sequence[Any]]],
    *,
    batch: str = "",
    fit: str = "",
    topology: Sequence[str] = (),
    tokens_per_second: float = 0.0,
    samples_per_second: float = 0.0,
    price: str | Path | None = None,
    strategy: str = "greedy",
    budget: float = DEFAULT_ADVICE_SECONDS,
    seed: int = 0,
    cache_dir: str | Path | None = None,
) -> Advice:
    """Which machine for a step: each machine and batch with the best plan that is found for it.

    Args:
        make: returns (step, args), as `automap.plan` takes them; called with a batch, an int, or
            without anything if no batches are given.
        batch: `64..4096`, each twice the one before, or `64,96`.
        fit: conditions that machines meet: "gpus<=64, h100|a100".
        topology: only these machines, names or TOML files.
        tokens_per_second: the least to reach, for `cheapest`.
        samples_per_second: the same in samples.
        price: a TOML file of money for one device and hour.
        strategy: how to search.
        budget: seconds of processor time, and at most twice as many on the clock.
        seed: same seed, same rows, as long as the search ends within its budget.
        cache_dir: a folder in which rows are kept; None keeps none.

    Returns:
        All rows; seconds are of a step, bytes of a device.

    Raises:
        InputError: a step that cannot be traced, or a bad option.
        TopologyError: an unknown machine.
    """

    @lru_cache(2)
    def traced(size: int | None) -> TracedCall:
        step, args = make() if size is None else make(size)
        return as_step(step).enter(tuple(args), {}).traced()

    def program(size: int | None, platform: Platform) -> Workload:
        return lower_call(traced(size), platform=platform, target=name, rules={})

    name = getattr(make, "__name__", "<step>")
    machines = read_machines(tuple(topology), fit)
    request = AdviceRequest(
        target=name,
        machines=machines,
        batches=read_batches(batch),
        wanted=Wanted(tokens_per_second=tokens_per_second, samples_per_second=samples_per_second),
        prices=None if price is None else read_prices(price, machines),
        strategy=strategy,
        budget_seconds=budget,
        seed=seed,
        cache_folder=None if cache_dir is None else Path(cache_dir),
        versions=(own_version(), jax.__version__),
    )
    return Advice.from_record(find_advice(request, program))
