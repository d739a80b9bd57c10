"""The seconds of a GPU's kernels, by what the compiler thinks of them and by measurements.

XLA:GPU has several models of a kernel (`hlo_tools.compiled.estimates`), and each is wrong for
some kind of it. `TRUSTED` says which is believed for which, and why. Products are looked up in the
catalogue's measurements (`automap.topology.measured.products`) with the sizes of the dots that are
fused into the kernel                                                    -> in: `_products`

Every kernel takes `_LAUNCH_SECONDS` beside its work, which the compiler's models leave out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.topology.measured.products import measured_products, measured_types
from automap.topology.model import Device
from hlo_tools.compiled.estimates import GpuEstimate
from hlo_tools.graph import DTYPE_BITS
from hlo_tools.module import Computation, Instruction, Module, Shape
from hlo_tools.opcodes import NO_TIME


MEASURED: Final = "measured product"
# As XLA's models of a GPU say (`kKernelLaunchOverhead`).
_LAUNCH_SECONDS: Final = 1e-6


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
        " roofline that nobody disputes; library products are measured",
    ),
)
"""In the order in which a kind is looked up."""


def gpu_kernel_seconds(
    estimates: Mapping[str, GpuEstimate], module: Module, device: Device
) -> Callable[[Instruction], float]:
    """A function for the seconds of one run of an instruction of `module`."""

    def seconds(instruction: Instruction) -> float:
        if instruction.opcode in NO_TIME or instruction.opcode.endswith(("-start", "-done")):
            return 0.0
        estimate = estimates.get(instruction.name, GpuEstimate())
        return _LAUNCH_SECONDS + _believed(instruction, estimate, module, device)

    return seconds


def _believed(
    instruction: Instruction, estimate: GpuEstimate, module: Module, device: Device
) -> float:
    trust = next(row for row in TRUSTED if estimate.kind.startswith(row.kind))
    for model in trust.models:
        if model == MEASURED:
            measured = _measured_seconds(instruction, module, device)
            if measured is not None:
                return measured
        elif model in estimate.seconds:
            return estimate.seconds[model]
    # Plain copies have no estimate: they read and write their result's bytes.
    moved = 2 * _shape_bytes(instruction.shape) if instruction.opcode == "copy" else 0
    return moved / (device.hbm_bytes_per_s * device.memory_efficiency)


def _shape_bytes(shape: Shape) -> int:
    if shape.elements:
        return sum(map(_shape_bytes, shape.elements))
    return int(np.prod(shape.dims)) * DTYPE_BITS[shape.dtype] // 8


def _measured_seconds(instruction: Instruction, module: Module, device: Device) -> float | None:
    """Seconds of the products in a kernel by the catalogue's measurements, None without."""
    products = list(_products(instruction, module))
    types = measured_types(device.measured)
    if not products or any(dtype not in types for dtype, _ in products):
        return None
    seconds = sum(
        float(measured_products(device.measured, dtype).predict(np.array([sizes]))[0])
        for dtype, sizes in products
    )
    # The measurements are whole kernels, with what they take beside their work.
    return max(seconds - _LAUNCH_SECONDS, 0.0)


def _products(
    instruction: Instruction, module: Module
) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Element type and (batch, m, n, k) of each dot that an instruction is or calls."""
    for computation in _called(instruction, module):
        by_id = {i.id: i for i in computation.instructions}
        for inner in computation.instructions:
            if inner.opcode == "dot" and inner.attributes.dot is not None:
                left, right = (by_id[i].shape for i in inner.operands[:2])
                yield left.dtype, _product_sizes(inner, left, right)


def _product_sizes(dot: Instruction, left: Shape, right: Shape) -> tuple[int, int, int, int]:
    dims = dot.attributes.dot
    assert dims is not None  # noqa: S101 - the caller has looked

    def size(shape: Shape, of: Iterable[int]) -> int:
        return int(np.prod([shape.dims[d] for d in of], dtype=np.int64))

    batch, k = size(left, dims.lhs_batch), size(left, dims.lhs_contracting)
    m = size(left, range(len(left.dims))) // max(batch * k, 1)
    n = size(right, range(len(right.dims))) // max(batch * k, 1)
    return batch, max(m, 1), max(n, 1), max(k, 1)


def _called(instruction: Instruction, module: Module) -> Iterator[Computation]:
    """The computations of a fusion, and of what it calls."""
    for called in instruction.called:
        computation = module.computations[called]
        yield computation
        for inner in computation.instructions:
            yield from _called(inner, module)
