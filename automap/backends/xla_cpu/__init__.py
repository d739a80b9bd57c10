"""XLA:CPU: one kernel after the other, on devices that meet in one memory."""

from dataclasses import replace
from typing import Final

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.fitted import FittedFile
from automap.backends.protocols import PLAIN
from automap.backends.xla_tpu import EFFECTS, LIBTPU
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.opcodes import OWN_KERNEL


XLA_CPU: Final = Backend(
    name="xla_cpu",
    platform="cpu",
    # The matrix library reads finished operands.
    fuser=Fuser(loads=OWN_KERNEL, results="one", products="bare", tables="rows"),
    protocols=(replace(PLAIN, algorithm="halving"),),
    compiled=CompiledCollectives(
        # No pass of it merges an all-reduce and a slice to a reduce-scatter.
        runs_as={"reduce-scatter": "all-reduce"},
        note="the CPU compiler computes bfloat16 in float32 and may send it so, with twice the "
        "bytes",
    ),
    sums="apart",
    float32_products="float32",
    collectives="in line",
    combines="sums",
    column_sums="by all",
    launches="of arrays",
    registers="no time",
    orders="by memory",
    convolutions="as products",
    unaligned_products="as others",
    additions="by memory",
    factorizations="by memory",
    loop_messages="vectors",
    loop_gathers="before",
    hidden_gathers="none",
    loop_zeros="by byte",
    host_copies="beside kernels",
    host_stacks="any order",
    host_state="in parts",
    ragged_products="all groups",
    merged_product_bytes=0,
    scattered_products="apart",
    scattered_sums="in pieces",
    sliced_sums="whole",
    nested_sums="apart",
    vector_products="as others",
    gathered_state="in place",
    collective_dims="any",
    slice_scatters="scatters",
    layout="rows",
    fitted=FittedFile(folder="xla_cpu", file="defaults.toml"),
    tiles=LIBTPU,
    effects=EFFECTS,
)
