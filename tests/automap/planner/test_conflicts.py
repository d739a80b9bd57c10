"""A conflict says where its class meets itself, also where the parameter that names the class is a
vector.
"""

import jax
import jax.numpy as jnp

import automap


def outer(p, x):
    """A vector with itself; it has one dimension, what is made of it two."""

    def loss(p):
        return jnp.mean((x @ jnp.outer(p["v"], p["v"])) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p))


def test_a_vector_that_meets_itself():
    args = (
        {"v": jax.ShapeDtypeStruct((512,), "float32")},
        jax.ShapeDtypeStruct((64, 512), "float32"),
    )
    plan = automap.plan(outer, args, topology="v5e:2x4", strategy="greedy")
    (conflict,) = [row for row in plan.conflicts if row.group == row.with_]
    assert conflict.at.startswith("dimensions 0 and 1 of f32[512, 512] and ")
    names = [row.name for row in conflict.outcomes]
    axis = plan.mesh.axes[0][0]
    assert names[:3] == [
        "not split",
        f"split over {axis} on the first of them",
        f"split over {axis} on the last of them",
    ]
