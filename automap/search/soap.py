"""FlexFlow's search: Metropolis walks over SOAP configurations of every operator (sections 4 and
6), and a descent from the best of each, over kernels: `scripts/reproduce_flexflow.py` makes the
paper's tables with it. Plans that run split the operators of a person's graph instead
(`automap.placement.splits`).

    state     a configuration of each operator: the degree of each of its factors, the device of
              each part
    cost      the simulated step (`automap.simulate`), without regard to memory, as in the paper
    proposal  a random configuration of a random operator, or a random split of all operators of a
              random layer, or several of these
    accept    y in place of x with chance min(1, (cost(x) / cost(y))^beta): with u drawn from [0, 1)
              before the simulation, if  cost(y) < cost(x) u^(-1/beta), the limit within which the
              simulation has to end                                    -> in: `soap_search`
    descent   every split of every layer (`splits`) is taken if it is better, until none is: then
              the plan is a local optimum (section 8.4)                      -> in: `descend`

Proposals for a layer are what the paper's graphs, of one operator for a layer and time step, have
in their operators; here a layer of a recurrent network is hundreds of kernels, which no walk moves
one by one. A rejected proposal is taken back. The timeline of a proposal comes by one of `Pricing`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
import math
import random
import time

import numpy as np

from automap.search.metropolis import Patience
from automap.simulate.operators import Method, Simulator
from automap.simulate.operators.configuration import (
    Configuration,
    Split,
    random_configuration,
    random_split,
    splits,
    spread,
)
from automap.simulate.operators.graph import Layer


# At 100 a step that is 1 % longer is accepted with chance 1/e.
_BETA = 100.0
# Chance that a proposal is for a layer, where there are layers.
_LAYER_SHARE = 0.7
# Chance that a proposal changes one more operator or layer: some only help together.
_AGAIN = 0.3

Changes = Sequence[tuple[int, Configuration]]


class Pricing(Enum):
    """How the cost of a proposal comes about."""

    WITHIN = "what changed is written, and simulated as far as it may be accepted"
    REBUILT = "the task graph is written anew and simulated: the paper's full simulation"
    DELTA = "Algorithm 2 after the change of one operator, else what changed is simulated"
    SERIAL = "the sum of all tasks as if none ran beside another: OptCNN's estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoapBudget:
    """When a walk ends: it stops early when nothing better was found for half of the proposals made
    so far.
    """

    least_proposals: int
    most_proposals: int
    seconds: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SoapResult:
    """The best configurations of a walk or descent, one for each operator, and their cost.

    `better` has the processor seconds after which each better one was found, with its cost.
    `is_optimum`: a descent has looked at every neighbour since.
    """

    configurations: tuple[Configuration, ...]
    step_seconds: float
    proposals: int
    accepted: int
    is_optimum: bool = False
    better: tuple[tuple[float, float], ...] = field(default=(), compare=False)


def soap_search(
    simulator: Simulator,
    layers: Sequence[Layer],
    budget: SoapBudget,
    *,
    seed: int = 0,
    pricing: Pricing = Pricing.WITHIN,
) -> SoapResult:
    """Walk from the simulator's configurations; it is left at those of the walk's end.

    Layers may be none: then only single operators are changed.
    """
    walker = _Walker(simulator, layers, np.random.default_rng(seed), pricing)
    source, patience = random.Random(seed), Patience(budget.least_proposals, budget.most_proposals)
    begin = time.process_time()
    at = best = walker.cost()
    best_configurations, accepted = tuple(simulator.configurations), 0
    better = [(0.0, best)]
    deadline_seconds = time.monotonic() + budget.seconds
    while not patience.is_spent and time.monotonic() < deadline_seconds:
        # From (0, 1], so that the limit is a number.
        limit_seconds = at * (1.0 - source.random()) ** (-1.0 / _BETA)
        made = walker.propose()
        before = walker.known(made)
        proposed = walker.price(made, limit_seconds)
        if proposed is not None and proposed <= limit_seconds:
            at, accepted = proposed, accepted + 1
            if at < best:
                best, best_configurations = at, tuple(simulator.configurations)
                better.append((time.process_time() - begin, best))
        else:
            walker.take_back(before)
        patience.record((best,))
    # A rejected proposal has left its timeline behind.
    simulator.simulate()
    return SoapResult(
        configurations=best_configurations,
        step_seconds=best,
        proposals=patience.made,
        accepted=accepted,
        better=tuple(better),
    )


def descend(
    simulator: Simulator,
    layers: Sequence[Layer],
    most_proposals: int,
    *,
    most_parts: int | None = None,
    seed: int = 0,
    pricing: Pricing = Pricing.WITHIN,
) -> SoapResult:
    """From the simulator's configurations to better ones, as long as the split of one layer makes
    them better and there are proposals left; the simulator is left there.

    `most_parts` bounds the parts of a layer: 1 is the space of device placement.
    """
    n_devices = simulator.network.n_devices
    walker = _Walker(simulator, layers, np.random.default_rng(seed), pricing)
    neighbours = [
        (layer, split)
        for layer in layers
        for split in splits(dict(layer.classes), n_devices)
        if most_parts is None or len(split.devices) <= most_parts
    ]
    # Those that use most devices first, by the simplest splits: they mostly matter most.
    rank = [(-len(split.devices), len(split.degrees)) for _, split in neighbours]
    begin = time.process_time()
    at = walker.cost()
    made = since_better = accepted = 0
    better = [(0.0, at)]
    while since_better < len(neighbours) and made < most_proposals:
        order = walker.rng.permutation(len(neighbours)).tolist()
        for n in sorted(order, key=lambda n: rank[n]):
            if since_better == len(neighbours) or made == most_proposals:
                break
            layer, split = neighbours[n]
            changes = walker.different(_split_layer(simulator, layer, split))
            before = walker.known(changes)
            made, since_better = made + 1, since_better + 1
            proposed = walker.price(changes, at) if changes else None
            if proposed is not None and proposed < at:
                at, accepted, since_better = proposed, accepted + 1, 0
                better.append((time.process_time() - begin, at))
            else:
                walker.take_back(before)
    # A rejected proposal has left its timeline behind.
    simulator.simulate()
    return SoapResult(
        configurations=tuple(simulator.configurations),
        step_seconds=at,
        proposals=made,
        accepted=accepted,
        is_optimum=since_better == len(neighbours),
        better=tuple(better),
    )


def _split_layer(
    simulator: Simulator, layer: Layer, split: Split
) -> Iterator[tuple[int, Configuration]]:
    operators = simulator.graph.operators
    return ((number, spread(operators[number], split)) for number in layer.operators)


@dataclass
class _Walker:
    """Makes proposals, prices them and takes them back. Changes are (operator, configuration)
    pairs.
    """

    simulator: Simulator
    layers: Sequence[Layer]
    rng: np.random.Generator
    pricing: Pricing

    def cost(self) -> float:
        """Of the configurations as they are."""
        if self.pricing is Pricing.SERIAL:
            return self.simulator.serial_seconds()
        self.simulator.simulate()
        return self.simulator.makespan_seconds

    def propose(self) -> Changes:
        """Changes of one operator or layer, or of several."""
        changes = dict[int, Configuration]()
        while True:
            changes.update(self._change())
            if self.rng.random() >= _AGAIN:
                return self.different(changes.items())

    def different(self, changes: Iterable[tuple[int, Configuration]]) -> Changes:
        """Those of the changes that change something."""
        known = self.simulator.configurations
        return [(number, changed) for number, changed in changes if changed != known[number]]

    def known(self, changes: Changes) -> Changes:
        """What undoes changes that are not made yet."""
        return [(number, self.simulator.configurations[number]) for number, _ in changes]

    def _change(self) -> Iterator[tuple[int, Configuration]]:
        graph, n_devices, rng = self.simulator.graph, self.simulator.network.n_devices, self.rng
        if self.layers and rng.random() < _LAYER_SHARE:
            layer = self.layers[int(rng.integers(len(self.layers)))]
            split = random_split(dict(layer.classes), n_devices, rng)
            yield from _split_layer(self.simulator, layer, split)
        else:
            number = int(rng.integers(len(graph.operators)))
            yield number, random_configuration(graph.operators[number], n_devices, rng)

    def price(self, changes: Changes, limit_seconds: float) -> float | None:
        """The cost after changes, which are made; None where it is over the limit for sure."""
        simulator = self.simulator
        if self.pricing is Pricing.DELTA and len(changes) == 1:
            simulator.move(*changes[0], Method.DELTA)
            return simulator.makespan_seconds
        for change in changes:
            simulator.place(*change)
        match self.pricing:
            case Pricing.WITHIN:
                return simulator.simulate_within(limit_seconds)
            case Pricing.REBUILT:
                simulator.rebuild()
        return self.cost()

    def take_back(self, before: Changes) -> None:
        """Undo a proposal. All but Algorithm 2 need no timeline to start from."""
        if self.pricing is Pricing.DELTA:
            self.price(before, math.inf)
            return
        for change in before:
            self.simulator.place(*change)
