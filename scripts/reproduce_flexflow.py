"""FlexFlow's evaluation, simulated: throughput of data parallelism, of experts' plans and of what
its search finds.

    python -m scripts.reproduce_flexflow -o docs/reports/flexflow.md

Six models on its two clusters (Jia et al. 2019, table 3, section 8): a batch of as many samples for
each device, and more of them for more devices, so that samples per second would grow with the
devices.

    data       data parallelism
    expert     one weird trick (Krizhevsky 2014) for what has convolutions: the batch in
               convolutions, features in fully connected layers; for recurrent models (Wu et al.
               2016) data parallelism over hosts, within a host each layer on a device of its own
    found      the best of walks from both over SOAP configurations (`automap.search.soap`)

Memory is not regarded, as in the paper. The second table compares delta and full simulation on the
same walk over single operators.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
import platform
import time
from typing import Any

import click

from automap.program.problem_build import build_problem
from automap.search.soap import SoapBudget, SoapResult, soap_search
from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import Configuration, Split, data_parallel, spread
from automap.simulate.operators.graph import Layer, OperatorGraph, graph_layers
from automap.simulate.operators.network import DeviceNetwork, device_network, first_devices
from automap.simulate.operators.simulator import Method, Simulator
from automap.topology import get_topology
from automap.topology.model import Topology
from hlo_tools.read.proto import decode_module
from hlo_tools.rules import FactorKind
from models import alexnet, inception, nmt, resnet, rnnlm, rnntc
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_flexflow -o docs/reports/flexflow.md"
DEVICES: Mapping[str, tuple[int, ...]] = {
    "flexflow-p100": (4, 16),
    "flexflow-k80": (16, 64),
}
# Both clusters have four GPUs in a host.
PER_HOST = 4
SECONDS, MOST_PROPOSALS = 16.0, 20_000
DELTA_PROPOSALS = 20
HEADER = [
    "model",
    "cluster",
    "devices",
    "operators",
    "data, samples/s",
    "expert",
    "found",
    "found / data",
    "found / best of both",
    "proposals",
    "accepted",
    "seconds",
]
DELTA_HEADER = ["model", "devices", "proposals", "full, s", "delta, s", "full / delta"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the paper with its batch for each device."""

    make: Callable[[int], Target]
    per_device: int


MODELS: Mapping[str, Model] = {
    "alexnet": Model(alexnet.alexnet, 256),
    "inception-v3": Model(inception.inception_v3, 64),
    "resnet-101": Model(resnet.resnet_101, 64),
    "rnntc": Model(rnntc.rnntc, 64),
    "rnnlm": Model(rnnlm.rnnlm, 64),
    "nmt": Model(nmt.nmt, 64),
}


