"""Look-ups and scatters in compiled programs written by hand: the TPU's compiler says nothing of
their fusions.
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
