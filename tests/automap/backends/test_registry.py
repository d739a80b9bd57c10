"""Every platform has its backend, and a device's numbers do not make one compiler another."""

from dataclasses import replace
from typing import get_args

import jax
import pytest

from automap.backends import BACKENDS, backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.errors import InputError
from automap.program.trace import trace_step
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Platform


def test_every_platform_has_a_backend():
    assert set(BACKENDS) == set(get_args(Platform))
    assert len({backend.name for backend in BACKENDS.values()}) == len(BACKENDS)
    assert all(backend_for(platform).platform == platform for platform in BACKENDS)


def test_an_unknown_platform_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"no backend for platform 'metal'; allowed: tpu, cuda"):
        backend_for("metal")


def test_a_gpu_with_a_tile_size_is_no_tpu():
    def doubled(state):
        return {"x": state["x"] * 2}, ()

    array = jax.ShapeDtypeStruct((2**14, 2, 128), "float32")
    problem = trace_step(doubled, ({"x": array},), platform="cuda").problem
    topology, space = get_topology("8xh100"), Space(problem)
    tiled = replace(topology, device=replace(topology.device, matmul_tile=16))
    whole = space.split_classes(space.point(Mesh(("data",), (8,)), [()]))
    plain, padded = (
        Evaluator(build_tables(problem, "cuda"), problem.n_classes, machine).evaluate(whole)
        for machine in (topology, tiled)
    )
    assert plain == padded
