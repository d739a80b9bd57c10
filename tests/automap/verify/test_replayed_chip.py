"""Replayed copies between a TPU's memory and its chip, and within its memory: they run beside
kernels until what waits for them.
"""

import pytest

from automap.topology import get_topology
from automap.verify.kernel_seconds import CLOCK_HZ
from automap.verify.replayed import replayed_step
from tests.automap.verify.test_replayed import MESH, _program


N_BYTES = 4 * 1024**2
CYCLES = '{{"window_config": {{"estimated_cycles": "{cycles}"}}}}'
SAME = """
%same (s: f32[1024,1024]) -> f32[1024,1024] {
  %s = f32[1024,1024] parameter(0)
  ROOT %e = f32[1024,1024] exponential(%s)
}
"""
COPIED = """
ENTRY %main (x: f32[1024,1024], y: f32[1024,1024]) -> f32[1024,1024] {{
  %x = f32[1024,1024]{{1,0}} parameter(0)
  %y = f32[1024,1024]{{1,0}} parameter(1)
  %start = (f32[1024,1024]{{1,0{made}}}, f32[1024,1024]{{1,0{given}}}, u32[]) copy-start(%x)
  %work = f32[1024,1024] fusion(%y), kind=kLoop, calls=%same, backend_config={config}
  ROOT %done = f32[1024,1024]{{1,0{made}}} copy-done(%start)
}}
"""


def _step(text, cycles, **spaces):
    data = _program(text.format(config=CYCLES.format(cycles=cycles), **spaces), SAME)
    return replayed_step(data, get_topology("v5e:2x4"), MESH)


@pytest.mark.parametrize(
    "made, given, times",
    [
        pytest.param(":S(1)", "", 1, id="fetched"),
        pytest.param("", ":S(1)", 1, id="put back"),
        pytest.param("", "", 2, id="within the device's memory"),
        pytest.param(":S(1)", ":S(1)", 0, id="within the chip"),
    ],
)
def test_a_copy_takes_the_memory_that_it_reads_and_writes(made, given, times):
    device = get_topology("v5e:2x4").device
    step = _step(COPIED, 1000, made=made, given=given)
    copied = times * N_BYTES / device.hbm_bytes_per_s
    kernel = 1000 / CLOCK_HZ["v5e"]
    assert step.kernel_seconds == pytest.approx(kernel)
    assert step.seconds == pytest.approx(max(copied, kernel))


def test_a_long_kernel_hides_a_copy():
    step = _step(COPIED, 1_000_000, made=":S(1)", given="")
    assert step.seconds == pytest.approx(step.kernel_seconds)


SLICED = """
%part (p: f32[8,1024,1024]) -> f32[1,1024,1024] {{
  %p = f32[8,1024,1024]{{2,1,0}} parameter(0)
  ROOT %slice = f32[1,1024,1024]{{2,1,0:S(1)}} slice(%p), slice={{[0:1], [0:1024], [0:1024]}}
}}
%update (q: f32[8,1024,1024], u: f32[1,1024,1024], i: s32[]) -> f32[8,1024,1024] {{
  %q = f32[8,1024,1024]{{2,1,0}} parameter(0)
  %u = f32[1,1024,1024]{{2,1,0:S(1)}} parameter(1)
  %i = s32[] parameter(2)
  ROOT %put = f32[8,1024,1024]{{2,1,0}} dynamic-update-slice(%q, %u, %i, %i, %i)
}}
ENTRY %main (x: f32[8,1024,1024], n: s32[]) -> f32[8,1024,1024] {{
  %x = f32[8,1024,1024]{{2,1,0}} parameter(0)
  %n = s32[] parameter(1)
  %cut = ((f32[8,1024,1024]{{2,1,0}}), f32[1,1024,1024]{{2,1,0:S(1)}}, s32[]) async-start(%x),
    calls=%part
  %row = f32[1,1024,1024]{{2,1,0:S(1)}} async-done(%cut), calls=%part
  %back = ((f32[8,1024,1024]{{2,1,0}}, f32[1,1024,1024]{{2,1,0:S(1)}}, s32[]),
    f32[8,1024,1024]{{2,1,0}}, s32[]) async-start(%x, %row, %n), calls=%update
  ROOT %all = f32[8,1024,1024]{{2,1,0}} async-done(%back), calls=%update
}}
"""


def test_of_a_stack_a_slice_is_fetched_and_put_back():
    data = _program(SLICED.format(), SAME)
    device = get_topology("v5e:2x4").device
    step = replayed_step(data, get_topology("v5e:2x4"), MESH)
    assert step.kernel_seconds == 0
    assert step.seconds == pytest.approx(2 * N_BYTES / device.hbm_bytes_per_s)
