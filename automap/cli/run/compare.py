"""`automap compare`: options -> what each space comes to -> a table."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from automap.cli.run.target import read_request, read_target
from automap.plan.codec import encode
from automap.planner.spaces import compare_spaces
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
    table = Table("plan", "step", "peak memory", "fits")
    for row in comparison.rows:
        step = "-" if row.step_seconds is None else f"{row.step_seconds * 1e3:.3f} ms"
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f} GiB"
        table.add_row(Text(printable(row.name)), step, peak, "yes" if row.fits else "NO")
    table_console(pipe_columns=80).print(table)
    if comparison.advice:
        click.echo(printable(f"no plan fits; of the smallest: {'; '.join(comparison.advice)}"))
