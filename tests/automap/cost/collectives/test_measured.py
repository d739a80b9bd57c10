"""Collectives on links that were measured, beside the measurements and beside formulas."""

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.topology import Topology, get_topology
from automap.topology.measured.collectives import measured_collectives
from tests.automap.topologies import by_formulas


KINDS = st.sampled_from(CollectiveKind)
BYTES = st.floats(1, 1e10)


def _cost(topology, kind, shape, *axes):
    topology = topology if isinstance(topology, Topology) else get_topology(topology)
    return collective_cost(kind, topology, shape, axes)


@given(KINDS, BYTES, st.sampled_from([("8xh100", "h100"), ("8xb200", "b200")]))
def test_a_measured_group_takes_what_was_measured(kind, n_bytes, machine):
    name, table = machine
    expected = measured_collectives(table).seconds(kind.value, 8, np.array(n_bytes))
    assert _cost(name, kind, (8,), 0).seconds(n_bytes) == pytest.approx(float(expected))
    inner = measured_collectives(table).seconds(kind.value, 2, np.array(n_bytes))
    assert _cost(name, kind, (4, 2), 1).seconds(n_bytes) == pytest.approx(float(inner))
    outer = measured_collectives(table).seconds(kind.value, 4, np.array(n_bytes))
    assert _cost(name, kind, (4, 2), 0).seconds(n_bytes) == pytest.approx(float(outer))


@given(KINDS, BYTES, st.floats(0.25, 100))
def test_a_bundle_is_so_many_messages(kind, n_bytes, messages):
    cost = _cost("8xh100", kind, (8,), 0)
    one = cost.seconds(n_bytes / messages)
    assert cost.seconds(n_bytes, messages) == pytest.approx(messages * one)
    assert cost.seconds(0.0, 0.0) == 0


@given(KINDS, BYTES)
def test_half_the_bandwidth_takes_as_long_as_twice_the_bytes(kind, n_bytes):
    full = get_topology("8xh100")
    (nvlink,) = full.levels
    half = replace(full, levels=(replace(nvlink, bytes_per_s=nvlink.bytes_per_s / 2),))
    expected = _cost(full, kind, (8,), 0).seconds(2 * n_bytes)
    assert _cost(half, kind, (8,), 0).seconds(n_bytes) == pytest.approx(expected)


@given(BYTES)
def test_without_adding_switches_an_all_reduce_scatters_and_gathers(n_bytes):
    parts = [CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER]
    expected = sum(_cost("8xa100", kind, (8,), 0).seconds(n_bytes) for kind in parts)
    reduced = _cost("8xa100", CollectiveKind.ALL_REDUCE, (8,), 0).seconds(n_bytes)
    assert reduced == pytest.approx(expected)


@given(KINDS, BYTES)
def test_a_group_across_hosts_is_no_faster_than_its_part_inside_nor_than_formulas(kind, n_bytes):
    whole = _cost("4x8xh100", kind, (32,), 0).seconds(n_bytes)
    inside = _cost("4x8xh100", kind, (4, 8), 1).seconds(n_bytes)
    formulas = _cost(by_formulas("4x8xh100"), kind, (32,), 0).seconds(n_bytes)
    assert whole == pytest.approx(max(inside, formulas))
    across = _cost("4x8xh100", kind, (4, 8), 0).seconds(n_bytes)
    assert across == _cost(by_formulas("4x8xh100"), kind, (4, 8), 0).seconds(n_bytes)


@given(KINDS.filter(lambda kind: kind != CollectiveKind.PERMUTE), BYTES)
def test_ranks_below_the_fewest_measured_scale_by_formulas(kind, n_bytes):
    two, four = (_cost("gb200-nvl72", kind, (72 // n, n), 1).seconds(n_bytes) for n in (2, 4))
    plain = by_formulas("gb200-nvl72")
    by_two, by_four = (_cost(plain, kind, (72 // n, n), 1).seconds(n_bytes) for n in (2, 4))
    assert two / four == pytest.approx(by_two / by_four)


def test_seconds_of_arrays_are_those_of_their_elements():
    cost = _cost("2x8xh100", CollectiveKind.ALL_REDUCE, (16,), 0)
    n_bytes = np.array([0.0, 1e3, 1e6, 1e9])
    messages = np.array([0.0, 1.0, 3.0, 0.5])
    each = [cost.seconds(b, m) for b, m in zip(n_bytes, messages, strict=True)]
    assert cost.seconds(n_bytes, messages) == pytest.approx(np.array(each, float))
