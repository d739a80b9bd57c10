"""What a kernel takes beside the bytes that it reads and writes: its launch, and a pass through
registers.

By the estimates of XLA:TPU a kernel that computes element by element or sums takes, with u the time
in which the memory moves four bytes,

    seconds = gap + (bytes read, of whatever memory + bytes written to memory) / bandwidth + u n

    n   the numbers that it sums, stored or not, unless it writes as many of four bytes; or those
        that it writes as two bytes or one; else 0. One kernel goes through registers once. An op
        that is fused with none, whose reads and writes do not run beside each other, goes through
        them once more

so that what is computed and summed, and never stored, takes as long as if it were written once
                                                                     -> in: `register_pass`
A kernel is launched once, however many arrays it writes, and scalars take no launch, as a core of
their own computes them                               -> in: `is_launched`, `with_launches`
What is read takes the same from the memory on the chip, but for products: only what is written
there is free                                     -> in: `automap.cost.kernels.table.kernel_table`
Which values may stay on the chip                       -> in: `automap.cost.on_chip.chip_rivals`

Read of 122 programs of libtpu 0.0.51 for v5e:2x4 (2026-11-28): of 6,900 kernels without products,
copies and slices the estimates are this within 2 % in all, gap 1.21 us whatever they do, with 0.13
of u for each four bytes that are written on the chip (by a script that was not kept). Of ops by
themselves (2026-12-01, sums, products, tanh and exp of 2^24 and 2^25 numbers of both types) they
are 4 to 14 % longer than this with the pass.
`python -m scripts.compare_tpu_kernels` holds predictions of single kernels against the compiler's
estimates, for generations that nothing was read of too.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from automap.backends import Backend
from automap.topology.model import OpClass
from hlo_tools.analyses.accesses import Access, Kernel, read_through
from hlo_tools.analyses.matrix_vector import summed_value
from hlo_tools.graph import DTYPE_BITS, Graph
from hlo_tools.opcodes import (
    BROADCAST,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    REDUCTIONS,
    RESHAPE,
    TRANSPOSE,
)


_REGISTER_BITS: Final = 32
_NARROW_BITS: Final = 16
_MOVES: Final = frozenset({BROADCAST, DYNAMIC_SLICE, RESHAPE, TRANSPOSE})


def is_launched(graph: Graph, kernel: Kernel) -> bool:
    """Whether a kernel is none that others have begun, nor of scalars alone."""
    is_scalar = not any(graph.values[a.value].dims for a in (*kernel.reads, *kernel.writes))
    return not (kernel.joins or is_scalar)


def with_launches(
    busy: np.ndarray,
    is_launched: np.ndarray,
    is_product: np.ndarray,
    backend: Backend,
    least_seconds: float,
) -> np.ndarray:
    """Seconds of kernels with their launches, [kernels]; `busy` are those without.

    Where kernels are launched, and not arrays, a product has no gap but what it waits for at its
    ends, which `busy` has, and no least time but what it takes to start.
    """
    has_gap = ~is_product | (backend.launches == "of arrays")
    launched = np.maximum(busy + backend.launch_gap_seconds, least_seconds)
    started = busy + backend.tile_numbers.product_start_seconds
    return np.where(is_launched, np.where(has_gap, launched, started), busy)


def register_pass(
    graph: Graph,
    kernel: Kernel,
    kernel_class: OpClass,
    n_bytes: Sequence[int],
    shared: frozenset[int],
    backend: Backend,
) -> tuple[Access, ...]:
    """The array that a kernel takes through registers, with the bytes that it has there.

    None of what joins another kernel, nor of copies, which have a bandwidth of their own. `shared`
    are the values that kernels which join others find there (`shared_values`).
    """
    op = graph.ops[kernel.op]
    if backend.registers == "no time" or kernel.joins or kernel_class == "copy":
        return ()
    read = {access.value for access in kernel.reads}
    # Another shape is no op.
    given = {read_through(graph, value, frozenset({RESHAPE})) for value in op.inputs}
    is_alone = op.opcode in ELEMENTWISE and read.issuperset(given)
    is_alone = is_alone and shared.isdisjoint((*given, *op.outputs))
    if op.opcode in REDUCTIONS:
        value = summed_value(graph, op)
    elif op.opcode == DYNAMIC_UPDATE_SLICE:
        value = op.inputs[1]
    elif op.opcode in ELEMENTWISE or op.opcode in _MOVES:
        value = op.outputs[0]
    else:
        return ()
    bits = DTYPE_BITS[graph.values[value].dtype]
    is_once = op.opcode in REDUCTIONS or bits <= _NARROW_BITS
    passes = is_once + is_alone
    return (Access(value, passes * n_bytes[value] * _REGISTER_BITS // bits),) if passes else ()


def shared_values(kernels: Sequence[Kernel]) -> frozenset[int]:
    """What kernels read that are one kernel with others before them."""
    return frozenset(a.value for kernel in kernels if kernel.joins for a in kernel.reads)
