"""Convolutions, with feature and batch groups, strides and dilations.

Batch and output features pass, input features are reduced. With groups the grouped dimension is an
outer factor times an inner one; the group factor passes through all three tensors and is major in
each.

A spatial dimension with a small window is a neighbourhood: input and result are split alike and a
device reads its neighbours' edges (`hlo_tools.rules.window`). Where the window covers most of the
input, as in the gradient of a kernel, it is a sum over the image, and the kernel's taps are the
result's. If there is one tap it is a sum as any other.

The plan runs such splits without the partitioner (`automap.jaxpr.convolutions`). What has a single
element is not split along that dimension, nor a dilated image of which devices do not have equal
shares of all that is read.
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
    attributes = instruction.attributes
    windows = attributes.window
    groups, batch_groups = attributes.feature_group_count, attributes.batch_group_count
    # The kernel's input features are those of one group: summed within a group, never across.
    reduced = builder.add(size=kernel_in, kind=FactorKind.REDUCTION)
    builder.set(1, numbers.kernel_input_feature, (reduced,))
    if groups == 1 and batch_groups == 1:
        builder.set(0, numbers.input_feature, (reduced,))
        places = ((0, numbers.input_batch), (result, numbers.output_batch))
        builder.add(*places, size=lhs[numbers.input_batch])
        places = ((1, numbers.kernel_output_feature), (result, numbers.output_feature))
        builder.add(*places, size=kernel_out)
        return _with_space(builder, windows, numbers, operands, results[0])
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
    return _with_space(builder, windows, numbers, operands, results[0])


def has_groups(instruction: Instruction) -> bool:
    """Whether a convolution is several."""
    attributes = instruction.attributes
    return attributes.feature_group_count > 1 or attributes.batch_group_count > 1


def partitioned_alone(instruction: Instruction, rule: Rule) -> frozenset[int]:
    """Factors of a convolution that, if they are split, `automap.jaxpr.convolutions` splits it
    along.
    """
    attributes = instruction.attributes
    if attributes.conv is None:
        return frozenset()
    if has_groups(instruction):
        return frozenset(range(len(rule.factors)))
    dims = zip(attributes.conv.input_spatial, attributes.window, strict=True)
    slid = [dim for dim, window in dims if window.size > 1 or window.stride > 1]
    return frozenset(f for dim in slid for f in rule.operands[0][dim])


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
        # A window almost as long as the image has few places, as in the gradient of a kernel: the
        # index along which work can be divided is the tap.
        if window.size > made and 2 * covered > read * window.base_dilation:
            places, size = [(0, source), (1, kernel)], max(read, window.size)
            around = window_halo(window, read, made)
            is_plain = window.size == read and made == 1
            # Devices would read unequal shares of the elements, which lie `step` apart: not split.
            if around.drift and around.step > 1:
                builder.add(*places, size=size, kind=FactorKind.REPLICATION)
            else:
                halo = None if is_plain else around
                builder.add(*places, size=size, kind=FactorKind.REDUCTION, halo=halo)
            builder.add((builder.result(), target), size=made, kind=FactorKind.REPLICATION)
            continue
        places, size = [(0, source), (builder.result(), target)], max(read, made)
        around = result_halo(window, read, made)
        if 1 in (read, made) or (around.drift and around.step > 1):
            builder.add(*places, size=size, kind=FactorKind.PERMUTATION)
        else:
            slide(builder, places, size, around)
    return builder.build()
