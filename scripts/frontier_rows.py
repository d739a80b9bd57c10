"""The rows of the frontier of levers (`scripts.lever_frontier`), and their tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import automap
from scripts.lever_models import POLICIES, levers_words, milliseconds
from scripts.tables import kept_rows, markdown


WITH_LEVERS: Final = "with levers"
REFINED: Final = "refined"


@dataclass
class Plan:
    """One plan of a row; `plan` is its file. None is what no compiler was asked, or did not say."""

    seconds: float
    peak_bytes: float
    plan: dict[str, Any]
    compiled_seconds: float | None = None
    compiled_bytes: float | None = None
    refusal: str = ""


@dataclass
class Row:
    """A limit of a model on a machine; `plans` are those with levers and of each policy that fits;
    `search_seconds` are of the clock.
    """

    model: str
    machine: str
    share: str
    limit_bytes: float
    search_seconds: float
    plans: dict[str, Plan] = field(default_factory=dict)
    compiler: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells rows apart."""
        return self.model, self.machine, self.share


def read_rows(path: Path) -> dict[tuple[str, str, str], Row]:
    """The rows of a file, by what tells them apart."""
    rows = {}
    for fields in kept_rows(path):
        plans = {name: Plan(**plan) for name, plan in fields.pop("plans").items()}
        row = Row(**fields, plans=plans)
        rows[row.key] = row
    return rows


_HEADER: Final = ("model", "machine", "share", "limit GiB", "with levers ms", "peak GiB", "levers")


def frontier_table(rows: Sequence[Row]) -> str:
    """Predicted steps."""
    lines = []
    for row in rows:
        ours = row.plans.get(WITH_LEVERS)
        cells = [row.model, row.machine, row.share, f"{row.limit_bytes / 2**30:.2f}"]
        cells += ["-"] * 3 if ours is None else _cells(ours)
        others = (row.plans.get(policy) for policy in POLICIES)
        cells += [milliseconds(plan and plan.seconds) for plan in others]
        lines.append(cells)
    return markdown([*_HEADER, *(f"{policy} ms" for policy in POLICIES)], lines)


def _cells(plan: Plan) -> list[str]:
    return [
        milliseconds(plan.seconds),
        f"{plan.peak_bytes / 2**30:.2f}",
        levers_words(automap.Plan.from_json(plan.plan).levers),
    ]


def compiled_table(rows: Sequence[Row]) -> str:
    """Steps by the compiler's schedule beside the predicted ones."""
    header = ["model", "machine", "share", "plan", "step ms", "compiled ms", "peak GiB"]
    lines = []
    for row in rows:
        for name, plan in row.plans.items():
            compiled = plan.compiled_bytes
            lines.append(
                [
                    *row.key,
                    name,
                    milliseconds(plan.seconds),
                    milliseconds(plan.compiled_seconds),
                    f"{plan.peak_bytes / 2**30:.2f}",
                    "-" if compiled is None else f"{compiled / 2**30:.2f}",
                ]
            )
    return markdown([*header, "compiled GiB"], lines)
