"""`automap advise`: a target, machines and batches -> what each comes to, and the best of them."""

from functools import lru_cache
from pathlib import Path
from typing import Final

import click
import jax
import platformdirs
from rich.table import Table
from rich.text import Text

from automap import __version__
from automap.advise.picture import check_ending, save_advice
from automap.advise.request import Wanted, read_batches, read_machines, read_prices
from automap.advise.rows import Advice, AdviceRow
from automap.advise.search import AdviceProgress, AdviceRequest, find_advice
from automap.atomic_file import check_can_be_written
from automap.cli.run.target import hide_accelerators, is_program_file, names_and_values
from automap.errors import InfeasiblePlanError, InputError
from automap.plan.codec import encode
from automap.plan.rates import mfu_text
from automap.program import Workload, load_target, naming_texts, read_workload
from automap.program.contained import contained
from automap.program.trace import lower_call
from automap.progress_bar import Bar
from automap.quantities import bytes_text, count_text, number_text, seconds_text
from automap.report.console import print_table
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.terminal import printable, say, say_json
from automap.topology.model import Platform


_EACH: Final = ("each", "peak")
"""What a device does, and needs."""


def run(
    *,
    target: str,
    arguments: tuple[str, ...],
    topologies: tuple[str, ...],
    fit: str,
    batch: str,
    batch_arg: str,
    tokens_per_second: float,
    samples_per_second: float,
    price: str | None,
    strategy: str,
    budget: float,
    seed: int,
    output: str | None,
    as_json: bool,
    cache_dir: str | None,
    cache: bool,
) -> None:
    """Print what machines come to."""
    hide_accelerators()
    if output is not None:
        check_can_be_written("-o", output)
        check_ending(output)
    folder = Path(cache_dir) if cache_dir else platformdirs.user_cache_path("automap") / "advice"
    machines = read_machines(topologies, fit)
    request = AdviceRequest(
        target=target,
        machines=machines,
        batches=read_batches(batch),
        wanted=Wanted(tokens_per_second=tokens_per_second, samples_per_second=samples_per_second),
        prices=read_prices(price, machines) if price else None,
        strategy=strategy,
        budget_seconds=budget,
        seed=seed,
        cache_folder=folder if cache else None,
        versions=(__version__, jax.__version__),
    )
    with Bar("tracing and lowering") as bar:

        def on_progress(progress: AdviceProgress) -> None:
            bar.describe(f"{progress.what} ({progress.done} of {progress.total})")
            bar.progress.update(bar.task, total=progress.total, completed=progress.done)

        programs = _Programs(target, names_and_values(arguments, "--arg"), batch_arg)
        advice = find_advice(request, programs, on_progress)
    if output is not None:
        save_advice(advice, output)
        say(f"advice written to {output}")
    if as_json:
        say_json(encode(advice))
    else:
        _print(advice)
    if advice.smallest is None:
        total, seen = len(request.machines), len({row.machine for row in advice.rows})
        # A search whose time was up says nothing of the others.
        if seen == 0:
            raise InfeasiblePlanError(
                f"the time was up before the first of {number_text(total, 'machine', 'machines')} "
                "was looked at; give a larger --budget"
            )
        which = f"{total} machines" if seen == total else f"the {seen} of {total} looked at"
        raise InfeasiblePlanError(f"no plan fits on any of {which}")


class _Programs:
    """The target for a batch, traced once for all platforms."""

    def __init__(self, target: str, arguments: dict[str, str], batch_argument: str) -> None:
        self._target, self._arguments, self._batch_argument = target, arguments, batch_argument
        self._traced = lru_cache(2)(self._trace)

    def __call__(self, batch: int | None, platform: Platform) -> Workload:
        """The workload of a batch."""
        if is_program_file(self._target):
            if batch is not None:
                raise InputError(
                    f"--batch: {self._target} is a program of one batch; leave --batch out, or "
                    "name module:function"
                )
            return read_workload(self._target)
        with contained():
            return lower_call(self._traced(batch), platform=platform, target=self._target, rules={})

    def _trace(self, batch: int | None) -> TracedCall:
        given = dict(self._arguments)
        if batch is not None:
            given[self._batch_argument] = str(batch)
        try:
            step, args = load_target(self._target, given)
        except InputError as error:
            if batch is None or f"--arg {self._batch_argument}:" not in str(error):
                raise
            raise InputError(
                f"--batch: {error}; say with --batch-arg which parameter is the batch, or leave "
                "--batch out"
            ) from error
        with naming_texts(given):
            return traced_call(step, args, name=self._target)


def _print(advice: Advice) -> None:
    best = advice.best_per_machine
    shown = "tok/s" if advice.unit == "tokens" else "samples/s"
    has_prices = any(row.price_per_hour is not None for row in best)
    # Money stands in the place of what is for experts, so that the table fits 80 columns.
    money = (f"{advice.currency or 'money'}/h", f"per M {advice.unit}")
    table = Table("machine", "batch", "step", "MFU", shown, *(money if has_prices else _EACH))
    fronts = {id(row) for row in advice.front}
    for row in best:
        star = "*" if id(row) in fronts else ""
        table.add_row(*map(Text, _texts(row, star, has_prices=has_prices)))
    print_table(table)
    starred = "is as fast and as cheap" if has_prices else "is faster on as few or fewer devices"
    lines = [
        f"{len(best)} of {len({row.machine for row in advice.rows})} machines fit, each with the "
        f"batch that does most; * no other row {starred}"
    ]
    answers = {
        "smallest machine that fits": advice.smallest,
        "cheapest that is fast enough" if has_prices else "fewest devices that are fast enough": (
            advice.cheapest
        ),
    }
    lines += [f"{name}: {_sentence(row, advice)}" for name, row in answers.items() if row]
    if advice.wanted.is_given and advice.cheapest is None:
        lines.append("no machine is fast enough")
    click.echo(printable("\n".join((*lines, *advice.notes))))


def _texts(row: AdviceRow, star: str, *, has_prices: bool) -> list[str]:
    texts = [
        f"{printable(row.machine)}{star}",
        f"{row.batch:,}",
        seconds_text(row.step_seconds),
        mfu_text(row.mfu),
        count_text(row.rate),
    ]
    if not has_prices:
        return [*texts, count_text(row.rate / row.devices), bytes_text(row.peak_bytes)]
    money = (row.price_per_hour, row.price_per_million)
    return [*texts, *("-" if amount is None else f"{amount:.4g}" for amount in money)]


def _sentence(row: AdviceRow, advice: Advice) -> str:
    mesh = " x ".join(f"{name}={size}" for name, size in row.mesh)
    text = (
        f"{row.machine} with a batch of {row.batch:,}: {count_text(row.rate)} {advice.unit}/s on "
        f"mesh {mesh}"
    )
    if row.price_per_hour is None:
        return text
    million = "" if row.price_per_million is None else f", {row.price_per_million:.4g} a million"
    return f"{text}; {row.price_per_hour:.4g} {advice.currency} an hour{million}"
