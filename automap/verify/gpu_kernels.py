"""The seconds of a GPU's kernels, by what the compiler thinks of them and by measurements.

XLA:GPU has several models of a kernel (`hlo_tools.compiled.estimates`), and each is wrong for
some kind of it. `TRUSTED` says which is believed for which, and why. Products are looked up in the
catalogue's measurements (`automap.topology.measured.products`) with the sizes of the dots that are
fused into the kernel, or that a matrix library is called for, and take longer where rows are not
aligned                                              -> in: `automap.verify.gpu_calls`

Of sorts and of calls of libraries, but for products, XLA says nothing that counts: they are priced
as the planner does, and are no second opinion                 -> in: `automap.verify.gpu_calls`
Copies, Fourier transforms and other calls have no estimate: they read their operands and write
their results                                                           -> in: `_UNSAID`

XLA takes memory to be as fast as the device's is at its best. Kernels were measured to reach less
of it, the catalogue's `memory_efficiency` e: an estimate x of XLA's is believed as
                                                                             -> in: `_from_memory`

    max(x, min(x / e, bytes / (e * bandwidth)))

as a kernel is slower by no more than that, and by less where it only touches its arrays' parts or
is bound by what it computes.

What is believed of a kernel's work w is not all that it takes: the device needs a gap between two
kernels, and no kernel is done faster than the catalogue says of the device
                                                                         -> in: `gpu_kernel_seconds`
    max(w + gap, launch)

Three kinds of kernels are no slower than the lines of memory that they ask for, whatever XLA says:

A transpose. XLA takes each access to fetch a line for one number of it. But the others of a line
are what other threads want (`automap.backends.transposes`)   -> in: `_slowest_transpose_seconds`

    w <= bytes / bandwidth * times

A sum over rows. XLA takes what all threads of a warp read together, as a row's statistic, to be
bytes of each. But a warp asks for it once: operands and results, and no more, go through the blocks
that sum, as in `automap.cost.kernels.column_sums`                  -> in: `_slowest_sum_seconds`

    blocks = max(1, kept * width / column_block_bytes)
    w <= bytes / min(bandwidth, blocks * column_block_bytes_per_s)

A scatter into an array that is there. XLA takes it to read and write all of that. But it reads and
writes what it updates                                            -> in: `_slowest_scatter_seconds`

    w <= (bytes of the other operands + 2 * bytes of the updates) / bandwidth

unless its additions meet at few numbers, which takes as long as the planner has it
                                                                     -> in: `_addition_seconds`

One kind is no faster: rows in tiles, of which a tile has the same one of several matrices
(`hlo_tools.analyses.strided_tiles`). XLA takes them for as fast as others
                                                                   -> in: `_holds_strided_rows`

    w >= bytes / (bandwidth * strided_tile_share)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final

import numpy as np

from automap.backends import Backend, ColumnNumbers
from automap.backends.transposes import strided_times
from automap.cost.kernels.additions import LocalAdditions, is_addition, least_seconds
from automap.topology.model import Device
from automap.verify.gpu_calls import (
    fused_products,
    library_products,
    measured_seconds,
    planned_seconds,
    shape_bytes,
    unaligned_seconds,
)
from hlo_tools.analyses.strided_tiles import repeats_matrices
from hlo_tools.compiled.estimates import GpuEstimate
from hlo_tools.graph import DTYPE_BITS
from hlo_tools.module import Computation, Instruction, Module, Shape
from hlo_tools.opcodes import CUSTOM_CALL, FFT, NO_TIME, SLICES


MEASURED: Final = "measured product"
# The kind of a kernel of tiles that is no product.
_TILED: Final = "__triton"
_UNSAID: Final = frozenset({"copy", CUSTOM_CALL, FFT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Which estimates of XLA:GPU are believed for kernels whose kind begins with `kind`.

    The first of `models` that there is counts; `MEASURED` is the catalogue's own table.
    """

    kind: str
    models: tuple[str, ...]
    why: str


TRUSTED: Final = (
    Trust(
        kind="__triton_nested_gemm",
        models=(MEASURED, "sol", "indexing-cost-model", ""),
        why="a measurement before formulas; the speed of light reads the same table, but not for"
        " sums that are split among blocks, and the oldest model knows no matrix units",
    ),
    Trust(
        kind="__triton_gemm",
        models=(MEASURED, "sol", "indexing-cost-model", ""),
        why="as for nested products",
    ),
    Trust(
        kind="__triton",
        models=("indexing-cost-model", "sol", ""),
        why="softmax and normalization in tiles: the speed of light says 0 s for them, the oldest"
        " model counts each row's reads anew for each of its elements",
    ),
    Trust(
        kind="",
        models=(MEASURED, "sol", "indexing-cost-model", ""),
        why="loops, reductions and copies are bound by memory, where the speed of light is a"
        " roofline that nobody disputes; library products are read from the catalogue's table, as"
        " the speed of light goes by flops alone where its own has no such sizes: 4 us for weights"
        " of 34 MB",
    ),
)
"""In the order in which a kind is looked up."""


