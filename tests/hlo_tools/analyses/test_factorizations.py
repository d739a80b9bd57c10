"""What is done to matrices, by whom it is called and how large they are."""

import pytest

from hlo_tools.analyses.factorizations import factorization


def _of(target, dims=(5, 64, 64), *, opcode="custom-call", dtype="f32", others=()):
    return factorization(opcode, target, dtype, [dims, *others])


@pytest.mark.parametrize(
    ("opcode", "target", "kind"),
    [
        ("cholesky", "", "cholesky"),
        ("triangular-solve", "", "triangular solve"),
        ("custom-call", "cusolver_potrf_ffi", "cholesky"),
        ("custom-call", "lapack_dpotrf_ffi", "cholesky"),
        ("custom-call", "Cholesky", "cholesky"),
        ("custom-call", "__cublas$triangularSolve", "triangular solve"),
        ("custom-call", "cusolver_getrf_ffi", "lu"),
        ("custom-call", "LuDecomposition", "lu"),
        ("custom-call", "cusolver_geqrf_ffi", "qr"),
        ("custom-call", "hipsolver_geqrf_ffi", "qr"),
        ("custom-call", "Qr", "qr"),
        ("custom-call", "cusolver_orgqr_ffi", "q"),
        ("custom-call", "lapack_zungqr_ffi", "q"),
        ("custom-call", "cusolver_syevd_ffi", "eigenvectors"),
        ("custom-call", "lapack_cheevd_ffi", "eigenvectors"),
        ("custom-call", "Eigh", "eigenvectors"),
        ("custom-call", "cusolver_gesvdj_ffi", "singular vectors by jacobi"),
        ("custom-call", "cusolver_gesvd_ffi", "singular vectors"),
        ("custom-call", "lapack_sgesdd_ffi", "singular vectors"),
    ],
)
def test_kinds_are_told_by_opcode_and_target(opcode, target, kind):
    assert _of(target, opcode=opcode).kind == kind


@pytest.mark.parametrize("target", ["", "cusolver_csrlsvqr_ffi", "cu_threefry2x32", "QrX"])
def test_other_calls_are_none(target):
    assert _of(target) is None


def test_nothing_is_said_of_what_is_no_matrix():
    assert factorization("cholesky", "", "f32", []) is None
    assert _of("cusolver_potrf_ffi", (8,)) is None


def test_flops_of_square_matrices():
    n = 64
    assert _of("cusolver_potrf_ffi").flops == pytest.approx(n**3 / 3)
    assert _of("cusolver_getrf_ffi").flops == pytest.approx(2 * n**3 / 3)
    assert _of("cusolver_geqrf_ffi").flops == pytest.approx(4 * n**3 / 3)


def test_columns_are_those_of_the_shorter_side():
    tall, wide = _of("cusolver_geqrf_ffi", (100, 10)), _of("cusolver_geqrf_ffi", (10, 100))
    assert tall.dependent_columns == wide.dependent_columns == 10
    # 2 n^2 (m - n / 3), LAPACK Users' Guide.
    assert tall.flops == wide.flops == pytest.approx(2 * 100 * (100 - 10 / 3))


@pytest.mark.parametrize(("right", "sides"), [((64, 7), 7), ((7, 64), 7), ((64, 64), 64)])
def test_a_solve_has_its_right_sides(right, sides):
    what = _of("", (64, 64), opcode="triangular-solve", others=[right])
    assert what.flops == 64 * 64 * sides


def test_complex_numbers_are_four():
    real, parts = _of("cusolver_potrf_ffi"), _of("cusolver_potrf_ffi", dtype="c64")
    assert parts.flops == 4 * real.flops
