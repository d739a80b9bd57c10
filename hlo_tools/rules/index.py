"""gather and scatter, with batching dimensions and with a sharded table."""

from hlo_tools.errors import HloError
from hlo_tools.module import Instruction
from hlo_tools.opcodes import COMMUTATIVE
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def gather(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Batch dimensions follow the indices, offset dimensions taken whole follow the table.

    An indexed dimension of which one row is taken (an embedding's vocabulary) is a reduction: a
    device that does not hold the row contributes zero (Shardy's rule). One of which a window is
    taken is blocked.
    """
    if instruction.attributes.gather is None:
        raise HloError(f"{instruction.name}: a gather without dimension numbers")
    numbers, sizes = instruction.attributes.gather, instruction.attributes.gather_slice_sizes
    table, result = operands[0], results[0]
    builder = RuleBuilder(operands, results)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window_dims = [d for d in range(len(table)) if d not in dropped]
    for out, dim in zip(numbers.offset_dims, window_dims, strict=True):
        if sizes[dim] == table[dim]:
            builder.add((0, dim), (builder.result(), out), size=table[dim])
    index_dims = [d for d in range(len(operands[1])) if d != numbers.index_vector_dim]
    batch_outs = [d for d in range(len(result)) if d not in numbers.offset_dims]
    # Batching dimensions: an index only ever looks into its own part of the table.
    paired = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    for out, dim in zip(batch_outs, index_dims, strict=True):
        places = [(1, dim), (builder.result(), out)]
        if dim in paired:
            places.append((0, paired[dim]))
        builder.add(*places, size=result[out])
    for dim in numbers.collapsed_slice_dims:
        if table[dim] > 1:
            builder.add((0, dim), size=table[dim], kind=FactorKind.REDUCTION)
    return builder.build()


def scatter(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """n tables, the indices, n updates -> n tables.

    Rows of the table pass (a device ignores updates outside its rows), window dimensions covered
    wholly pass. The updates' own batch dimensions are a reduction into the table if updates are
    combined; if the last one wins, their order matters and every device needs them all.
    """
    if instruction.attributes.scatter is None:
        raise HloError(f"{instruction.name}: a scatter without dimension numbers")
    numbers = instruction.attributes.scatter
    is_sum = instruction.attributes.combiner in COMMUTATIVE
    n_tables = len(results)
    tables = range(n_tables)
    updates = range(n_tables + 1, 2 * n_tables + 1)
    builder = RuleBuilder(operands, results)
    table, update = operands[0], operands[n_tables + 1]
    # A table before and after; all tables share the indices.
    both = [(n, builder.result(n)) for n in tables]

    def in_tables(dim: int) -> list[tuple[int, int]]:
        return [(tensor, dim) for pair in both for tensor in pair]

    dropped = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    window_dims = [d for d in range(len(table)) if d not in dropped]
    for out, dim in zip(numbers.update_window_dims, window_dims, strict=True):
        if update[out] == table[dim]:
            builder.add(*in_tables(dim), *((n, out) for n in updates), size=table[dim])
        else:
            builder.add(*in_tables(dim), size=table[dim], kind=FactorKind.REPLICATION)
    index_dims = [d for d in range(len(operands[n_tables])) if d != numbers.index_vector_dim]
    batch_dims = [d for d in range(len(update)) if d not in numbers.update_window_dims]
    paired = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.input_batching_dims, strict=True)
    )
    for dim, index_dim in zip(batch_dims, index_dims, strict=True):
        places = [(n_tables, index_dim), *((n, dim) for n in updates)]
        if index_dim in paired:
            builder.add(*places, *in_tables(paired[index_dim]), size=update[dim])
        else:
            kind = FactorKind.REDUCTION if is_sum else FactorKind.REPLICATION
            builder.add(*places, size=update[dim], kind=kind)
    for dim in numbers.inserted_window_dims:
        builder.add(*in_tables(dim), size=table[dim])
    return builder.build()
