"""Steps of compiled programs written by hand, beside sums by hand."""

import json

import numpy as np
import pytest

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.errors import CompilerError
from automap.topology import get_topology
from automap.topology.link_loads import permutation
from automap.topology.measured.products import measured_products
from automap.topology.mesh import Mesh
from automap.verify.gpu_kernels import TRUSTED
from automap.verify.kernel_seconds import CLOCK_HZ
from automap.verify.replayed import kernel_runs, replayed_step
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import text_to_proto


MESH = Mesh(("data",), (8,))
GAP_SECONDS = backend_for("cuda").launch_gap_seconds
ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def _program(entry, *others):
    return text_to_proto("\n".join(["HloModule step, is_scheduled=true", ADD, *others, entry]))


def _gpu_config(kind="", **microseconds):
    costs = [
        {"name": name.replace("_", "-"), "exec_time_us": us} for name, us in microseconds.items()
    ]
    for cost in costs:
        if cost["name"] == "oldest":
            del cost["name"]
    return json.dumps({"fusion_backend_config": {"kind": kind}, "reification_cost": costs})


GPU = """
ENTRY %main (x: bf16[1024,1024]) -> bf16[1024,1024] {{
  %x = bf16[1024,1024] parameter(0)
  %product = bf16[1024,1024] fusion(%x), kind=kCustom, calls=%dotted, backend_config={product}
  %begin = bf16[1024,1024] all-reduce-start(%product), replica_groups={{}}, to_apply=%add
  %softmax = bf16[1024,1024] fusion(%x), kind=kCustom, calls=%same, backend_config={softmax}
  %loop = bf16[1024,1024] fusion(%softmax), kind=kLoop, calls=%same2, backend_config={loop}
  %end = bf16[1024,1024] all-reduce-done(%begin)
  ROOT %out = bf16[1024,1024] fusion(%end), kind=kLoop, calls=%same3, backend_config={loop}
}}
"""
DOTTED = """
%dotted (p: bf16[1024,1024]) -> bf16[1024,1024] {
  %p = bf16[1024,1024] parameter(0)
  ROOT %dot = bf16[1024,1024] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def _same(name):
    return (
        f"%{name} (q{name}: bf16[1024,1024]) -> bf16[1024,1024] {{\n"
        f"  %q{name} = bf16[1024,1024] parameter(0)\n"
        f"  ROOT %n{name} = bf16[1024,1024] negate(%q{name})\n}}"
    )


def test_gpu_kernels_take_what_is_believed_of_their_kind():
    entry = GPU.format(
        product=_gpu_config("__triton_nested_gemm_fusion", oldest=4000, sol=2000),
        softmax=_gpu_config("__triton", oldest=9000, sol=0, indexing_cost_model=100),
        loop=_gpu_config(oldest=5, sol=7, indexing_cost_model=11),
    )
    gpus = get_topology("8xh100")
    step = replayed_step(
        _program(entry, DOTTED, *map(_same, ("same", "same2", "same3"))), gpus, MESH
    )
    sizes = np.array([[1, 1024, 1024, 1024]])
    product = float(measured_products("h100", "bf16").predict(sizes)[0])
    kernels = product + 100e-6 + 2 * 7e-6 + 3 * GAP_SECONDS
    assert step.kernel_seconds == pytest.approx(kernels)
    price = collective_cost(CollectiveKind.ALL_REDUCE, gpus, (8,), (0,)).seconds
    assert step.transfer_seconds == pytest.approx(transfer := float(price(2.0 * 1024**2)))
    beside = 100e-6 + 7e-6 + 2 * GAP_SECONDS
    assert step.seconds == pytest.approx(kernels + max(transfer - beside, 0))


def test_no_kernel_is_done_before_the_device_has_launched_it():
    entry = (
        "ENTRY %main (x: bf16[8]) -> bf16[8] {\n  %x = bf16[8] parameter(0)\n"
        f"  ROOT %y = bf16[8] negate(%x), backend_config={_gpu_config(sol=0.1)}\n}}"
    )
    step = replayed_step(_program(entry), gpus := get_topology("8xh100"), MESH)
    assert step.seconds == pytest.approx(gpus.device.launch_seconds)


def _transposed(before, after, order):
    (b,), (a,), (o,) = ([",".join(map(str, x))] for x in (before, after, order))
    return (
        f"""
ENTRY %main (x: bf16[{b}]) -> bf16[{a}] {{
  %x = bf16[{b}] parameter(0)
  ROOT %y = bf16[{a}] fusion(%x), kind=kLoop, calls=%swap, backend_config={_gpu_config(sol=9000)}
}}
""",
        f"""
