"""Baselines of placement on hand-made graphs whose best placement is plain, and their rules."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from automap.errors import InputError
from automap.placement import PLACEMENT_STRATEGIES
from automap.placement.baselines import fastest_devices, heft, m_sct, mapping, memory, mincut
from automap.placement.dataflow import NOBODY
from automap.placement.search import Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.tasks import PlacementProblem, Task, Tensor
from automap.topology import get_graph
from hlo_tools.analyses.phases import Phase
from tests.automap.placement.problems import random_problem


LISTED = ("heft", "m-sct")


def forward_problem(
    seconds: list[float], edges: dict[tuple[int, int], int], state_bytes: int = 0
) -> PlacementProblem:
    """One forward task an operator, ten times slower on the processor."""
    names: Any = SimpleNamespace(names=tuple(f"w{o}" for o in range(len(seconds))))

    def tensor(maker: int, home: int, n_bytes: int, readers: tuple[int, ...]) -> Tensor:
        return Tensor(
            maker=maker,
            home=home,
            moved_bytes=n_bytes,
            kept_bytes=n_bytes,
            readers=readers,
            receivers=readers,
        )

    state = range(len(seconds)) if state_bytes else ()
    return PlacementProblem(
        operators=names,
        kinds=(),
        tasks=tuple(Task(operator=o, phase=Phase.FORWARD, nodes=()) for o in range(len(seconds))),
        tensors=(
            *(tensor(a, NOBODY, n, (b,)) for (a, b), n in edges.items()),
            *(tensor(NOBODY, o, state_bytes, (o,)) for o in state),
        ),
        seconds=np.array([[10.0 * s for s in seconds], seconds]),
        workspace_bytes=np.zeros(len(seconds)),
    )


def search(
    problem: PlacementProblem, machine: str = "haswell-2xk80", limit_bytes: float | None = None
) -> Search:
    placed = placed_machine(get_graph(machine), memory_limit_bytes=limit_bytes)
    return Search(Simulator(problem, placed))


@pytest.mark.parametrize("name", LISTED)
def test_independent_chains_run_side_by_side(name):
    small = {(0, 1): 8, (2, 3): 8}
    placed = PLACEMENT_STRATEGIES[name](search(forward_problem([1.0] * 4, small)))
    assert placed.seconds == pytest.approx(2.0)
    assert placed.device[0] == placed.device[1] != placed.device[2] == placed.device[3]


@pytest.mark.parametrize("name", LISTED)
def test_what_is_dear_to_send_stays(name):
    # A reader waits longer for 64 GB than for its turn on the device of its maker.
    placed = PLACEMENT_STRATEGIES[name](
        search(forward_problem([1.0, 1.0, 1.0], {(0, 1): 1 << 36, (0, 2): 1 << 36}))
    )
    assert len(set(placed.device)) == 1
    assert placed.seconds == pytest.approx(3.0)


def test_heft_puts_the_longest_way_first():
    # The chain of three takes 3 seconds; put behind the two others of one second it would take 4.
    problem = forward_problem([1.0, 1.0, 1.0, 1.0, 1.0], {(2, 3): 8, (3, 4): 8})
    placed = heft(search(problem))
    assert placed.seconds == pytest.approx(3.0, abs=1e-3)
    assert placed.device[2] == placed.device[3] == placed.device[4]


def test_heft_uses_a_processor_where_that_pays():
    # Twelve tasks of a second on two GPUs take 6; with one of them on the processor, ten times
    # slower, no less. Of thirty one goes there.
    placed = heft(search(forward_problem([1.0] * 30, {})))
    assert placed.device.count(0) == 1
    assert placed.seconds == pytest.approx(15.0)


def test_m_sct_keeps_a_favourite_behind_its_maker():
    # Both readers are ready at once on either GPU, and only one may be the favourite of 0: it runs
    # behind 0 without a transfer, and the other, of the same length, on the other GPU.
    rate_seconds = 2 * 10**9
    problem = forward_problem([1.0, 5.0, 5.0], {(0, 1): rate_seconds, (0, 2): rate_seconds})
    placed = m_sct(search(problem))
    assert placed.device[0] in placed.device[1:]
    assert placed.device[1] != placed.device[2]
    assert placed.seconds < 11.0


@pytest.mark.parametrize("name", LISTED)
def test_full_devices_are_left_out(name):
    problem = forward_problem([1.0] * 4, {(o, o + 1): 1 << 30 for o in range(3)}, 4 << 30)
    limited = search(problem, limit_bytes=13 << 30)
    assert PLACEMENT_STRATEGIES[name](limited).fits
    assert not limited.place([1] * 4).fits


def test_memory_fills_the_fastest_devices_first_and_always_fits():
    # 24 operators of 1 GiB each on a processor of 128 GB and two GPUs of 12 GB, which hold 11.
    problem = forward_problem([1.0] * 24, {}, 1 << 30)
    placed = memory(search(problem))
    assert placed.fits
    assert [placed.device.count(device) for device in (1, 2, 0)] == [11, 11, 2]
    # What fits the first device is all there.
    assert set(memory(search(forward_problem([1.0] * 4, {(0, 1): 8}, 1 << 30))).device) == {1}


@pytest.mark.parametrize("seed", range(5))
def test_memory_fits_though_transfers_take_room_too(seed):
    problem = random_problem(np.random.default_rng(seed), 14, kinds=1)
    problem = replace(problem, seconds=np.concatenate([problem.seconds * 10.0, problem.seconds]))
    most = search(problem).simulator.run([1] * 14).peak_bytes[1]
    machine = placed_machine(get_graph("haswell-2xk80"))
    machine = machine._replace(memory_bytes=np.array([most * 10.0, most / 2.0, most / 2.0]))
    tight = Search(Simulator(problem, machine))
    assert not any(tight.place([device] * 14).fits for device in (1, 2))
    assert memory(tight).fits


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("seed", range(3))
def test_every_operator_has_one_device_of_the_machine(name, seed):
    problem = random_problem(np.random.default_rng(seed), 12, kinds=2)
    one = search(problem, "haswell-4xk80")
    placed = PLACEMENT_STRATEGIES[name](one)
    assert len(placed.device) == 12
    allowed = fastest_devices(one).tolist() if name == "m-sct" else range(5)
    assert set(placed.device) <= set(allowed)
    again = PLACEMENT_STRATEGIES[name](search(problem, "haswell-4xk80"))
    assert placed == again


def two_clusters() -> Search:
    edges = {(a, b): 1 << 20 for c in (0, 4) for a in range(c, c + 4) for b in range(a + 1, c + 4)}
    return search(forward_problem([1.0] * 8, edges | {(3, 4): 8}))


def test_partitions_cut_where_least_is_sent():
    pytest.importorskip("pymetis")
    placed = mincut(two_clusters())
    assert len(set(placed.device[:4])) == len(set(placed.device[4:])) == 1
    assert set(placed.device) == {1, 2}
    # In proportion to speed the processor, a tenth as fast, gets at most one operator of eight.
    assert mapping(two_clusters()).device.count(0) <= 1


@pytest.mark.parametrize(
    "seconds", [[1.0], [1.0, 1.0], [100.0, 1.0], [100.0, *[1.0] * 9], [0.0] * 6, [1.0] * 30]
)
def test_nothing_is_printed_however_few_or_uneven_the_operators(seconds, capfd):
    pytest.importorskip("pymetis")
    edges = {(o, o + 1): 8 for o in range(len(seconds) - 1)}
    problem = forward_problem(seconds, edges)
    of_one_kind = replace(problem, seconds=problem.seconds[1:])
    searches = search(problem, "haswell-4xk80"), search(of_one_kind, "flexflow-k80")
    for made in (mincut, mapping):
        for one in searches:
            placed = made(one)
            assert len(placed.device) == len(seconds)
            assert set(placed.device) <= set(range(one.n_devices))
    heard = capfd.readouterr()
    assert heard.out + heard.err == ""


def test_partitions_are_of_about_equal_seconds():
    pytest.importorskip("pymetis")
    chain = {(o, o + 1): 1 << 20 for o in range(39)}
    placed = mincut(search(forward_problem([1.0] * 40, chain), "haswell-4xk80"))
    assert all(8 <= placed.device.count(device) <= 12 for device in (1, 2, 3, 4))
    cuts = sum(a != b for a, b in zip(placed.device, placed.device[1:]))
    assert cuts <= 5


def test_without_metis_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("automap.placement.baselines.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'jax-automap\[partitions\]'"):
        mincut(two_clusters())
