"""Custom calls by name: the targets that JAX itself emits; others are unknown unless the user has a
rule.
"""

from collections.abc import Callable
import re

from hlo_tools.module import Instruction
from hlo_tools.rules.attention import cudnn_attention
from hlo_tools.rules.collective import collective
from hlo_tools.rules.elementwise import elementwise
from hlo_tools.rules.linalg import batched_matrices
from hlo_tools.rules.reduce import along_dimension
from hlo_tools.rules.rule import Rule


Dims = tuple[int, ...]

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
