"""`automap explain`: a plan file -> why; two plan files -> how they differ."""

from collections.abc import Iterator, Mapping
import os
from typing import Any, Final

from automap.api.plan import Plan
from automap.atomic_file import check_can_be_written
from automap.plan.codec import encode
from automap.plan.explain import chosen_names
from automap.terminal import say, say_json, say_result


# Of a plan's JSON, what the text tells: the lists of leaves and of tasks are in the plan file.
_TOLD: Final = (
    "workload",
    "mesh",
    "pipeline",
    "streams",
    "placement",
    "levers",
    "predicted",
    "verified",
    "refined",
    "presets",
    "search",
    "decisions",
    "conflicts",
    "warnings",
)
# By what an entry of a list is known, so that one more does not make all behind it differ.
_KEYS: Final = ("path", "name", "group")


def run(*, plan_file: str, what: str | None, as_json: bool, report: str | None) -> None:
    """Print why a plan is as it is, or how it differs from the second; keep its report."""
    if report is not None:
        check_can_be_written("--report", report)
    plan = Plan.load(plan_file)
    if report is not None:
        plan.report(report)
        say(f"report written to {report}")
    # `Path.is_file` raises for a name that no system takes.
    other = Plan.load(what) if what is not None and os.path.isfile(what) else None
    if as_json:
        say_json(_differences(plan, other) if other is not None else _reasons(plan, what))
    else:
        say_result(plan.diff(other) if other is not None else plan.explain(what))


def _reasons(plan: Plan, what: str | None) -> dict[str, Any]:
    if what is None:
        return {"topology": plan.topology["name"]} | {
            name: encode(getattr(plan, name)) for name in _TOLD
        }
    names = chosen_names(plan, what)
    inputs = [leaf for leaf in plan.inputs if leaf.path in names]
    paths = {leaf.path for leaf in inputs}
    decisions = [row for row in plan.decisions if row.group in names or paths & {*row.covers}]
    groups = {row.group for row in decisions}
    conflicts = [row for row in plan.conflicts if groups & {row.group, row.with_}]
    return {
        "mesh": encode(plan.mesh),
        "inputs": [encode(leaf) for leaf in inputs],
        "decisions": [encode(row) for row in decisions],
        "conflicts": [encode(row) for row in conflicts],
    }


def _differences(plan: Plan, other: Plan) -> dict[str, Any]:
    rows = [
        {"field": field, "old": old, "new": new}
        for field, old, new in _changed("", plan.to_json(), other.to_json())
    ]
    return {"equal": plan == other, "differences": rows}


def _changed(field: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every field whose values differ, the deepest that have a name; None where there is none."""
    before, after = _by_name(old), _by_name(new)
    if before is None or after is None:
        if old != new:
            yield field, old, new
        return
    for name in dict.fromkeys((*before, *after)):
        inner = f"{field}.{name}" if field else name
        yield from _changed(inner, before.get(name), after.get(name))


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """The named parts of an object, or of a list of objects with different names."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        return None
    key = next((key for key in _KEYS if all(key in row for row in value)), None)
    if not value or key is None:
        return None
    named = {f"{key}={row[key]}": row for row in value}
    return named if len(named) == len(value) else None
