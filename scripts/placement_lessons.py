"""Lessons for the placement agent: states of generated graphs with what their devices are worth.

A graph is one of `FAMILIES`: operators with a forward and a backward pass, layers that share
weights, activations, gradients and running sums of weights' gradients, as steps have them; seconds,
bytes and memory are drawn over the ranges that steps come from. Nothing of any real model is in
them. Of each state that the agent comes to (as DAgger), and of some that it does not,

    q(device) = -log(least seconds of placements that go on so / least of all)

where the least is what descents find that begin at the best placement known and at HEFT's, each
with what is decided held, and with devices of one kind swapped       -> in: `device_worths`
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from automap.action_network import Weights, learnt_values
from automap.placement.agent import ACTION_FEATURES, STATE_FEATURES, Course, Progress
from automap.placement.dataflow import NOBODY
from automap.placement.search import Placed, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.strategies import descended, walked
from automap.placement.tasks import PlacementProblem, Task, Tensor
from automap.topology import get_graph
from hlo_tools.analyses.phases import Phase
from rl.env import EnvShape, empty_observation
from rl.imitation import Lessons


MACHINES: Final = ("haswell-2xk80", "haswell-4xk80", "2xp100", "4xp100", "2x2xp100", "4xh100")
MOST_DEVICES: Final = 8
STATES: Final = 8
_RANDOM: Final = 0.15
_LEAST_WORTH: Final = -3.0
SHAPE: Final = EnvShape(
    n_envs=1, n_actions=MOST_DEVICES, n_flat=STATE_FEATURES, n_features=ACTION_FEATURES
)
Graph = tuple[list[int], set[tuple[int, int]]]
"""The layer of each operator, and (maker, reader) with makers before readers."""


def _unrolled(rng: np.random.Generator) -> Graph:
    """Layers over time steps, as recurrent models; a softmax for each step or for all."""
    n_layers, n_steps = int(rng.integers(1, 5)), int(rng.integers(2, 7))
    layers, edges = [], set[tuple[int, int]]()
    for step in range(n_steps):
        for layer in range(n_layers):
            me = len(layers)
            layers.append(layer)
            if layer:
                edges.add((me - 1, me))
            if step:
                edges.add((me - n_layers, me))
    tops = [n_layers * (step + 1) - 1 for step in range(n_steps)]
    if rng.random() < 0.5:
        for top in tops:
            edges.add((top, len(layers)))
            layers.append(n_layers)
        return layers, edges
    edges |= {(top, len(layers)) for top in tops}
    return [*layers, n_layers], edges


def _translated(rng: np.random.Generator) -> Graph:
    """An encoder over steps, a decoder that attends to all of them."""
    depth, n_steps = int(rng.integers(1, 3)), int(rng.integers(2, 5))
    layers, edges = [], set[tuple[int, int]]()
    for half in range(2):
        for step in range(n_steps):
            for layer in range(depth):
                me = len(layers)
                layers.append(half * depth + layer)
                if layer:
                    edges.add((me - 1, me))
                if step:
                    edges.add((me - depth, me))
    encoded = [depth * (step + 1) - 1 for step in range(n_steps)]
    decoded = [n_steps * depth + top for top in encoded]
    for top in decoded:
        me = len(layers)
        layers.append(2 * depth)
        edges |= {(source, me) for source in encoded} | {(top, me)}
    attended = list(range(len(layers) - n_steps, len(layers)))
    return [*layers, 2 * depth + 1], edges | {(source, len(layers)) for source in attended}


def _branched(rng: np.random.Generator) -> Graph:
    """Blocks of branches that join, as Inception's."""
    layers, edges, before = [0], set[tuple[int, int]](), [0]
    for _ in range(int(rng.integers(1, 5))):
        ends = []
        for _ in range(int(rng.integers(2, 5))):
            sources = before
            for _ in range(int(rng.integers(1, 4))):
                me = len(layers)
                layers.append(me)
                edges |= {(source, me) for source in sources}
                sources = [me]
            ends += sources
        before = ends
    return [*layers, len(layers)], edges | {(source, len(layers)) for source in before}


