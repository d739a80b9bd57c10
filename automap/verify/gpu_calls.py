"""Seconds of what a GPU's compiler hands to libraries, or says nothing of, as the planner has them:
convolutions and attention of cuDNN by their flops (`automap.cost.kernels.convolutions`), sorts and
top-k by what they move within the cores (`automap.cost.kernels.on_core`), factorizations of
matrices by their columns (`automap.cost.kernels.factorizations`), products by measurements and by
how their rows lie (`automap.cost.kernels.unaligned_rows`).

A convolution's call has the attributes of the convolution that it is of, or is a gradient of.

Arrays of a compiled program lie in the order of their dimensions (XLA's layout normalization makes
it so), but for what is fused into a kernel: that is read as it lies in memory, through transposes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from automap.backends import Backend
from automap.cost.kernels.convolutions import LocalSizes, library_flops, winograd_tiles
from automap.cost.kernels.factorizations import single_seconds
from automap.cost.kernels.on_core import (
    is_line_convolution,
    line_work,
    seconds_per_number,
    sort_work,
    top_k_work,
)
from automap.cost.kernels.unaligned_rows import (
    READ_THROUGH,
    LocalProducts,
    has_slow_rows,
    least_seconds,
)
from automap.topology.gpu_devices import has_matrix_units
from automap.topology.measured.products import measured_products, measured_types
from automap.topology.model import Device
from hlo_tools.analyses.factorizations import factorization
from hlo_tools.analyses.flops import convolution_flops
from hlo_tools.compiled.estimates import GpuEstimate
from hlo_tools.graph import DTYPE_BITS, PART_TYPES
from hlo_tools.module import Computation, ConvDims, DotDims, Instruction, Module, Shape
from hlo_tools.opcodes import SORT
from hlo_tools.rules import make_rule


_BACKWARD_INPUT, _BACKWARD_FILTER = "__cudnn$convBackwardInput", "__cudnn$convBackwardFilter"
_TOP_K = "__gpu$TopK"
_Kind = Literal["batch", "free", "summed"]


def planned_seconds(module: Module, device: Device, backend: Backend) -> Mapping[str, float]:
    """Of the instructions that are such, by their names; what they move to and from the device's
    memory is left out.
    """
    seconds: dict[str, float] = {}
    for computation in module.computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            given = [shapes[o] for o in instruction.operands]
            if instruction.attributes.conv is not None:
                seconds[instruction.name] = _convolution(instruction, given, device, backend)
            elif instruction.attributes.attention is not None:
                seconds[instruction.name] = _attention(instruction, given, device)
            elif instruction.opcode == SORT or (
                instruction.attributes.custom_call_target == _TOP_K
            ):
                seconds[instruction.name] = _ordering(instruction, given, device, backend)
            elif (factored := _factorization(instruction, given, device, backend)) is not None:
                seconds[instruction.name] = factored
    return seconds


def _convolution(
    instruction: Instruction, given: Sequence[Shape], device: Device, backend: Backend
) -> float:
    first, second, *_ = given
    made = _made(instruction)[0]
    target = instruction.attributes.custom_call_target
    operands = {
        _BACKWARD_INPUT: (made, second, first),
        _BACKWARD_FILTER: (first, made, second),
    }
    left, right, result = operands.get(target, (first, second, made))
    dims, numbers = instruction.attributes.conv, backend.convolution_numbers
    flops = convolution_flops(instruction, left.dims, right.dims, result.dims)
    share, peak = device.matmul_efficiency, device.peak_flops_per_s(left.dtype)
    if dims is not None and numbers is not None and instruction.attributes.feature_group_count == 1:
        sizes = _sizes(instruction, dims, [s.dims for s in (left, right, result)], left.dtype)
        on_vectors = np.array([not has_matrix_units(device, left.dtype)])
        works, rates = np.array([flops], float), np.array([peak * share])
        # As the planner prices them.
        work = library_flops(works, sizes, on_vectors, numbers, device, rates)
        return float(work[0] / rates[0])
    cores = backend.core_numbers
    if cores is not None and is_line_convolution(instruction):
        work = line_work(instruction, DTYPE_BITS[left.dtype] / 8, cores)
        n_results = prod((left if target == _BACKWARD_INPUT else result).dims)
        return n_results * seconds_per_number(*work, cores, device)
    return flops / (peak * share)


def _sizes(
    instruction: Instruction, dims: ConvDims, forward: Sequence[Sequence[int]], dtype: str
) -> LocalSizes:
    """Those of the product that a call is; `forward` are the tensors of its forward convolution."""
    left, right, result = forward
    read, results = right[dims.kernel_input_feature], result[dims.output_feature]
    made = [result[d] for d in dims.output_spatial]
    if instruction.attributes.custom_call_target == _BACKWARD_INPUT:
        read, results = results, read
        made = [left[d] for d in dims.input_spatial]
    filters = [right[d] for d in dims.kernel_spatial]
    images, places, taps = left[dims.input_batch], prod(made), prod(filters)
    tiles = winograd_tiles(filters, made, instruction.attributes.window)
    is_filter_gradient = instruction.attributes.custom_call_target == _BACKWARD_FILTER
    if is_filter_gradient:
        read, images, places, taps = images, read, taps, places
    return LocalSizes(
        features=np.array([read]),
        results=np.array([results]),
        samples=np.array([images]),
        places=np.array([places]),
        taps=np.array([taps]),
        tile_share=np.array([tiles / prod(made)]),
        is_filter_gradient=np.array([is_filter_gradient]),
        item_bytes=np.array([DTYPE_BITS[dtype] / 8]),
    )


def _factorization(
    instruction: Instruction, given: Sequence[Shape], device: Device, backend: Backend
) -> float | None:
    numbers = backend.factorization_numbers
    if numbers is None or not given:
        return None
    target, first = instruction.attributes.custom_call_target, given[0]
    what = factorization(instruction.opcode, target, first.dtype, [s.dims for s in given])
    if what is None:
        return None
    return single_seconds(what, prod(first.dims[: what.n_batch]), numbers, device)


def _attention(instruction: Instruction, given: Sequence[Shape], device: Device) -> float:
    operands, results = ([s.dims for s in each] for each in (given, _made(instruction)))
    rule = make_rule(instruction, instruction.opcode, operands, results, {})
    flops = 0.0 if rule.work is None else rule.work.flops
    return flops / (device.peak_flops_per_s(given[0].dtype) * device.matmul_efficiency)


def _ordering(
    instruction: Instruction, given: Sequence[Shape], device: Device, backend: Backend
) -> float:
    numbers, dims = backend.core_numbers, given[0].dims
    if numbers is None or not prod(dims):
        return 0.0
    if instruction.opcode == SORT:
        n_bytes = sum(map(shape_bytes, given)) // prod(dims)
        work = sort_work(dims[instruction.dimensions[0]], n_bytes, numbers)
    else:
        work = top_k_work(dims[-1], _made(instruction)[0].dims[-1], numbers)
    return prod(dims) * float(seconds_per_number(*work, numbers, device))


def _made(instruction: Instruction) -> Sequence[Shape]:
    return instruction.shape.elements or (instruction.shape,)


def shape_bytes(shape: Shape) -> int:
    """Bytes of an array, or of all in a tuple."""
    if shape.elements:
        return sum(map(shape_bytes, shape.elements))
    return prod(shape.dims) * DTYPE_BITS[shape.dtype] // 8


@dataclass(frozen=True, slots=True)
class Product:
    """Element type and (batch, m, n, k) of a product, of its left and right side and its result how
    many numbers are in a row, and whether rows of the sides are summed over.
    """

    dtype: str
    sizes: tuple[int, int, int, int]
    rows: tuple[int, int, int]
    is_summed: tuple[bool, bool]


def library_products(
    estimates: Mapping[str, GpuEstimate], module: Module
) -> Mapping[str, tuple[Product, ...]]:
    """The product of each call of a matrix library, by the call's name."""
    products: dict[str, tuple[Product, ...]] = {}
    for computation in module.computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            dot = estimates.get(instruction.name, GpuEstimate()).dot
            if dot is not None and len(instruction.operands) > 1:
                left, right = (shapes[o] for o in instruction.operands[:2])
                orders = [range(len(s.dims)) for s in (left, right)]
                products[instruction.name] = (_product(dot, left, right, orders),)
    return products


