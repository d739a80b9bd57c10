"""`automap explain`: a plan file -> why; two plan files -> how they differ."""

from pathlib import Path

from automap.plan import Plan
from automap.report.terminal import say_result


def run(*, plan_file: str, what: str | None) -> None:
    """Print why a plan is as it is, or how it differs from the second."""
    plan = Plan.load(plan_file)
    if what is not None and Path(what).is_file():
        say_result(plan.diff(Plan.load(what)))
    else:
        say_result(plan.explain(what))
