"""Arrays of convolutions of images and videos: memory that libtpu 0.0.51 says for v5e."""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import problem_of


def _gradients(x, first, second):
    space = "HW" if x.ndim == 4 else "DHW"

    def loss(first, second):
        h = x
        for kernel in (first, second):
            dims = (f"N{space}C", f"{space}IO", f"N{space}C")
            strides = (1,) * len(space)
            h = lax.conv_general_dilated(h, kernel, strides, "SAME", dimension_numbers=dims)
            h = jax.nn.relu(h)
        return (h**2).mean()

    return jax.grad(loss, argnums=(0, 1))(first, second)


# MiB of temporaries and arguments: an array of 32 features takes four times its bytes.
@pytest.mark.parametrize(
    ("images", "features", "compiled"),
    [
        ((8, 256, 256, 32), 32, 576),
        ((64, 112, 112, 64), 64, 1009),
        ((16, 16, 64, 64, 3), 32, 1088 + 12),
        ((16, 16, 64, 64, 32), 32, 1280 + 128),
    ],
)
def test_few_features_take_tiles_of_their_own(images, features, compiled):
    taps = (3,) * (len(images) - 2)
    shapes = images, (*taps, images[-1], features), (*taps, features, features)
    problem = problem_of(_gradients, tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    space, topology = Space(problem), get_topology("v5e:2x2")
    evaluator = Evaluator(build_tables(problem, "tpu"), problem.n_classes, topology)
    whole = space.split_classes(space.point(Mesh(("data",), (1,)), [()]))
    assert evaluator.evaluate(whole).peak_bytes / 2**20 == pytest.approx(compiled, rel=0.1)
