"""Spans against hand-read cases and against the device numbers of each group."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.errors import TopologyError
from automap.topology import Level, Topology, get_topology, mesh_shapes
from automap.topology.spans import spans


def machine(*levels):
    """Topology of (kind, size), innermost first."""
    made = tuple(
        Level(name=f"l{index}", size=size, kind=kind, bytes_per_s=1.0, latency_seconds=1.0)
        for index, (kind, size) in enumerate(levels)
    )
    return Topology(name="t", platform="cpu", device=get_topology("cpu:1").device, levels=made)


def describe(topology, shape, axes):
    return [(s.level.name, s.ranks, s.stride, s.kind) for s in spans(topology, shape, axes)]


RING16 = machine(("ring", 16))


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((16,), (0,), [("l0", 16, 1, "ring")]),
        ((4, 4), (1,), [("l0", 4, 1, "line")]),
        ((4, 4), (0,), [("l0", 4, 4, "ring")]),
        ((4, 4), (1, 0), [("l0", 16, 1, "ring")]),
        ((2, 2, 4), (1,), [("l0", 2, 4, "line")]),
        ((2, 2, 4), (0, 2), [("l0", 4, 1, "line"), ("l0", 2, 8, "ring")]),
        ((16, 1), (1,), []),
        ((16,), (), []),
    ],
)
def test_spans_of_one_ring(shape, axes, expected):
    assert describe(RING16, shape, axes) == expected


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((2, 8), (0,), [("network", 2, 1, "switch")]),
        ((2, 8), (1,), [("nvlink", 8, 1, "switch")]),
        ((2, 8), (0, 1), [("nvlink", 8, 1, "switch"), ("network", 2, 1, "switch")]),
        ((4, 4), (0,), [("nvlink", 2, 4, "switch"), ("network", 2, 1, "switch")]),
    ],
)
def test_spans_of_hosts(shape, axes, expected):
    assert describe(get_topology("2x8xh100"), shape, axes) == expected


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((2, 2, 2), (0,), [("nvlink", 2, 4, "switch")]),
        ((2, 2, 2), (1, 2), [("nvlink", 4, 1, "switch")]),
        ((2, 2, 2), (0, 2), [("nvlink", 4, 1, "switch")]),
    ],
)
def test_all_of_a_switch_is_one_span(shape, axes, expected):
    assert describe(get_topology("8xh100"), shape, axes) == expected


@given(st.lists(st.integers(2, 12), min_size=1, max_size=3), st.data())
def test_spans_are_the_places_of_the_ranks(sizes, data):
    """Oracle: number the devices, pick the group of device 0, and read its places per level."""
    topology = machine(*(("line", size) for size in sizes))
    shape = data.draw(st.sampled_from(mesh_shapes(topology)))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    devices = np.arange(topology.device_count).reshape(shape)
    index = tuple(slice(None) if axis in axes else 0 for axis in range(len(shape)))
    expected = set(np.atleast_1d(devices[index]).ravel().tolist())
    group, inner = {0}, dict(zip(topology.levels, np.cumprod([1, *sizes]), strict=False))
    for span in spans(topology, shape, tuple(axes)):
        step = span.stride * int(inner[span.level])
        group = {device + rank * step for device in group for rank in range(span.ranks)}
    assert group == expected


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((4, 8), (0,), r"got shape \(4, 8\); allowed: .* product is the 16 devices of 2x8xh100"),
        ((-2, -8), (0,), r"got shape \(-2, -8\)"),
        ((2, 8), (0, 0), r"mesh axes: got \(0, 0\); allowed: different indices from 0 to 1"),
        ((2, 8), (2,), r"mesh axes: got \(2,\)"),
    ],
)
def test_refused_meshes(shape, axes, message):
    with pytest.raises(TopologyError, match=message):
        spans(get_topology("2x8xh100"), shape, axes)


def test_a_mesh_across_a_level_is_refused():
    with pytest.raises(
        TopologyError, match=r"axis 1 of \(2, 12\) cuts across level 'l0'.*\[3, 8\]"
    ):
        spans(machine(("switch", 8), ("switch", 3)), (2, 12), (1,))
