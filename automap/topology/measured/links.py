"""Which measurement stands for the links of a GPU, by the generation of their switch.

GPUs that were not measured have their links' bytes per second for the scale: a message takes as
long as one of B s / s' bytes over the measured links, with s' the own and s the measured link's
bytes per second. What is fixed (launch, steps) stays, what is bandwidth scales. Where the switch
cannot add up numbers on the way, an all-reduce is a reduce-scatter and an all-gather.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from automap.errors import TopologyError


_SUM: Final = "all-reduce"
_PARTS_OF_A_SUM: Final = ("reduce-scatter", "all-gather")


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


PRODUCT_TABLES: Final = ("h100", "b200")
"""The GPUs whose products were measured."""
