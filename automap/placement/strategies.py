"""Strategies that place operators on devices, behind one protocol: a `Search` -> a placement.

mcmc        FlexFlow's search (Jia et al. 2019, section 6.2): a Metropolis walk from each of the
            baselines over changes of one operator, of a layer, or of a run of neighbours, to a
            choice that the operator has (a device, or a split; `automap.placement.choices`); a
            proposal y in place of x is taken with probability

                min(1, exp(beta (E(x) - E(y)))),   E = log(seconds) + OVERFLOW * missing memory

            and at the end a descent: single operators and layers are moved as long as that helps,
            so that the result is a local optimum                     -> in: `_walk`, `_improve`
exact       every placement that a bound does not exclude, for small graphs; where that is not done
            in half of the time, the better of what it found and of mcmc. With some operators
            decided, a step takes as long as the busiest device, as all work over all devices, and
            as the longest way through the tasks                      -> in: `_least_seconds`
auto        the best of the baselines and of mcmc, with its gap to that bound; exact where
            placements are few

Those without a search are in `automap.placement.baselines`, those that learn in
`automap.placement.policies`.

A search is bounded by work: proposals, or placements priced. It begins with the baselines, so it is
never worse than the best of them.
"""

from collections.abc import Mapping
from dataclasses import replace
import math
from typing import Final, NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.placement.baselines import (
    data_parallel,
    expert,
    heft,
    m_sct,
    memory,
    optcnn,
    partitions,
    single,
)
from automap.placement.prices import price
from automap.placement.search import Moves, Placed, Search, Strategy
from automap.placement.timeline import Machine, Step, longest_part, task_seconds
from automap.search.progress import ChoiceProgress


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
# Of exact: of its time, before it walks.
_PROOFS_SHARE: Final = 0.5
# Proposals between two looks at the clock.
_CHUNK: Final = 250


def mcmc(search: Search) -> Placed:
    """Walks from the baselines, and a descent from the best of each; partitions, where there is
    METIS, are looked at too, so that none of what this is compared with is better.
    """
    starts = [baseline(search) for baseline in BASELINES.values()]
    results = [*starts, *partitions(search)]
    for number, (name, start) in enumerate(zip(BASELINES, starts, strict=True)):
        best = min((p.seconds for p in results if p.fits), default=math.inf)
        search.on_progress(ChoiceProgress(f"walk from {name}", number, len(starts), best))
        if start.device not in (other.device for other in starts[:number]):
            results.append(descended(search, walked(search, start, search.seed + number)))
    return min(results, key=lambda p: p.rank)


def walked(search: Search, start: Placed, seed: int) -> Placed:
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


def descended(search: Search, start: Placed, able: np.ndarray | None = None) -> Placed:
    """A local optimum: no move of one operator or layer to another device helps; `able` [operators,
    choices] says what may be moved where, else all choices that there are.
    """
    chosen, energy = np.array(start.device, np.int64), _energies(start)
    step, machine, moves = search.simulator.step, search.simulator.machine, search.moves
    if able is not None:
        moves = moves._replace(able=able)
    count = len(chosen) + int(search.layers.max(initial=0)) + 1
    number = since_better = 0
    while since_better < count and not search.deadline.is_over:
        tried, helped = _improve(step, machine, moves, chosen, energy, number % count)
        search.priced += tried
        number, since_better = number + 1, 1 if helped else since_better + 1
    return search.place(chosen.tolist())


def exact(search: Search) -> Placed:
    """The proven best placement; where half of the time or MOST_PRICED placements end first, the
    better of the best so far and of `mcmc`, with its gap to a bound.
    """
    start = min((baseline(search) for baseline in BASELINES.values()), key=lambda p: p.rank)
    best, until = np.array(start.device, np.int64), search.deadline.share(_PROOFS_SHARE)
    step, machine, moves = search.simulator.step, search.simulator.machine, search.moves
    energy = _energies(start)
    bounds = _bounds(step, machine, moves)
    chosen, option = np.zeros(len(best), np.int64), np.full(len(best), -1, np.int64)
    place, all_priced = 0, 0
    while place >= 0 and all_priced <= MOST_PRICED and not until.is_over:
        place, priced = _enumerate(
            step, machine, moves, bounds, best, energy, chosen, option, place, _CHUNK
        )
        all_priced += priced
    search.priced += all_priced
    placed = search.place(best.tolist())
    if place < 0:
        return replace(placed, gap=0.0)
    return _bounded(search, min(placed, mcmc(search), key=lambda p: p.rank))


def _bounded(search: Search, placed: Placed) -> Placed:
    """A placement with its gap to what none is faster than."""
    least = least_seconds(search)
    is_bounded = placed.fits and least > 0.0
    return replace(placed, gap=max(placed.seconds / least - 1.0, 0.0) if is_bounded else None)


