"""Seconds of what a GPU's compiler hands to libraries, or says nothing of, as the planner has them:
convolutions and attention of cuDNN by their flops (`automap.cost.kernels.convolutions`), sorts and
top-k by what they move within the cores (`automap.cost.kernels.on_core`).

A convolution's call has the attributes of the convolution that it is of, or is a gradient of.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from automap.backends import Backend
from automap.cost.kernels.convolutions import (
    LocalSizes,
    filter_gradient_share,
    forward_share,
    vector_seconds,
    winograd_tiles,
)
from automap.cost.kernels.on_core import seconds_per_number, sort_work, top_k_work
from automap.topology.gpu_devices import has_matrix_units
from automap.topology.model import Device
from hlo_tools.analyses.flops import convolution_flops
from hlo_tools.graph import DTYPE_BITS
from hlo_tools.module import ConvDims, Instruction, Module, Shape
from hlo_tools.opcodes import SORT
from hlo_tools.rules import make_rule


_BACKWARD_INPUT, _BACKWARD_FILTER = "__cudnn$convBackwardInput", "__cudnn$convBackwardFilter"
_TOP_K = "__gpu$TopK"


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
        if not has_matrix_units(device, left.dtype):
            sizes = _sizes(instruction, dims, [s.dims for s in (left, right, result)], left.dtype)
            works, rates = np.array([flops], float), np.array([peak * share])
            return float(vector_seconds(works, sizes, numbers, device, rates)[0])
        read, results = right.dims[dims.kernel_input_feature], result.dims[dims.output_feature]
        if target == _BACKWARD_FILTER:
            share = filter_gradient_share(read, results, numbers)
        else:
            ends = (results, read) if target == _BACKWARD_INPUT else (read, results)
            share = forward_share(*ends, DTYPE_BITS[left.dtype] / 8, numbers)
    return flops / (peak * float(share))


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
