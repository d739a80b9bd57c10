"""Operations on corresponding elements, and those that leave leading dimensions alone.

elementwise   y[b, j] = f(x[b, j], z[b, j] or z[j])     all operands hold the samples alike
leading       y[b, ..] = f(x[b], ..)                    dimensions before the last few
"""

from automap.jaxpr.microbatch.dependence import Batched, Refusal, common_outer
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult


ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil
    clamp complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf
    erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le le_to lgamma log log1p
    logistic lt lt_to max min mul name ne neg nextafter not one_minus_square or population_count
    clz pow real reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32 xor
    random_fold_in
    """.split()
)


def elementwise(operation: Operation) -> RuleResult:
    """Any operand that is Batched has the result's batch dimension at full size."""
    batched = operation.batched
    dim = batched[0].dim
    shape = operation.full.outvars[0].aval.shape
    for number, operand in enumerate(operation.operands):
        # An operand of size 1 there would be repeated for all samples.
        if isinstance(operand, Batched):
            own = operation.full_shape(number)
            if len(own) != len(shape) or operand.dim != dim or own[dim] != shape[dim]:
                raise Refusal("its operands hold the samples in different dimensions")
    return operation.all_results(Batched(dim, common_outer(batched)))


def _leading(kept: int) -> Rule:
    """A rule for operations that treat all but the last `kept` dimensions of all operands alike."""

    def apply(operation: Operation) -> RuleResult:
        batched = operation.batched
        dim = batched[0].dim
        for number, operand in enumerate(operation.operands):
            ndim = len(operation.full_shape(number))
            if not isinstance(operand, Batched) or operand.dim != dim or dim >= ndim - kept:
                raise Refusal("it works along the batch dimension")
        return operation.all_results(Batched(dim, common_outer(batched)))

    return Rule(apply)


def _fft(operation: Operation) -> RuleResult:
    return _leading(len(operation.params["fft_lengths"])).apply(operation)


RULES = {
    **{name: Rule(elementwise) for name in ELEMENTWISE},
    **{name: _leading(0) for name in ("random_bits", "random_split", "random_unwrap")},
    "random_wrap": _leading(1),
    **{
        name: _leading(2)
        for name in "cholesky eigh householder_product lu qr svd triangular_solve".split()
    },
    "fft": Rule(_fft),
}
