"""Factorizations in closed form: how many matrices a device has says which call they go to."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap import plan
from automap.backends import FactorizationNumbers, backend_for
from automap.cost.kernels.factorizations import (
    BatchedFactorization,
    Factorizations,
    single_seconds,
)
from automap.topology import get_topology
from automap.topology.gpu_devices import MULTIPROCESSORS
from automap.topology.mesh import Mesh
from hlo_tools.analyses.factorizations import factorization
from tests.automap.cost.kernels.plain import evaluator, whole


NUMBERS = backend_for("cuda").factorization_numbers
MACHINE = get_topology("8xh100")
CORES = MULTIPROCESSORS["h100"]
COLUMN_SECONDS, CORE_FLOPS_PER_S = 1e-6, 1e9
MATRICES, SIZE = 64, 256


def _numbers(share):
    """All calls share the cores in one way."""
    return FactorizationNumbers(
        factorization_calls=tuple(
            (row[0], share, COLUMN_SECONDS, CORE_FLOPS_PER_S) for row in NUMBERS.factorization_calls
        )
    )


def _seconds(share, matrices, size=SIZE):
    what = factorization("cholesky", "", "f32", [(matrices, size, size)])
    return single_seconds(what, matrices, _numbers(share), MACHINE.device)


ALONG, WORK = SIZE * COLUMN_SECONDS, SIZE**3 / 3 / CORE_FLOPS_PER_S


def test_matrices_in_turn_have_all_cores():
    for matrices in (1, 7, 1000):
        expected = matrices * (ALONG + WORK / CORES)
        assert _seconds("in turn", matrices) == pytest.approx(expected)


def test_matrices_that_share_the_cores_wait_together():
    assert _seconds("shared", 8) == pytest.approx(ALONG + 8 * WORK / CORES)
    many = 3 * CORES
    assert _seconds("shared", many) == pytest.approx(3 * ALONG + many * WORK / CORES)


def test_a_core_each_until_there_are_more_matrices_than_cores():
    assert _seconds("a core each", 1) == _seconds("a core each", CORES)
    assert _seconds("a core each", 2 * CORES) == pytest.approx(2 * (ALONG + WORK))


@pytest.mark.parametrize(
    ("target", "dims", "call"),
    [
        ("cusolver_potrf_ffi", (1, 512, 512), "cholesky"),
        ("cusolver_potrf_ffi", (2, 512, 512), "cholesky of many"),
        # 1024 / 7 is more than 128, 1024 / 8 is not.
        ("cusolver_getrf_ffi", (7, 1024, 1024), "lu"),
        ("cusolver_getrf_ffi", (8, 1024, 1024), "lu of many"),
        ("cusolver_getrf_ffi", (64, 128, 64), "lu"),
        ("cusolver_geqrf_ffi", (64, 128, 64), "qr of many"),
        ("cusolver_geqrf_ffi", (1, 64, 64), "qr"),
        ("cusolver_syevd_ffi", (1, 32, 32), "eigenvectors of small"),
        ("cusolver_syevd_ffi", (500, 33, 33), "eigenvectors"),
        ("cusolver_gesvdj_ffi", (1, 16, 16), "singular vectors by jacobi"),
        ("cusolver_gesvdj_ffi", (2, 16, 16), "singular vectors of small"),
        ("cusolver_gesvdj_ffi", (2, 16, 64), "singular vectors by jacobi"),
    ],
)
def test_which_call_has_them(target, dims, call):
    what = factorization("custom-call", target, "f32", [dims])
    slow = tuple(
        (row[0], "in turn", float(row[0] == call), 1e30) for row in NUMBERS.factorization_calls
    )
    numbers = FactorizationNumbers(factorization_calls=slow)
    assert single_seconds(what, dims[0], numbers, MACHINE.device) >= 1


def test_copied_kernels_cost_the_same():
    whats = [factorization("cholesky", "", "f32", [(8, n, n)]) for n in (16, 64)]
    those = Factorizations.build(
        [None, *(BatchedFactorization(what, (8, 1)) for what in whats), None]
    )
    copies = those.select(np.array([2, 0, 1, 2]), 4)
    assert copies.kernels.tolist() == [0, 2, 3]
    assert copies.columns.tolist() == [64, 16, 64]


def _step(state, batch):
    return state + jnp.linalg.cholesky(batch), batch + 1


ARGS = (jax.ShapeDtypeStruct((MATRICES, SIZE, SIZE), jnp.float32),) * 2


def _step_seconds(*, is_split):
    cost, space = evaluator(_step, ARGS, MACHINE)
    classes = whole(space)
    if is_split:
        (matrices,) = space.candidates
        classes = space.split_classes(space.point(Mesh(("data",), (8,)), [[matrices]]))
    return cost.price_point(classes).kernel_seconds.max()


def test_a_step_takes_what_its_factorizations_take():
    what = factorization("cholesky", "", "f32", [(MATRICES, SIZE, SIZE)])
    gap = backend_for("cuda").launch_gap_seconds
    for is_split, matrices in ((False, MATRICES), (True, MATRICES / 8)):
        expected = single_seconds(what, matrices, NUMBERS, MACHINE.device) + gap
        assert _step_seconds(is_split=is_split) == pytest.approx(expected)


def test_a_solve_alone_is_split_over_its_matrices():
    def solve(state, batch):
        return jax.scipy.linalg.solve_triangular(state, batch, lower=True)

    # Nothing is multiplied here: the matrices themselves are what can be split.
    record = plan(jax.jit(solve), ARGS, topology="8xh100", budget=2)
    dims = [(MATRICES, SIZE, SIZE)] * 2
    what = factorization("triangular-solve", "", "f32", dims)
    split_seconds = single_seconds(what, MATRICES / 8, NUMBERS, MACHINE.device)
    assert record.predicted.step_seconds == pytest.approx(split_seconds, rel=0.05)
