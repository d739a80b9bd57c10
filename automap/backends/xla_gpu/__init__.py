"""XLA:GPU with NCCL: collectives on a stream of their own beside kernels.

Its pipeline makes all collectives asynchronous and moves their ends behind independent kernels
(seen in its programs, jax 0.10.2, 2026-11).
"""

from typing import Final

from automap.backends.base import Backend, CompiledCollectives
from automap.backends.fitted import FittedFile
from automap.backends.xla_gpu.nccl import NCCL
from automap.backends.xla_tpu import EFFECTS, LIBTPU
from hlo_tools.analyses.kernels import Fuser
from hlo_tools.opcodes import OWN_KERNEL


XLA_GPU: Final = Backend(
    name="xla_gpu",
    platform="cuda",
    # The matrix library reads finished operands, and a layer's part of a stack from a copy.
    # Priority fusion makes a value part of all its users if the whole is faster so.
    fuser=Fuser(
        loads=OWN_KERNEL,
        results="several",
        products="bare",
        tables="rows",
        slices="copied",
        remade="if all read less",
    ),
    protocols=NCCL,
    compiled=CompiledCollectives(
        merges="into buffers",
        note="the GPU compiler concatenates tensors before it sends them: their number says "
        "nothing",
    ),
    sums="terms first",
    float32_products="float32",
    collectives="beside kernels",
    combines="sums and gathers",
    column_sums="by blocks",
    # Its combiners go through the body of a loop as through any computation.
    loop_messages="all",
    # What makes arrays larger is not hoisted (while_loop_invariant_code_motion.cc, without
    # `hoist_size_inflating_ops`).
    loop_gathers="in every trip",
    # A loop's stacks are zeros that a kernel of their own writes, also those that it fills whole.
    loop_zeros="all",
    scattered_products="apart",
    layout="rows",
    fitted=FittedFile(folder="xla_gpu", file="defaults.toml"),
    tiles=LIBTPU,
    effects=EFFECTS,
)
