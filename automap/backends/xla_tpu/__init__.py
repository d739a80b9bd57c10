"""XLA:TPU, as libtpu brings it: tiles, rings, and products in bfloat16."""

from dataclasses import replace
from typing import Final

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.fitted import FittedFile
from automap.backends.protocols import PLAIN
from automap.backends.xla_tpu.few_rows import FewRowsEffect
from automap.backends.xla_tpu.fourier import FourierEffect
from automap.backends.xla_tpu.lanes import LaneCopyEffect, LanePartsEffect
from automap.backends.xla_tpu.padded_arrays import PaddedArraysEffect
from automap.backends.xla_tpu.panels import unpriced_panels
from automap.backends.xla_tpu.product_registers import NarrowResultEffect, SingleRowEffect
from automap.backends.xla_tpu.row_layouts import RowLayoutEffect
from automap.backends.xla_tpu.space_parts import SpacePartsEffect
from automap.backends.xla_tpu.tiled_arrays import TiledArrays, scratch
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.opcodes import CONTRACTIONS, OWN_KERNEL, TRANSPOSE


LIBTPU: Final = FittedFile(
    folder="xla_tpu", file="libtpu_0_0_51.toml", package="libtpu", version="0.0.51"
)

# Elementwise producers are computed while they feed the matrix unit.
_FUSER: Final = Fuser(
    loads=OWN_KERNEL - CONTRACTIONS,
    results="several",
    products="fused",
    tables="whole",
    stacks="written apart",
    updates="compared",
    cuts="read one by one",
    joins="written",
)
EFFECTS: Final = (
    # Of numbers as they are: the next one lengthens what is moved.
    LanePartsEffect(),
    PaddedArraysEffect(),
    RowLayoutEffect(),
    FewRowsEffect(),
    FourierEffect(),
    NarrowResultEffect(),
    SingleRowEffect(),
    SpacePartsEffect(),
)

XLA_TPU: Final = Backend(
    name="xla_tpu",
    platform="tpu",
    fuser=_FUSER,
    protocols=(replace(PLAIN, algorithm="torus"),),
    compiled=CompiledCollectives(
        note="the TPU compiler sends what a product needs in pieces while it computes (as "
        "permutes), and turns gathers and scatters of many small tensors into other collectives",
    ),
    sums="loops first",
    float32_products="bfloat16",
    # But for rings, and gathers in loops.
    collectives="in line",
    combines="sums",
    column_sums="by all",
    launches="of kernels",
    registers="one pass",
    orders="by memory",
    convolutions="as products",
    unaligned_products="as others",
    additions="by memory",
    factorizations="by memory",
    loop_messages="sums",
    loop_gathers="before",
    hidden_gathers="beside kernels",
    loop_zeros="by number",
    host_copies="beside kernels",
    host_stacks="one order",
    host_state="in parts",
    ragged_products="own group",
    merged_product_bytes=0,
    scattered_products="rings",
    scattered_sums="whole",
    sliced_sums="whole",
    nested_sums="folded",
    vector_products="summed",
    gathered_state="copied",
    collective_dims="any",
    slice_scatters="all-reduces",
    layout="tiles",
    fitted=LIBTPU,
    tiles=LIBTPU,
    effects=EFFECTS,
    collective_effects=(LaneCopyEffect(),),
    arrays=TiledArrays(),
    scratch=scratch,
    unpriced=unpriced_panels,
    # The compiler chooses the order of dimensions.
    views=frozenset({TRANSPOSE}),
)
