"""XLA:TPU, as libtpu brings it: tiles, rings, and products in bfloat16."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.fitted import FittedFile
from automap.backends.protocols import PLAIN
from automap.backends.xla_tpu.few_rows import FewRowsEffect
from automap.backends.xla_tpu.fourier import FourierEffect
from automap.backends.xla_tpu.lanes import LaneCopyEffect, LanePartsEffect, RowStatisticsEffect
from automap.backends.xla_tpu.padded_arrays import PaddedArraysEffect
from automap.backends.xla_tpu.product_registers import ProductEndsEffect, SingleRowEffect
from automap.backends.xla_tpu.row_layouts import RowLayoutEffect
from automap.backends.xla_tpu.space_parts import SpacePartsEffect
from automap.backends.xla_tpu.tiled_arrays import TiledArrays
from automap.backends.xla_tpu.workspaces import scratch
from hlo_tools.analyses.factorizations import op_factorization
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.graph import Graph
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
# Of a factorization of a matrix the compiler makes panels of 128 columns, a call for each and
# products between them (compiled for v5e, libtpu 0.0.51: calls named `Cholesky`,
# `InvertDiagBlocksLowerTriangular`), and writes no cycles on the calls, whose columns wait for each
# other. So nothing says what they take, and they are priced as what they move.
_PANELS: Final = (
    "factorizations of matrices and solves are priced as what they read and write, as the TPU "
    "compiler says nothing of its panels of columns, which wait for each other; they may take many "
    "times as long"
)


def _unpriced_panels(graph: Graph) -> Iterator[tuple[int, str]]:
    """The factorizations of a program, with what to say of them."""
    for index, op in enumerate(graph.ops):
        if op_factorization(graph, op) is not None:
            yield index, _PANELS


EFFECTS: Final = (
    # Of numbers as they are: the next one lengthens what is moved.
    LanePartsEffect(),
    RowStatisticsEffect(),
    PaddedArraysEffect(),
    RowLayoutEffect(),
    FewRowsEffect(),
    FourierEffect(),
    ProductEndsEffect(),
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
    unpriced=_unpriced_panels,
    # The compiler chooses the order of dimensions.
    views=frozenset({TRANSPOSE}),
)
