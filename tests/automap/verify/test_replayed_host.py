"""Replayed copies between a device and its host's memory: what they take of the link."""

import pytest

from automap.topology import get_topology
from automap.verify.replayed import replayed_step
from tests.automap.verify.test_replayed import MESH, _gpu_config, _program


COPIES = """
%part (p: f32[8,1024,1024], q: s32[]) -> f32[1,1024,1024] {{
  %p = f32[8,1024,1024]{{2,1,0:S(5)}} parameter(0)
  %q = s32[] parameter(1)
  %nought = s32[] constant(0)
  ROOT %slice = f32[1,1024,1024] dynamic-slice(%p, %q, %nought, %nought),
    dynamic_slice_sizes={{1,1024,1024}}
}}
ENTRY %main (x: f32[8,1024,1024], i: s32[]) -> f32[1024,1024] {{
  %x = f32[8,1024,1024]{{2,1,0:S(5)}} parameter(0)
  %i = s32[] parameter(1)
  %load = f32[1,1024,1024]{{2,1,0}} fusion(%x, %i), kind=kCustom, calls=%part
  %back = (f32[1,1024,1024]{{2,1,0:S(5)}}, f32[1,1024,1024]{{2,1,0}}, u32[]) copy-start(%load)
  %row = f32[1024,1024] bitcast(%load)
  %work = f32[1024,1024] fusion(%row), kind=kLoop, calls=%same4, backend_config={config}
  %done = f32[1,1024,1024]{{2,1,0:S(5)}} copy-done(%back)
  ROOT %out = f32[1024,1024] bitcast(%work)
}}
"""
SAME = """
%same4 (s: f32[1024,1024]) -> f32[1024,1024] {
  %s = f32[1024,1024] parameter(0)
  ROOT %e = f32[1024,1024] exponential(%s)
}
"""


def test_copies_of_host_memory_take_the_hosts_link():
    topology = get_topology("8xh100")
    link = 4 * 1024**2 / topology.device.host_bytes_per_s
    data = _program(COPIES.format(config=_gpu_config("__fusion", oldest=10)), SAME)
    step = replayed_step(data, topology, MESH)
    # A part of the stack comes in and goes out again, and nothing runs beside either.
    assert step.transfer_seconds == pytest.approx(2 * link)
    assert step.seconds == pytest.approx(2 * link + step.kernel_seconds)
    assert 0 < step.kernel_seconds < link


LEAVES = """
%moved (p: f32[1024,1024], q: f32[1024,1024]) -> (f32[1024,1024], f32[1024,1024]) {{
  %p = f32[1024,1024]{{1,0:S(5)}} parameter(0)
  %q = f32[1024,1024]{{1,0:S(5)}} parameter(1)
  %sum = f32[1024,1024] add(%p, %q)
  ROOT %both = (f32[1024,1024], f32[1024,1024]) tuple(%sum, %q)
}}
ENTRY %main (x: f32[1024,1024], y: f32[1024,1024]) -> f32[1024,1024] {{
  %x = f32[1024,1024]{{1,0:S(5)}} parameter(0)
  %y = f32[1024,1024]{{1,0:S(5)}} parameter(1)
  %update = (f32[1024,1024], f32[1024,1024]) fusion(%x, %y), kind=kLoop, calls=%moved
  %sum = f32[1024,1024] get-tuple-element(%update), index=0
  ROOT %work = f32[1024,1024] fusion(%sum), kind=kLoop, calls=%same4, backend_config={config}
}}
"""


def test_a_kernel_reads_all_of_its_leaves_from_the_host():
    topology = get_topology("8xh100")
    link = 4 * 1024**2 / topology.device.host_bytes_per_s
    data = _program(LEAVES.format(config=_gpu_config("__fusion", oldest=10)), SAME)
    step = replayed_step(data, topology, MESH)
    assert step.transfer_seconds == pytest.approx(2 * link)
    assert step.seconds == pytest.approx(2 * link + step.kernel_seconds)
