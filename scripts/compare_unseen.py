"""Predicted seconds and memory of steps of no zoo beside the compilers for TPU and GPU, without the
hardware.

    python -m scripts.compare_unseen --topology 8xh100 -o docs/reports/unseen.md
    python -m scripts.compare_unseen --topology v5e:2x4 -o docs/reports/unseen.md

Each step of `scripts.unseen_steps` is planned as a user would plan it (`automap.plan`, without an
option), and the plan is compiled ahead of time (`automap.verify`; extras `tpu`, `gpu-compiler`).
What the compiler said is kept: a second run compiles only plans that changed. A step that cannot be
planned or compiled, or not in time, is a row that says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import statistics
from typing import Literal, TypeAlias, cast, get_args

import click
import jax
from rich.progress import track

import automap
from automap.errors import AutomapError
from automap.program import load_target
from scripts.halves import is_held_out
from scripts.memory_targets import Target
from scripts.tables import made_by, markdown, replace_table
from scripts.unseen_attending import ATTENDING
from scripts.unseen_later import LATER
from scripts.unseen_steps import ADDED, READ, Steps, target_name


COMMAND = "python -m scripts.compare_unseen --topology {topology} -o {output}"
Written: TypeAlias = Literal["first", "added last", "later", "latest"]
_MIB = 2**20
_TIMEOUT_SECONDS = 420.0
_MAX_NOTE_CHARACTERS = 100
HEADER = [
    "step",
    "half",
    "ms predicted",
    "ms replayed",
    "ratio",
    "MiB predicted",
    "MiB compiled",
    "ratio",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step with its plan. Of what a compiler refuses there are no seconds, and no bytes where it
    does not say them; `note` says what went wrong, "" if nothing did.
    """

    name: str
    written: Written
    is_judged: bool
    predicted_seconds: float | None = None
    predicted_bytes: float | None = None
    compiled_seconds: float | None = None
    compiled_bytes: int | None = None
    is_refused: bool = False
    note: str = ""

    @property
    def seconds_ratio(self) -> float | None:
        """The step as predicted over as replayed."""
        return _ratio(self.predicted_seconds, self.compiled_seconds)

    @property
    def bytes_ratio(self) -> float | None:
        """The peak as predicted over as compiled."""
        return _ratio(self.predicted_bytes, self.compiled_bytes)


def _ratio(predicted: float | None, compiled: float | None) -> float | None:
    return predicted / compiled if predicted is not None and compiled else None


def rows(steps: Sequence[Callable[[], Target]], topology: str) -> Iterator[Row]:
    """Each step, planned and compiled."""
    for make in track(steps, "planning and compiling"):
        row = _row(make, topology)
        click.echo(" | ".join(_cells(row)), err=True)
        yield row


def _row(make: Callable[[], Target], topology: str) -> Row:
    target = target_name(make)
    row = Row(name=make.__name__, written=_written(make), is_judged=is_held_out(target))
    step, args = load_target(target, {})
    try:
        plan = automap.plan(step, args, topology=topology)
        row = replace(
            row,
            predicted_seconds=plan.predicted.step_seconds,
            predicted_bytes=plan.predicted.expected_bytes,
        )
        said = automap.verify(plan, step, args, timeout=_TIMEOUT_SECONDS, numerics=False)
    except AutomapError as error:
        return replace(row, note=_note(error))
    # A plan that was not asked to be a pipeline is none.
    witness = cast(automap.Verification, said).witness
    return replace(
        row,
        compiled_seconds=None if witness.step is None else witness.step.seconds,
        compiled_bytes=witness.peak_bytes,
        is_refused=not witness.fits,
        note="" if witness.fits else "does not fit",
    )


def _written(make: Callable[[], Target]) -> Written:
    """When a step was written."""
    groups: Mapping[Written, Steps] = {"added last": ADDED, "later": LATER, "latest": ATTENDING}
    return next((when for when, steps in groups.items() if make in steps), "first")


def _note(error: AutomapError) -> str:
    """The beginning of an error, as a cell of a table."""
    text = " ".join(str(error).split()).replace("|", "/")
    return f"{text[:_MAX_NOTE_CHARACTERS]}..." if len(text) > _MAX_NOTE_CHARACTERS else text


def report(compared: Sequence[Row], topology: str) -> str:
    """The errors of all steps, of the half that judges and of those added last, and the table."""
    refused = [row.name for row in compared if row.is_refused]
    failed = [row.name for row in compared if row.note and not row.is_refused]
    groups = {
        "all steps": list(compared),
        "the half that judges": [row for row in compared if row.is_judged],
        "the steps that were added last": [r for r in compared if r.written == "added last"],
        **{
            f"those of the half that judges that were written {when}": [
                row for row in compared if row.is_judged and row.written == when
            ]
            for when in ("later", "latest")
        },
    }
    lines = [f"{topology}:\n\n"]
    for title, group in groups.items():
        seconds = _errors(row.seconds_ratio for row in group)
        peaks = _errors(row.bytes_ratio for row in group)
        if seconds and peaks:
            lines.append(f"- {title}: seconds {_said(seconds)}; peaks {_said(peaks)}\n")
    lines.append(f"- called fitting but refused: {', '.join(refused) or 'none'}\n")
    lines.append(f"- without a comparison: {', '.join(failed) or 'none'}\n\n")
    order = get_args(Written)
    ordered = sorted(
        compared, key=lambda row: (not row.is_judged, order.index(row.written), row.name)
    )
    return "".join(lines) + markdown(HEADER, [_cells(row) for row in ordered])


def _errors(ratios: Iterator[float | None]) -> list[float]:
    return [abs(ratio - 1) for ratio in ratios if ratio is not None]


def _said(errors: Sequence[float]) -> str:
    counts = [sum(error <= limit for error in errors) for limit in (0.15, 0.25)]
    return (
        f"off by {statistics.median(errors):.1%} in the median and {max(errors):.0%} at worst, "
        f"{counts[0]} of {len(errors)} within 15 % and {counts[1]} within 25 %"
    )


def _cells(row: Row) -> list[str]:
    def number(value: float | None, unit: float, digits: int) -> str:
        return "" if value is None else f"{value / unit:.{digits}f}"

    name = row.name if row.written == "first" else f"{row.name} ({row.written})"
    return [
        f"{name}: {row.note}" if row.note else name,
        "judged" if row.is_judged else "fitted",
        number(row.predicted_seconds, 1e-3, 3),
        number(row.compiled_seconds, 1e-3, 3),
        number(row.seconds_ratio, 1.0, 2),
        number(row.predicted_bytes, _MIB, 1),
        number(row.compiled_bytes, _MIB, 1),
        number(row.bytes_ratio, 1.0, 2),
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--topology", default="8xh100", show_default=True)
@click.option("--step", "chosen", multiple=True, help="compare these steps alone, by name")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(topology: str, chosen: tuple[str, ...], output: Path | None) -> None:
    """Compare the steps."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    every = (*READ, *ADDED, *LATER, *ATTENDING)
    steps = [make for make in every if not chosen or make.__name__ in chosen]
    text = report(list(rows(steps, topology)), topology)
    if output is None or chosen:
        click.echo(text)
        return
    command = COMMAND.format(topology=topology, output=output)
    machine = f"jax {jax.__version__}, compiled ahead of time on a CPU host"
    replace_table(output, made_by(command, machine) + text, topology)


if __name__ == "__main__":
    main()
