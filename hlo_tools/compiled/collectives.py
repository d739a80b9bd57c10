"""The collectives of a compiled (partitioned) module: what really runs on the wires.

XLA's combiner merges collectives into one op on a tuple, so tensors are listed, not ops. A loop's
collectives carry its trip count. Bytes are the full buffer on one device, in the convention of
alpha-beta models: the operand of all-reduce, all-to-all, reduce-scatter and collective-permute, the
result of all-gather. An all-to-all over a tuple is one tensor in as many pieces as there are
devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hlo_tools.graph import Graph, Op, flatten
from hlo_tools.module import Groups, Module
from hlo_tools.opcodes import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    DYNAMIC_SLICE,
    JOINS_DEVICES,
    REDUCE_SCATTER,
)


@dataclass(frozen=True, slots=True)
class CompiledCollective:
    """One tensor of one collective; it runs `count` times a step.

    `kind` is the opcode without `-start`. `groups` are partition numbers, None for one group of
    all; for a collective-permute they are (source, target) pairs. Tensors of one `message`, a
    number, go together. `instruction` is the collective's name, inside of a fusion too.
    """

    kind: str
    groups: Groups | None
    n_bytes: int
    count: int
    op_name: str
    message: int
    instruction: str


def compiled_collectives(module: Module) -> tuple[CompiledCollective, ...]:
    """All collectives of a partitioned module in program order. Raises `HloError` as `flatten`
    does.
    """
    graph = flatten(module)
    scattered = _reduced_and_sliced(module)
    return tuple(
        CompiledCollective(
            kind=REDUCE_SCATTER if id(op.instruction) in scattered else _kind(op),
            groups=op.instruction.attributes.groups,
            n_bytes=n_bytes,
            count=op.trip_count,
            op_name=op.op_name,
            message=message,
            instruction=op.instruction.name,
        )
        for message, op in enumerate(_once_per_channel(graph.ops, scattered))
        for n_bytes in _tensors(graph, op)
    )


def _kind(op: Op) -> str:
    return op.opcode.removesuffix("-start")


def _reduced_and_sliced(module: Module) -> frozenset[int]:
    """Identities of the all-reduces of which a fused computation keeps a slice of each tensor.

    So the TPU compiler writes reduce-scatters; merged ones have a tuple of slices. All of a program
    are of one channel, which does not make them one.
    """
    identities = set[int]()
    for computation in module.computations.values():
        by_id = {i.id: i for i in computation.instructions}
        root = by_id[computation.root_id]
        results = [by_id[i] for i in root.operands] if root.opcode == "tuple" else [root]
        if results and all(result.opcode == DYNAMIC_SLICE for result in results):
            sliced = [by_id[result.operands[0]] for result in results]
            sources = [
                by_id[x.operands[0]] if x.opcode == "get-tuple-element" else x for x in sliced
            ]
            identities.update(id(x) for x in sources if x.opcode == ALL_REDUCE)
    return frozenset(identities)


def _once_per_channel(ops: Sequence[Op], scattered: frozenset[int]) -> Iterator[Op]:
    """Collective ops, each once where the TPU compiler writes one as several that run in steps; one
    that is `scattered` is never several.

    Those are of one channel and alike, and fused into other ops, whose names come before their own;
    what `shard_map` writes is of one channel too, but of many kinds.
    """
    # Two passes: that a channel is used in one way only is known after the last op.
    first: dict[tuple[str, int], str] = {}
    kinds: dict[tuple[str, int], set[object]] = {}
    for op in ops:
        if op.opcode in JOINS_DEVICES:
            attributes = op.instruction.attributes
            key = op.opcode, attributes.channel_id
            # Without the names of the calls around it, which are not the same for all of its steps.
            own = op.instruction.op_name
            name = first.setdefault(key, own)
            like = (
                name if own.endswith(name) else own,
                attributes.groups,
                op.instruction.shape.dims,
            )
            kinds.setdefault(key, set()).add(like)
    seen: set[tuple[str, int]] = set()
    for op in ops:
        key = (op.opcode, op.instruction.attributes.channel_id)
        if op.opcode in JOINS_DEVICES:
            # Channel 0 is no channel: nothing says that such ops belong together.
            is_alone = key[1] == 0 or id(op.instruction) in scattered
            if is_alone or key not in seen or len(kinds[key]) > 1:
                yield op
            seen.add(key)


def _tensors(graph: Graph, op: Op) -> Iterator[int]:
    """Bytes of each tensor of a collective."""
    sizes = [graph.values[v].n_bytes for v in op.inputs]
    kind = _kind(op)
    if kind == ALL_GATHER:
        # A start's result is its operands, then what is gathered.
        yield from (graph.values[v].n_bytes for v in op.outputs[-len(op.inputs) :])
    elif kind == ALL_TO_ALL and not op.instruction.dimensions:
        yield sum(sizes)
    elif kind == COLLECTIVE_PERMUTE:
        # In place, it has three more operands: where to, and both offsets.
        yield from sizes if len(op.outputs) == len(sizes) else sizes[:1]
    else:
        yield from sizes
