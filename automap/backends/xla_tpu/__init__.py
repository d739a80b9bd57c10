"""XLA:TPU, as libtpu brings it: tiles, rings, and products in bfloat16."""

from typing import Final

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.protocols import PLAIN
from hlo_tools.analyses.kernels import Fuser
from hlo_tools.opcodes import CONTRACTIONS, OWN_KERNEL


XLA_TPU: Final = Backend(
    name="xla_tpu",
    platform="tpu",
    # Elementwise producers are computed while they feed the matrix unit.
    fuser=Fuser(
        loads=OWN_KERNEL - CONTRACTIONS, results="several", products="fused", tables="whole"
    ),
    protocols=(PLAIN,),
    compiled=CompiledCollectives(
        note="the TPU compiler sends what a product needs in pieces while it computes (as "
        "permutes), and turns gathers and scatters of many small tensors into other collectives",
    ),
    sums="loops first",
    float32_products="bfloat16",
    # But for rings.
    collectives="in line",
    combines="sums and gathers",
    # XLA:GPU's threshold: this compiler's own was never fitted.
    combine_bytes=30 * 1024 * 1024,
    loop_zeros="by number",
    scattered_products="rings",
    layout="tiles",
    # Numbers side by side in a tile. Where parts of a longer last dimension are no multiple of it,
    # what is gathered of them is copied into another order and back: 3.5 ms of a step of T5-base
    # on v5p:2x2x4, 2.4 of ViT-B/16 (libtpu 0.0.51, 2026-11).
    stored_multiple=128,
)
