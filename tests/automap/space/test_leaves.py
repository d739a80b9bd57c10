"""Leaf classes: which dimension a leaf is stored along."""

import pytest

from automap.space.leaves import LeafClass, storage_dims
from automap.space.space import Space
from automap.topology.mesh import Mesh
from tests.steps import decoder, problem_of


def test_storage_of_equal_leaves_agrees_on_both_sides():
    space = Space(problem_of(*decoder()))
    point = space.point(Mesh(("data",), (8,)), [[space.problem.batch_class]])
    for leaf in space.leaves:
        assert len(leaf.parameter_side) == len(leaf.optimizer_side) == len(leaf.dims)
        assert not set(leaf.parameter_side) & set(leaf.optimizer_side)
    assert space.is_valid(point)


@pytest.mark.parametrize(
    ("dims", "sizes", "expected"),
    [
        ((768, 3072), (8,), (1,)),  # 384 of the largest
        ((768, 3072), (16,), (0,)),  # 192 are no multiple of 128
        ((768, 3072), (4, 4), (0, 0)),  # of both axes, so that one collective gathers them
        ((3072, 768), (16,), (0,)),
        ((1000,), (8,), (0,)),  # there is no other
        ((16, 64), (8,), (1,)),  # less than a tile is not copied for it
        ((3, 3072), (16,), (1,)),
    ],
)
def test_what_is_stored_in_parts_is_cut_where_tiles_are_not(dims, sizes, expected):
    n = len(dims)
    leaf = LeafClass(
        inputs=(0,),
        dims=dims,
        n_bytes=4,
        compute=(9,) * n,
        regional=(9,) * n,
        parameter_side=tuple(range(n)),
        optimizer_side=(9,) * n,
        reach=(1,) * n,
        imposed=None,
    )
    axes = [(f"axis{a}", size) for a, size in enumerate(sizes)]
    assert storage_dims(leaf, axes, [True] * len(axes), (1,) * n, 9, 128) == expected
