"""Kernels that no estimate of the GPU's compiler is there for, beside sums by hand."""

import json

import pytest

from automap.backends import backend_for
from automap.topology import get_topology
from automap.verify.gpu_kernels import gpu_kernel_seconds
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module


@pytest.mark.parametrize(("length", "bound"), [(4096, "products"), (128, "memory")])
def test_cudnns_attention_takes_what_its_rule_says(length, bound):
    config = {"cudnn_fmha_backend_config": {"mask_type": "CAUSAL"}}
    array = f"bf16[2,{length},8,64]"
    entry = f"""
ENTRY %main (q: {array}, k: {array}, v: {array}) -> (bf16[2,8,{length},64], f32[2,8,{length}]) {{
  %q = {array} parameter(0)
  %k = {array} parameter(1)
  %v = {array} parameter(2)
  ROOT %y = (bf16[2,8,{length},64], f32[2,8,{length}]) custom-call(%q, %k, %v),
    custom_call_target="__cudnn$fmhaSoftmax", backend_config={json.dumps(config)}
}}
"""
    device = get_topology("8xh100").device
    flops = 2 * 2 * 8 * (length * (length + 1) // 2) * (64 + 64)
    moved = 2 * 8 * length * (4 * 64 * 2 + 4)
    seconds = {
        "products": flops / (device.peak_flops_per_s("bf16") * device.matmul_efficiency),
        "memory": moved / (device.hbm_bytes_per_s * device.memory_efficiency),
    }
    assert seconds[bound] == max(seconds.values())
    module = decode_module(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"))
    backend = backend_for("cuda")
    price = gpu_kernel_seconds({}, module, device, backend)
    (call,) = (i for c in module.computations.values() for i in c.instructions if i.name == "y")
    assert price(call) == pytest.approx(
        max(seconds[bound] + backend.launch_gap_seconds, device.launch_seconds)
    )


def test_a_product_of_complex_numbers_takes_what_one_of_their_parts_does():
    def seconds(dtype, m, n, k):
        entry = f"""
%inside (a: {dtype}[{m},{k}], b: {dtype}[{k},{n}]) -> {dtype}[{m},{n}] {{
  %a = {dtype}[{m},{k}] parameter(0)
  %b = {dtype}[{k},{n}] parameter(1)
  ROOT %d = {dtype}[{m},{n}] dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
ENTRY %main (a: {dtype}[{m},{k}], b: {dtype}[{k},{n}]) -> {dtype}[{m},{n}] {{
  %a = {dtype}[{m},{k}] parameter(0)
  %b = {dtype}[{k},{n}] parameter(1)
  ROOT %y = {dtype}[{m},{n}] fusion(%a, %b), kind=kCustom, calls=%inside
}}
"""
        module = decode_module(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"))
        price = gpu_kernel_seconds({}, module, get_topology("8xh100").device, backend_for("cuda"))
        (call,) = (i for c in module.computations.values() for i in c.instructions if i.name == "y")
        return price(call)

    assert seconds("c64", 2048, 1024, 512) == seconds("f32", 4096, 1024, 1024)