%swap (p: bf16[{b}]) -> bf16[{a}] {{
  %p = bf16[{b}] parameter(0)
  ROOT %t = bf16[{a}] transpose(%p), dimensions={{{o}}}
}}
""",
    )


@pytest.mark.parametrize(
    ("before", "order", "asked"),
    [
        ((8, 1024, 1024, 4), (0, 1, 3, 2), 4),
        ((8, 4, 1024, 1024), (0, 3, 2, 1), 4),
        # Sizes of 1 lie nowhere: the innermost dimensions are those of 4 and 1024.
        ((1024, 1024, 4, 1), (0, 2, 1, 3), 4),
        # Nothing is swapped with the innermost dimension: the compiler is believed.
        ((8, 4, 1024, 1024), (0, 2, 1, 3), None),
        ((1, 8, 1024, 1, 1), (4, 0, 1, 2, 3), None),
    ],
)
def test_a_transpose_asks_for_a_line_as_often_as_its_small_dimension_is_long(before, order, asked):
    after = [before[d] for d in order]
    gpus = get_topology("8xh100")
    step = replayed_step(_program(*_transposed(before, after, order)), gpus, MESH)
    once = 2 * 2 * np.prod(before) / (gpus.device.hbm_bytes_per_s * gpus.device.memory_efficiency)
    work = 9000e-6 if asked is None else once * (1 + (asked - 1) / 2.5)
    assert step.kernel_seconds == pytest.approx(work + GAP_SECONDS)


SUMMED = """
%summed (stack: f32[12,1024,512], rows: f32[1024,1], at: s32[]) -> f32[512] {
  %stack = f32[12,1024,512] parameter(0)
  %rows = f32[1024,1] parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %layer = f32[1,1024,512] dynamic-slice(%stack, %at, %zero, %zero),
    dynamic_slice_sizes={1,1024,512}
  %matrix = f32[1024,512] reshape(%layer)
  %row = f32[1024] reshape(%rows)
  %each = f32[1024,512] broadcast(%row), dimensions={0}
  %scaled = f32[1024,512] multiply(%matrix, %each)
  %start = f32[] constant(0)
  ROOT %sum = f32[512] reduce(%scaled, %start), dimensions={0}, to_apply=%add
}
"""


@pytest.mark.parametrize(("compiler_us", "is_believed"), [(9000, False), (3.5, True)])
def test_a_sum_over_rows_moves_its_arrays_once_through_its_blocks(compiler_us, is_believed):
    entry = f"""
ENTRY %main (stack: f32[12,1024,512], rows: f32[1024,1], at: s32[]) -> f32[512] {{
  %stack = f32[12,1024,512] parameter(0)
  %rows = f32[1024,1] parameter(1)
  %at = s32[] parameter(2)
  ROOT %y = f32[512] fusion(%stack, %rows, %at), kind=kInput, calls=%summed,
    backend_config={_gpu_config(sol=compiler_us)}
}}
"""
    step = replayed_step(_program(entry, SUMMED), get_topology("8xh100"), MESH)
    # Of the stack one layer, the rows' numbers once, the counter, and the result.
    n_bytes = 4 * (1024 * 512 + 1024 + 1 + 512)
    blocks = 4 * 512 / 256
    # What is believed is at all of the memory's bandwidth, of which kernels reach this share.
    believed = compiler_us * 1e-6 / get_topology("8xh100").device.memory_efficiency
    work = believed if is_believed else n_bytes / (blocks * 63.36e9)
    assert step.kernel_seconds == pytest.approx(work + GAP_SECONDS)


def test_of_a_stack_in_another_order_of_dimensions_a_sum_reads_its_layer_too():
    entry = f"""
ENTRY %main (stack: f32[4,12,256,512], rows: f32[1024,1], at: s32[]) -> f32[512] {{
  %stack = f32[4,12,256,512] parameter(0)
  %rows = f32[1024,1] parameter(1)
  %at = s32[] parameter(2)
  ROOT %y = f32[512] fusion(%stack, %rows, %at), kind=kInput, calls=%summed,
    backend_config={_gpu_config(sol=50)}
}}
"""
    turned = SUMMED.replace("stack: f32[12,1024,512]", "stack: f32[4,12,256,512]").replace(
        "%stack = f32[12,1024,512] parameter(0)",
        "%given = f32[4,12,256,512] parameter(0)\n  %stack = f32[12,1024,512] bitcast(%given)",
    )
    step = replayed_step(_program(entry, turned), get_topology("8xh100"), MESH)
    n_bytes = 4 * (1024 * 512 + 1024 + 1 + 512)
    assert step.kernel_seconds == pytest.approx(n_bytes / (4 * 512 / 256 * 63.36e9) + GAP_SECONDS)


def test_a_library_call_takes_what_was_measured_of_its_product():
    numbers = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["1"]}
    config = json.loads(_gpu_config(sol=1)) | {
        "gemm_backend_config": {"dot_dimension_numbers": numbers}
    }
    entry = f"""
