"""Strategies that place operators on devices, behind one protocol: a `Search` -> a placement.

mcmc        FlexFlow's search (Jia et al. 2019, section 6.2): a Metropolis walk from each of the
            baselines over changes of one operator, of a layer, or of a run of neighbours; a
            proposal y in place of x is taken with probability

                min(1, exp(beta (E(x) - E(y)))),   E = log(seconds) + OVERFLOW * missing memory

            and at the end a descent: single operators and layers are moved as long as that helps,
            so that the result is a local optimum                     -> in: `_walk`, `_descend`
exact       every placement that the bound below does not exclude, for small graphs; a device
            works at least the seconds of its operators, and a step takes as long as the busiest
                                                                             -> in: `_enumerate`
auto        the best of the baselines and of mcmc; exact where placements are few

Those without a search are in `automap.placement.baselines`, those that learn in
`automap.placement.colocrl`.

A search is bounded by work: proposals, or placements priced. It begins with the baselines, so it is
never worse than the best of them.
"""

from collections.abc import Mapping
from dataclasses import replace
import math
from typing import Final

import numpy as np

from automap.errors import InputError
from automap.numba_jit import Array, compiled, inner
from automap.placement.baselines import expert, heft, m_sct, single
from automap.placement.search import Placed, Search, Strategy
from automap.placement.timeline import Machine, Step, price


# As FlexFlow's search has it for energies that are logarithms (`automap.search.soap`): at 100 a
# step that is 1 % longer is taken with chance 1/e.
BETA: Final = 100.0
# What does not fit is walked through, but never kept in place of what does.
OVERFLOW: Final = 10.0
LEAST_PROPOSALS: Final = 2_000
MOST_PROPOSALS: Final = 20_000
# Of exact: placements that are priced, at most, and for auto.
MOST_PRICED: Final = 2_000_000
FEW_PLACEMENTS: Final = 5_000
# Proposals between two looks at the clock.
_CHUNK: Final = 250


def mcmc(search: Search) -> Placed:
    """Walks from the baselines, and a descent from the best of each."""
    starts = [baseline(search) for baseline in BASELINES.values()]
    results = list(starts)
    for number, start in enumerate(starts):
        results.append(_descended(search, _walked(search, start, search.seed + number)))
    return min(results, key=lambda p: p.rank)


def _walked(search: Search, start: Placed, seed: int) -> Placed:
    """The best of one walk; it ends when nothing better came up for half of its proposals."""
    step, machine = search.simulator.step, search.simulator.machine
    rng = np.random.default_rng(seed)
    at, best = np.array(start.device, np.int64), np.array(start.device, np.int64)
    energy = _energies(start)
    made, best_after = 0, 0
    while made < MOST_PROPOSALS and not search.deadline.is_over:
        draws = rng.random((_CHUNK, 5))
        better = _walk(step, machine, search.layers, at, best, energy, draws)
        best_after = made + better if better >= 0 else best_after
        made += _CHUNK
        search.priced += _CHUNK
        if made >= LEAST_PROPOSALS and made >= 2 * best_after:
            break
    return search.place(best.tolist())


def _energies(start: Placed) -> np.ndarray:
    """Of where a walk is, and of the best."""
    energy = math.log(max(start.seconds, 1e-300)) + OVERFLOW * start.overflow
    return np.array([energy, energy])


def _descended(search: Search, start: Placed) -> Placed:
    """A local optimum: no move of one operator or layer to another device helps."""
    device, energy = np.array(start.device, np.int64), _energies(start)
    while not search.deadline.is_over:
        step, machine = search.simulator.step, search.simulator.machine
        search.priced += (len(device) + int(search.layers.max(initial=0)) + 1) * search.n_devices
        if not _descend(step, machine, search.layers, device, energy):
            break
    return search.place(device.tolist())


