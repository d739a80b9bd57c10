"""Reduce-scatters as the TPU's compiler writes them, replayed: fusions of an all-reduce and slices,
all of one channel.
"""

import pytest

from automap.cost.collectives import CollectiveKind, collective_cost
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.replayed import replayed_step
from hlo_tools.jax_compat import text_to_proto


MESH = Mesh(("data",), (8,))
TPUS = get_topology("v5e:2x4")
PROGRAM = """HloModule step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""
SCATTER = """
%{name} (p: f32[64]) -> f32[8] {{
  %p = f32[64] parameter(0)
  %r = f32[64] all-reduce(%p), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}},
    use_global_device_ids=true, to_apply=%add
  %start = s32[] constant(8)
  ROOT %d = f32[8] dynamic-slice(%r, %start), dynamic_slice_sizes={{8}}
}}
"""
ENTRY = """
ENTRY %main (x: f32[64]) -> f32[8] {
  %x = f32[64] parameter(0)
  %one = f32[8] fusion(%x), kind=kCustom, calls=%first
  %two = f32[8] fusion(%x), kind=kCustom, calls=%second
  ROOT %out = f32[8] add(%one, %two)
}
"""


def test_each_is_waited_for():
    scatters = "".join(SCATTER.format(name=name) for name in ("first", "second"))
    step = replayed_step(text_to_proto(PROGRAM + scatters + ENTRY), TPUS, MESH)
    cost = collective_cost(CollectiveKind.REDUCE_SCATTER, TPUS, (8,), (0,))
    assert step.transfer_seconds == pytest.approx(2 * float(cost.seconds(256.0)))
    assert step.seconds >= step.transfer_seconds
