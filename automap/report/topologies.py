"""Machines as text: the catalogue as one table, one machine in full with the source of every
number.

On a terminal tables have frames and are cut to its width; in a pipe they are plain columns of at
most 80, unless COLUMNS says how wide they may be. Sources are longer than that, and many numbers
have the same: each number of a machine has that of its source, `[3]`, and the sources are listed
below.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from automap.quantities import number_text
from automap.report.console import print_table, table_console
from automap.terminal import printable
from automap.topology import (
    CatalogueEntry,
    Device,
    Graph,
    Level,
    Link,
    Source,
    Topology,
    mesh_shapes,
    shortest_routes,
)
from automap.topology.machines import MACHINES
from automap.topology.model import PAIRS


# Rows of one machine shown at most: meshes, links and routes of a large one fill pages.
_MOST_ROWS: Final = 40
# A pipe, and a terminal with fewer columns, has no room for what one machine in full says too.
_WIDE_COLUMNS: Final = 130
_CATALOGUE_HEADS: Final = ("name", "example", "memory", "bf16 dots")
_WIDE_HEADS: Final = ("devices", "kind", "memory speed", "links")
# No ending is the end of another one, so their order does not matter.
_UNITS: Final = (
    ("flops_per_s", 1e12, "TFLOP/s"),
    ("bytes_per_s", 1e9, "GB/s"),
    ("_bytes", 1e9, "GB"),
    ("_seconds", 1e-6, "us"),
)
"""A field's ending (of what is before a dot) -> what its value is divided by, and the unit shown.
"""


def show_catalogue(entries: Iterable[CatalogueEntry]) -> None:
    """Print every family of names with its example."""
    console = table_console()
    is_wide = console.width >= _WIDE_COLUMNS
    heads = (*_CATALOGUE_HEADS, *_WIDE_HEADS) if is_wide else _CATALOGUE_HEADS
    _print(heads, (_entry_row(entry)[: len(heads)] for entry in entries))


def show_machine(machine: Topology | Graph) -> None:
    """Print a machine's devices, links and meshes with sources."""
    if isinstance(machine, Graph):
        _show_graph(machine)
        return
    _show_title(machine, "")
    sources = _Sources()
    _show_rows(machine.device, f"device {machine.device.name}", sources)
    for place, level in enumerate(machine.levels):
        _show_rows(level, f"level {place}, {level.name}" + " (innermost)" * (place == 0), sources)
    shapes = ["x".join(map(str, shape)) for shape in mesh_shapes(machine)]
    _print((f"meshes that lie along its levels, major to minor ({len(shapes)})",), _cut(shapes))
    sources.show()


def _show_title(machine: Topology | Graph, form: str) -> None:
    count = number_text(machine.device_count, "device")
    title = f"{machine.name}: {count}, {machine.platform}{form}"
    table_console().print(printable(title), markup=False)
    named = MACHINES.get(machine.name)
    # A file may have the name of a machine of the catalogue and other numbers.
    if named is not None and named.build() == machine:
        table_console().print(
            printable(f"{named.source.document}: {named.source.note}"), markup=False
        )


def _show_graph(graph: Graph) -> None:
    _show_title(graph, ", a graph: for placement, no mesh lies on it")
    _print(
        ("device", "kind", "host"), ((n.name, n.device.name, str(n.host)) for n in graph.devices)
    )
    sources = _Sources()
    for kind in graph.kinds:
        _show_rows(kind, f"kind {kind.name}", sources)
    for link in graph.links[:_MOST_ROWS]:
        _show_rows(link, f"link {link.name}: {link.ends[0]} - {link.ends[1]}", sources)
    _print(("from", "to", "speed", "latency", "over"), list(_route_rows(graph))[:_MOST_ROWS])
    sources.show()


def _route_rows(graph: Graph) -> Iterator[tuple[str, ...]]:
    routes = shortest_routes(graph)
    for low, first in enumerate(graph.devices):
        # Each pair once: messages take the same way back.
        for high in range(low + 1, graph.device_count):
            yield (
                first.name,
                graph.devices[high].name,
                _shown("bytes_per_s", float(routes.bytes_per_s[low, high])),
                _shown("latency_seconds", float(routes.latency_seconds[low, high])),
                ", ".join(routes.medium_names[m][:-2] for m in routes.between(low, high)),
            )


