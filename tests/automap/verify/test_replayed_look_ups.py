"""What the TPU's compiler says nothing of, in compiled programs written by hand: look-ups and
scatters, kernels of Mosaic, and ops by themselves that bring arrays to other places.
"""

import pytest

from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.replayed import replayed_step
from hlo_tools.jax_compat import text_to_proto


MESH = Mesh(("data",), (8,))
ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def test_look_ups_and_scatters_take_as_long_as_the_rows_that_they_move():
    def program(body, rows, made):
        arrays = f"f32[4096,128], s32[64,1], f32[{rows},128]".split(", ")
        given = [
            f"%{n} = {array} parameter({at})" for at, (n, array) in enumerate(zip("tiu", arrays))
        ]
        header = ", ".join(f"{n}: {array}" for n, array in zip("tiu", arrays))
        moved = [f"%moved ({header}) -> f32[{made},128] {{", *given, body, "}"]
        out = f"ROOT %out = f32[{made},128] fusion(%t, %i, %u), kind=kCustom, calls=%moved"
        entry = [f"ENTRY %main ({header}) -> f32[{made},128] {{", *given, out, "}"]
        return text_to_proto("\n".join(["HloModule step, is_scheduled=true", ADD, *moved, *entry]))

    look_up = program(
        "ROOT %g = f32[64,128] gather(%t, %i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,128}",
        *(1, 64),
    )
    scatter = program(
        "ROOT %s = f32[4096,128] scatter(%t, %i, %u), update_window_dims={1}, "
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
        "to_apply=%add",
        *(64, 4096),
    )
    tpus, rows, indices = get_topology("v5e:2x4"), 64 * 128 * 4, 64 * 4
    for data, n_bytes in ((look_up, 2 * rows + indices + 128 * 4), (scatter, 3 * (rows + indices))):
        step = replayed_step(data, tpus, MESH)
        assert step.seconds == pytest.approx(n_bytes / tpus.device.hbm_bytes_per_s)


@pytest.mark.parametrize(("target", "n_bytes"), [("tpu_custom_call", 3 * 512), ("Sharding", 0)])
def test_a_kernel_of_mosaic_takes_what_it_moves(target, n_bytes):
    """The compiler's own of attention, and a user's of Pallas: it gives neither any cycles."""
    arrays = "x: f32[128], y: f32[128]"
    entry = f"""
ENTRY %main ({arrays}) -> f32[128] {{
  %x = f32[128] parameter(0)
  %y = f32[128] parameter(1)
  ROOT %out = f32[128] custom-call(%x, %y), custom_call_target="{target}"
}}
"""
    data = text_to_proto(f"HloModule step, is_scheduled=true\n{entry}")
    tpus = get_topology("v5e:2x4")
    step = replayed_step(data, tpus, MESH)
    assert step.seconds == pytest.approx(n_bytes / tpus.device.hbm_bytes_per_s)


@pytest.mark.parametrize(
    ("op", "made", "read", "written"),
    [
        ("pad(%x, %zero), padding=0_1_1x0_0", 512, 256, 512),
        ("slice(%x), slice={[0:128], [0:128]}", 128, 128, 128),
        ("reverse(%x), dimensions={0}", 256, 256, 256),
        ("concatenate(%x, %y), dimensions={0}", 264, 264, 264),
        ("dynamic-update-slice(%x, %y, %i, %i)", 256, 8, 8),
        ("negate(%x)", 256, 0, 0),
    ],
)
@pytest.mark.parametrize("space", ["", ":S(1)"])
def test_an_op_by_itself_takes_the_rows_that_it_brings_elsewhere(op, made, read, written, space):
    """In rows of 128 numbers; what it writes on the chip is written beside what it reads."""
    arrays = "x: f32[256,128], y: f32[8,128], zero: f32[], i: s32[]"
    entry = f"""
ENTRY %main ({arrays}) -> f32[{made},128] {{
  %x = f32[256,128] parameter(0)
  %y = f32[8,128] parameter(1)
  %zero = f32[] parameter(2)
  %i = s32[] parameter(3)
  ROOT %out = f32[{made},128]{{1,0{space}}} {op}
}}
"""
    tpus = get_topology("v5e:2x4")
    step = replayed_step(text_to_proto(f"HloModule step, is_scheduled=true\n{entry}"), tpus, MESH)
    zero = 4 if op.startswith("pad") else 0
    n_bytes = 512 * (read + (0 if space else written)) + zero
    assert step.seconds == pytest.approx(n_bytes / tpus.device.hbm_bytes_per_s)
