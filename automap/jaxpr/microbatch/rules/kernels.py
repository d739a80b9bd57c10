"""Kernels: the samples are one of their batches.

pallas_call             a factor of the grid that is a batch (`automap.jaxpr.pallas`) counts the
                        samples, one in each block: Batched where an array is stepped through by it
dot_product_attention   cuDNN's, forward and backward: the first dimension of all that it reads and
                        writes

A kernel of a microbatch does to each of its blocks what that of the whole batch does, as body,
blocks and index maps are the same in both traces, and nothing that they read tells the programs
along a batch apart.
"""

from typing import Any, Final

from automap.jaxpr.microbatch.dependence import Batched, Refusal, common_outer
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult
from automap.jaxpr.pallas import BlockedArray, Kernel, read_kernel


_GRID: Final = frozenset({"grid_mapping", "jaxpr", "out_avals", "cost_estimate"})


def _pallas(operation: Operation) -> RuleResult:
    full, micro = read_kernel(operation.full), read_kernel(operation.micro)
    if full is None or micro is None:
        raise Refusal("this version of JAX writes such kernels in a form that is not known")
    _check_same(operation, full, micro)
    samples = {
        full.operands[number].dims[operand.dim]
        for number, operand in enumerate(operation.operands)
        if isinstance(operand, Batched)
    }
    factor = next(iter(samples))[:1]
    if len(samples) > 1 or not factor or factor[0] not in full.batches:
        why = "; ".join(full.reasons) or "its grid does not step through the samples alone"
        raise Refusal(f"the kernel {full.call.name!r} may mix the samples of a batch: {why}")
    places = [_place(array, factor) for array in full.results]
    for array in full.operands:
        _place(array, factor)
    if None in places:
        raise Refusal(f"the kernel {full.call.name!r} has a result that is not split by samples")
    outer = common_outer(operation.batched)
    return RuleResult(tuple(Batched(place, outer) for place in places if place is not None))


def _place(array: BlockedArray, factor: tuple[Any, ...]) -> int | None:
    """The dimension of an array that holds the samples, None for none. Raises `Refusal` if blocks
    hold several of them.
    """
    for dim, factors in enumerate(array.dims):
        if factor[0] in factors:
            if factors != factor or array.rest[dim] != 1:
                raise Refusal("its blocks hold several samples of the batch")
            return dim
    return None


def _check_same(operation: Operation, full: Kernel, micro: Kernel) -> None:
    """Refuse kernels that are not the same but for their numbers of programs."""
    arrays = zip((*micro.operands, *micro.results), _avals(operation.micro), strict=True)
    if any(array.shape != tuple(getattr(aval, "shape", ())) for array, aval in arrays):
        raise Refusal("its grid for one sample is not known")
    if _text(full) != _text(micro):
        raise Refusal("its blocks or what it does to them depend on the size of the batch")


def _avals(eqn: Any) -> list[Any]:
    return [atom.aval for atom in (*eqn.invars, *eqn.outvars)]


def _text(kernel: Kernel) -> tuple[Any, ...]:
    call = kernel.call
    blocks = [(block.sizes, str(block.index_map)) for block in call.blocks]
    return len(call.grid), call.leading, call.aliases, call.scratch, str(call.body), blocks


def _attention(operation: Operation) -> RuleResult:
    if operation.params.get("dropout_rate"):
        raise Refusal("it drops elements by their positions in the batch")
    if any(operand.dim for operand in operation.batched):
        raise Refusal("it mixes the samples")
    return operation.all_results(Batched(0, common_outer(operation.batched)))


RULES = {
    "pallas_call": Rule(_pallas, may_differ=_GRID),
    "dot_product_attention_fwd_wrapper": Rule(_attention),
    "dot_product_attention_bwd_wrapper": Rule(_attention),
}