ENTRY %main (x: bf16[512,2048], w: bf16[1024,2048]) -> (bf16[512,1024], s8[64]) {{
  %x = bf16[512,2048] parameter(0)
  %w = bf16[1024,2048] parameter(1)
  ROOT %y = (bf16[512,1024], s8[64]) custom-call(%x, %w), custom_call_target="library",
    backend_config={json.dumps(config)}
}}
"""
    step = replayed_step(_program(entry), get_topology("8xh100"), MESH)
    measured = measured_products("h100", "bf16").predict(np.array([[1, 512, 1024, 2048]]))
    assert step.kernel_seconds == pytest.approx(float(measured[0]))


def test_runs_of_kernels_add_up_to_the_step():
    entry = GPU.format(
        product=_gpu_config("__triton_nested_gemm_fusion", sol=2000),
        softmax=_gpu_config("__triton", indexing_cost_model=100),
        loop=_gpu_config(sol=7),
    )
    program = _program(entry, DOTTED, *map(_same, ("same", "same2", "same3")))
    gpus = get_topology("8xh100")
    runs = list(kernel_runs(program, gpus, MESH))
    total = replayed_step(program, gpus, MESH).kernel_seconds
    assert sum(run.seconds for run in runs) == pytest.approx(total)
    assert {run.name: "dot" in run.opcodes for run in runs} == {
        "product": True, "softmax": False, "loop": False, "out": False,
    }  # fmt: skip


def test_every_kind_of_kernel_finds_a_row_and_a_reason():
    assert TRUSTED[-1].kind == ""
    assert all(row.models and row.why for row in TRUSTED)


def _cycles(count):
    return json.dumps({"window_config": {"estimated_cycles": str(count)}})


def _step_of_gather(name, channel):
    return (
        f"%{name} (p{name}: f32[8]) -> f32[64] {{\n  %p{name} = f32[8] parameter(0)\n"
        f"  ROOT %g{name} = f32[64] all-gather(%p{name}), channel_id={channel},"
        " replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true,"
        ' metadata={op_name="gather"}\n}'
    )


def test_a_fused_collective_runs_beside_the_fusions_of_its_channel():
    entry = f"""
ENTRY %main (x: f32[8]) -> f32[64] {{
  %x = f32[8] parameter(0)
  %one = f32[64] fusion(%x), kind=kCustom, calls=%first, backend_config={_cycles(10)}
  %two = f32[64] negate(%one), backend_config={_cycles(20)}
  %three = f32[64] fusion(%x), kind=kCustom, calls=%last, backend_config={_cycles(30)}
  ROOT %out = f32[64] add(%two, %three), backend_config={_cycles(40)}
}}
"""
    program = _program(entry, _step_of_gather("first", 3), _step_of_gather("last", 3))
    tpus = get_topology("v5e:2x4")
    step = replayed_step(program, tpus, MESH)
    tick = 1 / CLOCK_HZ["v5e"]
    gather = float(collective_cost(CollectiveKind.ALL_GATHER, tpus, (8,), (0,)).seconds(256.0))
    assert step.kernel_seconds == pytest.approx(100 * tick)
    assert step.transfer_seconds == pytest.approx(gather)
    assert step.seconds == pytest.approx(max(60 * tick, gather) + 40 * tick)


def test_what_the_tpus_compiler_cannot_say_takes_as_long_as_its_arrays():
    entry = f"""
ENTRY %main (x: f32[1048576]) -> f32[1048576] {{
  %x = f32[1048576] parameter(0)
  %one = f32[1048576] negate(%x), backend_config={_cycles(2**63 - 1)}
  ROOT %out = f32[1048576] abs(%one), backend_config={_cycles(40)}
}}
"""
    tpus = get_topology("v5e:2x4")
    moved = 2 * 4 * 1048576 / tpus.device.hbm_bytes_per_s
    step = replayed_step(_program(entry), tpus, MESH)
    assert step.seconds == pytest.approx(moved + 40 / CLOCK_HZ["v5e"])


def test_permutes_of_opposite_directions_run_at_once():
    def ring(by):
        return ",".join(f"{{{i},{(i + by) % 16}}}" for i in range(16))

    def entry(second):
        return f"""