@dataclass(frozen=True)
class Case:
    """A model on the first devices of a cluster."""

    graph: OperatorGraph
    network: DeviceNetwork
    batch_class: int
    batch: int

    @property
    def n_devices(self) -> int:
        """Devices used."""
        return self.network.n_devices

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers with something to split."""
        return tuple(layer for layer in graph_layers(self.graph) if layer.classes)


def case(model: Model, topology: Topology, n_devices: int) -> Case:
    """Trace the model for so many devices."""
    batch = model.per_device * n_devices
    step, args = model.make(batch)
    lowered: Any = step
    proto = lowered.lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()
    problem = build_problem(decode_module(proto))
    if problem.batch_class is None:
        raise click.ClickException("the model has no batch")
    network = first_devices(device_network(topology), n_devices)
    return Case(operator_graph(problem, topology), network, problem.batch_class, batch)


def expert(it: Case) -> list[Configuration]:
    """The plan that people write for a model of this kind."""
    is_convolution = [_has_convolutions(it.graph, layer) for layer in it.layers]
    if not any(is_convolution):
        splits = _layer_per_device(it)
    else:
        splits = [None if c else _features(it, x) for c, x in zip(is_convolution, it.layers)]
    configurations = data_parallel(it.graph, it.n_devices)
    for layer, split in zip(it.layers, splits, strict=True):
        if split is not None:
            for number in layer.operators:
                configurations[number] = spread(it.graph.operators[number], split)
    return configurations


def _has_convolutions(graph: OperatorGraph, layer: Layer) -> bool:
    return any("conv_general_dilated" in graph.operators[n].name for n in layer.operators)


def _features(it: Case, layer: Layer) -> Split | None:
    """The result's features over as many devices as divide them, the batch over the rest; None
    without a product.
    """
    for number in layer.operators:
        operator = it.graph.operators[number]
        features = [
            f
            for f in operator.factors
            if f.kind is FactorKind.PASSTHROUGH and f.group_class != it.batch_class
        ]
        # The first product of a layer says what its features are.
        if operator.compute_seconds and operator.phase == "forward" and features:
            degree = math.gcd(features[-1].size, it.n_devices)
            batch_split = ((it.batch_class, it.n_devices // degree),)
            degrees = ((features[-1].group_class, degree), *batch_split)
            return Split(degrees, tuple(range(it.n_devices)))
    return None


def _layer_per_device(it: Case) -> list[Split]:
    """The batch over hosts, all of a layer on one device of each: those with products in turn, the
    others on the next.
    """
    hosts, place, splits = it.n_devices // PER_HOST, 0, list[Split]()
    for layer in it.layers:
        devices = tuple(host * PER_HOST + place % PER_HOST for host in range(hosts))
        splits.append(Split(((it.batch_class, hosts),), devices))
        place += any(it.graph.operators[number].compute_seconds > 0 for number in layer.operators)
    return splits


def search_from(it: Case, starts: Sequence[Sequence[Configuration]], seconds: float) -> SoapResult:
    """The best of walks from each start, which share the seconds."""
    budget = SoapBudget(
        # A slow machine makes a tenth of the walk at least, whatever the seconds.
        least_proposals=MOST_PROPOSALS // 10,
        most_proposals=MOST_PROPOSALS,
        seconds=seconds / len(starts),
    )
    results = [
        soap_search(Simulator(it.graph, it.network, start), it.layers, budget, seed=seed)
        for seed, start in enumerate(starts)
    ]
    best = min(results, key=lambda r: r.step_seconds)
    return SoapResult(
        configurations=best.configurations,
        step_seconds=best.step_seconds,
        proposals=sum(r.proposals for r in results),
        accepted=sum(r.accepted for r in results),
    )


def throughput_row(name: str, cluster: str, it: Case, seconds: float) -> list[str]:
    """One row of the first table."""
    starts = [data_parallel(it.graph, it.n_devices), expert(it)]
    data_seconds, expert_seconds = (
        Simulator(it.graph, it.network, s).makespan_seconds for s in starts
    )
    begin = time.monotonic()
    best = search_from(it, starts, seconds)
    took = time.monotonic() - begin
    rates = [f"{it.batch / s:,.0f}" for s in (data_seconds, expert_seconds, best.step_seconds)]
    return [
        name,
        cluster,
        f"{it.n_devices}",
        f"{len(it.graph.operators):,}",
        *rates,
        f"{data_seconds / best.step_seconds:.2f}",
        f"{min(data_seconds, expert_seconds) / best.step_seconds:.2f}",
        f"{best.proposals:,}",
        f"{best.accepted:,}",
        f"{took:.0f}",
    ]


def delta_row(name: str, it: Case) -> list[str]:
    """One row of the second table: the same walk with either simulation."""
    results, took = [], []
    for method in (Method.FULL, Method.DELTA):
        simulator = Simulator(it.graph, it.network, data_parallel(it.graph, it.n_devices))
        budget = SoapBudget(least_proposals=DELTA_PROPOSALS, most_proposals=DELTA_PROPOSALS)
        begin = time.process_time()
        results.append(soap_search(simulator, (), budget, method=method))
        took.append(time.process_time() - begin)
    # Delta simulation is exact, so equal seeds walk alike.
    if results[0] != results[1]:
        raise click.ClickException(f"{name}: delta and full simulation made different walks")
    return [
        name,
        f"{it.n_devices}",
        f"{DELTA_PROPOSALS}",
        f"{took[0]:.2f}",
        f"{took[1]:.2f}",
        f"{took[0] / took[1]:.2f}",
    ]


def cases(models: Sequence[str], most_devices: int) -> Iterator[tuple[str, str, Case]]:
    """(model, cluster, case) in the order of the table."""
    for name in models:
        for cluster, counts in DEVICES.items():
            for n_devices in counts:
                if n_devices <= most_devices:
                    yield name, cluster, case(MODELS[name], get_topology(cluster), n_devices)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--most-devices", default=64, show_default=True)
@click.option("--seconds", default=SECONDS, show_default=True, help="of search for each row")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(models: tuple[str, ...], most_devices: int, seconds: float, output: Path | None) -> None:
    """Print the tables, or put them in OUTPUT."""
    rows, delta_rows = [], []
    for name, cluster, it in cases(models or list(MODELS), most_devices):
        rows.append(throughput_row(name, cluster, it, seconds))
        click.echo(" | ".join(rows[-1]), err=True)
        if cluster == "flexflow-p100":
            delta_rows.append(delta_row(name, it))
            click.echo(" | ".join(delta_rows[-1]), err=True)
    where = f"{seconds:g} s of search for each row, {platform.machine()}, one core"
    throughput = made_by(COMMAND, where) + markdown(HEADER, rows)
    delta = made_by(COMMAND, f"{platform.machine()}, one core") + markdown(DELTA_HEADER, delta_rows)
    if output is None:
        click.echo(f"{throughput}\n{delta}")
    else:
        replace_table(output, throughput, "throughput")
        replace_table(output, delta, "delta")


if __name__ == "__main__":
    main()
