"""FlexFlow's cases: six models on its two clusters, and the plans that people write for them.

    data       data parallelism
    expert     one weird trick (Krizhevsky 2014) for what has convolutions: the batch in
               convolutions, features in fully connected layers; for recurrent models (Wu et al.
               2016) data parallelism over hosts, within a host each layer on a device of its own

The batch is of as many samples for each device (Jia et al. 2019, table 3), so that samples per
second would grow with the devices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
import math
from typing import Any

import click
import numpy as np

from automap.program.problem import Problem
from automap.program.problem_build import build_problem
from automap.search.soap import SoapBudget, SoapResult, descend, soap_search
from automap.simulate.operators import Simulator
from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import Configuration, Split, data_parallel, spread
from automap.simulate.operators.graph import Layer, OperatorGraph, graph_layers
from automap.simulate.operators.network import DeviceNetwork, device_network, first_devices
from automap.topology import Topology, get_topology
from hlo_tools.read.proto import decode_module
from hlo_tools.rules import FactorKind
from models import alexnet, inception, nmt, resnet, rnnlm, rnntc
from models.training import Target


# Both clusters have four GPUs in a host.
PER_HOST = 4


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

    model: str
    graph: OperatorGraph
    network: DeviceNetwork
    batch_class: int
    batch: int

    @property
    def n_devices(self) -> int:
        """Devices used."""
        return self.network.n_devices

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Layers with something to split."""
        return tuple(layer for layer in graph_layers(self.graph) if layer.classes)

    def simulator(self, configurations: Sequence[Configuration]) -> Simulator:
        """A plan on the machine."""
        return Simulator(self.graph, self.network, configurations)


def case(name: str, cluster: str | Topology, n_devices: int) -> Case:
    """A model on so many devices of a cluster."""
    topology = get_topology(cluster) if isinstance(cluster, str) else cluster
    batch = MODELS[name].per_device * n_devices
    problem = _problem(name, batch)
    if problem.batch_class is None:
        raise click.ClickException("the model has no batch")
    network = first_devices(device_network(topology), n_devices)
    return Case(name, operator_graph(problem, topology), network, problem.batch_class, batch)


@lru_cache(maxsize=1)
def _problem(name: str, batch: int) -> Problem:
    step, args = MODELS[name].make(batch)
    lowered: Any = step
    proto = lowered.lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()
    return build_problem(decode_module(proto))


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
    per_host = min(PER_HOST, it.n_devices)
    hosts, place, splits = it.n_devices // per_host, 0, list[Split]()
    for layer in it.layers:
        devices = tuple(host * per_host + place % per_host for host in range(hosts))
        splits.append(Split(((it.batch_class, hosts),), devices))
        place += any(it.graph.operators[number].compute_seconds > 0 for number in layer.operators)
    return splits


def found(it: Case, starts: Sequence[Sequence[Configuration]], most_proposals: int) -> SoapResult:
    """The plan that the search finds from the best of the starts: a descent with half of the
    proposals, a walk with a quarter, and a descent from its best with what is left.
    """
    simulators = [it.simulator(start) for start in starts]
    simulator = min(simulators, key=lambda s: s.makespan_seconds)
    first = descend(simulator, it.layers, most_proposals // 2)
    budget = SoapBudget(least_proposals=most_proposals // 8, most_proposals=most_proposals // 4)
    walked = soap_search(simulator, it.layers, budget)
    made = first.proposals + walked.proposals
    if walked.step_seconds >= first.step_seconds:
        walked = first
        if first.is_optimum:
            return replace(first, proposals=made)
    last = descend(it.simulator(walked.configurations), it.layers, most_proposals - made, seed=1)
    return replace(
        last,
        proposals=made + last.proposals,
        accepted=first.accepted + walked.accepted + last.accepted,
    )


def drawn(it: Case, configurations: Sequence[Configuration]) -> list[dict[str, Any]]:
    """For each layer the device of each part of its longest forward operator, [batch, other
    dimensions]: figures 13 and 14.
    """
    rows = []
    for layer in it.layers:
        operators = it.graph.operators
        forward = [n for n in layer.operators if operators[n].phase == "forward"]
        if not forward:
            continue
        number = max(forward, key=lambda n: (operators[n].compute_seconds, operators[n].name))
        factors, degrees = operators[number].factors, configurations[number].degrees
        batch = next((f for f, factor in enumerate(factors) if factor.is_batch), len(factors) - 1)
        # The first factor varies fastest, so it is the last axis of the array.
        parts = np.array(configurations[number].devices).reshape(degrees[::-1])
        grid = np.moveaxis(parts, len(factors) - 1 - batch, 0).reshape(degrees[batch], -1)
        name = operators[number].name.rpartition("/")[2]
        rows.append({"name": name, "kernels": len(layer.operators), "devices": grid.tolist()})
    return rows
