"""Seconds of a collective over one link level, by its ranks and bytes, as they were measured.

A series holds the seconds t_i of messages of B_i bytes, for one kind of collective and g ranks. Of
any B they are

    t(B) = exp of the linear interpolation of log t over log B       -> in: `Series.seconds`

below the first size t_1, as a message is never faster than an empty one; above the last one
t_n B / B_n, as links are full there. Single measurements of small messages are up to twice their
neighbours, and a plan must not send more to be faster, so each t_i is lowered to the least of those
after it                                                             -> in: `_rising`

Groups that were not measured                                        -> in: `seconds`
  between two measured sizes g < r < h    log t is interpolated over log r
  outside of them                         the nearest one's t, times what the formulas of the
                                          algorithms (`automap.cost`) say of r ranks for one of the
                                          nearest; that factor is the caller's

GPUs that were not measured have their links' bytes per second for the scale: a message takes as
long as one of B s / s' bytes over the measured links, with s' the own and s the measured link's
bytes per second. What is fixed (launch, steps) stays, what is bandwidth scales. Where the switch
cannot add up numbers on the way, an all-reduce is a reduce-scatter and an all-gather.
                                                                     -> in: `LINK_TABLES`

B, in bytes, is the full buffer on one device: the operand of all-reduce, reduce-scatter, all-to-all
and collective-permute, the result of all-gather.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from math import log
from typing import Final

import numpy as np

from automap.errors import TopologyError


_FILE: Final = "collectives.csv"
_SUM: Final = "all-reduce"
_PARTS_OF_A_SUM: Final = ("reduce-scatter", "all-gather")


@dataclass(frozen=True, slots=True)
class Series:
    """One collective of one number of ranks; both arrays are logarithms and rise."""

    log_bytes: np.ndarray
    log_seconds: np.ndarray

    def seconds(self, n_bytes: np.ndarray) -> np.ndarray:
        """Seconds of messages of `n_bytes` each, of any shape."""
        log_bytes = np.log(np.maximum(n_bytes, 1.0))
        beyond = np.maximum(log_bytes - self.log_bytes[-1], 0.0)
        return np.exp(np.interp(log_bytes, self.log_bytes, self.log_seconds) + beyond)


@dataclass(frozen=True)
class MeasuredCollectives:
    """All series of one GPU's links.

    `bytes_per_s` are those of the measured links, one direction out of one device, and `by_kind`
    holds for each kind, an HLO opcode, the series by ranks.
    """

    name: str
    bytes_per_s: float
    by_kind: Mapping[str, Mapping[int, Series]]

    def ranks(self, kind: str) -> tuple[int, ...]:
        """The numbers of ranks that a kind was measured for, rising; none if it was not."""
        return tuple(sorted(self.by_kind.get(kind, ())))

    def most_bytes(self, kind: str, ranks: int) -> float:
        """The largest message that was measured; `KeyError` for what was not measured."""
        return float(np.exp(self.by_kind[kind][ranks].log_bytes[-1])) * (1 + 1e-9)

    def seconds(self, kind: str, ranks: int, n_bytes: np.ndarray) -> np.ndarray:
        """Seconds of messages of `n_bytes` each over `ranks`, which are not outside of those that
        were measured.
        """
        series = self.by_kind[kind]
        measured = self.ranks(kind)
        above = next(m for m in measured if m >= ranks)
        if above == ranks:
            return series[ranks].seconds(n_bytes)
        below = max(m for m in measured if m < ranks)
        share = log(ranks / below) / log(above / below)
        low, high = (series[m].seconds(n_bytes) for m in (below, above))
        return low ** (1 - share) * high**share


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """How the links of a GPU are read from those of a measured one.

    `adds_in_switch` says whether its switch adds numbers on their way.
    """

    measured: str
    adds_in_switch: bool


LINK_TABLES: Final[Mapping[str, LinkTable]] = {
    "nvswitch-2": LinkTable(measured="h100", adds_in_switch=False),
    "nvswitch-3": LinkTable(measured="h100", adds_in_switch=True),
    "nvswitch-4": LinkTable(measured="b200", adds_in_switch=True),
    "nvl72-gb200": LinkTable(measured="gb200", adds_in_switch=True),
    "nvl72-gb300": LinkTable(measured="gb300", adds_in_switch=True),
}
"""What a level of links may name as its measurement: the generation of its switch."""


def link_table(name: str) -> LinkTable:
    """The table of a name; raises `TopologyError` with the names there are."""
    if name not in LINK_TABLES:
        raise TopologyError(f"measured: got {name!r}; allowed: {', '.join(LINK_TABLES)}, or none")
    return LINK_TABLES[name]


def measured_parts(table: LinkTable, kind: str) -> tuple[str, ...]:
    """The measured collectives that one of a kind is made of, one after the other."""
    return _PARTS_OF_A_SUM if kind == _SUM and not table.adds_in_switch else (kind,)


LINK_BYTES_PER_S: Final[Mapping[str, float]] = {
    "h100": 450e9,
    "b200": 900e9,
    "gb200": 900e9,
    "gb300": 900e9,
}
"""Bytes per second out of one GPU over the links that were measured (NVIDIA's datasheets)."""


@cache
def measured_collectives(name: str) -> MeasuredCollectives:
    """The measurements of a GPU. Raises `KeyError` for one that was not measured."""
    text = files("automap.topology.measured").joinpath(_FILE).read_text("utf-8")
    rows: dict[str, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(StringIO(text)):
        if row["device"] == name:
            point = int(row["bytes"]), float(row["seconds"])
            rows[row["collective"]][int(row["ranks"])].append(point)
    by_kind = {
        kind: {ranks: _rising(points) for ranks, points in by_ranks.items()}
        for kind, by_ranks in rows.items()
    }
    return MeasuredCollectives(name, LINK_BYTES_PER_S[name], by_kind)


def _rising(points: Sequence[tuple[int, float]]) -> Series:
    n_bytes, seconds = (np.array(column) for column in zip(*sorted(points), strict=True))
    least_after = np.minimum.accumulate(seconds[::-1])[::-1]
    return Series(np.log(n_bytes), np.log(least_after))
