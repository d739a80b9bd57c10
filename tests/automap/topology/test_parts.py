"""Parts of machines."""

import pytest

from automap.topology import get_topology, mesh_shapes
from automap.topology.parts import may_begin, sub_topology


@pytest.mark.parametrize(
    ("machine", "count", "sizes"),
    [
        ("4x8xv100", 1, []),
        ("4x8xv100", 6, [6]),
        ("4x8xv100", 8, [8]),
        ("4x8xv100", 24, [8, 3]),
        ("4x8xv100", 32, [8, 4]),
        ("4x8xv100", 12, None),
        ("4x8xv100", 33, None),
        ("4x8xv100", 64, None),
    ],
)
def test_levels_of_a_part(machine, count, sizes):
    part = sub_topology(get_topology(machine), count)
    if sizes is None:
        assert part is None
    else:
        assert part is not None
        assert [level.size for level in part.levels] == sizes
        assert part.device_count == count
        assert mesh_shapes(part)


def test_a_part_of_a_ring_is_a_line():
    torus = get_topology("v4:4x4x4")
    part = sub_topology(torus, 32)
    assert part is not None
    assert [level.kind for level in torus.levels].count("ring") == 3
    assert [level.kind for level in part.levels] == ["ring", "ring", "line"]


def test_whole_machines_are_parts_of_themselves():
    for name in ("4x8xv100", "v5e:4x4", "8xh100"):
        topology = get_topology(name)
        part = sub_topology(topology, topology.device_count)
        assert part is not None
        assert part.levels == topology.levels


def test_where_a_part_may_begin():
    topology = get_topology("4x8xv100")
    begins = {n: [d for d in range(32) if may_begin(topology, n, d)] for n in (6, 8, 12, 16, 32)}
    assert begins[6] == [s * 8 + d for s in range(4) for d in range(3)]
    assert begins[8] == [0, 8, 16, 24]
    assert begins[12] == []
    assert begins[16] == [0, 8, 16]
    assert begins[32] == [0]
