"""`automap compare`: options -> what each space comes to -> a table."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from automap.cli.run.target import read_request, read_target
from automap.plan.codec import encode
from automap.plan.rates import mfu_text
from automap.planner.spaces import compare_spaces
from automap.quantities import count_text
from automap.report.console import table_console
from automap.report.progress import SearchProgress
from automap.terminal import printable, say_json


def run(*, as_json: bool, **given: Any) -> None:
    """Print a row for each preset and for what the searches found."""
    request = read_request(given)
    with SearchProgress(request.options.budget_seconds) as progress:
        workload, _ = read_target(request)
        comparison = compare_spaces(
            workload,
            request.topology,
            request.options,
            on_progress=progress.update,
            on_stages=progress.update_stages,
        )
    if as_json:
        say_json(encode(comparison))
        return
    # In the order of the rows, not of their seconds: two comparisons can be read side by side.
    has_tokens = any(row.tokens_per_second for row in comparison.rows)
    unit = "tokens/s" if has_tokens else "samples/s"
    table = Table("plan", "step", "MFU", unit, "peak memory", "fits")
    for row in comparison.rows:
        step = "-" if row.step_seconds is None else f"{row.step_seconds * 1e3:.3f} ms"
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f} GiB"
        mfu = "-" if row.mfu is None else mfu_text(row.mfu)
        rate = row.tokens_per_second if has_tokens else row.samples_per_second
        per_second = "-" if rate is None else count_text(rate)
        fits = "yes" if row.fits else "NO"
        table.add_row(Text(printable(row.name)), step, mfu, per_second, peak, fits)
    table_console(pipe_columns=80).print(table)
    if comparison.advice:
        click.echo(printable(f"no plan fits; of the smallest: {'; '.join(comparison.advice)}"))