def gpu_kernel_seconds(
    estimates: Mapping[str, GpuEstimate], module: Module, device: Device, backend: Backend
) -> Callable[[Instruction], float]:
    """A function for the seconds of one run of an instruction of `module`, with the gap to the
    next.
    """
    gap_seconds, column_numbers = backend.launch_gap_seconds, backend.column_numbers
    called = library_products(estimates, module)
    like_planned = planned_seconds(module, device, backend)
    operand_bytes = _operand_bytes(module)

    def seconds(instruction: Instruction) -> float:
        if instruction.opcode in NO_TIME or instruction.opcode.endswith(("-start", "-done")):
            return 0.0
        estimate = estimates.get(instruction.name, GpuEstimate())
        inside = list(_called(instruction, module))
        products = called.get(instruction.name) or tuple(fused_products(inside))
        measured = measured_seconds(products, device, gap_seconds)
        moved_bytes = operand_bytes[instruction.name] + shape_bytes(instruction.shape)
        if instruction.name in like_planned:
            streamed = moved_bytes / _streamed_bytes_per_s(device)
            work = max(like_planned[instruction.name], streamed)
        else:
            work = _believed(instruction, estimate, measured, moved_bytes, device)
            work = max(work, unaligned_seconds(products, device, backend))
        most = min(
            _slowest_transpose_seconds(inside, moved_bytes, device),
            _slowest_scatter_seconds(inside, moved_bytes, device),
        )
        if inside and column_numbers is not None:
            most = min(most, _slowest_sum_seconds(instruction, inside, column_numbers, device))
            if estimate.kind == _TILED and _holds_strided_rows(inside):
                share = column_numbers.strided_tile_share
                work = max(work, moved_bytes / (_streamed_bytes_per_s(device) * share))
        least = _addition_seconds(inside, device, backend)
        return max(min(work, most) + gap_seconds, least + gap_seconds, device.launch_seconds)

    return seconds


def _believed(
    instruction: Instruction,
    estimate: GpuEstimate,
    measured: float | None,
    moved_bytes: int,
    device: Device,
) -> float:
    trust = next(row for row in TRUSTED if estimate.kind.startswith(row.kind))
    for model in trust.models:
        if model == MEASURED:
            if measured is not None:
                return measured
        elif model in estimate.seconds:
            return _from_memory(estimate.seconds[model], moved_bytes, device)
    moved = moved_bytes if instruction.opcode in _UNSAID else 0
    return moved / _streamed_bytes_per_s(device)


def _from_memory(estimated_seconds: float, moved_bytes: int, device: Device) -> float:
    """An estimate of XLA's, of a kernel that reads and writes so much at most, at the bandwidth
    that kernels were measured to reach.
    """
    slowest = moved_bytes / _streamed_bytes_per_s(device)
    return max(estimated_seconds, min(estimated_seconds / device.memory_efficiency, slowest))


def _operand_bytes(module: Module) -> Mapping[str, int]:
    """Bytes of all operands of each instruction, by its name."""
    n_bytes: dict[str, int] = {}
    for computation in module.computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            n_bytes[instruction.name] = sum(shape_bytes(shapes[o]) for o in instruction.operands)
    return n_bytes


def _called(instruction: Instruction, module: Module) -> Iterator[Computation]:
    """The computations of a fusion, and of what it calls."""
    for called in instruction.called:
        computation = module.computations[called]
        yield computation
        for inner in computation.instructions:
            yield from _called(inner, module)


def _slowest_transpose_seconds(
    computations: Iterable[Computation], moved_bytes: int, device: Device
) -> float:
    """The most that a kernel takes that swaps its innermost dimension; else infinite.
    `moved_bytes` are those of its operands and results.
    """
    asked = [n for computation in computations for n in _times_asked(computation)]
    if not asked:
        return inf
    once = moved_bytes / _streamed_bytes_per_s(device)
    return once * strided_times(max(asked))


def _times_asked(computation: Computation) -> Iterable[int]:
    """How often each transpose that moves the innermost dimension asks for a line at most."""
    shapes = {i.id: i.shape for i in computation.instructions}
    for instruction in computation.instructions:
        order = instruction.dimensions
        if instruction.opcode == "transpose" and order:
            before, after = shapes[instruction.operands[0]], instruction.shape
            inner = [d for d in order if before.dims[d] > 1]
            if inner and inner[-1] != max(inner):
                yield min(_innermost(before), _innermost(after))


def _innermost(shape: Shape) -> int:
    # Dimensions of one number lie nowhere.
    return next(size for size in reversed(shape.dims) if size > 1)


