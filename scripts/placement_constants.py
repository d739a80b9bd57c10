"""Numbers that tables of placements rest on, halved and doubled: which results change.

    python -m scripts.placement_constants --table constants --kept ROWS -o docs/reports/colocrl.md
    python -m scripts.placement_constants --table p100 --kept ROWS -o docs/reports/flexflow.md

constants    of devices and links: Inception-v3 on a processor with four K80, whole operators, and
             RNNLM on four P100, operators in parts; a descent from the best baseline
searches     of the walks of `--space placement`, each in a copy of the module that has them, as
             compiled code holds them
p100         of FlexFlow's P100 cluster: NMT on 16 of them, kernels as in figure 7

A share of a rate is 1 at most. A number that is halved or doubled is so in all devices or links
that have it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
from typing import Any, Final

from automap.placement import baselines, strategies
from automap.placement.operators import Operators
from automap.placement.search import Search, Strategy
from automap.placement.strategies import descended
from automap.simulate.operators.configuration import data_parallel
from automap.topology import Device, Graph, Level, Topology, get_graph, get_topology
from automap.topology.graph import Link, Node
from scripts.flexflow_cases import case, expert, found
from scripts.reproduce_colocrl import MODELS, searched, text, traced
from scripts.tables import Table, kept, tables_command


COMMAND: Final = "python -m scripts.placement_constants"
FACTORS: Final = {"halved": 0.5, "doubled": 2.0}
SHARES: Final = ("matmul_efficiency", "memory_efficiency")
# Of the search over kernels: what figure 7's has at least.
PROPOSALS: Final = 200


@dataclass(frozen=True)
class Constant:
    """Fields of the devices, or of the links, whose names begin so."""

    begins: str
    names: Sequence[str]

    def scaled(self, it: Any, factor: float) -> Any:
        """A device, link or level with the fields scaled, if it is meant."""
        if not it.name.startswith(self.begins):
            return it
        most = {name: 1.0 if name in SHARES else float("inf") for name in self.names}
        return replace(it, **{n: min(getattr(it, n) * factor, most[n]) for n in self.names})


Constants = Mapping[str, Constant]
K80: Final[Constants] = {
    "K80: share of peak in products": Constant("k80", ["matmul_efficiency"]),
    "K80: share of memory's rate": Constant("k80", ["memory_efficiency"]),
    "K80: seconds of a launch": Constant("k80", ["launch_seconds"]),
    "Haswell: shares of both": Constant("haswell", SHARES),
    "PCIe: rate": Constant("pcie", ["bytes_per_s"]),
    "PCIe: latency": Constant("pcie", ["latency_seconds"]),
    "slots of boards: rate": Constant("slot", ["bytes_per_s"]),
    "memory bus: rate": Constant("memory-bus", ["bytes_per_s"]),
}
P100: Final[Constants] = {
    "P100: share of peak in products": Constant("p100", ["matmul_efficiency"]),
    "P100: share of memory's rate": Constant("p100", ["memory_efficiency"]),
    "P100: seconds of a launch": Constant("p100", ["launch_seconds"]),
    "NVLink: rate": Constant("nvlink", ["bytes_per_s"]),
    "NVLink: latency": Constant("nvlink", ["latency_seconds"]),
}
NETWORK: Final[Constants] = {
    "network: rate": Constant("network", ["bytes_per_s"]),
    "network: latency": Constant("network", ["latency_seconds"]),
}
NOTHING: Final = ("nothing", "")
STARTS: Final[Sequence[Strategy]] = (
    baselines.expert,
    baselines.heft,
    baselines.m_sct,
    baselines.data_parallel,
)


def changed_graph(graph: Graph, constant: Constant, factor: float) -> Graph:
    """A machine with one number changed."""

    def node(it: Node) -> Node:
        return replace(it, device=constant.scaled(it.device, factor))

    links = tuple(constant.scaled(it, factor) for it in graph.links)
    return replace(graph, devices=tuple(map(node, graph.devices)), links=links)


def changed_topology(topology: Topology, constant: Constant, factor: float) -> Topology:
    """A cluster with one number changed."""
    levels = tuple(constant.scaled(it, factor) for it in topology.levels)
    return replace(topology, device=constant.scaled(topology.device, factor), levels=levels)


def _variants(constants: Constants) -> list[tuple[str, str]]:
    return [NOTHING, *product(constants, FACTORS)]


def differences(
    known: Sequence[Device | Link | Level], other: Sequence[Device | Link | Level]
) -> tuple[str, str]:
    """Values of the fields that differ, and the documents they are from."""
    values, documents = dict[str, None](), dict[str, None]()
    for a, b in zip(known, other, strict=True):
        for it in fields(a):
            if getattr(a, it.name) != getattr(b, it.name):
                values[f"{getattr(a, it.name):g}"] = None
                sources = (s for s in a.source if it.name in s.field or s.field == "all")
                documents.update(dict.fromkeys(s.document for s in sources))
    return ", ".join(values), "; ".join(documents)


def _parts_of(machine: Graph | Topology) -> list[Any]:
    if isinstance(machine, Topology):
        return [machine.device, *machine.levels]
    return [*(node.device for node in machine.devices), *machine.links]


CONSTANTS_HEADER = [
    "model",
    "machine",
    "number",
    "changed",
    "value",
    "from",
    "one GPU, s",
    "best baseline, s",
    "a descent from it, s",
    "one GPU / descent",
]


def _constants(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    rows = []
    for model, machine, constants, has_splits in (
        ("Inception-v3", "haswell-4xk80", K80, False),
        ("RNNLM", "4xp100", P100, True),
    ):
        operators, known = traced(MODELS[model].target), get_graph(machine)
        row = partial(_constant_row, operators, known, constants, has_splits=has_splits)
        for variant in _variants(constants):
            name = " ".join(("constant", machine, *variant))
            rows.append([model, machine, *kept(folder, name, partial(row, *variant))])
    return rows


def _constant_row(
    operators: Operators,
    known: Graph,
    constants: Constants,
    name: str,
    how: str,
    *,
    has_splits: bool,
) -> list[str]:
    graph = changed_graph(known, constants[name], FACTORS[how]) if how else known
    search = searched(operators, graph, has_splits=has_splits)
    one = baselines.single(search)
    best = min((one, *(each(search) for each in STARTS)), key=lambda p: p.rank)
    found = descended(search, best)
    about = differences(_parts_of(known), _parts_of(graph))
    gain = f"{one.seconds / found.seconds:.2f}"
    return [name, how, *about, *map(text, ([one], [best], [found])), gain]


SEARCHES_HEADER = ["number", "changed", "value"]
SEARCHED: Final = ("BETA", "OVERFLOW", "LEAST_PROPOSALS", "MOST_PROPOSALS")
WALKED: Final = (("Inception-v3", 4), ("large RNNLM", 4))


def changed_module(name: str, factor: float, folder: Path) -> Any:
    """A copy of the walks' module with one number changed, in a folder."""
    value = getattr(strategies, name)
    source = Path(strategies.__file__ or "").read_text()
    line = next(x for x in source.splitlines() if x.startswith(f"{name}: Final = "))
    copy = folder / "changed.py"
    copy.write_text(source.replace(line, f"{name}: Final = {type(value)(value * factor)}"))
    spec = spec_from_file_location(copy.stem, copy)
    assert spec is not None and spec.loader is not None  # noqa: S101 - it was just written
    module = module_from_spec(spec)
    # Compilation looks the function's module up.
    sys.modules[copy.stem] = module
    spec.loader.exec_module(module)
    return module