def _chained(rng: np.random.Generator) -> Graph:
    """Layers one after the other, some of which are skipped."""
    count = int(rng.integers(6, 24))
    skips = {(n, n + 2) for n in range(count - 2) if rng.random() < 0.2}
    return list(range(count)), {(n, n + 1) for n in range(count - 1)} | skips


def _drawn(rng: np.random.Generator) -> Graph:
    """Any edges from operators to later ones."""
    count = int(rng.integers(6, 22))
    edges = {(int(rng.integers(max(0, n - 6), n)), n) for n in range(1, count)}
    edges |= {(a, b) for b in range(count) for a in range(b) if rng.random() < 1.5 / count}
    return list(range(count)), edges


FAMILIES: Final[Mapping[str, Callable[[np.random.Generator], Graph]]] = {
    "unrolled": _unrolled,
    "translated": _translated,
    "branched": _branched,
    "chained": _chained,
    "drawn": _drawn,
}


def generated(seed: int) -> Search:
    """A problem of that seed on one of the machines."""
    rng = np.random.default_rng(seed)
    layers, edges = FAMILIES[tuple(FAMILIES)[int(rng.integers(len(FAMILIES)))]](rng)
    graph = get_graph(MACHINES[int(rng.integers(len(MACHINES)))])
    machine = placed_machine(graph)
    apart = ~np.eye(len(machine.kind), dtype=bool)
    problem = _problem(rng, layers, edges, len(graph.kinds), float(machine.rate[apart].mean()))
    limit = None
    if rng.random() < 0.5:
        held = float((problem.state_bytes + problem.activation_bytes).sum())
        limit = held * float(rng.uniform(1.15, 3.0)) / len(machine.kind)
    return Search(Simulator(problem, placed_machine(graph, limit)), seed)


def _problem(
    rng: np.random.Generator,
    layers: list[int],
    edges: set[tuple[int, int]],
    n_kinds: int,
    rate: float,
) -> PlacementProblem:
    """Tasks with seconds and tensors with bytes; `rate` in bytes per second is of the links."""
    count, n_layers = len(layers), max(layers) + 1
    seconds = 10.0 ** rng.uniform(-4.0, -1.5) * rng.lognormal(0.0, rng.uniform(0.2, 1.2), n_layers)
    moved = rate * seconds.mean() * 2.0 ** rng.uniform(-7.0, 2.0)
    out = np.maximum(moved * rng.lognormal(0.0, 0.8, n_layers), 1.0).astype(int)
    weights = rate * seconds.mean() * 2.0 ** rng.uniform(-6.0, 3.0)
    weight = np.maximum(weights * rng.lognormal(0.0, 1.0, n_layers), 1.0).astype(int)
    owner = {layer: layers.index(layer) for layer in layers}
    users = {layer: [o for o, its in enumerate(layers) if its == layer] for layer in layers}
    tasks = [Task(operator=o, phase=Phase.FORWARD, nodes=()) for o in range(count)]
    tasks += [Task(operator=o, phase=Phase.BACKWARD, nodes=()) for o in range(count)[::-1]]
    tasks += [Task(operator=owner[its], phase=Phase.UPDATE, nodes=()) for its in sorted(owner)]
    back = [2 * count - 1 - o for o in range(count)]
    update = {its: 2 * count + number for number, its in enumerate(sorted(owner))}
    tensors = []
    for o, its in enumerate(layers):
        after = [b for a, b in sorted(edges) if a == o]
        before = [a for a, b in sorted(edges) if b == o]
        kept = (*after, back[o], *(back[b] for b in after))
        tensors.append(_tensor(o, NOBODY, int(out[its]), kept))
        tensors += [_tensor(back[o], NOBODY, int(out[layers[a]]), (back[a],)) for a in before]
        # A running sum: the last time step begins it, the first one's goes to the update.
        earlier = [b for b in users[its] if b < o]
        reader = back[earlier[-1]] if earlier else update[its]
        tensors.append(_tensor(back[o], NOBODY, int(weight[its]), (reader,)))
    n_states = int(rng.integers(0, 3))
    for its in sorted(owner):
        readers = (*users[its], *(back[o] for o in users[its]), update[its])
        tensors.append(_tensor(NOBODY, owner[its], int(weight[its]), readers))
        tensors += [_tensor(NOBODY, owner[its], int(weight[its]), (update[its],))] * n_states
    fast = [_task_seconds(task, layers, seconds, weight / rate) for task in tasks]
    slower = 2.0 ** rng.uniform(1.0, 5.0) * rng.lognormal(0.0, 0.5, n_layers)
    slow = [s * slower[layers[t.operator]] for s, t in zip(fast, tasks, strict=True)]
    # Kinds are listed with the processor first.
    rows = [slow, fast] if n_kinds == 2 else [fast]
    names: Any = SimpleNamespace(names=tuple(f"w{its} #{o}" for o, its in enumerate(layers)))
    return PlacementProblem(
        operators=names,
        kinds=(),
        tasks=tuple(tasks),
        tensors=tuple(tensors),
        seconds=np.array(rows),
        workspace_bytes=np.zeros(len(tasks)),
    )


