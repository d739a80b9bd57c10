"""Steps of compiled programs written by hand, beside sums by hand."""

import json

import numpy as np
import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.errors import CompilerError
from automap.topology import get_topology
from automap.topology.link_loads import permutation
from automap.topology.measured.products import measured_products
from automap.topology.mesh import Mesh
from automap.verify.gpu_kernels import TRUSTED
from automap.verify.replayed import CLOCK_HZ, replayed_step
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import text_to_proto


MESH = Mesh(("data",), (8,))
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
    kernels = product + 100e-6 + 2 * 7e-6 + 3e-6
    assert step.kernel_seconds == pytest.approx(kernels)
    cost = collective_cost(CollectiveKind.ALL_REDUCE, gpus, (8,), (0,))
    transfer = float(cost.seconds(2.0 * 1024**2))
    assert step.transfer_seconds == pytest.approx(transfer)
    beside = 100e-6 + 7e-6 + 2e-6
    assert step.seconds == pytest.approx(kernels + max(transfer - beside, 0))


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
