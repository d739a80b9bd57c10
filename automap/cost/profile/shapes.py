"""Kernels before they are split, and the signature that one has on each device under a sharding.

A contraction's factor f has a role: b if it stands in both operands and the result, m in the left
and the result, n in the right and the result, k if it is summed over (a convolution's taps are).

    local elements of f    ceil(s_f / p_f), p_f the parts it is split in; a role has the product of
                           its factors                               -> in: `KernelShape.local`

A dot of complex numbers runs as one of real numbers, of twice the rows and twice the terms of each
sum, on GPUs in TF32 as those of float32 (XLA's `GetBlasComputationType`)  -> in: `_sizes_of_parts`

    [re; im] = [[re, -im], [im, re]] [re; im]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    ElementClass,
    Family,
    Role,
    Signature,
    Spatial,
    StreamSignature,
    element_class,
)
from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.module import ConvDims
from hlo_tools.opcodes import CONTRACTIONS
from hlo_tools.rules import Rule


_OPCODE_FAMILIES: Final[Mapping[str, Family]] = {
    "reduce": "reduce",
    "gather": "gather",
    "dynamic-slice": "gather",
    "scatter": "scatter",
    "reduce-window": "window",
    "select-and-scatter": "select-and-scatter",
    "sort": "sort",
    "topk": "sort",
}


@dataclass(frozen=True, slots=True)
class _Places:
    """The factor of each part of a convolution, -1 where it has a single element."""

    batch: int
    in_features: int
    out_features: int
    group: int
    spatial: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Larger:
    """A product `times` as large along one role as the part of it that a kernel stands for."""

    role: Role
    times: float


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A whole kernel.

    `kind` names a contraction's algorithm ("dot", or a `ConvolutionSignature.kind`) and is "" for
    other kernels; `roles` and `sizes` have an entry per factor of a contraction. `merged_in` is the
    product that a compiler makes of it and others (`automap.cost.kernels.merged_products`).
    """

    kind: str
    dtype: str
    family: Family
    elements: ElementClass
    roles: tuple[Role, ...] = ()
    sizes: tuple[int, ...] = ()
    convolution: ConvolutionSignature | None = None
    places: _Places | None = None
    merged_in: Larger | None = None

    def local(self, parts: Sequence[int], n_bytes: int) -> Signature:
        """The signature on one device; `parts` has an entry per factor, `n_bytes` are local."""
        if not self.kind:
            return StreamSignature(family=self.family, elements=self.elements, n_bytes=n_bytes)
        if self.convolution is not None and self.places is not None:
            return self._local_convolution(self.convolution, self.places, [*parts, 1])
        # A role may have several factors, as a batch of heads and examples.
        sizes = [1] * len(Role)
        for role, size, part in zip(self.roles, self.sizes, parts, strict=True):
            sizes[role] *= -(-size // part)
        batch, m, n, k = sizes
        return DotSignature(dtype=self.dtype, batch=batch, m=m, n=n, k=k)

    def _local_convolution(
        self, whole: ConvolutionSignature, places: _Places, parts: Sequence[int]
    ) -> ConvolutionSignature:
        """`parts` ends with a one, which factor -1 finds."""
        # Each size of the signature is that of one group times the groups: split both apart.
        by_feature = whole.feature_groups > 1
        features = -(-whole.feature_groups // parts[places.group]) if by_feature else 1
        batches = 1 if by_feature else -(-whole.batch_groups // parts[places.group])
        rows = whole.batch // whole.batch_groups
        summed = whole.in_features // whole.feature_groups
        made = whole.out_features // max(whole.feature_groups, whole.batch_groups)
        return replace(
            whole,
            batch=-(-rows // parts[places.batch]) * batches,
            in_features=-(-summed // parts[places.in_features]) * features,
            out_features=-(-made // parts[places.out_features]) * max(features, batches),
            feature_groups=features,
            batch_groups=batches,
            spatial=tuple(
                self._local_spatial(dim, factor, parts[factor])
                for dim, factor in zip(whole.spatial, places.spatial, strict=True)
            ),
        )

    def _local_spatial(self, whole: Spatial, factor: int, parts: int) -> Spatial:
        """A part of the image, and of the taps where they cover it: in a kernel's gradient."""
        is_summed = factor >= 0 and self.roles[factor] is Role.K
        return replace(
            whole,
            read=-(-whole.read // parts),
            made=whole.made if is_summed else -(-whole.made // parts),
            taps=-(-whole.taps // parts) if is_summed else whole.taps,
        )


def kernel_shape(graph: Graph, op: Op, rule: Rule, dtype: str) -> KernelShape:
    """The shape of the kernel that `op` is; `dtype` as in `KernelTable`, "" if memory bounds it."""
    # Opcodes that are no family of their own are fused with elementwise ones, and run like them.
    family: Family = _OPCODE_FAMILIES.get(op.opcode, "elementwise")
    element = graph.values[op.outputs[0]].dtype if op.outputs else "f32"
    plain = KernelShape("", dtype, family, element_class(element))
    if not dtype or op.opcode not in CONTRACTIONS:
        return plain
    tensors = [graph.values[v].dims for v in (*op.inputs[:2], op.outputs[0])]
    # What multiplies nothing takes a launch, whatever library it is for.
    if any(0 in sizes for sizes in tensors):
        return plain
    dims = (*rule.operands[:2], rule.results[0])
    roles = tuple(_role(factor, dims) for factor in range(len(rule.factors)))
    numbers = op.instruction.attributes.conv
    if numbers is None:
        sizes = [factor.size for factor in rule.factors]
        if dtype in PART_TYPES:
            dtype, sizes = PART_TYPES[dtype], _sizes_of_parts(roles, sizes)
        return replace(plain, kind="dot", dtype=dtype, roles=roles, sizes=tuple(sizes))
    whole = _whole_convolution(op, numbers, tensors, dtype)
    return replace(
        plain,
        kind=whole.kind,
        roles=roles,
        sizes=tuple(_extent(factor, tensors, rule) for factor in range(len(rule.factors))),
        convolution=whole,
        places=_places(whole, numbers, rule),
    )


def _sizes_of_parts(roles: Sequence[Role], sizes: Sequence[int]) -> list[int]:
    """Sizes of the factors of the real product that a complex one is."""
    sizes = list(sizes)
    free = Role.M if Role.M in roles else Role.N
    for role in (free, Role.K):
        # Of several factors of a role one stands for the two parts.
        if role in roles:
            sizes[roles.index(role)] *= 2
    return sizes


def _role(factor: int, dims: Sequence[Sequence[tuple[int, ...]]]) -> Role:
    left, right, result = (any(factor in dim for dim in tensor) for tensor in dims)
    if result:
        return Role.BATCH if left and right else Role.N if right else Role.M
    return Role.K


def _extent(factor: int, tensors: Sequence[Sequence[int]], rule: Rule) -> int:
    """Elements of a convolution's factor: of the result if it has it, else of the kernel."""
    for dims, sizes in ((rule.results[0], tensors[2]), (rule.operands[1], tensors[1])):
        for dim, size in zip(dims, sizes, strict=True):
            # Only a dimension that the factor has for itself says its size.
            if dim == (factor,):
                return size
    return rule.factors[factor].size


def _whole_convolution(
    op: Op, numbers: ConvDims, tensors: Sequence[Sequence[int]], dtype: str
) -> ConvolutionSignature:
    attributes, (lhs, rhs, result) = op.instruction.attributes, tensors
    dims = zip(attributes.window, numbers.input_spatial, numbers.output_spatial, strict=True)
    return ConvolutionSignature(
        dtype=dtype,
        batch=lhs[numbers.input_batch],
        in_features=lhs[numbers.input_feature],
        out_features=rhs[numbers.kernel_output_feature],
        feature_groups=attributes.feature_group_count,
        batch_groups=attributes.batch_group_count,
        spatial=tuple(
            Spatial(
                read=lhs[source],
                made=result[target],
                taps=window.size,
                stride=window.stride,
                padding_low=window.padding_low,
                window_dilation=window.window_dilation,
                base_dilation=window.base_dilation,
            )
            for window, source, target in dims
        ),
    )


def _places(whole: ConvolutionSignature, numbers: ConvDims, rule: Rule) -> _Places:
    left, right, result = rule.operands[0], rule.operands[1], rule.results[0]
    outputs = right[numbers.kernel_output_feature]
    groups = max(whole.feature_groups, whole.batch_groups)
    return _Places(
        batch=_last(result[numbers.output_batch]),
        in_features=_last(right[numbers.kernel_input_feature]),
        out_features=_last(outputs) if whole.out_features > groups else -1,
        # The kernel's output features are (group, features of the group), the group major.
        group=outputs[0] if outputs and groups > 1 else -1,
        spatial=tuple(
            _last(left[source] or result[target])
            for source, target in zip(numbers.input_spatial, numbers.output_spatial, strict=True)
        ),
    )


def _last(dim: tuple[int, ...]) -> int:
    return dim[-1] if dim else -1
