"""`automap explain`: a plan file -> why; two plan files -> how they differ."""

from pathlib import Path

import click

from automap.plan import Plan


def run(*, plan_file: str, what: str | None) -> None:
    """Print why a plan is as it is, or how it differs from the second."""
    plan = Plan.load(plan_file)
    if what is not None and Path(what).is_file():
        click.echo(plan.diff(Plan.load(what)))
    else:
        click.echo(plan.explain(what))
