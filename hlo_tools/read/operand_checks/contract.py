"""Checks of contractions: dots, ragged dots, convolutions."""

from collections.abc import Sequence

from hlo_tools.module import DotDims, Instruction, Shape
from hlo_tools.read.operand_checks.dims import bad_numbers, first, unlike, windowed


def dot(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result has the batch dimensions and both sides' free ones."""
    numbers = instruction.attributes.dot
    wrong = _bad_contraction(numbers, operands)
    if numbers is None or wrong:
        return wrong
    lhs, rhs = operands[0].dims, operands[1].dims
    left = {*numbers.lhs_batch, *numbers.lhs_contracting}
    right = {*numbers.rhs_batch, *numbers.rhs_contracting}
    # HLO's order: batch dimensions, free ones of the left side, free ones of the right.
    made = tuple(lhs[d] for d in numbers.lhs_batch)
    made += tuple(size for d, size in enumerate(lhs) if d not in left)
    made += tuple(size for d, size in enumerate(rhs) if d not in right)
    return None if made == instruction.shape.dims else unlike(made, instruction.shape.dims)


def ragged_dot(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """As a dot, with the size of each group."""
    ragged = instruction.attributes.ragged
    wrong = _bad_contraction(instruction.attributes.dot, operands)
    if wrong or ragged is None:
        return wrong or "no ragged dimensions"
    if len(ragged.lhs_ragged) != 1 or not operands[2].dims or not operands[2].dims[-1]:
        return "not one ragged dimension and the size of each group"
    return bad_numbers("lhs_ragged", ragged.lhs_ragged, operands[0].dims) or bad_numbers(
        "rhs_group", ragged.rhs_group, operands[1].dims
    )


def _bad_contraction(numbers: DotDims | None, operands: Sequence[Shape]) -> str | None:
    if numbers is None:
        return "no dimension numbers"
    lhs, rhs = operands[0].dims, operands[1].dims
    left = (*numbers.lhs_batch, *numbers.lhs_contracting)
    right = (*numbers.rhs_batch, *numbers.rhs_contracting)
    wrong = bad_numbers("lhs dimensions", left, lhs) or bad_numbers("rhs dimensions", right, rhs)
    if wrong or len(numbers.lhs_batch) != len(numbers.rhs_batch) or len(left) != len(right):
        return wrong or f"{len(left)} dimensions of the left side meet {len(right)} of the right"
    return first(
        f"dimension {a} of {list(lhs)} meets dimension {b} of {list(rhs)}"
        for a, b in zip(left, right, strict=True)
        if lhs[a] != rhs[b]
    )


def convolution(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Windows, features, batch and groups fit together."""
    attributes, numbers = instruction.attributes, instruction.attributes.conv
    if numbers is None:
        return "no dimension numbers"
    lhs, rhs, out = operands[0].dims, operands[1].dims, instruction.shape.dims
    tensors = (
        ("input", lhs, (numbers.input_batch, numbers.input_feature, *numbers.input_spatial)),
        (
            "kernel",
            rhs,
            (numbers.kernel_input_feature, numbers.kernel_output_feature, *numbers.kernel_spatial),
        ),
        ("output", out, (numbers.output_batch, numbers.output_feature, *numbers.output_spatial)),
    )
    for name, dims, tensor_dims in tensors:
        wrong = bad_numbers(f"{name} dimensions", tensor_dims, dims)
        if wrong or len(tensor_dims) != len(dims):
            return wrong or f"{len(tensor_dims)} {name} dimensions for {list(dims)}"
    windows = attributes.window
    if [w.size for w in windows] != [rhs[d] for d in numbers.kernel_spatial]:
        return "a window that is not the kernel's size"
    made = windowed(windows, tuple(lhs[d] for d in numbers.input_spatial))
    if isinstance(made, str):
        return made
    spatial = tuple(out[d] for d in numbers.output_spatial)
    if made != spatial:
        return unlike(made, spatial)
    groups, batch_groups = attributes.feature_group_count, attributes.batch_group_count
    features, kernels = lhs[numbers.input_feature], rhs[numbers.kernel_output_feature]
    batch = lhs[numbers.input_batch]
    # The kernel has the input features of one group only; with batch groups, each part of the batch
    # meets the outputs of its own group. XLA allows one of both kinds.
    fits = (
        groups >= 1
        and batch_groups >= 1
        and 1 in (groups, batch_groups)
        and rhs[numbers.kernel_input_feature] * groups == features
        and kernels % (groups * batch_groups) == 0
        and kernels == out[numbers.output_feature]
        and out[numbers.output_batch] * batch_groups == batch
    )
    return None if fits else "features, batch and groups that do not fit together"
