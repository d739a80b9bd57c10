"""Operations that only move elements.

A dimension that holds samples is outer x batch x inner. In row-major order

    lead = (product of the sizes of the dimensions before it) * outer

elements come before the batch factor, in both traces. A reshape keeps lead and the factor, so its
result holds the samples in the dimension into which lead ends                   -> in: `_reshape`

Pieces (outer_j, m, inner) with equal inner, joined along that dimension, are (sum of outer_j, m,
inner); a piece of whole blocks of m * inner is cut out, or such blocks are put around it
                                                             -> in: `_concatenate`, `_slice`, `_pad`
"""

import math

from automap.jaxpr.microbatch.dependence import Batched, Refusal, common_outer
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult, samples_like


def _reshape(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    if operation.params.get("dimensions") is not None and operation.name == "reshape":
        raise Refusal("it permutes dimensions")
    shape, result = operation.shape(0), operation.out_shape
    full = operation.full.outvars[0].aval.shape
    dims = [d for d, (a, b) in enumerate(zip(full, result)) if a != b]
    if len(full) != len(result) or len(dims) != 1:
        raise Refusal("it makes other dimensions of the batch")
    (dim,) = dims
    before = math.prod(shape[: value.dim]), math.prod(result[:dim])
    # Copies of one value along the batch: the dimension has to stay as it is, but has no order.
    if value.outer is None and before[0] == before[1] and shape[value.dim] == result[dim]:
        return operation.all_results(Batched(dim, None))
    lead = before[0] * operation.outer(0)
    outer, rest = divmod(lead, before[1])
    if rest or not outer or result[dim] % outer:
        raise Refusal("it splits the batch into other dimensions")
    return operation.all_results(Batched(dim, outer))


def _transpose(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    return operation.all_results(
        Batched(list(operation.params["permutation"]).index(value.dim), value.outer)
    )


def _broadcast_in_dim(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    dim = operation.params["broadcast_dimensions"][value.dim]
    if operation.full_shape(0)[value.dim] != operation.full.outvars[0].aval.shape[dim]:
        raise Refusal("it repeats the batch")
    return operation.all_results(Batched(dim, value.outer))


def _concatenate(operation: Operation) -> RuleResult:
    pieces = operation.batched
    dim = pieces[0].dim
    if len(pieces) != len(operation.operands) or any(piece.dim != dim for piece in pieces):
        raise Refusal("not all of its pieces hold the samples in the same dimension")
    if operation.params["dimension"] != dim:
        return operation.all_results(Batched(dim, common_outer(pieces)))
    outers = [operation.outer(n) for n in range(len(pieces))]
    # Samples of one microbatch in each block, which must be as many in all pieces.
    inners = {operation.shape(n)[dim] / outer for n, outer in enumerate(outers)}
    if len(inners) != 1:
        raise Refusal("it joins unlike pieces along the batch dimension")
    return operation.all_results(Batched(dim, sum(outers)))


def _slice(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    full, micro = operation.full.params, operation.micro.params
    for dim in range(len(operation.shape(0))):
        bounds = [(p["start_indices"][dim], p["limit_indices"][dim]) for p in (full, micro)]
        if dim != value.dim:
            if bounds[0] != bounds[1]:
                raise Refusal("where it cuts depends on the size of the batch")
            continue
        # Where the cut is, in blocks of one microbatch's samples.
        inner = operation.shape(0)[dim] // operation.outer(0)
        blocks = [bound // inner for bound in bounds[1]]
        whole = inner * operation.microbatches
        is_whole = bounds == [
            tuple(whole * block for block in blocks),
            tuple(inner * block for block in blocks),
        ]
        if not is_whole or (full["strides"] or (1,) * (dim + 1))[dim] != 1:
            raise Refusal("it picks some of the samples")
    outer = None if value.outer is None else blocks[1] - blocks[0]
    return operation.all_results(Batched(value.dim, outer))


def _split(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    full, micro = operation.full.params["sizes"], operation.micro.params["sizes"]
    if operation.params["axis"] != value.dim:
        if full != micro:
            raise Refusal("where it cuts depends on the size of the batch")
        return operation.all_results(samples_like(value))
    inner = operation.shape(0)[value.dim] // operation.outer(0)
    if any(a != operation.microbatches * b or b % inner for a, b in zip(full, micro)):
        raise Refusal("it picks some of the samples")
    return RuleResult(tuple(Batched(value.dim, size // inner) for size in micro))


def _pad(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    if isinstance(operation.operands[1], Batched):
        raise Refusal("it pads with a value of one sample")
    full, micro = (e.params["padding_config"] for e in (operation.full, operation.micro))
    outer = operation.outer(0)
    inner = operation.shape(0)[value.dim] // outer
    for dim, (wide, narrow) in enumerate(zip(full, micro)):
        if dim != value.dim:
            if tuple(wide) != tuple(narrow):
                raise Refusal("how it pads depends on the size of the batch")
            continue
        low, high, between = narrow
        blocks = [size // inner for size in (low, high)]
        whole = tuple(inner * operation.microbatches * block for block in blocks)
        is_whole = whole == tuple(wide[:2]) and min(blocks) >= 0
        if not is_whole or between or wide[2] or any(size % inner for size in (low, high)):
            raise Refusal("it pads the batch")
        outer += sum(blocks)
    return operation.all_results(Batched(value.dim, outer))


def _rev(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    if value.dim in operation.params["dimensions"]:
        raise Refusal("it reverses the order of the samples")
    return operation.all_results(samples_like(value))


def _stack(operation: Operation) -> RuleResult:
    pieces = operation.batched
    dim = pieces[0].dim
    if len(pieces) != len(operation.operands) or any(piece.dim != dim for piece in pieces):
        raise Refusal("not all of its pieces hold the samples in the same dimension")
    moved = dim + (operation.params["axis"] <= dim)
    return operation.all_results(Batched(moved, common_outer(pieces)))


def _unstack(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    axis = operation.params["axis"]
    if axis == value.dim:
        raise Refusal("it takes the samples apart")
    return operation.all_results(Batched(value.dim - (axis < value.dim), value.outer))


_SHAPE = frozenset({"new_sizes", "shape"})
RULES = {
    "broadcast_in_dim": Rule(_broadcast_in_dim, _SHAPE),
    "concatenate": Rule(_concatenate),
    "expand_dims": Rule(_reshape),
    "pad": Rule(_pad, frozenset({"padding_config"})),
    "reshape": Rule(_reshape, _SHAPE),
    "rev": Rule(_rev),
    "slice": Rule(_slice, frozenset({"start_indices", "limit_indices"})),
    "split": Rule(_split, frozenset({"sizes"})),
    "squeeze": Rule(_reshape),
    "stack": Rule(_stack),
    "transpose": Rule(_transpose),
    "unstack": Rule(_unstack),
}
