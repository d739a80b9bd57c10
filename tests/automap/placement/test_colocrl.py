"""ColocRL: its groups on graphs of known groups, its score, and what it finds on small problems."""

import csv
from dataclasses import replace
from itertools import product
import math
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from automap.deadline import Clock, Deadline
from automap.errors import CacheWarning, InputError
from automap.placement.baselines import heft
from automap.placement.colocrl import (
    FROM_HEFT,
    PAPERS,
    branch_groups,
    merged_groups,
    placement_game,
    step_groups,
)
from automap.placement.measured import MeasuredScore, colocrl_measured
from automap.placement.policies import learnt
from automap.placement.search import Placed, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.search.progress import ChoiceProgress
from automap.topology import get_graph
from models.stepwise import nmt_stepwise_tiny, rnnlm_stepwise_tiny
from tests.automap.clocks import Work
from tests.automap.placement.problems import layers_arguments, layers_step, traced
from tests.automap.placement.test_baselines import forward_problem


MACHINE = "haswell-2xk80"


def layers_search(seed: int = 0, **limits: float) -> Search:
    problem = traced(layers_step, layers_arguments(), MACHINE)
    return Search(Simulator(problem, placed_machine(get_graph(MACHINE), **limits)), seed)


def groups(edges: list[tuple[int, int]], count: int, rule) -> list[int]:
    return rule(forward_problem([1.0] * count, dict.fromkeys(edges, 8))).tolist()


def test_groups_are_joined_until_nothing_changes():
    chain = [(0, 1), (1, 2), (2, 3)]
    assert groups(chain, 4, merged_groups) == groups(chain, 4, branch_groups) == [0, 0, 0, 0]
    # Two branches of two operators each from one to one: the paper's rule joins all of them, as in
    # the end one reader is left of everything; branches stay apart.
    fork = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)]
    assert groups(fork, 6, merged_groups) == [0, 0, 0, 0, 0, 0]
    assert groups(fork, 6, branch_groups) == [0, 1, 1, 2, 2, 3]
    # Operators without weights, as all of these are, go to the one that reads them.
    assert groups(fork, 6, step_groups) == [0, 0, 0, 0, 0, 0]
    weighted = forward_problem([1.0] * 6, dict.fromkeys(fork, 8), state_bytes=8)
    assert step_groups(weighted).tolist() == [0, 1, 2, 3, 4, 5]
    # Who has two readers is joined to neither.
    assert groups([(0, 1), (0, 2)], 3, merged_groups) == [0, 1, 2]
    assert groups([], 3, merged_groups) == [0, 1, 2]


@pytest.mark.parametrize(("target", "per_step"), [(rnnlm_stepwise_tiny, 4), (nmt_stepwise_tiny, 8)])
def test_the_papers_groups_of_a_step_by_step_model_are_those_that_it_names(target, per_step):
    # A look-up, two cells and a softmax; NMT's encoder and decoder, with attention.
    step, args = target(batch=2, seq=2)
    group = step_groups(traced(step, args, MACHINE))
    assert len(set(group.tolist())) == 2 * per_step


def test_the_score_is_the_root_of_simulated_seconds_and_survives_pickling():
    search = layers_search()
    group = np.arange(search.simulator.problem.n_operators)
    game = placement_game(search, group, None)
    score = pickle.loads(pickle.dumps(game.score))
    everything = np.array(list(product(range(3), repeat=len(group))))
    expected = [math.sqrt(search.simulator.run(row).step_seconds) for row in everything.tolist()]
    assert score(everything) == pytest.approx(expected)
    # No placement takes longer than the failing signal.
    assert max(expected) <= game.task.failing_signal
    tight = layers_search(memory_limit_bytes=1.0)
    assert np.isinf(placement_game(tight, group, None).score(everything)).all()


