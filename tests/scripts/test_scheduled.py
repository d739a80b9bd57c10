"""The step of a scheduled program against its closed form."""

import json

import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.jax_compat import text_to_proto
from scripts.scheduled import CLOCK_HZ, scheduled_step


TOPOLOGY = get_topology("v5e:2x4")
MESH = Mesh(("a", "b", "c"), (2, 2, 2))
GROUPS = {("a", "b", "c"): "{{0,1,2,3,4,5,6,7}}", ("c",): "{{0,1},{2,3},{4,5},{6,7}}"}


def _program(cycles, groups):
    config = json.dumps({"window_config": {"estimated_cycles": str(cycles)}})
    return text_to_proto(f"""
HloModule step, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[1024]) -> f32[1024] {{
  %x = f32[1024] parameter(0)
  %next = f32[1024] collective-permute(%x), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}
  %sum = f32[1024] all-reduce(%next), channel_id=2, replica_groups={groups},
    use_global_device_ids=true, to_apply=%add
  ROOT %out = f32[1024] exponential(%sum), backend_config={config}
}}
""")


@pytest.mark.parametrize("axes", list(GROUPS))
@pytest.mark.parametrize("cycles", [1, 10_000_000])
def test_kernels_then_sums_and_permutes_as_far_as_they_last_longer(axes, cycles):
    def seconds(kind, over):
        positions = [MESH.names.index(a) for a in over]
        return float(collective_cost(kind, TOPOLOGY, MESH.sizes, positions).seconds(4096.0))

    step = scheduled_step(_program(cycles, GROUPS[axes]), TOPOLOGY, MESH)
    compute = cycles / CLOCK_HZ["v5e"]
    beside = seconds(CollectiveKind.PERMUTE, ("c",))
    expected = seconds(CollectiveKind.ALL_REDUCE, axes) + max(beside - compute, 0.0)
    assert step.compute_seconds == pytest.approx(compute)
    assert step.collective_seconds == pytest.approx(expected)
    assert step.seconds == pytest.approx(compute + expected)


def test_the_finest_mesh_prices_what_coarser_ones_do():
    for kind in CollectiveKind:
        whole = collective_cost(kind, TOPOLOGY, (8,), [0]).seconds(1e8)
        finest = collective_cost(kind, TOPOLOGY, MESH.sizes, [0, 1, 2]).seconds(1e8)
        assert float(finest) == pytest.approx(float(whole)), kind