def least_seconds(search: Search) -> float:
    """What no placement is faster than, whether it fits or not."""
    step, machine, moves = search.simulator.step, search.simulator.machine, search.moves
    return float(_least_of_all(step, machine, _bounds(step, machine, moves)))


def auto(search: Search) -> Placed:
    """Exact where placements are few, else the best of mcmc, which begins with the baselines, with
    its gap to a bound.
    """
    options = np.maximum(search.moves.able.sum(axis=1), 1)
    if np.log(options).sum() <= math.log(FEW_PLACEMENTS):
        return exact(search)
    return _bounded(search, mcmc(search))


BASELINES: Final[Mapping[str, Strategy]] = {
    "single": single,
    "expert": expert,
    "heft": heft,
    "m-sct": m_sct,
    "memory": memory,
    "data-parallel": data_parallel,
    "optcnn": optcnn,
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


class _Bounds(NamedTuple):
    """`seconds` [choices, tasks]; `work` [operators, choices], of all tasks of an operator on each
    of its devices. Over all choices that an operator has: `least_seconds` [tasks], and `least_work`
    [operators] of all devices together.
    """

    seconds: Array
    work: Array
    least_seconds: Array
    least_work: Array


@compiled
def _bounds(step: Step, machine: Machine, moves: Moves) -> _Bounds:
    """What tasks take under each choice."""
    (count, n_choices), n_tasks = moves.able.shape, len(step.operator)
    seconds, work = np.zeros((n_choices, n_tasks)), np.zeros((count, n_choices))
    least_seconds, least_work = np.full(n_tasks, np.inf), np.full(count, np.inf)
    chosen = np.zeros(count, np.int64)
    for choice in range(n_choices):
        # With one choice for all operators no sum is done apart, so this is the least.
        chosen[:] = choice
        for task in range(n_tasks):
            operator = step.operator[task]
            seconds[choice, task] = task_seconds(step, machine, chosen, task)
            work[operator, choice] += seconds[choice, task]
            if moves.able[operator, choice]:
                least_seconds[task] = min(least_seconds[task], seconds[choice, task])
        for operator in range(count):
            if moves.able[operator, choice]:
                both = machine.choices.n_parts[choice] * work[operator, choice]
                least_work[operator] = min(least_work[operator], both)
    return _Bounds(seconds, work, least_seconds, least_work)


@compiled
def _enumerate(
    step: Step,
    machine: Machine,
    moves: Moves,
    bounds: _Bounds,
    best: Array,
    energy: Array,
    chosen: Array,
    option: Array,
    place: int,
    most: int,
) -> tuple[int, int]:
    """Look at so many choices more, operator by operator, but those that no completion makes better
    than the best. `chosen` and `option` are of the operators up to `place`; returns where it is,
    -1 at the end, and the placements priced.
    """
    priced, looked_at = 0, 0
    while place >= 0 and looked_at < most:
        looked_at += 1
        option[place] += 1
        if moves.first[place] + option[place] == moves.first[place + 1]:
            option[place] = -1
            place -= 1
            continue
        chosen[place] = moves.option[moves.first[place] + option[place]]
        after = _least_seconds(step, machine, chosen, place + 1, bounds)
        # Sums in another order may differ by a rounding error: the bound is that much weaker.
        if np.log(max(after * (1.0 - 1e-9), 1e-300)) >= energy[0]:
            continue
        if place + 1 < len(chosen):
            place += 1
            continue
        priced += 1
        after = _energy(step, machine, chosen)
        if after < energy[0]:
            energy[0] = after
            best[:] = chosen
    return place, priced


@inner_making_arrays
def _least_seconds(
    step: Step,
    machine: Machine,
    chosen: Array,
    decided: int,
    bounds: _Bounds,
) -> float:
    """What a step takes at least whose first operators have their choices: the busiest device, all
    work over all devices, and the longest way through tasks and what decided ones send each other.
    """
    choices, load = machine.choices, np.zeros(len(machine.kind))
    total, longest = 0.0, 0.0
    for operator in range(len(chosen)):
        if operator >= decided:
            total += bounds.least_work[operator]
            continue
        choice = chosen[operator]
        for part in range(choices.n_parts[choice]):
            load[choices.device[choice, part]] += bounds.work[operator, choice]
    for device in range(len(load)):
        total += load[device]
        longest = max(longest, load[device])
    longest = max(longest, total / len(load))
    ready = np.zeros(len(step.operator))
    # Tasks are numbered in an order in which they can run.
    for task in range(len(ready)):
        operator = step.operator[task]
        is_known = operator < decided
        taken = bounds.seconds[chosen[operator], task] if is_known else bounds.least_seconds[task]
        end = ready[task] + taken
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


@compiled
def _least_of_all(step: Step, machine: Machine, bounds: _Bounds) -> float:
    """The bound with nothing decided."""
    return _least_seconds(step, machine, np.zeros(len(bounds.work), np.int64), 0, bounds)