ENTRY %main (x: f32[1048576]) -> f32[1048576] {{
  %x = f32[1048576] parameter(0)
  %a = (f32[1048576], f32[1048576], u32[], u32[]) collective-permute-start(%x),
    source_target_pairs={{{ring(1)}}}
  %b = (f32[1048576], f32[1048576], u32[], u32[]) collective-permute-start(%x),
    source_target_pairs={{{ring(second)}}}
  %c = f32[1048576] collective-permute-done(%a)
  %d = f32[1048576] collective-permute-done(%b)
  ROOT %e = f32[1048576] add(%c, %d)
}}
"""

    ring_of_16 = get_topology("v5e:16x16")
    one = permutation(ring_of_16, [(i, (i + 1) % 16) for i in range(16)]).seconds(4.0 * 1048576)
    mesh = Mesh(("data", "other"), (16, 16))
    apart = replayed_step(_program(entry(15)), ring_of_16, mesh)
    together = replayed_step(_program(entry(1)), ring_of_16, mesh)
    assert apart.seconds == pytest.approx(one)
    assert together.seconds == pytest.approx(2 * one)


def test_both_ways_round_a_ring_of_neighbours_run_at_once():
    """On a mesh of 2x4 chips: by number, messages of both ways share links of every row."""

    def pairs(by):
        return ",".join(f"{{{i},{(i + by) % 8}}}" for i in range(8))

    program = _program(f"""
ENTRY %main (x: f32[1048576]) -> f32[1048576] {{
  %x = f32[1048576] parameter(0)
  %a = (f32[1048576], f32[1048576], u32[], u32[]) collective-permute-start(%x),
    source_target_pairs={{{pairs(1)}}}
  %b = (f32[1048576], f32[1048576], u32[], u32[]) collective-permute-start(%x),
    source_target_pairs={{{pairs(7)}}}
  %c = f32[1048576] collective-permute-done(%a)
  %d = f32[1048576] collective-permute-done(%b)
  ROOT %e = f32[1048576] add(%c, %d)
}}
""")
    tpus = get_topology("v5e:2x4")
    link = tpus.levels[0].bytes_per_s / 2
    sent, hop = 4.0 * 1048576 / link, tpus.levels[0].latency_seconds
    order = (0, 4, 5, 6, 7, 3, 2, 1)
    assert replayed_step(program, tpus, MESH, order).seconds == pytest.approx(sent + hop)
    assert replayed_step(program, tpus, MESH).seconds == pytest.approx(2 * (sent + 4 * hop))


def test_a_permute_of_partitions_that_there_are_none_of_is_refused():
    program = _program("""
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %a = f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,8}}
}
""")
    for order in (None, (0, 4, 5, 6, 7, 3, 2, 1)):
        with pytest.raises(HloError, match="a permute from 1 to 8, of 8 partitions"):
            replayed_step(program, get_topology("v5e:2x4"), MESH, order)


def test_a_device_without_a_clock_is_refused():
    entry = "ENTRY %main (x: f32[8]) -> f32[8] {\n  ROOT %x = f32[8] parameter(0)\n}"
    with pytest.raises(CompilerError, match="v6e: its clock is not known; allowed: GPUs and v4"):
        replayed_step(_program(entry), get_topology("v6e:2x4"), MESH)


def test_kernels_that_the_compiler_has_no_estimates_for_are_refused():
    entry = GPU.format(product=_gpu_config(), softmax=_gpu_config(), loop=_gpu_config())
    program = _program(entry, DOTTED, *map(_same, ("same", "same2", "same3")))
    with pytest.raises(CompilerError, match="v100: the compiler has estimated none of its kernels"):
        replayed_step(program, get_topology("8xv100"), MESH)


def test_the_finest_mesh_prices_what_coarser_ones_do():
    tpus = get_topology("v5e:2x4")
    # A permute is to the next, which is another one on another mesh.
    for kind in set(CollectiveKind) - {CollectiveKind.PERMUTE}:
        whole = collective_cost(kind, tpus, (8,), [0]).seconds(1e8)
        finest = collective_cost(kind, tpus, (2, 2, 2), [0, 1, 2]).seconds(1e8)
        assert float(finest) == pytest.approx(float(whole)), kind


def test_a_collective_without_a_price_is_named():
    entry = (
        "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8] parameter(0)\n"
        "  ROOT %sent = f32[8] collective-broadcast(%x), replica_groups={{0,1,2,3,4,5,6,7}}\n}"
    )
    with pytest.raises(HloError, match="sent: nothing is known of .* a collective-broadcast"):
        replayed_step(_program(entry), get_topology("v5e:2x4"), MESH)