def fused_products(computations: Iterable[Computation]) -> Iterator[Product]:
    """The product of each dot of a kernel's computations."""
    for computation in computations:
        by_id = {i.id: i for i in computation.instructions}
        for inner in computation.instructions:
            if inner.opcode == "dot" and inner.attributes.dot is not None:
                sides = [by_id[i] for i in inner.operands[:2]]
                orders = [_order(side, by_id) for side in sides]
                left, right = (side.shape for side in sides)
                yield _product(inner.attributes.dot, left, right, orders)


def measured_seconds(
    products: Sequence[Product], device: Device, gap_seconds: float
) -> float | None:
    """Seconds of a kernel's products by the catalogue's measurements, None without."""
    types = measured_types(device.measured)
    if not products or any(product.dtype not in types for product in products):
        return None
    seconds = sum(
        float(measured_products(device.measured, p.dtype).predict(np.array([p.sizes]))[0])
        for p in products
    )
    # The measurements are whole kernels, with what they take beside their work.
    return max(seconds - gap_seconds, 0.0)


def unaligned_seconds(products: Sequence[Product], device: Device, backend: Backend) -> float:
    """What a kernel's products take at least for their rows, 0 where they are aligned."""
    numbers = backend.alignment_numbers
    slow = [p for p in products if has_slow_rows(device, p.dtype)]
    if numbers is None or not slow:
        return 0.0
    local = LocalProducts(
        sizes=np.array([p.sizes for p in slow]).T,
        rows=np.array([p.rows for p in slow]).T,
        is_summed=np.array([p.is_summed for p in slow]).T,
        item_bytes=np.array([DTYPE_BITS[p.dtype] // 8 for p in slow]),
    )
    peaks = np.array([device.peak_flops_per_s(p.dtype) for p in slow])
    return float(least_seconds(local, peaks, numbers, device).sum())


def _product(dims: DotDims, left: Shape, right: Shape, orders: Sequence[Sequence[int]]) -> Product:
    """Complex numbers are multiplied as `automap.cost.profile.shapes` says."""
    kinds = (
        _kinds(left, dims.lhs_batch, dims.lhs_contracting),
        _kinds(right, dims.rhs_batch, dims.rhs_contracting),
    )
    batch, m, n, k = _product_sizes(dims, left, right)
    ends = [_row(*side) for side in zip((left, right), kinds, orders, strict=True)]
    # The result has batches, then what is left of the left side, then of the right.
    result = next((size for size in (n, m, batch) if size > 1), 1)
    (left_row, left_kind), (right_row, right_kind) = ends
    is_summed = left_kind == "summed", right_kind == "summed"
    if left.dtype in PART_TYPES:
        # A library multiplies them as they are: how their rows lie was not measured.
        return Product(PART_TYPES[left.dtype], (batch, 2 * m, n, 2 * k), (0, 0, 0), is_summed)
    return Product(left.dtype, (batch, m, n, k), (left_row, right_row, result), is_summed)


def _kinds(shape: Shape, batch: Sequence[int], summed: Sequence[int]) -> list[_Kind]:
    return [
        "batch" if d in batch else "summed" if d in summed else "free"
        for d in range(len(shape.dims))
    ]


def _row(shape: Shape, kinds: Sequence[_Kind], order: Sequence[int]) -> tuple[int, _Kind]:
    """How many numbers of one kind follow each other in memory, and which kind it is."""
    # Dimensions of one number lie nowhere.
    real = [d for d in reversed(order) if shape.dims[d] > 1]
    kind = kinds[real[0]] if real else "free"
    size = 1
    for dim in real:
        if kinds[dim] != kind:
            break
        size *= shape.dims[dim]
    return size, kind


def _order(instruction: Instruction, by_id: Mapping[int, Instruction]) -> Sequence[int]:
    """The dimensions of what a dot reads in the order of memory."""
    order = list(range(len(instruction.shape.dims)))
    while instruction.opcode in READ_THROUGH:
        if instruction.opcode == "transpose":
            order = [order[d] for d in np.argsort(instruction.dimensions)]
        instruction = by_id[instruction.operands[0]]
    return order


def _product_sizes(dims: DotDims, left: Shape, right: Shape) -> tuple[int, int, int, int]:
    def size(shape: Shape, of: Iterable[int]) -> int:
        return prod(shape.dims[d] for d in of)

    batch, k = size(left, dims.lhs_batch), size(left, dims.lhs_contracting)
    m = size(left, range(len(left.dims))) // max(batch * k, 1)
    n = size(right, range(len(right.dims))) // max(batch * k, 1)
    return batch, max(m, 1), max(n, 1), max(k, 1)
