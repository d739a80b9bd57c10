"""Estimates of the TPU compiler, read from programs written by hand."""

import gzip
import json
from pathlib import Path

import pytest

from hlo_tools.compiled.estimates import read_cycles, read_estimates
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.module import DotDims


def _config(cycles):
    return json.dumps({"window_config": {"estimated_cycles": str(cycles)}})


PROGRAM = f"""
HloModule step, is_scheduled=true

%fused (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  %one = f32[8] add(%p, %p)
  ROOT %two = f32[8] multiply(%one, %p)
}}

%body (c: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %c = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %x = f32[8] get-tuple-element(%c), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %inner = f32[8] fusion(%x), kind=kLoop, calls=%fused, backend_config={_config(100)}
  ROOT %t = (s32[], f32[8]) tuple(%next, %inner)
}}

%condition (c: (s32[], f32[8])) -> pred[] {{
  %c = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %copied = s32[] copy(%zero), backend_config={_config(3)}
  %start = (s32[], f32[8]) tuple(%copied, %x)
  %loop = (s32[], f32[8]) while(%start), condition=%condition, body=%body
  %y = f32[8] get-tuple-element(%loop), index=1
  %sum = f32[8] all-reduce(%y), replica_groups={{}}, to_apply=%add
  %turned = f32[8] copy(%sum), backend_config={_config(11)}
  ROOT %out = f32[8] exponential(%turned), backend_config={_config(7)}
}}
"""


def test_cycles_are_those_of_one_run_and_copies_have_them_too():
    cycles = read_cycles(text_to_proto(PROGRAM))
    assert cycles == {"copied": 3, "inner": 100, "turned": 11, "out": 7}


def test_the_greatest_number_of_cycles_is_none_that_the_compiler_knows():
    text = PROGRAM.replace(_config(7), _config(2**63 - 1))
    assert read_cycles(text_to_proto(text))["out"] is None


def test_a_gzipped_proto_is_read_too():
    assert read_cycles(gzip.compress(text_to_proto(PROGRAM)))["out"] == 7


@pytest.mark.parametrize("config", ["{", "[1]", "estimated_cycles", '{\\"estimated_cycles\\": 7}'])
def test_estimates_that_are_none_are_left_out(config):
    text = PROGRAM.replace(_config(7), f'"{config}"')
    assert "out" not in read_cycles(text_to_proto(text))


def test_each_model_of_a_gpu_kernel_has_its_seconds():
    costs = [{"name": "sol", "exec_time_us": 2.5}, {"exec_time_us": 7}]
    config = {"fusion_backend_config": {"kind": "__triton"}, "reification_cost": costs}
    estimates = read_estimates(text_to_proto(PROGRAM.replace(_config(7), json.dumps(config))))
    assert estimates["out"].kind == "__triton"
    assert estimates["out"].seconds == pytest.approx({"sol": 2.5e-6, "": 7e-6})
    # Those of another compiler are no seconds.
    assert estimates["inner"].seconds == {}


def test_a_call_of_a_matrix_library_says_its_product():
    numbers = {
        "lhs_contracting_dimensions": ["2"],
        "rhs_contracting_dimensions": ["1"],
        "lhs_batch_dimensions": ["0"],
        "rhs_batch_dimensions": ["0"],
    }
    config = {"gemm_backend_config": {"dot_dimension_numbers": numbers}}
    estimates = read_estimates(text_to_proto(PROGRAM.replace(_config(7), json.dumps(config))))
    assert estimates["out"].dot == DotDims((2,), (1,), (0,), (0,))
    assert estimates["inner"].dot is None


@pytest.mark.parametrize("numbers", ["7", '{"lhs_batch_dimensions": ["x"]}', "[1]"])
def test_a_product_that_is_none_is_left_out(numbers):
    config = f'{{"gemm_backend_config": {{"dot_dimension_numbers": {numbers}}}}}'
    estimates = read_estimates(text_to_proto(PROGRAM.replace(_config(7), config)))
    assert "out" not in estimates


@pytest.mark.parametrize("cost", ['"x"', "-1", "NaN", "[]"])
def test_seconds_that_are_none_are_left_out(cost):
    config = f'{{"reification_cost": [{{"name": "sol", "exec_time_us": {cost}}}]}}'
    estimates = read_estimates(text_to_proto(PROGRAM.replace(_config(7), config)))
    assert "out" not in estimates or estimates["out"].seconds == {}


def test_a_broken_proto_is_refused():
    for read in (read_cycles, read_estimates):
        with pytest.raises(HloError):
            read(text_to_proto(PROGRAM)[:-40])
        with pytest.raises(HloError):
            read(Path(__file__).read_bytes())
