"""Splits of operators: what parts are sent against sets of elements, tasks against the evaluator of
shardings, and searches against all placements.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.placement import BASELINES, PLACEMENT_STRATEGIES, Search
from automap.placement.dataflow import NOBODY
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.splits import Splits, problem_splits, whole
from automap.placement.tasks import Piece, PlacementProblem, Tensor
from automap.space.point import SplitClasses
from automap.topology import get_graph, get_topology
from automap.topology.mesh import Mesh
from tests.automap.placement.problems import (
    layers_arguments,
    layers_step,
    random_problem,
    traced,
)


# Two classes of 12 elements each; degrees of 8 devices that divide them.
SIZE = 12
FORMS = (
    (),
    ((0, 2),),
    ((0, 4),),
    ((1, 2),),
    ((1, 4),),
    ((0, 2), (1, 2)),
    ((0, 2), (1, 4)),
    ((0, 4), (1, 2)),
)


def _in_forms(problem: PlacementProblem, machine: str) -> Simulator:
    """A problem all of whose operators have all forms; a part takes its share and a tenth."""
    one = whole(problem)
    share = np.array([1.0 / np.prod([d for _, d in form]) for form in FORMS])
    few = share * (0.9 + 0.1 / share)
    splits = Splits(
        forms=FORMS,
        able=np.ones((len(FORMS), problem.n_operators), bool),
        seconds=few[:, None, None] * one.seconds,
        workspace_bytes=share[:, None] * one.workspace_bytes,
        sum_messages=np.repeat(share < 1, len(problem.tasks)).reshape(len(FORMS), -1) * 2.0,
        sum_bytes=np.repeat(1e6 * (share < 1), len(problem.tasks)).reshape(len(FORMS), -1),
        term_messages=np.zeros((len(FORMS), len(problem.tasks))),
        term_bytes=np.zeros((len(FORMS), len(problem.tasks))),
        before=one.before,
        samples=0,
    )
    return Simulator(problem, placed_machine(get_graph(machine), None, FORMS), splits)


def _held(simulator: Simulator, choice: int, part: int, classes: tuple[int, ...]) -> np.ndarray:
    """Which elements of an array [SIZE, SIZE] of two classes a part has."""
    choices, held = simulator.machine.choices, np.ones((SIZE, SIZE), bool)
    place = part
    for split, degree in zip(choices.split_class[choice], choices.degree[choice], strict=True):
        mine, place = place % degree, place // degree
        if split in classes:
            along = np.arange(SIZE) * degree // SIZE == mine
            held &= along[:, None] if split == 0 else along[None, :]
    return held


def _one_tensor(classes: tuple[int, ...]) -> PlacementProblem:
    problem = random_problem(np.random.default_rng(0), 2, kinds=1)
    n_bytes = SIZE * SIZE
    piece = Piece(classes=frozenset(classes), moved_bytes=n_bytes, kept_bytes=n_bytes)
    tensor = Tensor(
        maker=0,
        home=NOBODY,
        moved_bytes=n_bytes,
        kept_bytes=n_bytes,
        readers=(1,),
        receivers=(1,),
        pieces=(piece,),
    )
    return replace(problem, tensors=(tensor,))


@pytest.mark.parametrize("classes", [(0, 1), (0,), (1,), ()])
def test_parts_are_sent_the_elements_that_they_have_not(classes: tuple[int, ...]) -> None:
    simulator = _in_forms(_one_tensor(classes), "2x4xp100")
    choices = simulator.machine.choices
    some = np.random.default_rng(3).integers(0, len(choices.form), (150, 2))
    for source, target in some.tolist():
        outcome = simulator.run([source, target])
        sent = {
            (a, b): n_bytes
            for (_, a, b), n_bytes in zip(
                outcome.transfers.tolist(), outcome.transfer_bytes.tolist(), strict=True
            )
        }
        for part in range(choices.n_parts[target]):
            here = choices.device[target, part]
            needed = _held(simulator, target, part, classes)
            own = choices.part_on[source, here]
            missing = needed.copy()
            if own >= 0:
                missing &= ~_held(simulator, source, own, classes)
            got = {a: n_bytes for (a, b), n_bytes in sent.items() if b == here}
            assert sum(got.values()) == pytest.approx(missing.sum())
            for a, n_bytes in got.items():
                has = _held(simulator, source, choices.part_on[source, a], classes)
                assert n_bytes == pytest.approx((has & missing).sum())


def test_tasks_of_one_split_are_those_of_the_same_sharding() -> None:
    problem = traced(layers_step, layers_arguments(), "4xp100")
    program, topology = problem.operators.dataflow.problem, get_topology("4xp100")
    splits = problem_splits(problem, topology.platform, 4)
    assert problem.tables is not None
    evaluator = Evaluator(problem.tables, program.n_classes, topology)
    on_all = [n for n, f in enumerate(splits.forms) if np.prod([d for _, d in f]) == 4]
    assert {len(splits.forms[row]) for row in on_all} == {1, 2}
    for row in on_all:
        degrees = splits.forms[row]
        mesh = Mesh(("first", "second")[: len(degrees)], tuple(d for _, d in degrees))
        point = SplitClasses(mesh, tuple((c,) for c, _ in degrees))
        priced = evaluator.price_point(point)
        # Tasks send each sum by itself: none is copied into an array with others.
        copying_seconds = float(priced.copying_seconds @ priced.collectives.count)
        kernel_seconds = evaluator.estimate(priced).compute_seconds - copying_seconds
        assert splits.seconds[row, 0].sum() == pytest.approx(kernel_seconds)
    # Samples in 4: the gradients of both weights are summed, and the loss.
    row = splits.forms.index(((program.batch_class, 4),))
    summed = 4 * (32 * 64 + 64 * 16 + 1)
    assert splits.sum_bytes[row].sum() == pytest.approx(2 * 3 / 4 * summed)


def test_a_gang_starts_when_all_of_its_devices_are_free() -> None:
    problem = random_problem(np.random.default_rng(5), 4, kinds=1)
    simulator = _in_forms(problem, "2x4xp100")
    rng, choices = np.random.default_rng(6), simulator.machine.choices
    for _ in range(5):
        chosen = rng.integers(0, len(choices.form), problem.n_operators)
        outcome = simulator.run(chosen.tolist())
        choice = chosen[[task.operator for task in problem.tasks]]
        for device in range(8):
            its = np.flatnonzero(choices.part_on[choice, device] >= 0)
            its = its[np.argsort(outcome.start_seconds[its])]
            assert (outcome.end_seconds[its[:-1]] <= outcome.start_seconds[its[1:]] + 1e-12).all()
        assert outcome.busy_seconds.sum() == pytest.approx(
            ((outcome.end_seconds - outcome.start_seconds) * choices.n_parts[choice]).sum()
        )
        assert (outcome.sum_seconds[choices.n_parts[choice] == 1] == 0).all()


def test_exact_is_the_best_of_all_choices_and_the_walk_is_a_local_optimum() -> None:
    problem = random_problem(np.random.default_rng(8), 3, kinds=1)
    simulator = _in_forms(problem, "2xp100")
    count = len(simulator.machine.choices.form)
    every = np.array(list(product(range(count), repeat=3)), np.int64)
    seconds, _ = simulator.price_all(every)
    search = Search(simulator)
    assert PLACEMENT_STRATEGIES["exact"](search).seconds == pytest.approx(seconds.min(), rel=1e-12)
    found = PLACEMENT_STRATEGIES["mcmc"](search)
    alike = (every != found.device).sum(axis=1) == 1
    assert found.seconds <= seconds[alike].min() * (1 + 1e-12)


def test_samples_are_split_over_all_devices_and_no_search_is_worse() -> None:
    problem = traced(layers_step, layers_arguments(), "4xp100")
    graph = get_graph("4xp100")
    splits = problem_splits(problem, graph.platform, 4)
    search = Search(Simulator(problem, placed_machine(graph, None, splits.forms), splits))
    placed = BASELINES["data-parallel"](search)
    choices = search.simulator.machine.choices
    batch = problem.operators.dataflow.problem.batch_class
    assert splits.forms[choices.form[placed.device[0]]] == ((batch, 4),)
    assert len(set(placed.device)) == 1
    assert PLACEMENT_STRATEGIES["auto"](search).seconds <= placed.seconds