def _entry_row(entry: CatalogueEntry) -> tuple[str, ...]:
    machine = entry.machine
    graph = isinstance(machine, Graph)
    kinds = machine.kinds if graph else (machine.device,)
    links = f"graph of {len(machine.links)} links" if graph else ", ".join(_alike_levels(machine))
    return (
        entry.pattern,
        entry.example,
        _listed("memory_bytes", [kind.memory_bytes for kind in kinds]),
        _listed("flops_per_s", [kind.peak_flops_per_s("bf16") for kind in kinds]),
        str(machine.device_count),
        ", ".join(kind.name for kind in kinds),
        _listed("hbm_bytes_per_s", [kind.hbm_bytes_per_s for kind in kinds]),
        links,
    )


def _listed(field: str, values: Sequence[float]) -> str:
    """`128, 12 GB`: numbers of one field, with their unit once."""
    *firsts, last = (_shown(field, value) for value in values)
    return ", ".join((*(text.partition(" ")[0] for text in firsts), last))


def _alike_levels(topology: Topology) -> Iterator[str]:
    """Neighbouring levels of one kind and speed as one: the dimensions of a torus."""
    for (kind, bytes_per_s), run in groupby(topology.levels, lambda x: (x.kind, x.bytes_per_s)):
        levels = list(run)
        sizes = "x".join(str(level.size) for level in levels)
        name = levels[0].name.partition("-")[0]
        yield f"{name} {sizes} {kind} {_shown('bytes_per_s', bytes_per_s)}"


@dataclass
class _Sources:
    """The sources of the numbers that were shown, in that order."""

    texts: list[str] = field(default_factory=list)

    def number(self, text: str) -> str:
        """`[3]`, by which a number has the third source; nothing if it has none."""
        if not text:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def show(self) -> None:
        """Print all, each once."""
        _print(("", "sources"), ((f"[{i}]", text) for i, text in enumerate(self.texts, 1)))


def _show_rows(row: Device | Level | Link, title: str, sources: _Sources) -> None:
    """Each number of a device, level or link with that of its source."""
    rows = []
    for part in dataclasses.fields(row):
        value = getattr(row, part.name)
        # A table, such as FLOP/s by type, is a row for each of its entries.
        pairs = [(part.name, value)]
        if part.name in PAIRS:
            pairs = [(f"{part.name}.{key}", number) for key, number in value]
        elif value == part.default and isinstance(row, Device):
            continue  # a part that this device does not have
        rows += [
            (name, _shown(name, each), sources.number(_source_text(name, row.source)))
            for name, each in pairs
            if isinstance(each, int | float | str) and name not in ("name", "medium")
        ]
    _print((title, "", "source"), rows)


def _source_text(field: str, sources: Sequence[Source]) -> str:
    """What is said of a field: what names it fully, else what names its table, else what is about
    all.
    """
    # The most exact source that there is: of this number, of its table, of everything.
    for wanted in (field, field.partition(".")[0], "all"):
        matching = [s for s in sources if wanted in s.field.split(", ")]
        if matching:
            return "; ".join(f"{source.document}: {source.note}" for source in matching)
    return ""


def _shown(field: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    name = field.partition(".")[0]
    # The unit is in the name of the field.
    for ending, divisor, unit in _UNITS:
        if name.endswith(ending):
            return f"{value / divisor:.4g} {unit}"
    return f"{value:g}"


def _cut(lines: Sequence[str]) -> list[tuple[str]]:
    shown = [(line,) for line in lines[:_MOST_ROWS]]
    left = len(lines) - len(shown)
    return shown + ([(f"... and {left} more",)] if left else [])


def _print(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=SIMPLE_HEAD if table_console().is_terminal else None, pad_edge=False)
    for head in heads:
        table.add_column(Text(printable(head)))
    for row in rows:
        # Names such as [HOSTSx]GPUSxh100 are no markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_table(table)
