"""Strategies that place operators on devices, behind one protocol: a `Search` -> a placement.

mcmc        FlexFlow's search (Jia et al. 2019, section 6.2): a Metropolis walk from each of the
            baselines over changes of one operator, of a layer, or of a run of neighbours, to a
            choice that the operator has (a device, or a split; `automap.placement.choices`); a
            proposal y in place of x is taken with probability

                min(1, exp(beta (E(x) - E(y)))),   E = log(seconds) + OVERFLOW * missing memory

            and at the end a descent: single operators and layers are moved as long as that helps,
            so that the result is a local optimum                     -> in: `_walk`, `_improve`
exact       every placement that a bound does not exclude, for small graphs. With some operators
            decided, a step takes as long as the busiest device, as all work over all devices, and
            as the longest way through the tasks                      -> in: `_least_seconds`
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
from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.placement.baselines import data_parallel, expert, heft, m_sct, single
from automap.placement.prices import price
from automap.placement.search import Moves, Placed, Search, Strategy
from automap.placement.timeline import Machine, Step, longest_part, task_seconds


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
        if start.device not in (other.device for other in starts[:number]):
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
        better = _walk(step, machine, search.moves, at, best, energy, draws)
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
    chosen, energy = np.array(start.device, np.int64), _energies(start)
    step, machine, moves = search.simulator.step, search.simulator.machine, search.moves
    count = len(chosen) + int(search.layers.max(initial=0)) + 1
    number = since_better = 0
    while since_better < count and not search.deadline.is_over:
        tried, helped = _improve(step, machine, moves, chosen, energy, number % count)
        search.priced += tried
        number, since_better = number + 1, 1 if helped else since_better + 1
    return search.place(chosen.tolist())


def exact(search: Search) -> Placed:
    """The proven best placement. Raises `InputError` for a graph that has too many."""
    start = min((baseline(search) for baseline in BASELINES.values()), key=lambda p: p.rank)
    best, simulator = np.array(start.device, np.int64), search.simulator
    priced, is_done = _enumerate(
        simulator.step, simulator.machine, search.moves, best, _energies(start), MOST_PRICED
    )
    search.priced += priced
    if not is_done:
        raise InputError(
            f"--strategy exact: {simulator.problem.n_operators} operators on {search.n_devices} "
            f"devices are more than {MOST_PRICED:,} placements; allowed: smaller graphs, or "
            "--strategy mcmc"
        )
    proven = search.place(best.tolist())
    return replace(proven, gap=0.0)


def auto(search: Search) -> Placed:
    """Exact where placements are few, else the best of mcmc, which begins with the baselines."""
    options = np.maximum(search.moves.able.sum(axis=1), 1)
    return (exact if np.log(options).sum() <= math.log(FEW_PLACEMENTS) else mcmc)(search)


BASELINES: Final[Mapping[str, Strategy]] = {
    "single": single,
    "expert": expert,
    "heft": heft,
    "m-sct": m_sct,
    "data-parallel": data_parallel,
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
    moves: Moves,
    at: Array,
    best: Array,
    energy: Array,
    draws: Array,
) -> int:
    """A proposal for each row of `draws`: kind, operator, length, choice, chance, all from 0 to 1.

    `at`, `best` and `energy` (of both) are changed; returns the last proposal that was a new best,
    -1 if none was.
    """
    count, layers, better = len(at), moves.layers, -1
    proposed = at.copy()
    for number in range(len(draws)):
        kind, chosen = draws[number, 0], int(draws[number, 1] * count)
        options = moves.first[chosen + 1] - moves.first[chosen]
        target = moves.option[moves.first[chosen] + int(draws[number, 3] * options)]
        # A run of neighbours, a whole layer, or one operator.
        past = chosen + 1 + int(draws[number, 2] * (count - chosen)) if kind < 0.25 else chosen + 1
        for operator in range(count):
            proposed[operator] = at[operator]
            is_in_layer = 0.25 <= kind < 0.5 and layers[operator] == layers[chosen]
            if (chosen <= operator < past or is_in_layer) and moves.able[operator, target]:
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
def _improve(
    step: Step, machine: Machine, moves: Moves, chosen: Array, energy: Array, number: int
) -> tuple[int, bool]:
    """Try every choice of an operator, or of a layer, which are numbered behind; returns what was
    tried, and whether anything helped.
    """
    tried, helped, count, kept = 0, False, len(chosen), chosen.copy()
    for target in range(moves.able.shape[1]):
        changes = False
        for operator in range(count):
            kept[operator] = chosen[operator]
            is_meant = operator == number or moves.layers[operator] == number - count
            if is_meant and moves.able[operator, target] and chosen[operator] != target:
                chosen[operator] = target
                changes = True
        if not changes:
            continue
        tried += 1
        after = _energy(step, machine, chosen)
        if after < energy[0]:
            energy[0] = after
            helped = True
        else:
            chosen[:] = kept
    return tried, helped


@compiled
def _enumerate(
    step: Step, machine: Machine, moves: Moves, best: Array, energy: Array, most: int
) -> tuple[int, bool]:
    """Every placement, operator by operator, but those that no completion makes better than the
    best. Returns (placements priced, whether all were looked at).
    """
    count, n_choices, n_tasks = len(best), moves.able.shape[1], len(step.operator)
    seconds, bound = np.zeros((n_choices, n_tasks)), np.zeros((count, n_choices))
    chosen, option = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    for choice in range(n_choices):
        chosen[:] = choice
        for task in range(n_tasks):
            # With one choice for all operators no sum is done apart, so this is the least.
            seconds[choice, task] = task_seconds(step, machine, chosen, task)
            bound[step.operator[task], choice] += seconds[choice, task]
    least, work = _least(step, machine, moves, seconds, bound)
    priced, place = 0, 0
    while place >= 0:
        option[place] += 1
        if moves.first[place] + option[place] == moves.first[place + 1]:
            option[place] = -1
            place -= 1
            continue
        chosen[place] = moves.option[moves.first[place] + option[place]]
        after = _least_seconds(step, machine, chosen, place + 1, seconds, bound, least, work)
        # Sums in another order may differ by a rounding error: the bound is that much weaker.
        if np.log(max(after * (1.0 - 1e-9), 1e-300)) >= energy[0]:
            continue
        if place + 1 < count:
            place += 1
            continue
        if priced == most:
            return priced, False
        priced += 1
        after = _energy(step, machine, chosen)
        if after < energy[0]:
            energy[0] = after
            best[:] = chosen
    return priced, True


@inner_making_arrays
def _least(
    step: Step, machine: Machine, moves: Moves, seconds: Array, bound: Array
) -> tuple[Array, Array]:
    """The least seconds of each task, and the least work of all devices for each operator."""
    least = np.full(len(step.operator), np.inf)
    work = np.full(len(bound), np.inf)
    for operator in range(len(bound)):
        for choice in range(moves.able.shape[1]):
            if moves.able[operator, choice]:
                parts = machine.choices.n_parts[choice]
                work[operator] = min(work[operator], parts * bound[operator, choice])
    for task in range(len(least)):
        for choice in range(moves.able.shape[1]):
            if moves.able[step.operator[task], choice]:
                least[task] = min(least[task], seconds[choice, task])
    return least, work


@inner_making_arrays
def _least_seconds(
    step: Step,
    machine: Machine,
    chosen: Array,
    decided: int,
    seconds: Array,
    bound: Array,
    least: Array,
    work: Array,
) -> float:
    """What a step takes at least whose first operators have their choices: the busiest device, all
    work over all devices, and the longest way through tasks and what decided ones send each other.
    """
    choices, load = machine.choices, np.zeros(len(machine.kind))
    total, longest = 0.0, 0.0
    for operator in range(len(chosen)):
        if operator >= decided:
            total += work[operator]
            continue
        choice = chosen[operator]
        for part in range(choices.n_parts[choice]):
            load[choices.device[choice, part]] += bound[operator, choice]
    for device in range(len(load)):
        total += load[device]
        longest = max(longest, load[device])
    longest = max(longest, total / len(load))
    ready = np.zeros(len(step.operator))
    # Tasks are numbered in an order in which they can run.
    for task in range(len(ready)):
        operator = step.operator[task]
        is_known = operator < decided
        end = ready[task] + (seconds[chosen[operator], task] if is_known else least[task])
        longest = max(longest, end)
        for index in range(step.first_made[task], step.first_made[task + 1]):
            x = step.made[index]
            for place in range(step.first_reader[x], step.first_reader[x + 1]):
                reader, sending = step.reader[place], 0.0
                other = step.operator[reader]
                if not step.is_receiver[place]:
                    continue
                if is_known and other < decided and chosen[other] != chosen[operator]:
                    sending = longest_part(step, machine, x, chosen[operator], chosen[other])
                ready[reader] = max(ready[reader], end + sending)
    return longest