def exact(search: Search) -> Placed:
    """The proven best placement. Raises `InputError` for a graph that has too many."""
    start = min((baseline(search) for baseline in BASELINES.values()), key=lambda p: p.rank)
    best = np.array(start.device, np.int64)
    problem, machine = search.simulator.problem, search.simulator.machine
    seconds = problem.operator_seconds[machine.kind]
    priced, is_done = _enumerate(
        search.simulator.step, machine, seconds, best, _energies(start), MOST_PRICED
    )
    search.priced += priced
    if not is_done:
        raise InputError(
            f"--strategy exact: {problem.n_operators} operators on {search.n_devices} devices are "
            f"more than {MOST_PRICED:,} placements; allowed: smaller graphs, or --strategy mcmc"
        )
    proven = search.place(best.tolist())
    return replace(proven, gap=0.0)


def auto(search: Search) -> Placed:
    """Exact where placements are few, else the best of mcmc, which begins with the baselines."""
    count = search.simulator.problem.n_operators * math.log(max(search.n_devices, 1))
    return (exact if count <= math.log(FEW_PLACEMENTS) else mcmc)(search)


BASELINES: Final[Mapping[str, Strategy]] = {
    "single": single,
    "expert": expert,
    "heft": heft,
    "m-sct": m_sct,
}
"""Where searches begin, and what they are compared with."""


@inner
def _energy(step: Step, machine: Machine, device: Array) -> float:
    seconds, overflow = price(step, machine, device)
    return np.log(max(seconds, 1e-300)) + OVERFLOW * overflow


@compiled
def _walk(
    step: Step,
    machine: Machine,
    layers: Array,
    at: Array,
    best: Array,
    energy: Array,
    draws: Array,
) -> int:
    """A proposal for each row of `draws`: kind, operator, length, device, chance, all from 0 to 1.

    `at`, `best` and `energy` (of both) are changed; returns the last proposal that was a new best,
    -1 if none was.
    """
    count, n_devices, better = len(at), len(machine.kind), -1
    proposed = at.copy()
    for number in range(len(draws)):
        kind, chosen = draws[number, 0], int(draws[number, 1] * count)
        target = int(draws[number, 3] * n_devices)
        # A run of neighbours, a whole layer, or one operator.
        past = chosen + 1 + int(draws[number, 2] * (count - chosen)) if kind < 0.25 else chosen + 1
        for operator in range(count):
            proposed[operator] = at[operator]
            is_in_layer = 0.25 <= kind < 0.5 and layers[operator] == layers[chosen]
            if chosen <= operator < past or is_in_layer:
                proposed[operator] = target
        after = _energy(step, machine, proposed)
        if after <= energy[0] or draws[number, 4] < np.exp(BETA * (energy[0] - after)):
            energy[0] = after
            at[:] = proposed
            if after < energy[1]:
                energy[1] = after
                best[:] = proposed
                better = number
    return better


@compiled
def _descend(step: Step, machine: Machine, layers: Array, device: Array, energy: Array) -> bool:
    """Try every operator, then every layer, on every device once; whether anything helped."""
    helped = False
    kept = device.copy()
    for number in range(len(device) + layers.max() + 1):
        for target in range(len(machine.kind)):
            kept[:] = device
            for operator in range(len(device)):
                if operator == number or layers[operator] == number - len(device):
                    device[operator] = target
            after = _energy(step, machine, device)
            if after < energy[0]:
                energy[0] = after
                helped = True
            else:
                device[:] = kept
    return helped


@compiled
def _enumerate(
    step: Step, machine: Machine, seconds: Array, best: Array, energy: Array, most: int
) -> tuple[int, bool]:
    """Every placement, operator by operator, but those whose busiest device alone takes as long as
    the best. Returns (placements priced, whether all were looked at).
    """
    count, n_devices = len(best), len(machine.kind)
    device, load = np.full(count, -1, np.int64), np.zeros(n_devices)
    priced, place = 0, 0
    while place >= 0:
        here = device[place]
        if here >= 0:
            load[here] -= seconds[here, place]
        device[place] = here = here + 1
        if here == n_devices:
            device[place] = -1
            place -= 1
            continue
        load[here] += seconds[here, place]
        # What is subtracted again may leave a rounding error: the bound is that much weaker.
        if np.log(max(load[here] * (1.0 - 1e-9), 1e-300)) >= energy[0]:
            continue
        if place + 1 < count:
            place += 1
            continue
        if priced == most:
            return priced, False
        priced += 1
        after = _energy(step, machine, device)
        if after < energy[0]:
            energy[0] = after
            best[:] = device
    return priced, True