def _task_seconds(
    task: Task, layers: list[int], seconds: np.ndarray, weight_seconds: np.ndarray
) -> float:
    its = layers[task.operator]
    if task.phase is Phase.UPDATE:
        # A GPU's memory is some ten times as fast as a link between GPUs.
        return float(weight_seconds[its]) / 10.0
    return float(seconds[its]) * (2.0 if task.phase is Phase.BACKWARD else 1.0)


def _tensor(maker: int, home: int, n_bytes: int, readers: tuple[int, ...]) -> Tensor:
    return Tensor(
        maker=maker,
        home=home,
        moved_bytes=n_bytes,
        kept_bytes=n_bytes,
        readers=readers,
        receivers=readers,
    )


def problem_lessons(seed: int, weights: Weights | None) -> Lessons:
    """States of a generated problem, as the agent with these weights comes to them."""
    search, rng = generated(seed), np.random.default_rng([seed, 1])
    course = Course(search)
    start = min(course.hints, key=lambda p: p.rank)
    best = descended(search, walked(search, start, seed))
    places = np.sort(rng.choice(course.n_operators, min(STATES, course.n_operators), replace=False))
    states = empty_observation(SHAPE, len(places))
    states.mask[:] = False
    worth = np.full((len(places), MOST_DEVICES), np.nan, np.float32)
    for row, (progress, operator) in enumerate(_played(course, weights, best, places, rng)):
        features, flat, known = progress.described(operator)
        count = len(known)
        states.features[row, :count], states.flat[row] = features, flat
        states.baseline[row, :count], states.mask[row, :count] = known, True
        worth[row, :count] = device_worths(search, progress, operator, best, course.hints[0])
    return Lessons(states, worth)


def _played(
    course: Course,
    weights: Weights | None,
    best: Placed,
    places: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[tuple[Progress, int]]:
    """States before the operators at these places of the order: on the way of the best placement,
    or of the agent, either with a random device now and then.
    """
    progress, follows = Progress(course), rng.random() < 0.5
    for place, operator in enumerate(course.order):
        if place in places:
            yield progress, operator
        if rng.random() < _RANDOM:
            device = int(rng.integers(course.search.n_devices))
        elif follows:
            device = best.device[operator]
        else:
            features, flat, known = progress.described(operator)
            learnt = learnt_values(weights, features, flat) if weights is not None else 0.0
            device = int((known + learnt).argmax())
        progress.put(operator, device)


def device_worths(search: Search, progress: Progress, operator: int, *known: Placed) -> np.ndarray:
    """q of each device for the next operator."""
    decided = progress.device != NOBODY
    decided[operator] = True
    able = search.moves.able & ~decided[:, None]
    kind, least = search.simulator.machine.kind, np.full(search.n_devices, np.inf)
    for device in range(search.n_devices):
        starts = set[tuple[int, ...]]()
        for placed in known:
            rest = np.array(placed.device)
            swapped, other = rest.copy(), placed.device[operator]
            if kind[other] == kind[device]:
                swapped[rest == device], swapped[rest == other] = other, device
            for one in (rest, swapped):
                one[decided] = progress.device[decided]
                one[operator] = device
                starts.add(tuple(one.tolist()))
        for start in sorted(starts):
            placed = descended(search, search.place(start), able)
            # What does not fit is as much worse as it is too large.
            cost = np.log(placed.seconds) + 10.0 * placed.overflow
            least[device] = min(least[device], cost)
    return np.maximum(least.min() - least, _LEAST_WORTH).astype(np.float32)
