"""FlexFlow's search: Metropolis walks over SOAP configurations of every operator (sections 4 and
6). No command reaches it yet: `scripts/reproduce_flexflow.py` makes the paper's tables with it.

    state     a configuration of each operator: the degree of each of its factors, the device of
              each part
    cost      the simulated step (`automap.simulate`), without regard to memory, as in the paper
    proposal  a random configuration of a random operator, or a random split of all operators of a
              random layer, or several of these
    accept    `automap.search.metropolis`

Proposals for a layer are what the paper's graphs, of one operator for a layer and time step, have
in their operators; here a layer of a recurrent network is hundreds of kernels, which no walk moves
one by one. A rejected proposal is taken back. After a change of one operator the timeline is
brought up to date by the given method (delta simulation, or full), after that of more it is always
simulated from the beginning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import math
import random
import time

import numpy as np

from automap.search.metropolis import Patience, acceptance
from automap.simulate.operators import Method, Simulator
from automap.simulate.operators.configuration import (
    Configuration,
    random_configuration,
    random_split,
    spread,
)
from automap.simulate.operators.graph import Layer


# At 100 a step that is 1 % longer is accepted with chance 1/e.
_BETA = 100.0
# Chance that a proposal is for a layer, where there are layers.
_LAYER_SHARE = 0.7
# Chance that a proposal changes one more operator or layer: some only help together.
_AGAIN = 0.3


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
    """The best configurations of a walk, one for each operator, and their step."""

    configurations: tuple[Configuration, ...]
    step_seconds: float
    proposals: int
    accepted: int


def soap_search(
    simulator: Simulator,
    layers: Sequence[Layer],
    budget: SoapBudget,
    *,
    seed: int = 0,
    method: Method = Method.FULL,
) -> SoapResult:
    """Walk from the simulator's configurations; it is left at those of the walk's end.

    Layers may be none: then only single operators are changed.
    """
    walker = _Walker(simulator, layers, np.random.default_rng(seed), method)
    source, patience = random.Random(seed), Patience(budget.least_proposals, budget.most_proposals)
    at = best = simulator.makespan_seconds
    best_configurations, accepted = tuple(simulator.configurations), 0
    deadline_seconds = time.monotonic() + budget.seconds
    while not patience.is_spent and time.monotonic() < deadline_seconds:
        before = walker.propose()
        proposed = simulator.makespan_seconds
        # Logarithms, so that beta has no unit and does not depend on the model's size.
        if source.random() < acceptance(math.log(at), math.log(proposed), _BETA):
            at, accepted = proposed, accepted + 1
            if at < best:
                best, best_configurations = at, tuple(simulator.configurations)
        else:
            walker.take_back(before)
        patience.record((best,))
    # After full simulations a rejected proposal has left its timeline behind.
    simulator.simulate()
    return SoapResult(
        configurations=best_configurations,
        step_seconds=best,
        proposals=patience.made,
        accepted=accepted,
    )


@dataclass
class _Walker:
    """Makes proposals and takes them back. A list of changes is (operator, configuration) pairs."""

    simulator: Simulator
    layers: Sequence[Layer]
    rng: np.random.Generator
    method: Method

    def propose(self) -> list[tuple[int, Configuration]]:
        """Change the simulator's configurations and timeline; returns what undoes it."""
        simulator, changes = self.simulator, dict[int, Configuration]()
        while True:
            changes.update(self._change())
            if self.rng.random() >= _AGAIN:
                break
        known = simulator.configurations
        # A random configuration may be the one that the operator has.
        made = [
            (number, changed) for number, changed in changes.items() if changed != known[number]
        ]
        before = [(number, known[number]) for number, _ in made]
        self._make(made)
        return before

    def _change(self) -> Iterator[tuple[int, Configuration]]:
        graph, n_devices, rng = self.simulator.graph, self.simulator.network.n_devices, self.rng
        if self.layers and rng.random() < _LAYER_SHARE:
            layer = self.layers[int(rng.integers(len(self.layers)))]
            split = random_split(dict(layer.classes), n_devices, rng)
            yield from (
                (number, spread(graph.operators[number], split)) for number in layer.operators
            )
        else:
            number = int(rng.integers(len(graph.operators)))
            yield number, random_configuration(graph.operators[number], n_devices, rng)

    def _make(self, changes: Sequence[tuple[int, Configuration]]) -> None:
        # Delta simulation follows the change of one operator; after more it would touch most of the
        # timeline.
        if len(changes) == 1:
            self.simulator.move(*changes[0], self.method)
            return
        for change in changes:
            self.simulator.place(*change)
        self.simulator.simulate()

    def take_back(self, before: Sequence[tuple[int, Configuration]]) -> None:
        """Undo a proposal. A full simulation of the next one needs no timeline to start from."""
        if self.method is not Method.FULL:
            self._make(before)
            return
        for change in before:
            self.simulator.place(*change)
