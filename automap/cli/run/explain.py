"""`automap explain`: a plan file -> why; two plan files -> how they differ."""

import os

from automap.api.plan import Plan
from automap.terminal import say_result


def run(*, plan_file: str, what: str | None) -> None:
    """Print why a plan is as it is, or how it differs from the second."""
    plan = Plan.load(plan_file)
    # `Path.is_file` raises for a name that no system takes.
    if what is not None and os.path.isfile(what):
        say_result(plan.diff(Plan.load(what)))
    else:
        say_result(plan.explain(what))
