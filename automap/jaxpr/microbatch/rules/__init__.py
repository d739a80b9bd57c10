"""Which operations can be done one microbatch at a time: one rule per primitive.

A rule gets an operation of which at least one operand is Batched, operands that grow with the batch
being Batched all, and says what its results are, or raises `Refusal`. It may rely on the parameters
being equal in both traces, except those it names as `may_differ`, which it checks itself. Whether a
primitive without a rule could be split is unknown, so it is refused.
"""

from collections.abc import Mapping
from typing import Any

from jax import numpy as jnp

from automap.jaxpr.microbatch.dependence import Batched, Refusal, batch_dim
from automap.jaxpr.microbatch.rules import contract, elementwise, index, kernels, reduce, shape
from automap.jaxpr.microbatch.rules.elementwise import ELEMENTWISE
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult


__all__ = ["ELEMENTWISE", "RULES", "Operation", "Rule", "RuleResult", "apply_rule"]

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **shape.RULES,
    **reduce.RULES,
    **contract.RULES,
    **index.RULES,
    **kernels.RULES,
}


_OVER_SAMPLES = frozenset({"pmax", "pmin", "psum"})
"""What `jax.lax.pmean` and its kin over an axis of `jax.vmap` become."""


def apply_rule(operation: Operation) -> RuleResult:
    """What the rule of an operation says, checked against the shapes. Raises `Refusal`."""
    rule = RULES.get(operation.name)
    if rule is None and operation.name in _OVER_SAMPLES:
        raise Refusal(
            "it puts the samples of the batch together, as batch norm does with its statistics, "
            "and no microbatch has all of them"
        )
    if rule is None:
        raise Refusal("no rule says how it treats the samples of a batch")
    for name, value in operation.full.params.items():
        if name not in rule.may_differ and not _is_equal(value, operation.micro.params.get(name)):
            raise Refusal(f"its {name} depends on the size of the batch")
    ruled = rule.apply(operation)
    results = zip(operation.full.outvars, operation.micro.outvars, ruled.results, strict=True)
    for full, micro, result in results:
        shapes = full.aval.shape, micro.aval.shape
        dim = batch_dim(*shapes, operation.microbatches)
        is_batched = isinstance(result, Batched)
        if not is_batched and result.op == "add" and full.aval.dtype == jnp.bool_:
            raise Refusal("it sums truth values over the batch")
        if dim != (result.dim if is_batched else None):
            raise Refusal(f"its result {shapes[0]} does not keep the samples apart")
        if is_batched and shapes[1][result.dim] % (result.outer or 1):
            raise Refusal(f"its result {shapes[0]} mixes samples in dimension {dim}")
    return ruled


def _is_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a is b or a == b)
    except (TypeError, ValueError):  # arrays compare element by element
        return False
