"""What the compiler's process does where the compiler fails at an option."""

import jax
import pytest

from automap.verify.compilers import CompilerMachine
from automap.verify.messages import PlanShardings, Request
from automap.verify.worker import _compiled


class _Lowered:
    """Compiles once all `failures` have been met; keeps the options it was asked with."""

    def __init__(self, failures):
        self.failures, self.asked = list(failures), []

    def compile(self, compiler_options):
        self.asked.append(dict(compiler_options))
        if self.failures:
            raise jax.errors.JaxRuntimeError(self.failures.pop(0))
        return "compiled"


def _request(compiler="gpu"):
    machine = CompilerMachine(compiler=compiler, device_count=1, kind="v100", grid="1x1x1")
    shardings = PlanShardings(axes=(), devices=None, inputs=(), outputs=(), donated=())
    return Request(machine=machine, shardings=shardings, run=None)


NO_TABLE = "NOT_FOUND: Cannot find key: sm_70"
NO_TILES = "INTERNAL: Couldn't find output tile sizes"
ESTIMATES, TRITON = "xla_gpu_collect_cost_model_stats", "xla_gpu_enable_triton_gemm"


def test_a_gpu_without_a_table_of_kernels_is_compiled_without_estimates():
    lowered = _Lowered([NO_TABLE])
    assert _compiled(lowered, _request()) == "compiled"
    assert lowered.asked == [{ESTIMATES: True}, {ESTIMATES: False}]


def test_each_failure_leaves_out_its_own():
    lowered = _Lowered([NO_TABLE, NO_TILES])
    assert _compiled(lowered, _request()) == "compiled"
    assert lowered.asked[-1] == {ESTIMATES: False, TRITON: False}


@pytest.mark.parametrize("failures", [["another"], [NO_TILES, NO_TILES]])
def test_other_failures_and_the_same_again_are_failures(failures):
    with pytest.raises(jax.errors.JaxRuntimeError, match=failures[-1].split(":")[-1]):
        _compiled(_Lowered(failures), _request())


def test_other_compilers_are_asked_once():
    lowered = _Lowered([NO_TABLE])
    with pytest.raises(jax.errors.JaxRuntimeError, match="sm_70"):
        _compiled(lowered, _request("tpu"))
    assert lowered.asked == [{}]
