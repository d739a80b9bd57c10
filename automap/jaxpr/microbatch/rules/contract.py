"""Products: the batch is a free dimension, a common one, or is summed over.

dot_general   y[b, k] = sum_j x[b, j] w[j, k]      Batched, as for common b
              y[j, k] = sum_b x[b, j] g[b, k]      Partial: a weight's gradient
convolution   the image's batch                    Batched
              input features on both sides         Partial: a kernel's gradient is written so
"""

from automap.jaxpr.microbatch.dependence import Batched, Dependence, Partial, Refusal, common_outer
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult


def _dot_general(operation: Operation) -> RuleResult:
    contracted, common = operation.params["dimension_numbers"]
    ndims = [len(operation.shape(n)) for n in (0, 1)]
    may_differ = [
        [d for d in range(ndims[n]) if d not in contracted[n] and d not in common[n]]
        for n in (0, 1)
    ]
    places = [
        (value.dim in contracted[n], value.dim in common[n])
        for n, value in enumerate(operation.operands)
        if isinstance(value, Batched)
    ]
    left, right = operation.operands
    if isinstance(left, Batched) and isinstance(right, Batched):
        outer = common_outer((left, right))
        for dims, result in ((contracted, Partial("add")), (common, None)):
            if left.dim in dims[0] and right.dim in dims[1]:
                place = list(dims[0]).index(left.dim)
                # Contracted with another sample's: a product between all pairs of samples.
                if place != list(dims[1]).index(right.dim):
                    break
                return operation.all_results(result or Batched(place, outer))
        raise Refusal("it multiplies samples with one another")
    side = 0 if isinstance(left, Batched) else 1
    value = operation.operands[side]
    if not isinstance(value, Batched) or places[0] != (False, False):
        raise Refusal("it multiplies all samples with one value")
    # Of a result the common dimensions come first, then the free ones of the left operand.
    before = len(common[0]) + (len(may_differ[0]) if side else 0)
    return operation.all_results(Batched(before + may_differ[side].index(value.dim), value.outer))


def _convolution(operation: Operation) -> RuleResult:
    numbers = operation.params["dimension_numbers"]
    image, kernel = operation.operands
    place = _place(image, numbers.lhs_spec), _place(kernel, numbers.rhs_spec)
    groups = operation.params["feature_group_count"], operation.params["batch_group_count"]
    if place == (0, None) and groups[1] == 1 and isinstance(image, Batched):
        return operation.all_results(Batched(numbers.out_spec[0], image.outer))
    # The specs say (batch, features, ..) of images and (output features, input features, ..) of
    # kernels.
    if place == (1, 1) and groups[0] == 1:
        common_outer(operation.batched)
        return operation.all_results(Partial("add"))
    raise Refusal("it mixes the samples")


def _place(dependence: Dependence, spec: tuple[int, ...]) -> int | None:
    return spec.index(dependence.dim) if isinstance(dependence, Batched) else None


RULES = {"dot_general": Rule(_dot_general), "conv_general_dilated": Rule(_convolution)}
