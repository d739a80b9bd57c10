"""`automap compare`: options -> what each space comes to -> a table.

Of a step with shardings in its own code all rows keep them, and one more says what the search finds
without: the difference is what they cost                                   -> in: `_freed`
"""

from dataclasses import replace
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from automap.cli.run.target import Request, read_request, read_target
from automap.config import Options
from automap.jaxpr.reemit import Reemitter
from automap.plan.codec import encode
from automap.plan.rates import mfu_text
from automap.planner.advice import listed
from automap.planner.spaces import Comparison, compare_spaces
from automap.program import Workload
from automap.program.trace import lower_call, mesh_of_call, without_own_shardings
from automap.quantities import bytes_column, count_text, seconds_column
from automap.report.console import print_table
from automap.report.progress import SearchProgress
from automap.step.call import TracedCall
from automap.terminal import printable, say_json
from automap.topology import regular


def run(*, as_json: bool, **given: Any) -> None:
    """Print a row for each preset and for what the searches found."""
    request = read_request(given)
    with SearchProgress(request.options.budget_seconds) as progress:
        workload, call = read_target(request)

        def compared(workload: Workload, options: Options) -> Comparison:
            return compare_spaces(
                workload,
                regular(request.topology),
                options,
                on_progress=progress.update,
                on_stages=progress.update_stages,
            )

        free = None if call is None or workload.mesh is None else _freed(workload, call, request)
        if free is None:
            comparison = compared(workload, request.options)
        else:
            # One budget for both.
            half = replace(request.options, budget_seconds=request.options.budget_seconds / 2)
            comparison = _beside(compared(workload, half), compared(free, half))
    if as_json:
        say_json(encode(comparison))
        return
    # In the order of the rows, not of their seconds: two comparisons can be read side by side.
    has_tokens = any(row.tokens_per_second for row in comparison.rows)
    unit = "tokens/s" if has_tokens else "samples/s"
    table = Table("plan", "step", "MFU", unit, "peak memory", "fits")
    steps = seconds_column([row.step_seconds for row in comparison.rows])
    peaks = bytes_column([row.peak_bytes for row in comparison.rows])
    for row, step, peak in zip(comparison.rows, steps, peaks, strict=True):
        mfu = "-" if row.mfu is None else mfu_text(row.mfu)
        rate = row.tokens_per_second if has_tokens else row.samples_per_second
        per_second = "-" if rate is None else count_text(rate)
        fits = "yes" if row.fits else "NO"
        table.add_row(Text(printable(row.name)), step, mfu, per_second, peak, fits)
    print_table(table)
    for note in comparison.notes:
        click.echo(printable(note))
    if comparison.advice:
        click.echo(printable(listed("no plan fits; of the smallest:", comparison.advice)))


def _freed(workload: Workload, call: TracedCall, request: Request) -> Workload | None:
    """The workload without the shardings in the step's own code; None where some have to stay."""
    free = without_own_shardings(call, workload.rules)
    if mesh_of_call(free, Reemitter(free.jaxpr, workload.rules)) is not None:
        return None
    return lower_call(
        free,
        platform=request.topology.platform,
        target=workload.target,
        rules=workload.rules,
        layers=request.options.layers,
        arguments=workload.arguments,
    )


def _beside(own: Comparison, free: Comparison) -> Comparison:
    """All rows keep the code's shardings, but for one more: what the search finds without them."""
    best = next(row for row in free.rows if row.name.startswith("search"))
    row = replace(best, name=f"{best.name} without the code's shardings")
    return replace(own, rows=(*own.rows, row))
