"""Rows of the published steps: read, checked, sorted in those that can be expressed and the others.

`scripts/data/published_steps.csv` has a row for each run whose step was measured, or derived from a
published throughput; its `url` says where that stands. A row that cannot be expressed has a reason,
which the report counts                                                   -> in: `why_not`

Half of the rows judge (`scripts.halves`). A row's half is a hash of all that it states but its
seconds, so that a corrected measurement stays in its half               -> in: `Row.is_held_out`
"""

from collections.abc import Callable, Mapping
import csv
from dataclasses import dataclass, fields
import math
from pathlib import Path
import re
from typing import Final

import click

from scripts.halves import is_held_out
from scripts.published_runs import DEVICES, SOURCES, Family, published_decoder


ROWS: Final = Path(__file__).parent / "data" / "published_steps.csv"
_COLUMNS: Final = {
    "src": "source",
    "model": "model",
    "chips": "chips",
    "chip": "chip",
    "precision": "precision",
    "GBS": "batch",
    "seq": "length",
    "parallelism": "parallelism",
    "remat": "remat",
    "step_s": "step_seconds",
    "url": "url",
}
_HALF_TYPES: Final = frozenset({"bf16", "amp_bf16", "fp16", "fp16?"})
_WORD: Final = re.compile(
    r"(?P<name>TP|DP|PP|MBS|GA|VP|EP|CP|FSDP|fsdp|ici_fsdp)(?P<number>\d+|n/a)(?:\+SP)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a run was laid out: replicas x tensor x stages devices, `microbatch` sequences each.

    `rounds` are the stages of one device (1: not interleaved).
    """

    replicas: int
    tensor: int
    stages: int
    rounds: int
    microbatch: int
    microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published step; `batch` and `length` are sequences and tokens of one."""

    source: str
    model: str
    chips: int
    chip: str
    precision: str
    batch: int
    length: int
    parallelism: str
    remat: str
    step_seconds: float
    url: str

    @property
    def key(self) -> str:
        """All that the row states but its seconds."""
        return "|".join(
            str(getattr(self, f.name)) for f in fields(self) if f.name != "step_seconds"
        )

    @property
    def is_held_out(self) -> bool:
        """Whether the row is of the half that judges."""
        return is_held_out(self.key)

    @property
    def family(self) -> Family:
        """What its source says of all its runs. Raises `ClickException` for an unknown source."""
        for prefix, family in SOURCES.items():
            if self.source.startswith(prefix):
                return family
        raise click.ClickException(
            f"{ROWS.name}: source {self.source!r} is not known; give it a family in "
            "scripts/published_runs.py, which has " + ", ".join(SOURCES)
        )

    def layout(self) -> Parallelism:
        """What the row's text says. Raises `ClickException` for numbers that do not fit."""
        words = {
            m["name"]: int(m["number"]) for m in _words(self.parallelism) if m["number"] != "n/a"
        }
        tensor, stages = words.get("TP", 1), words.get("PP", 1)
        replicas = self.chips // (tensor * stages)
        microbatch = words.get("MBS", max(self.batch // replicas, 1))
        microbatches = self.batch // (replicas * microbatch)
        if (
            replicas * tensor * stages != self.chips
            or microbatches * replicas * microbatch != self.batch
            or words.get("DP", replicas) != replicas
            or words.get("GA", microbatches) != microbatches
        ):
            raise click.ClickException(
                f"{ROWS.name}: {self.key}: {tensor} x {stages} x {replicas} devices and "
                f"{microbatches} microbatches of {microbatch} do not make {self.chips} chips and "
                f"a batch of {self.batch}; correct the row"
            )
        return Parallelism(
            replicas=replicas,
            tensor=tensor,
            stages=stages,
            rounds=words.get("VP", 1),
            microbatch=microbatch,
            microbatches=microbatches,
        )


def _words(text: str) -> list[re.Match[str]]:
    return [m for m in map(_WORD.fullmatch, text.split()) if m]


def read_rows(path: Path = ROWS) -> list[Row]:
    """All rows. Raises `ClickException` for a file with other columns, or a number that is none."""
    with path.open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = sorted(set(_COLUMNS) - set(reader.fieldnames or ()))
        if missing:
            raise click.ClickException(
                f"{path}: no column {', '.join(missing)}; expected {', '.join(_COLUMNS)}"
            )
        return [_row(path, number, line) for number, line in enumerate(reader, start=2)]


def _row(path: Path, number: int, line: Mapping[str, str | None]) -> Row:
    values: dict[str, str | int | float] = {}
    for column, name in _COLUMNS.items():
        text = line[column] or ""
        kind = Row.__annotations__[name]
        try:
            values[name] = kind(text)
            is_number = kind is not str
            if is_number and not (math.isfinite(kind(text)) and kind(text) > 0):
                raise ValueError(text)
        except ValueError:
            raise click.ClickException(
                f"{path}, line {number}: {column} is {text!r}; expected a number above 0"
            ) from None
    return Row(**values)  # type: ignore[arg-type]


Test = Callable[[Row], bool]
_REASONS: Final[tuple[tuple[str, Test], ...]] = (
    ("another device than those that are judged", lambda row: row.chip not in DEVICES),
    (
        "8-bit products: the decoder computes in 16 bits",
        lambda row: row.precision.lower() not in _HALF_TYPES,
    ),
    (
        "experts with latent or sliding attention, or state-space layers",
        lambda row: published_decoder(row.model) is None,
    ),
    ("its parallelism is not in the row", lambda row: not _words(row.parallelism)),
    ("two slices over a data centre's network", lambda row: "dcn" in row.parallelism),
    (
        "an interleaved pipeline, whose seconds have no formula to predict it by",
        lambda row: row.layout().rounds > 1,
    ),
    (
        "sequences split beside a table of positions, for which no preset has a point",
        lambda row: "+SP" in row.parallelism,
    ),
)


def why_not(row: Row) -> str | None:
    """Why a row cannot be expressed; None for one that can."""
    return next((reason for reason, holds in _REASONS if holds(row)), None)