def test_elements_are_described_as_the_paper_does():
    search = layers_search()
    game = placement_game(search, np.arange(2), heft(search))
    task = game.task
    # Two matrix products of one kind; the first gives [8, 64] to the second.
    assert task.kinds.tolist() == [0, 0]
    assert sorted(task.sizes[0][task.sizes[0] > 0].tolist()) == [8.0, 64.0]
    assert task.edges.tolist() == [[0, 1]]
    chances = np.exp(task.prior)
    assert chances.sum(axis=1) == pytest.approx(np.ones(2))
    assert chances.argmax(axis=1).tolist() == list(heft(search).device)


@pytest.mark.parametrize("config", [PAPERS, FROM_HEFT], ids=["paper's", "from HEFT"])
def test_a_small_problem_is_placed_best_and_alike_by_the_same_seed(config):
    pytest.importorskip("torch")
    search = layers_search()
    everything = np.array(list(product(range(3), repeat=2)))
    seconds, _ = search.simulator.price_all(everything)
    small = replace(config, hidden=8)
    prior = heft(search) if config is FROM_HEFT else None
    placed = learnt(search, small, prior, updates=15)
    assert placed.seconds == pytest.approx(seconds.min())
    assert search.priced >= 15 * small.samples
    assert placed == learnt(layers_search(), small, prior, updates=15)


def test_where_nothing_that_was_drawn_fits_it_says_so():
    pytest.importorskip("torch")
    placed = learnt(layers_search(memory_limit_bytes=1.0), replace(PAPERS, hidden=4), None, 2)
    assert not placed.fits


def test_a_run_that_was_ended_goes_on_as_one_that_was_not(tmp_path):
    pytest.importorskip("torch")
    small = replace(PAPERS, hidden=8)
    whole = learnt(layers_search(), small, None, updates=30)
    for updates in (7, 15, 30):
        search = layers_search()
        search.folder = tmp_path / "kept"
        placed = learnt(search, small, None, updates)
    assert placed == whole
    # Of the 30 updates half were done before.
    assert 15 * small.samples < search.priced < 20 * small.samples
    (metrics,) = search.folder.glob("*.csv")
    with metrics.open() as file:
        assert [row["steps"] for row in csv.DictReader(file)] == ["10", "20", "30"]
    # Another seed, or less memory, is another run.
    for other in (layers_search(seed=1), layers_search(memory_limit_bytes=1e9)):
        other.folder = search.folder
        learnt(other, small, None, 1)
    assert len([*search.folder.glob("*.safetensors")]) == 3


def test_what_was_learnt_and_cannot_be_read_is_learnt_again(tmp_path):
    pytest.importorskip("torch")
    small, search = replace(PAPERS, hidden=8), layers_search()
    search.folder = tmp_path
    placed = learnt(search, small, None, 12)
    (file,) = tmp_path.glob("*.safetensors")
    for damage in (lambda: file.write_bytes(b"no checkpoint"), lambda: _without_sums(file)):
        damage()
        again = layers_search()
        again.folder = tmp_path
        assert learnt(again, small, None, 12) == placed
        assert again.priced >= 12 * small.samples
    taken = layers_search()
    taken.folder = file
    with pytest.warns(CacheWarning, match="what is learnt is not kept"):
        assert learnt(taken, small, None, 12) == placed


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b",", b";"),
        lambda text: text + b"1x",
        lambda text: text.strip() + b",1\n",
        lambda text: b"\xff" + text,
    ],
)
def test_metrics_that_cannot_be_read_begin_anew(tmp_path, damage):
    pytest.importorskip("torch")
    small = replace(PAPERS, hidden=8)
    for updates in (12, 20):
        search = layers_search()
        search.folder = tmp_path
        learnt(search, small, None, updates)
        (file,) = tmp_path.glob("*.csv")
        if updates == 12:
            file.write_bytes(damage(file.read_bytes()))
    # The run itself went on.
    assert search.priced < 10 * small.samples
    with file.open() as opened:
        assert [row["steps"] for row in csv.DictReader(opened)] == ["20"]


def _without_sums(file):
    """A checkpoint of which only the first part can be read."""
    with safe_open(file, "numpy") as opened:
        kept = {name: opened.get_tensor(name) for name in opened.keys() if "sums" not in name}
        metadata = opened.metadata()
    save_file(kept, file, metadata)


