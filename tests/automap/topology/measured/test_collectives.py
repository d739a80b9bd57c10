"""Measured collectives: what is read from half of the measurements beside the other half."""

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.errors import TopologyError
from automap.topology import get_topology
from automap.topology.measured.collectives import (
    LINK_TABLES,
    link_table,
    measured_collectives,
    measured_parts,
)
from scripts.measured_gpus import collective_errors


DEVICES = ("h100", "b200", "gb200", "gb300")
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@pytest.mark.parametrize("device", DEVICES)
def test_the_half_that_was_left_out_is_met(device):
    errors = [abs(e) for (d, _), es in collective_errors().items() if d == device for e in es]
    assert len(errors) > 100
    assert np.median(errors) < 0.10
    # Single messages that were measured at half or twice their neighbours' seconds are beyond.
    assert np.mean(np.array(errors) < 0.30) > 0.85


@given(
    device=st.sampled_from(DEVICES),
    kind=st.sampled_from(KINDS),
    sizes=st.lists(st.floats(1, 1e12), min_size=2, max_size=20),
    data=st.data(),
)
def test_more_bytes_never_take_less_time(device, kind, sizes, data):
    table = measured_collectives(device)
    least, most = table.ranks(kind)[0], table.ranks(kind)[-1]
    ranks = data.draw(st.integers(least, most))
    seconds = table.seconds(kind, ranks, np.sort(sizes))
    assert (np.diff(seconds) >= -1e-15).all()
    assert (seconds > 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_beyond_the_largest_message_links_stay_full(kind):
    table = measured_collectives("h100")
    most = table.most_bytes(kind, 8)
    one, two = table.seconds(kind, 8, np.array([most, 2 * most]))
    assert two == pytest.approx(2 * one)


def test_groups_between_measured_ones_lie_between_them():
    table = measured_collectives("h100")
    four, six, eight = (float(table.seconds("all-gather", n, np.array(2.0**28))) for n in (4, 6, 8))
    assert four < six < eight


def test_switches_that_cannot_add_scatter_and_gather():
    assert measured_parts(link_table("nvswitch-2"), "all-reduce") == (
        "reduce-scatter",
        "all-gather",
    )
    assert measured_parts(link_table("nvswitch-3"), "all-reduce") == ("all-reduce",)
    assert measured_parts(link_table("nvswitch-2"), "all-to-all") == ("all-to-all",)


def test_an_unknown_table_is_answered_with_those_there_are():
    with pytest.raises(TopologyError, match="got 'nvlink'; allowed: nvswitch-2, "):
        link_table("nvlink")
    assert all(link_table(name).measured in DEVICES for name in LINK_TABLES)


@pytest.mark.parametrize("device", DEVICES)
def test_the_measured_links_are_those_of_the_catalogue(device):
    (level,) = get_topology(f"8x{device}").levels
    assert level.bytes_per_s == measured_collectives(device).bytes_per_s
    assert link_table(level.measured).measured == device


def test_only_a_switch_has_measured_collectives():
    (level,) = get_topology("8xh100").levels
    with pytest.raises(TopologyError, match="measured: got 'nvswitch-3'; allowed: none for a"):
        replace(level, kind="ring")
