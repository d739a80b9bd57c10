"""Arrays of convolutions over three dimensions: memory that libtpu 0.0.51 says for v5e."""

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
    def loss(first, second):
        h = x
        for kernel in (first, second):
            dims = ("NDHWC", "DHWIO", "NDHWC")
            h = lax.conv_general_dilated(h, kernel, (1, 1, 1), "SAME", dimension_numbers=dims)
            h = jax.nn.relu(h)
        return (h**2).mean()

    return jax.grad(loss, argnums=(0, 1))(first, second)


# MiB of temporaries and arguments: an array of 32 features is 128 MiB, and 512 in memory.
@pytest.mark.parametrize(("features", "compiled"), [(3, 1088 + 12), (32, 1280 + 128)])
def test_few_features_take_tiles_of_their_own(features, compiled):
    shapes = (16, 16, 64, 64, features), (3, 3, 3, features, 32), (3, 3, 3, 32, 32)
    problem = problem_of(_gradients, tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    space, topology = Space(problem), get_topology("v5e:2x2")
    evaluator = Evaluator(build_tables(problem, "tpu"), problem.n_classes, topology)
    whole = space.split_classes(space.point(Mesh(("data",), (1,)), [()]))
    assert evaluator.evaluate(whole).peak_bytes / 2**20 == pytest.approx(compiled, rel=0.1)