def _slowest_scatter_seconds(
    computations: Iterable[Computation], moved_bytes: int, device: Device
) -> float:
    """The most that a kernel takes that scatters into parameters; else infinite."""
    more = 0
    for computation in computations:
        by_id = {i.id: i for i in computation.instructions}
        for instruction in computation.instructions:
            if instruction.opcode == "scatter" and len(instruction.operands) == 3:
                array, _, updates = (by_id[i] for i in instruction.operands)
                if array.opcode != "parameter":
                    return inf
                more += 2 * (shape_bytes(updates.shape) - shape_bytes(array.shape))
    # Two that add to one parameter take it away twice: nothing is known then.
    moved = moved_bytes + more if more else 0
    return moved / _streamed_bytes_per_s(device) if moved > 0 else inf


def _addition_seconds(
    computations: Iterable[Computation], device: Device, backend: Backend
) -> float:
    """The least that the scatters of a kernel take for what they add; 0 without."""
    numbers, least = backend.addition_numbers, 0.0
    for computation in computations:
        by_id = {i.id: i for i in computation.instructions}
        for instruction in computation.instructions:
            dims = instruction.attributes.scatter
            if numbers is None or dims is None or instruction.shape.elements:
                continue
            if is_addition(instruction.opcode, instruction.attributes.combiner):
                updates = by_id[instruction.operands[-1]].shape.dims
                row = prod(updates[d] for d in dims.update_window_dims)
                item_bytes = DTYPE_BITS[instruction.shape.dtype] // 8
                sizes = (prod(updates), prod(instruction.shape.dims), row, max(item_bytes, 1))
                local = LocalAdditions(*(np.array([size]) for size in sizes))
                least += float(least_seconds(local, numbers, device)[0])
    return least


def _streamed_bytes_per_s(device: Device) -> float:
    return device.hbm_bytes_per_s * device.memory_efficiency


def _slowest_sum_seconds(
    instruction: Instruction,
    computations: Sequence[Computation],
    numbers: ColumnNumbers,
    device: Device,
) -> float:
    """The most that a kernel of `computations`, its own first, takes for sums over rows, or inf."""
    sums = [s for computation in computations for s in _column_sums(computation)]
    if not sums or any(rows > numbers.column_split_rows for rows, _ in sums):
        return inf
    blocks = max(max(row_bytes for _, row_bytes in sums) / numbers.column_block_bytes, 1.0)
    read = _read_bytes(computations[0])
    written = shape_bytes(instruction.shape)
    by_blocks = blocks * numbers.column_block_bytes_per_s
    return (read + written) / min(by_blocks, _streamed_bytes_per_s(device))


def _holds_strided_rows(computations: Iterable[Computation]) -> bool:
    """Whether a kernel of tiles needs rows of an array that repeats over matrices."""
    return any(
        i.opcode == "broadcast" and repeats_matrices(i.dimensions, i.shape.dims)
        for computation in computations
        for i in computation.instructions
    )


def _column_sums(computation: Computation) -> Iterator[tuple[int, float]]:
    """(rows, bytes of a row) of each sum over rows; the bytes are those of what is read."""
    by_id = {i.id: i for i in computation.instructions}
    for instruction in computation.instructions:
        if instruction.opcode != "reduce" or instruction.shape.elements:
            continue
        array = by_id[instruction.operands[0]]
        real = [d for d, size in enumerate(array.shape.dims) if size > 1]
        if real and real[-1] not in instruction.dimensions:
            kept = prod(instruction.shape.dims)
            rows = prod(array.shape.dims) // max(kept, 1)
            yield rows, kept * DTYPE_BITS[_read_through(array, by_id).shape.dtype] / 8


def _read_through(instruction: Instruction, by_id: Mapping[int, Instruction]) -> Instruction:
    """What is read of memory where it is only converted on the way."""
    while instruction.opcode in ("convert", "bitcast"):
        instruction = by_id[instruction.operands[0]]
    return instruction


def _read_bytes(computation: Computation) -> int:
    """Of the parameters of a fusion; of one that is only sliced, in whichever order of dimensions,
    the slices.
    """
    total = 0
    for parameter in computation.instructions:
        if parameter.opcode == "parameter":
            reads = list(_reads(parameter, computation))
            # Cut out of it, not by it: the other operands of a slice say where.
            is_sliced = bool(reads) and all(
                user.opcode in SLICES and user.operands[0] == array.id for array, user in reads
            )
            parts = [user.shape for _, user in reads] if is_sliced else [parameter.shape]
            total += sum(map(shape_bytes, parts))
    return total


def _reads(
    array: Instruction, computation: Computation
) -> Iterator[tuple[Instruction, Instruction]]:
    """The instructions that read an array, each with what it has as its operand: the array, or the
    same bytes in another order of dimensions.
    """
    for user in computation.instructions:
        if array.id in user.operands:
            if user.opcode == "bitcast":
                yield from _reads(user, computation)
            else:
                yield array, user