def _searches(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    names = [NOTHING, *product(SEARCHED, FACTORS)]
    rows = [[*name, _value(name[0])] for name in names]
    for model, gpus in WALKED:
        operators, graph = traced(MODELS[model].target), get_graph(f"haswell-{gpus}xk80")
        for name, row in zip(names, rows, strict=True):
            key = " ".join(("search", model, *name))
            search = partial(searched, operators, graph)
            row.append(kept(folder, key, partial(_found, *name, search)))
    return rows


def _value(name: str) -> str:
    return f"{getattr(strategies, name):g}" if name in SEARCHED else ""


def _found(name: str, how: str, search: Callable[[], Search]) -> str:
    if not how:
        return text([strategies.mcmc(search())])
    with TemporaryDirectory() as folder:
        return text([changed_module(name, FACTORS[how], Path(folder)).mcmc(search())])


P100_HEADER = [
    "NMT on 16 P100",
    "changed",
    "value",
    "from",
    "data, samples/s",
    "expert",
    "found",
    "found / best of both",
]


def _p100(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    known = get_topology("flexflow-p100")
    constants = {**P100, **NETWORK}

    def row(name: str, how: str) -> list[str]:
        topology = known
        if how:
            topology = changed_topology(known, constants[name], FACTORS[how])
        it = case("nmt", topology, 16)
        starts = [data_parallel(it.graph, it.n_devices), expert(it)]
        steps = [it.simulator(start).makespan_seconds for start in starts]
        best = found(it, starts, PROPOSALS).step_seconds
        about = differences(_parts_of(known), _parts_of(topology))
        rates = [f"{it.batch / step:,.0f}" for step in (*steps, best)]
        return [name, how, *about, *rates, f"{min(steps) / best:.2f}"]

    return [
        kept(folder, f"p100 {name} {how}", lambda n=name, h=how: row(n, h))
        for name, how in _variants(constants)
    ]


TABLES: Final[Mapping[str, Table]] = {
    "constants": Table(CONSTANTS_HEADER, _constants),
    "searches": Table([*SEARCHES_HEADER, *(f"{m}, {g} GPUs, s" for m, g in WALKED)], _searches),
    "p100": Table(P100_HEADER, _p100),
}


main = tables_command(TABLES, COMMAND, __doc__)


if __name__ == "__main__":
    main()
