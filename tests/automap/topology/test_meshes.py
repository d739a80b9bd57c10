"""Mesh shapes against the definition checked by brute force; orders of named meshes: which lie on a
topology, which differ, and what is refused.
"""

from itertools import permutations, product
from math import prod

from hypothesis import given, strategies as st
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.errors import TopologyError
from automap.topology import (
    Level,
    Topology,
    axis_orders,
    distinct_meshes,
    get_topology,
    lies_on,
    mesh_shapes,
    nearest_shapes,
)
from automap.topology.mesh import Mesh
from automap.topology.spans import spans


def topology_with(sizes):
    levels = tuple(
        Level(name=f"l{i}", size=size, kind="switch", bytes_per_s=1.0, latency_seconds=0.0)
        for i, size in enumerate(sizes)
    )
    return Topology(name="t", platform="cpu", device=get_topology("cpu:1").device, levels=levels)


def is_aligned(shape, sizes):
    """The definition, read as it stands: walk axes and levels from the innermost."""
    left, levels = 1, list(sizes)
    for axis in reversed(shape):
        if left > 1:
            if left % axis:
                return False
            left //= axis
            continue
        if levels and levels[0] % axis == 0:
            left = levels.pop(0) // axis
            continue
        while axis > 1:
            if not levels or axis % levels[0]:
                return False
            axis //= levels.pop(0)
    return left == 1 and not levels


@given(st.lists(st.integers(2, 9), min_size=1, max_size=3), st.integers(1, 3))
def test_all_aligned_shapes_and_no_other(sizes, max_axes):
    total = prod(sizes)
    divisors = [d for d in range(2, total + 1) if total % d == 0]
    expected = {
        shape
        for count in range(1, max_axes + 1)
        for shape in product(divisors, repeat=count)
        if prod(shape) == total and is_aligned(shape, sizes)
    }
    shapes = mesh_shapes(topology_with(sizes), max_axes=max_axes)
    assert set(shapes) == expected
    assert len(shapes) == len(expected)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("cpu:1", ((1,),)),
        ("cpu:8", ((8,), (2, 4), (4, 2), (2, 2, 2))),
        ("v5e:4x4", ((16,), (4, 4), (2, 2, 4), (4, 2, 2))),
        ("2x8xv100", ((16,), (2, 8), (2, 2, 4), (2, 4, 2))),
    ],
)
def test_known_shapes(name, shapes):
    assert mesh_shapes(get_topology(name)) == shapes


@pytest.mark.parametrize("name", ["v5p:16x16x16", "tpu7x:8x8x16", "64x8xh100", "cpu:96"])
def test_at_most_a_few_dozen(name):
    assert 1 < len(mesh_shapes(get_topology(name))) <= 60


def test_no_axes_is_refused():
    with pytest.raises(ValueError, match="max_axes: got 0"):
        mesh_shapes(get_topology("cpu:8"), max_axes=0)


