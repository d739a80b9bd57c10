"""Kernels that no estimate of the GPU's compiler is there for, beside sums by hand."""

import json

import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.kernels.convolutions import filter_gradient_share, forward_share
from automap.cost.kernels.factorizations import single_seconds
from automap.cost.kernels.on_core import seconds_per_number, sort_work, top_k_work
from automap.topology import get_topology
from automap.topology.gpu_devices import core_count
from automap.topology.measured.products import measured_products
from automap.verify.gpu_kernels import gpu_kernel_seconds
from hlo_tools.analyses.factorizations import factorization
from hlo_tools.compiled.estimates import GpuEstimate, read_estimates
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
    flops = 2 * 2 * 8 * (length * (length + 1) // 2) * (64 + 64)
    moved = 2 * 8 * length * (4 * 64 * 2 + 4)
    assert (_roofline("bf16", flops, 0) > _roofline("bf16", 0, moved)) == (bound == "products")
    assert _seconds(entry) == pytest.approx(_roofline("bf16", flops, moved))


def _roofline(dtype, flops, moved_bytes):
    device, backend = get_topology("8xh100").device, backend_for("cuda")
    products = flops / (device.peak_flops_per_s(dtype) * device.matmul_efficiency)
    memory = moved_bytes / (device.hbm_bytes_per_s * device.memory_efficiency)
    return max(max(products, memory) + backend.launch_gap_seconds, device.launch_seconds)


def _seconds(entry):
    """Of the instruction %y of a program."""
    data = text_to_proto(f"HloModule step, is_scheduled=true\n{entry}")
    module, device = decode_module(data), get_topology("8xh100").device
    price = gpu_kernel_seconds(read_estimates(data), module, device, backend_for("cuda"))
    (y,) = (i for c in module.computations.values() for i in c.instructions if i.name == "y")
    return price(y)


# An image of 8 x 8 and a filter of 3 x 3, whose taps all meet real input.
IMAGES, FILTERS, RESULTS = "f32[64,512,8,8]", "f32[512,512,3,3]", "f32[64,512,6,6]"


@pytest.mark.parametrize(
    ("target", "left", "right", "result"),
    [
        ("convForward", IMAGES, FILTERS, RESULTS),
        ("convBackwardInput", RESULTS, FILTERS, IMAGES),
        ("convBackwardFilter", IMAGES, RESULTS, FILTERS),
    ],
)
def test_convolutions_and_their_gradients_take_what_the_planner_says(target, left, right, result):
    entry = f"""
ENTRY %main (x: {left}, w: {right}) -> ({result}, u8[0]) {{
  %x = {left} parameter(0)
  %w = {right} parameter(1)
  ROOT %y = ({result}, u8[0]) custom-call(%x, %w), window={{size=3x3}},
    dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn${target}"
}}
"""
    flops = 2 * (64 * 6 * 6) * 512 * (512 * 3 * 3)
    numbers, device = backend_for("cuda").convolution_numbers, get_topology("8xh100").device
    share = forward_share(512, 512, 4, numbers)
    # Fewer tiles of 128 x 128 results than cores, each of which one core sums up.
    least = 2 * (512 * 3 * 3) * 128**2 * core_count(device)
    if target == "convBackwardFilter":
        share, least = filter_gradient_share(512, 512, numbers), 0.0
    work = max(flops / share, least) / device.peak_flops_per_s("f32")
    assert _seconds(entry) == pytest.approx(work + backend_for("cuda").launch_gap_seconds)


@pytest.mark.parametrize(
    ("opcode", "kept"), [("sort", None), ("custom-call", 8)], ids=["sort", "top-k"]
)
def test_sorts_and_top_k_take_what_the_planner_says(opcode, kept):
    numbers, device = backend_for("cuda").core_numbers, get_topology("8xh100").device
    if opcode == "sort":
        made, call = "f32[1024,4096]", "sort(%x), dimensions={1}, to_apply=%less"
        each = sort_work(4096, 4, numbers)
    else:
        made = "(f32[1024,8], s32[1024,8])"
        call = 'custom-call(%x), custom_call_target="__gpu$TopK"'
        each = top_k_work(4096, kept, numbers)
    entry = f"""
%less (a: f32[], b: f32[]) -> pred[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = pred[] compare(%a, %b), direction=LT
}}
ENTRY %main (x: f32[1024,4096]) -> {made} {{
  %x = f32[1024,4096] parameter(0)
  ROOT %y = {made} {call}
}}
"""
    work = 1024 * 4096 * seconds_per_number(*each, numbers, device)
    assert _seconds(entry) == pytest.approx(work + backend_for("cuda").launch_gap_seconds)


@pytest.mark.parametrize("target", ["cusolver_potrf_ffi", "cusolver_syevd_ffi"])
def test_factorizations_take_what_the_planner_says(target):
    backend, device = backend_for("cuda"), get_topology("8xh100").device
    entry = f"""
ENTRY %main (x: f32[16,512,512]) -> f32[16,512,512] {{
  %x = f32[16,512,512] parameter(0)
  ROOT %y = f32[16,512,512] custom-call(%x), custom_call_target="{target}"
}}
"""
    what = factorization("custom-call", target, "f32", [(16, 512, 512)])
    work = single_seconds(what, 16, backend.factorization_numbers, device)
    assert _seconds(entry) == pytest.approx(work + backend.launch_gap_seconds)


def test_a_product_of_complex_numbers_takes_what_one_of_their_parts_does():
    def seconds(dtype, m, n, k):
        return _seconds(f"""
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
""")

    assert seconds("c64", 2048, 1024, 512) == seconds("f32", 4096, 1024, 1024)


@pytest.mark.parametrize(
    ("n", "k", "right", "summed", "share"),
    [
        (4097, 1024, "1024,4097", 0, "operand_share_of_2_bytes"),
        (4098, 1024, "1024,4098", 0, "word_share_of_2_bytes"),
        (4097, 1024, "4097,1024", 1, "result_share_of_2_bytes"),
        (4096, 1026, "1026,4096", 0, "operand_share_of_2_bytes"),
        (4096, 1024, "1024,4096", 0, None),
    ],
)
def test_products_of_rows_that_are_not_aligned_take_what_the_planner_says(
    n, k, right, summed, share
):
    seconds = _seconds(f"""
%inside (a: bf16[4096,{k}], b: bf16[{right}]) -> bf16[4096,{n}] {{
  %a = bf16[4096,{k}] parameter(0)
  %b = bf16[{right}] parameter(1)
  ROOT %d = bf16[4096,{n}] dot(%a, %b),
    lhs_contracting_dims={{1}}, rhs_contracting_dims={{{summed}}}
}}
ENTRY %main (a: bf16[4096,{k}], b: bf16[{right}]) -> bf16[4096,{n}] {{
  %a = bf16[4096,{k}] parameter(0)
  %b = bf16[{right}] parameter(1)
  ROOT %y = bf16[4096,{n}] fusion(%a, %b), kind=kCustom, calls=%inside
}}
""")
    backend, device = backend_for("cuda"), get_topology("8xh100").device
    if share is None:
        table = measured_products("h100", "bf16")
        assert seconds == pytest.approx(float(table.predict(np.array([[1, 4096, n, k]]))[0]))
    else:
        reached = getattr(backend.alignment_numbers, share) * device.peak_flops_per_s("bf16")
        least = 2 * 4096 * n * k / reached
        assert seconds == pytest.approx(least + backend.launch_gap_seconds)


def test_a_transform_reads_and_writes():
    entry = """
ENTRY %main (x: c64[4096,4096]) -> c64[4096,4096] {
  %x = c64[4096,4096] parameter(0)
  ROOT %y = c64[4096,4096] fft(%x), fft_type=FFT, fft_length={4096}
}
"""
    assert _seconds(entry) == pytest.approx(_roofline("f32", 0, 2 * 8 * 4096**2))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_scatter_into_an_array_that_is_there_touches_what_it_updates(is_there):
    table, rows = "f32[1000000,128]", "f32[8192,128]"
    made = "parameter(0)" if is_there else "broadcast(z), dimensions={}"
    entry = f"""
%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}
%inside (t: {table}, i: s32[8192,1], u: {rows}) -> {table} {{
  %z = f32[] constant(0)
  %g = {table} parameter(0)
  %t = {table} {made}
  %i = s32[8192,1] parameter(1)
  %u = {rows} parameter(2)
  ROOT %y = {table} scatter(%t, %i, %u), update_window_dims={{1}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%add
}}
ENTRY %main (t: {table}, i: s32[8192,1], u: {rows}) -> {table} {{
  %t = {table} parameter(0)
  %i = s32[8192,1] parameter(1)
  %u = {rows} parameter(2)
  ROOT %call = {table} fusion(%t, %i, %u), kind=kInput, calls=%inside
}}
""".replace("broadcast(z)", "broadcast(%z)")
    if is_there:
        entry = entry.replace(f"  %g = {table} parameter(0)\n", "")
    module = decode_module(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"))
    device, backend = get_topology("8xh100").device, backend_for("cuda")
    said = {"call": GpuEstimate(kind="", seconds={"sol": 1.0})}
    price = gpu_kernel_seconds(said, module, device, backend)
    main = module.computations[module.entry_id]
    (call,) = (i for i in main.instructions if i.name == "call")
    touched = 4 * (8192 + 3 * 8192 * 128) / (device.hbm_bytes_per_s * device.memory_efficiency)
    expected = touched if is_there else 1.0
    assert price(call) == pytest.approx(expected + backend.launch_gap_seconds, rel=1e-6)


def test_a_sum_of_many_columns_is_no_faster_than_the_memory():
    # Parts of the rows are summed at once: what is kept is many blocks wide.
    entry = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
%inside (p: f32[256,256,1024]) -> f32[256,1024] {
  %p = f32[256,256,1024] parameter(0)
  %z = f32[] constant(0)
  ROOT %r = f32[256,1024] reduce(%p, %z), dimensions={1}, to_apply=%add
}
ENTRY %main (p: f32[256,256,1024]) -> f32[256,1024] {
  %p = f32[256,256,1024] parameter(0)
  ROOT %call = f32[256,1024] fusion(%p), kind=kInput, calls=%inside
}
"""
    module = decode_module(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"))
    device, backend = get_topology("8xh100").device, backend_for("cuda")
    said = {"call": GpuEstimate(kind="", seconds={"sol": 1.0})}
    (call,) = (i for i in module.computations[module.entry_id].instructions if i.name == "call")
    seconds = gpu_kernel_seconds(said, module, device, backend)(call)
    assert seconds == pytest.approx(_roofline("f32", 0, 4 * (256 * 256 * 1024 + 256 * 1024)))


@pytest.mark.parametrize(("mask", "at"), [("1024,1024", "2,3"), ("4,16,1024", "0,1,2")])
def test_rows_of_several_matrices_in_one_tile_are_slow(mask, at):
    scores = "f32[4,16,1024,1024]"
    entry = f"""
%inside (x: {scores}, m: f32[{mask}]) -> {scores} {{
  %x = {scores} parameter(0)
  %m = f32[{mask}] parameter(1)
  %b = {scores} broadcast(%m), dimensions={{{at}}}
  ROOT %a = {scores} add(%x, %b)
}}
ENTRY %main (x: {scores}, m: f32[{mask}]) -> {scores} {{
  %x = {scores} parameter(0)
  %m = f32[{mask}] parameter(1)
  ROOT %call = {scores} fusion(%x, %m), kind=kCustom, calls=%inside
}}
"""
    module = decode_module(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"))
    device, backend = get_topology("8xh100").device, backend_for("cuda")
    said = {"call": GpuEstimate(kind="__triton", seconds={"indexing-cost-model": 1e-6})}
    (call,) = (i for i in module.computations[module.entry_id].instructions if i.name == "call")
    seconds = gpu_kernel_seconds(said, module, device, backend)(call)
    moved = 4 * (2 * 4 * 16 * 1024**2 + 1024 * (1024 if at == "2,3" else 64))
    slow = _roofline("f32", 0, moved / backend.column_numbers.strided_tile_share)
    assert (seconds == pytest.approx(slow)) == (at == "2,3")


@pytest.mark.parametrize(
    ("said_share", "believed_share"),
    [
        (0.5, 0.5 / 0.85),  # it touches parts of its arrays
        (0.95, 1.0),  # it moves them once, which XLA takes to be faster than it is
        (3.0, 3.0),  # it moves them more than once, or computes for longer
    ],
)
def test_estimates_are_of_the_bandwidth_that_kernels_reach(said_share, believed_share):
    entry = """
%inside (x: f32[4096,4096]) -> f32[4096,4096] {
  %x = f32[4096,4096] parameter(0)
  ROOT %n = f32[4096,4096] negate(%x)
}
ENTRY %main (x: f32[4096,4096]) -> f32[4096,4096] {
  %x = f32[4096,4096] parameter(0)
  ROOT %call = f32[4096,4096] fusion(%x), kind=kLoop, calls=%inside
}
"""
    module = decode_module(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"))
    device, backend = get_topology("8xh100").device, backend_for("cuda")
    assert device.memory_efficiency == 0.85
    (call,) = (i for i in module.computations[module.entry_id].instructions if i.name == "call")
    moved = 2 * 4 * 4096**2 / (device.hbm_bytes_per_s * device.memory_efficiency)
    said = {"call": GpuEstimate(kind="", seconds={"indexing-cost-model": said_share * moved})}
    seconds = gpu_kernel_seconds(said, module, device, backend)(call)
    assert seconds == pytest.approx(believed_share * moved + backend.launch_gap_seconds)
