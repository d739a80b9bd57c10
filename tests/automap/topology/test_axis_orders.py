"""Orders of named meshes: which lie on a topology, which differ, and what is refused."""

from itertools import permutations

from hypothesis import given, strategies as st
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.errors import TopologyError
from automap.topology import get_topology, lies_on, mesh_shapes
from automap.topology.axis_orders import distinct, layouts
from automap.topology.mesh import Mesh


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
    found = layouts(get_topology(name), Mesh(tuple(mesh), tuple(mesh.values())))
    assert [laid.names for laid in found] == orders
    assert all(dict(laid.axes) == mesh for laid in found)


@given(st.sampled_from(["2x8xv100", "v5e:4x8", "flexflow-k80", "tpu7x:2x2x4"]), st.data())
def test_an_order_left_out_costs_what_one_that_is_kept_does(name, data):
    topology = get_topology(name)
    sizes = data.draw(st.sampled_from(mesh_shapes(topology)))
    names = "abc"[: len(sizes)]
    kept = layouts(topology, Mesh(tuple(names), sizes))

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
        laid = Mesh(tuple(names[i] for i in order), tuple(sizes[i] for i in order))
        assert not lies_on(topology, laid.sizes) or costs(laid) in known


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
    assert [mesh.sizes for mesh in distinct(topology, meshes)] == kept


def test_on_one_switch_the_order_of_sizes_makes_no_difference():
    topology = get_topology("cpu:96")
    shapes = mesh_shapes(topology)
    kept = distinct(topology, [Mesh(tuple("abc"[: len(s)]), s) for s in shapes])
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
def test_refused(name, mesh, message):
    with pytest.raises(TopologyError, match=message):
        layouts(get_topology(name), Mesh(tuple(mesh), tuple(mesh.values())))
