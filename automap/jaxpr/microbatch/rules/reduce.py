"""Operations along dimensions: reductions, cumulative ones, sorts and windows.

A sum over dimensions that include the batch is a sum of the microbatches' sums: Partial. Along any
other dimension each sample is on its own; along the batch nothing else can be split.
"""

from collections.abc import Mapping

from automap.jaxpr.microbatch.dependence import Batched, Operator, Partial, Refusal, common_outer
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult, samples_like


_OPERATORS: Mapping[str, Operator] = {
    "reduce_and": "and",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_prod": "mul",
    "reduce_sum": "add",
}
# What windows do in the dimensions they leave alone.
_NO_WINDOW = {
    "window_dimensions": 1,
    "window_strides": 1,
    "padding": (0, 0),
    "base_dilation": 1,
    "window_dilation": 1,
}


def _reduce(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    axes = operation.params["axes"]
    if value.dim in axes:
        operator = _OPERATORS.get(operation.name)
        if operator is None:
            raise Refusal("it picks one of the samples")
        return operation.all_results(Partial(operator))
    # Dimensions before the batch that are reduced away move it forward.
    return operation.all_results(Batched(value.dim - sum(a < value.dim for a in axes), value.outer))


def _along(parameter: str, default: int = -1) -> Rule:
    """A rule for operations along one dimension, named by a parameter, on operands held alike."""

    def apply(operation: Operation) -> RuleResult:
        batched = operation.batched
        dim = batched[0].dim
        if len(batched) != len(operation.operands) or any(value.dim != dim for value in batched):
            raise Refusal("its operands hold the samples in different dimensions")
        along = operation.params.get(parameter, default) % len(operation.shape(0))
        if along == dim:
            raise Refusal("it works along the batch dimension")
        return operation.all_results(Batched(dim, common_outer(batched)))

    return Rule(apply)


def _window(operation: Operation) -> RuleResult:
    """Windows over one array, or over two that are held alike (the gradient of a pool)."""
    batched = operation.batched
    dim = batched[0].dim
    # Start values are scalars, and hold no samples.
    arrays = [n for n in range(len(operation.operands)) if operation.full_shape(n)]
    if len(batched) != len(arrays) or any(value.dim != dim for value in batched):
        raise Refusal("its operands hold the samples in different dimensions")
    for name, none in _NO_WINDOW.items():
        given = operation.params.get(name)
        if given is not None and _as_tuple(given[dim]) != none:
            raise Refusal("its windows reach over several samples")
    return operation.all_results(samples_like(Batched(dim, common_outer(batched))))


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else value


RULES = {
    **{name: Rule(_reduce) for name in (*_OPERATORS, "argmax", "argmin")},
    **{
        name: _along("axis")
        for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "top_k")
    },
    "sort": _along("dimension"),
    **{
        name: Rule(_window)
        for name in (
            "reduce_window_max",
            "reduce_window_min",
            "reduce_window_sum",
            "select_and_gather_add",
            "select_and_scatter_add",
        )
    },
}
