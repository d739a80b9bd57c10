"""Convolutions, with feature and batch groups, strides and dilations.

Batch and output features pass, input features are reduced.  With groups the grouped dimension is an outer
factor times an inner one; the group factor passes through all three tensors and is major in each.

A spatial dimension with a small window is a neighbourhood: input and result are split alike and a device
reads its neighbours' edges (`hlo_tools.rules.window`).  Where the window covers most of the input, as in
the gradient of a kernel, it is a sum over the image, and the kernel's taps are the result's.  If there is one
tap it is a sum as any other; the partitioner gathers an image that is dilated.
"""

from hlo_tools.errors import HloError
from hlo_tools.module import ConvDims, Instruction, WindowDim
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder
from hlo_tools.rules.window import result_halo, slide, window_halo


Dims = tuple[int, ...]


def convolution(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """The rule of a convolution of two operands."""
    numbers, result = instruction.attributes.conv, len(operands)
    if numbers is None:
        raise HloError(f"{instruction.name}: a convolution without dimension numbers")
    builder = RuleBuilder(operands, results)
    lhs, rhs = operands
    kernel_in, kernel_out = rhs[numbers.kernel_input_feature], rhs[numbers.kernel_output_feature]
    groups, batch_groups = (
        instruction.attributes.feature_group_count,
        instruction.attributes.batch_group_count,
    )
    reduced = builder.add(size=kernel_in, kind=FactorKind.REDUCTION)
    builder.set(1, numbers.kernel_input_feature, (reduced,))
    if groups == 1 and batch_groups == 1:
        builder.set(0, numbers.input_feature, (reduced,))
        places = ((0, numbers.input_batch), (result, numbers.output_batch))
        builder.add(*places, size=lhs[numbers.input_batch])
        places = ((1, numbers.kernel_output_feature), (result, numbers.output_feature))
        builder.add(*places, size=kernel_out)
        return _with_space(builder, instruction.attributes.window, numbers, operands, results[0])
    group = builder.add(size=max(groups, batch_groups))
    each = builder.add(size=kernel_out // max(groups, batch_groups))
    builder.set(1, numbers.kernel_output_feature, (group, each))
    builder.set(result, numbers.output_feature, (group, each))
    batch = builder.add(size=lhs[numbers.input_batch] // batch_groups)
    builder.set(result, numbers.output_batch, (batch,))
    if batch_groups > 1:
        builder.set(0, numbers.input_batch, (group, batch))
        builder.set(0, numbers.input_feature, (reduced,))
    else:
        builder.set(0, numbers.input_batch, (batch,))
        builder.set(0, numbers.input_feature, (group, reduced))
    return _with_space(builder, instruction.attributes.window, numbers, operands, results[0])


def _with_space(
    builder: RuleBuilder,
    windows: tuple[WindowDim, ...],
    numbers: ConvDims,
    operands: list[Dims],
    result: Dims,
) -> Rule:
    dims = zip(
        windows, numbers.input_spatial, numbers.kernel_spatial, numbers.output_spatial, strict=True
    )
    for window, source, kernel, target in dims:
        read, made = operands[0][source], result[target]
        covered = (window.size - 1) * window.window_dilation + 1
        if window.size > made and 2 * covered > read * window.base_dilation:
            kind, around = FactorKind.REDUCTION, window_halo(window, read, made)
            if window.base_dilation > 1:
                kind, around = FactorKind.REPLICATION, None
            elif window.size == read and made == 1:
                around = None
            size = max(read, window.size)
            builder.add((0, source), (1, kernel), size=size, kind=kind, halo=around)
            builder.add((builder.result(), target), size=made, kind=FactorKind.REPLICATION)
            continue
        places = [(0, source), (builder.result(), target)]
        slide(builder, places, max(read, made), result_halo(window, read, made))
    return builder.build()