@given(st.lists(st.integers(2, 6), min_size=1, max_size=3), st.data())
def test_what_lies_on_a_topology_is_what_has_spans(sizes, data):
    topology, left, shape = topology_with(sizes), prod(sizes), []
    while left > 1 and len(shape) < 3:
        shape.append(data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= shape[-1]
    shape.append(left)
    try:
        for axis in range(len(shape)):
            spans(topology, shape, (axis,))
        has_spans = True
    except TopologyError:
        has_spans = False
    assert lies_on(topology, shape) == has_spans
    assert not lies_on(topology, [*shape, 2])


def test_aligned_shapes_lie_on_their_topology():
    for name in ("automap-b", "flexflow-k80", "tpu7x:2x2x4"):
        topology = get_topology(name)
        assert all(lies_on(topology, shape) for shape in mesh_shapes(topology))


@pytest.mark.parametrize(
    ("name", "shape", "nearest"),
    [
        ("automap-b", (2, 12), ((12, 2), (3, 8), (6, 4))),
        ("9x4xv100", (6, 6), ((9, 4), (3, 12), (18, 2))),
        ("8xh100", (3, 3), ((2, 4), (4, 2), (8,))),
        ("cpu:1", (2,), ((1,),)),
    ],
)
def test_nearest_shapes(name, shape, nearest):
    assert nearest_shapes(get_topology(name), shape) == nearest


@pytest.mark.parametrize(
    ("name", "mesh", "orders"),
    [
        ("2x8xv100", {"data": 8, "model": 2}, [("data", "model"), ("model", "data")]),
        ("2x8xv100", {"model": 2, "data": 8}, [("model", "data"), ("data", "model")]),
        # One switch, or two lines alike: the order makes no difference.
        ("8xh100", {"data": 4, "model": 2}, [("data", "model")]),
        ("v5e:4x4", {"data": 4, "model": 4}, [("data", "model")]),
        ("v5e:4x4", {"data": 2, "model": 8}, [("data", "model"), ("model", "data")]),
        ("automap-b", {"data": 3, "model": 8}, [("data", "model")]),
        ("automap-b", {"data": 6, "model": 4}, [("data", "model")]),
        ("8xh100", {"data": 8, "model": 1}, [("data", "model")]),
        ("cpu:1", {"data": 1}, [("data",)]),
    ],
)
def test_orders(name, mesh, orders):
    ordered = axis_orders(get_topology(name), Mesh(tuple(mesh), tuple(mesh.values())))
    assert [each.names for each in ordered] == orders
    assert all(dict(each.axes) == mesh for each in ordered)


@given(st.sampled_from(["2x8xv100", "v5e:4x8", "flexflow-k80", "tpu7x:2x2x4"]), st.data())
def test_an_order_left_out_costs_what_one_that_is_kept_does(name, data):
    topology = get_topology(name)
    sizes = data.draw(st.sampled_from(mesh_shapes(topology)))
    names = "abc"[: len(sizes)]
    kept = axis_orders(topology, Mesh(tuple(names), sizes))

    def costs(mesh):
        return [
            collective_cost(
                kind, topology, mesh.sizes, [i for i, n in enumerate(mesh.names) if n in chosen]
            )
            for kind in CollectiveKind
            for chosen in ("a", "b", "c", "ab", "ac", "bc", "abc")
        ]

    known = [costs(mesh) for mesh in kept]
    for order in permutations(range(len(sizes))):
        ordered = Mesh(tuple(names[i] for i in order), tuple(sizes[i] for i in order))
        assert not lies_on(topology, ordered.sizes) or costs(ordered) in known


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("2x8xh100", [(16,), (2, 8), (2, 2, 4)]),
        ("4x4xh100", [(16,), (4, 4), (2, 2, 4), (4, 2, 2)]),
        ("v5e:2x4", [(8,), (2, 4), (2, 2, 2)]),
    ],
)
def test_meshes_that_differ_in_names_alone_are_one(name, kept):
    topology = get_topology(name)
    meshes = [Mesh(tuple("abc"[: len(s)]), s) for s in mesh_shapes(topology)]
    assert [mesh.sizes for mesh in distinct_meshes(topology, meshes)] == kept


def test_on_one_switch_the_order_of_sizes_makes_no_difference():
    topology = get_topology("cpu:96")
    shapes = mesh_shapes(topology)
    kept = distinct_meshes(topology, [Mesh(tuple("abc"[: len(s)]), s) for s in shapes])
    assert sorted(tuple(sorted(mesh.sizes)) for mesh in kept) == sorted(
        {tuple(sorted(shape)) for shape in shapes}
    )


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        (
            "3x3xv100",
            {"a": 9, "b": 2},
            r"a=9,b=2 has 18 devices, 3x3xv100 has 9; nearest that do: 9, 3x3",
        ),
        ("8xh100", {c: 1 for c in "abcdefg"} | {"h": 8}, r"8 axes; allowed: at most 6"),
        (
            "9x4xv100",
            {"a": 6, "b": 6},
            r"a=6,b=6 lies on 9x4xv100 in no order .*4 \(nvlink\) x 9 \(network\)"
            r".*nearest that do: 9x4, 3x12",
        ),
    ],
)
def test_refused_orders(name, mesh, message):
    with pytest.raises(TopologyError, match=message):
        axis_orders(get_topology(name), Mesh(tuple(mesh), tuple(mesh.values())))