def test_progress_is_told_and_an_end_before_the_updates_is_noted(tmp_path):
    pytest.importorskip("torch")
    search, told = layers_search(), list[ChoiceProgress]()
    search.folder, search.on_progress = tmp_path, told.append
    clock = Clock(processor_seconds=lambda: float(len(told)), wall_seconds=lambda: 0.0)
    search.deadline = Deadline.after(5.0, clock)
    learnt(search, replace(PAPERS, hidden=8), None, 50)
    assert [each.done for each in told] == [0, 1, 2, 3, 4]
    assert all(each.of == 50 for each in told)
    assert told[-1].best_seconds < math.inf
    assert search.notes == [
        "4 of 50 updates are done and kept; the same command goes on from there"
    ]


def measured_search(measured: list[tuple[int, ...]], folder=None) -> Search:
    """Where the step takes a second more for each operator that is not on device 2."""

    def measure(placed: Placed) -> float:
        measured.append(placed.device)
        return 1.0 + sum(device != 2 for device in placed.device)

    search = layers_search()
    search.measure, search.folder = measure, folder
    return search


def test_measured_seconds_decide_and_are_measured_once(tmp_path):
    pytest.importorskip("torch")
    measured: list[tuple[int, ...]] = []
    search = measured_search(measured, tmp_path)
    config = replace(PAPERS, hidden=8)
    # Simulated it is not the best.
    assert colocrl_measured(search, config, 10).device == (2, 2)
    assert heft(search).device != (2, 2)
    *once, a, b, c = measured
    # Three devices for a group of both operators, and a baseline that parts them.
    assert sorted(once) == [(0, 0), (1, 1), (1, 2), (2, 2)]
    # The finalists again.
    assert (2, 2) in {a, b, c}
    assert "measured: 1000.000 ms a step" in search.notes[-1]
    again: list[tuple[int, ...]] = []
    assert colocrl_measured(measured_search(again, tmp_path), config, 20).device == (2, 2)
    assert len(again) == 3
    (kept,) = tmp_path.glob("*.json")
    wrong = ("[[[0, 7], 0.1], [[0], 0.1]]", f"[[[1, 1], 1{'0' * 400}]]", "[" * 100_000)
    for text in (*wrong, "[[[0, 0], -0.1], [[1, 1], -0.1], [[1, 2], 0.0], [[2, 2], NaN]]"):
        kept.write_text(text)
        again = []
        assert colocrl_measured(measured_search(again, tmp_path), config, 20).device == (2, 2)
        # None of what is there is believed: the baselines and the run's best are measured.
        assert {(1, 1), (1, 2), (2, 2)} <= set(again[:-3])


def test_a_lucky_measurement_does_not_decide():
    pytest.importorskip("torch")
    seen = set[tuple[int, ...]]()

    def measure(placed: Placed) -> float:
        is_first = placed.device not in seen
        seen.add(placed.device)
        lucky = 0.1 if is_first and placed.device == (0, 0) else 2.0
        return 1.0 if placed.device == (1, 1) else lucky

    search = layers_search()
    search.measure = measure
    assert colocrl_measured(search, replace(PAPERS, hidden=8), 10).device == (1, 1)


def test_where_time_ends_among_the_finalists_the_others_keep_what_they_took_at_first():
    times = {(0, 0): 1.0, (1, 1): 1.2, (2, 2): 3.0}
    search, work = layers_search(), Work()
    search.deadline = Deadline.after(0.5, work.clock)
    measured = work.counted(lambda placed: 2.0)
    score = MeasuredScore(search, measured, np.arange(2), Deadline.never())
    score.seconds = {search.place([*device]): seconds for device, seconds in times.items()}
    assert score.fastest().device == (1, 1)
    assert work.done == 1


def test_a_program_without_a_step_cannot_be_measured():
    with pytest.raises(InputError, match="got a program without one"):
        colocrl_measured(layers_search())
