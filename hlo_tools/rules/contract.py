"""Contractions: dot and convolution."""

from hlo_tools.errors import HloError
from hlo_tools.module import Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def dot(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Result dimensions are batch, free of the left, free of the right; the contracted are reduced."""
    if instruction.dot is None:
        raise HloError(f"{instruction.name}: a dot without dimension numbers")
    numbers = instruction.dot
    builder = RuleBuilder(operands, results)
    lhs, rhs = operands
    out = 0
    for left, right in zip(numbers.lhs_batch, numbers.rhs_batch, strict=True):
        builder.add((0, left), (1, right), (builder.result(), out), size=lhs[left])
        out += 1
    used = {*numbers.lhs_batch, *numbers.lhs_contracting}
    for dim in (d for d in range(len(lhs)) if d not in used):
        builder.add((0, dim), (builder.result(), out), size=lhs[dim])
        out += 1
    used = {*numbers.rhs_batch, *numbers.rhs_contracting}
    for dim in (d for d in range(len(rhs)) if d not in used):
        builder.add((1, dim), (builder.result(), out), size=rhs[dim])
        out += 1
    for left, right in zip(numbers.lhs_contracting, numbers.rhs_contracting, strict=True):
        builder.add((0, left), (1, right), size=lhs[left], kind=FactorKind.REDUCTION)
    return builder.build()


def convolution(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Batch and output features pass, input features are reduced, space is a neighbourhood.

    With feature or batch groups the grouped dimension is an outer factor times an inner one; the
    group factor passes through all three tensors and is major in each.
    """
    if instruction.conv is None:
        raise HloError(f"{instruction.name}: a convolution without dimension numbers")
    numbers, result = instruction.conv, len(operands)
    builder = RuleBuilder(operands, results)
    lhs, rhs = operands
    kernel_in, kernel_out = rhs[numbers.kernel_input_feature], rhs[numbers.kernel_output_feature]
    groups, batch_groups = instruction.feature_group_count, instruction.batch_group_count
    reduced = builder.add(size=kernel_in, kind=FactorKind.REDUCTION)
    builder.set(1, numbers.kernel_input_feature, (reduced,))
    if groups == 1 and batch_groups == 1:
        builder.set(0, numbers.input_feature, (reduced,))
        places = ((0, numbers.input_batch), (result, numbers.output_batch))
        builder.add(*places, size=lhs[numbers.input_batch])
        places = ((1, numbers.kernel_output_feature), (result, numbers.output_feature))
        builder.add(*places, size=kernel_out)
        return _with_window(builder, instruction, operands, results)
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
    return _with_window(builder, instruction, operands, results)


def _with_window(
    builder: RuleBuilder, instruction: Instruction, operands: list[Dims], results: list[Dims]
) -> Rule:
    """Spatial dimensions: a one-by-one window passes; a kernel as large as the image is a sum."""
    numbers = instruction.conv
    if numbers is None:
        raise HloError(f"{instruction.name}: a convolution without dimension numbers")
    dims = zip(
        instruction.window, numbers.input_spatial, numbers.kernel_spatial, numbers.output_spatial,
        strict=True,
    )  # fmt: skip
    for window, source, kernel, target in dims:
        pointwise = window.size == 1 and window.stride == 1 and window.base_dilation == 1
        if pointwise and not (window.padding_low or window.padding_high):
            builder.add((0, source), (builder.result(), target), size=results[0][target])
    return builder.build(FactorKind.PERMUTATION)
