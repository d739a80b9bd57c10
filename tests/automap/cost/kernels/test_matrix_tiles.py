"""Convolutions in groups on a matrix unit: what libtpu 0.0.51 gives their kernels on v5e, and
closed forms of parts.
"""

from dataclasses import replace

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


V5E = get_topology("v5e:2x4")
FLOPS_PER_S = 197e12
TPU = backend_for("tpu")
# Only the matrix unit takes time.
TILED = replace(
    V5E.device, matmul_efficiency=1.0, hbm_bytes_per_s=1e30, launch_seconds=1e-12, on_chip_bytes=0
)


def convolution(x, kernel, groups):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


def seconds(batch, side, features, taps, groups, *, tile=128, what="forward"):
    """(of the convolution on one device, features split in two)."""

    def step(state, x):
        kernel = state["kernel"]
        if what == "forward":
            return state, convolution(x, kernel, groups)
        y, vjp = jax.vjp(lambda k: convolution(x, k, groups), kernel)
        return {"kernel": vjp(jnp.ones_like(y))[0]}, ()

    state = {"kernel": jax.ShapeDtypeStruct((taps, taps, features // groups, features), "bfloat16")}
    x = jax.ShapeDtypeStruct((batch, side, side, features), "bfloat16")
    problem = problem_of(step, (state, x))
    topology = replace(V5E, device=replace(TILED, matmul_tile=tile))
    cost = Evaluator(build_tables(problem, "tpu"), problem.n_classes, topology)
    space, mesh = Space(problem), Mesh(("data",), (2,))
    feature_class = problem.compute_classes(problem.graph.inputs[1])[3]
    is_product = [s.convolution is not None for s in cost.tables.kernels.shape]
    # It waits for what comes and for what leaves.
    ends = TPU.tile_numbers.product_start_seconds + 2 * (tile > 1) * TPU.launch_gap_seconds
    return [
        float(
            cost.price_point(space.split_classes(space.point(mesh, [split])))
            .kernel_seconds[is_product]
            .sum()
        )
        - ends
        for split in ((), (feature_class,))
    ]


# Batch, side, features, taps a side, groups, seconds of the kernel as the compiler has it.
MEASURED = [
    (32, 56, 128, 3, 128, 0.174e-3),
    (32, 56, 128, 5, 128, 0.438e-3),
    (32, 56, 128, 7, 128, 0.843e-3),
    (32, 28, 192, 7, 192, 0.415e-3),
    (32, 14, 384, 7, 384, 0.157e-3),
    (32, 7, 768, 7, 768, 0.079e-3),
    (32, 28, 512, 5, 512, 0.426e-3),
    (32, 28, 32, 3, 32, 0.0443e-3),
    (32, 28, 512, 3, 32, 0.621e-3),
    (32, 28, 256, 3, 32, 0.311e-3),
    (32, 28, 512, 3, 16, 0.664e-3),
    (32, 28, 512, 3, 4, 0.166e-3),
    (32, 28, 1024, 3, 8, 0.323e-3),
    (32, 28, 1024, 3, 4, 0.619e-3),
]


@pytest.mark.parametrize("case", MEASURED)
def test_groups_take_what_the_compiler_has_for_them(case):
    *sizes, measured = case
    assert seconds(*sizes)[0] == pytest.approx(measured, rel=0.16)


@pytest.mark.parametrize(
    ("features", "tiles", "tiles_of_half"), [(512, 4, 2), (128, 1, 1), (256, 2, 1), (320, 3, 2)]
)
def test_single_features_are_rounded_up_to_tiles_where_they_are_split(
    features, tiles, tiles_of_half
):
    each = 2 * 4 * 16 * 16 * 9 * 128**2 / FLOPS_PER_S
    expected = [tiles * each, tiles_of_half * each]
    # Some of what is moved is seen beside.
    assert seconds(4, 16, features, 3, features) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("groups", "parts"), [(4, 2), (16, 2), (64, 2)])
def test_wider_groups_are_split_evenly(groups, parts):
    alone, split = seconds(4, 16, 512, 3, groups)
    assert split == pytest.approx(alone / parts)


def test_a_gradient_of_single_features_takes_part_of_it():
    forward, gradient = (seconds(4, 16, 256, 3, 256, what=w)[0] for w in ("forward", "gradient"))
    assert gradient == pytest.approx(0.4 * forward, rel=0.03)


def test_without_a_matrix_unit_only_what_counts_is_multiplied():
    rows = 3 * 16 - 2
    assert seconds(4, 16, 256, 3, 256, tile=1)[0] == pytest.approx(
        2 * 4 * rows**2 * 256 / FLOPS_PER_S
    )
