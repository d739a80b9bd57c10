"""Custom calls by name: the targets that JAX itself emits; others are unknown unless the user has a
rule.

cuDNN's fused attention has a rule of its own, as
`jax.nn.dot_product_attention(implementation="cudnn")` calls it. Operands of rank four are [batch,
length, heads, features] (queries, keys, values, and in the backward call the forward result and its
gradient), results of rank four are [batch, heads, length, features]; softmax statistics are [batch,
heads, length], sequence lengths [batch], a bias [batch or 1, heads or 1, t, s]. Batch and heads
pass. With fewer key heads than query heads, query heads are (key head, query of it), both of which
pass (`hlo_tools.analyses.grouped`). A gradient of what samples or heads share, as of a bias or of a
head of keys, is summed over them                                       -> in: `cudnn_attention`
Its products read the pairs (t, s) of positions that the mask leaves, P of T S:

    forward    q k, p v                                2 B H P (d + d_v)
    backward   q k, do v, ds k, ds q, and p do         2 B H P (3 d + 2 d_v)
                                                                            -> in: `_attention_work`
"""

from collections.abc import Callable
from dataclasses import replace
import re

import numpy as np

from hlo_tools.module import AttentionMask, Instruction
from hlo_tools.rules.by_dimension import (
    along_dimension,
    batched_matrices,
    collective,
    elementwise,
)
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder, Work


Dims = tuple[int, ...]

_ARRAY, _STATISTICS, _LENGTHS = 4, 3, 1
_QUERY, _KEY, _VALUE = range(3)


def cudnn_attention(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Batch and heads pass, everything else is whole on each device."""
    builder = RuleBuilder(operands, results)
    batch, _, heads, _ = operands[_QUERY]
    key_heads = operands[_KEY][2]
    # A bias has heads second, as results do; the other operands of rank four have them third.
    bias = {n for n, o in enumerate(operands) if n > _VALUE and _is_bias(o, operands)}
    b = builder.add(size=batch)
    outer = builder.add(size=key_heads)
    inner = builder.add(size=heads // key_heads)
    tensors = [(n, o, 1 if n in bias else 2) for n, o in enumerate(operands)]
    tensors += [(builder.result(n), r, 1) for n, r in enumerate(results)]
    for tensor, dims, head_dim in tensors:
        head_dim = 1 if len(dims) == _STATISTICS else head_dim
        if len(dims) not in (_ARRAY, _STATISTICS, _LENGTHS) or dims[0] not in (1, batch):
            continue
        if dims[0] > 1:
            builder.set(tensor, 0, (b,))
        if len(dims) > _LENGTHS and dims[head_dim] in (heads, key_heads):
            is_query = dims[head_dim] == heads
            factors = (outer, inner) if is_query and heads > key_heads else (outer,)
            builder.set(tensor, head_dim, factors if dims[head_dim] > 1 else ())
    if _is_backward(instruction):
        for n, dims in enumerate(results):
            if len(dims) == _ARRAY:
                sums = [
                    *((b,) if dims[0] < batch else ()),
                    *((outer,) if dims[1] < key_heads else ()),
                    *((inner,) if dims[1] < heads else ()),
                ]
                builder.sum(n, tuple(sums))
    rule = builder.build(FactorKind.REPLICATION)
    return replace(rule, work=_attention_work(instruction, operands))


def _attention_work(instruction: Instruction, operands: list[Dims]) -> Work:
    batch, queries, heads, features = operands[_QUERY]
    keys, value_features = operands[_KEY][1], operands[_VALUE][3]
    mask = instruction.attributes.attention or AttentionMask(is_causal=False, window=0)
    last = np.minimum(np.arange(queries), keys - 1) if mask.is_causal else keys - 1
    first = np.arange(queries) - (mask.window - 1) if mask.window else 0
    # A window ends where the keys begin.
    pairs = int(np.broadcast_to(last - np.maximum(first, 0) + 1, queries).clip(min=0).sum())
    backward, forward = 3 * features + 2 * value_features, features + value_features
    products = backward if _is_backward(instruction) else forward
    return Work(2 * batch * heads * pairs * products)


def _is_backward(instruction: Instruction) -> bool:
    return instruction.attributes.custom_call_target.endswith("Backward")


def _is_bias(dims: Dims, operands: list[Dims]) -> bool:
    """Whether the last two dimensions are query and key positions."""
    return len(dims) == _ARRAY and dims[2:] == (operands[_QUERY][1], operands[_KEY][1])


# Pattern of the target -> rule; the first that matches the whole name counts.
CUSTOM_CALLS: tuple[tuple[str, Callable[[Instruction, list[Dims], list[Dims]], Rule]], ...] = (
    (r"__cudnn\$fmha\w*", cudnn_attention),
    (r"(lapack|cusolver|hipsolver|cublas|hipblas|magma)_\w+", batched_matrices),
    (r"Cholesky|Qr|Eigh|LuDecomposition", batched_matrices),
    (r"ProductOfElementaryHouseholderReflectors", batched_matrices),
    (r"(\w+\.)?(ApproxTopK|TopK|topk|top_k)|PartialReduce", along_dimension),
    (r"(cu|hip)_threefry2x32(_ffi)?", elementwise),
    (r"(mhlo|chlo|stablehlo)\.(erf|acos\w*|asin\w*|atanh|cosh|sinh|tan)", elementwise),
    (r"annotate_device_placement|MoveToHost|MoveToDevice", elementwise),
    (r"SPMDFullToShardShape|SPMDShardToFullShape", collective),
)  # fmt: skip


def custom_call_rule(
    target: str,
) -> Callable[[Instruction, list[Dims], list[Dims]], Rule] | None:
    """The rule of a custom call's target, None for one that is not known."""
    for pattern, rule in CUSTOM_CALLS:
        # The whole name: an unknown target that begins like a known one must stay unknown.
        if re.fullmatch(pattern, target):
            return rule
    return None
