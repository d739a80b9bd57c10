"""Permutations beside closed forms, and beside the messages of each link counted one by one."""

from dataclasses import replace

from hypothesis import given, strategies as st
import pytest

from automap.topology import get_topology
from automap.topology.link_loads import links_on, permutation


RING = get_topology("v5e:16x16")
LINE = get_topology("v5e:2x4")


def _shift(count, by=1):
    return [(i, (i + by) % count) for i in range(count)]


@pytest.mark.parametrize("by", range(1, 16))
def test_a_shift_on_a_ring_goes_the_shorter_way(by):
    inner = RING.levels[0]
    moved = permutation(
        RING, [(16 * row + i, 16 * row + (i + by) % 16) for row in range(16) for i in range(16)]
    )
    hops = min(by, 16 - by)
    assert moved.latency_seconds == pytest.approx(hops * inner.latency_seconds)
    assert moved.seconds_per_byte == pytest.approx(hops / (inner.bytes_per_s / 2))
    assert moved.hops == hops
    # Each message of 256 uses the links of its own row only, all of them together all.
    way = "up" if by <= 8 else "down"
    assert moved.links == {(inner.name, device, way) for device in range(256)}


def test_the_wrap_of_a_line_shares_the_links_on_nobody_that_goes_ahead():
    line = replace(LINE, levels=LINE.levels[:1])
    moved = permutation(line, _shift(4))
    level = line.levels[0]
    # Three hops back over links that only this message uses in that direction.
    assert moved.seconds_per_byte == pytest.approx(1 / (level.bytes_per_s / 2))
    assert moved.latency_seconds == pytest.approx(3 * level.latency_seconds)
    assert moved.links == {
        *((level.name, place, "up") for place in (0, 1, 2)),
        *((level.name, place, "down") for place in (3, 2, 1)),
    }
    assert moved.links == links_on(line, [level.name]) - {
        (level.name, 3, "up"),
        (level.name, 0, "down"),
    }


def test_devices_that_share_a_card_are_one_link():
    hosts = get_topology("2x8xv100")
    card = hosts.levels[1]
    assert card.shared_by == 8
    everyone = permutation(hosts, [(gpu, (gpu + 8) % 16) for gpu in range(16)])
    assert everyone.seconds_per_byte == pytest.approx(8 / card.bytes_per_s)
    # A ring through all GPUs leaves each host once.
    ring = permutation(hosts, _shift(16))
    assert ring.seconds_per_byte == pytest.approx(1 / card.bytes_per_s)
    assert {link for link in ring.links if link[0] == card.name} == links_on(hosts, [card.name])


def test_row_major_order_of_a_grid_sends_its_wraps_over_the_same_links():
    moved = permutation(LINE, _shift(8))
    snake = [0, 1, 2, 3, 7, 6, 5, 4]
    along = permutation(LINE, list(zip(snake, snake[1:] + snake[:1], strict=True)))
    assert along.seconds_per_byte < moved.seconds_per_byte * (1 + 1e-9)
    assert along.latency_seconds < moved.latency_seconds


def test_gpus_behind_a_switch_do_not_share_ports():
    gpus = get_topology("8xh100")
    nvlink = gpus.levels[0]
    moved = permutation(gpus, _shift(8))
    assert moved.seconds(1e6) == pytest.approx(nvlink.latency_seconds + 1e6 / nvlink.bytes_per_s)


@given(st.data())
def test_no_link_carries_less_than_what_is_counted_along_the_ways(data):
    target = data.draw(st.permutations(range(8)))
    moved = permutation(LINE, enumerate(target))
    inner, outer = LINE.levels
    loads = {}
    for source, to in enumerate(target):
        a, b = source % 4, to % 4
        for place in range(min(a, b), max(a, b)):
            key = ("inner", source // 4, place, a < b)
            loads[key] = loads.get(key, 0) + 1
        if source // 4 != to // 4:
            key = ("outer", b, source // 4)
            loads[key] = loads.get(key, 0) + 1
    busiest = max(
        (
            load / ((inner if key[0] == "inner" else outer).bytes_per_s / 2)
            for key, load in loads.items()
        ),
        default=0,
    )
    assert moved.seconds_per_byte == pytest.approx(busiest)


def test_nothing_moves_for_nothing():
    moved = permutation(LINE, [(i, i) for i in range(8)])
    assert moved.seconds(1e9) == 0
    assert moved.links == frozenset()
