"""Products of one operand, which XLA:GPU makes one product (dot_merger.cc).

Queries, keys and values of an attention are three products of one array with three of weights; the
compiler puts the weights beside each other and multiplies once. So each is a part of a product that
is larger along the dimension which the others go on, and takes that part of its time: a device with
few rows reaches more of its peak then. The same of the gradients of those weights.

    group   products in one loop that multiply the same array along the same dimensions, none made
            of what another one makes                                  -> in: `product_groups`
    part    n_i of sum n_j, n the elements of the dimensions that the shared array does not have
                                                                       -> in: `larger_products`

Whether one is small enough on a device (`Backend.merged_product_bytes`) is known with the shardings
                                                      -> in: `automap.cost.profile.measured`
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
import math

from automap.cost.edges.loops import innermost_loops
from automap.cost.profile.shapes import Larger
from automap.cost.profile.signatures import Role
from automap.program.work import is_rematerialized
from hlo_tools.graph import Graph, Op
from hlo_tools.module import DotDims


def product_groups(graph: Graph) -> list[list[int]]:
    """The ops that are one product with others, group by group, each in the order of the graph.

    A product is of one group only, the first that another one is of too.
    """
    return graph.remember(_product_groups)


def _product_groups(graph: Graph) -> list[list[int]]:
    loops = innermost_loops(graph)
    groups: dict[object, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops):
        dims = op.instruction.attributes.dot
        if dims is not None:
            types = tuple(graph.values[v].dtype for v in (*op.inputs[:2], op.outputs[0]))
            # What is computed again waits for the backward pass, by a barrier.
            again = is_rematerialized(op)
            alike = loops[index], again, types, op.instruction.attributes.precision
            for side, own in enumerate(_sides(dims)):
                groups[alike, side, op.inputs[side], own].append(index)
    seen, result = set[int](), []
    for group in groups.values():
        members = _independent(graph, [index for index in group if index not in seen])
        if len(members) > 1:
            seen.update(members)
            result.append(members)
    return result


def larger_products(graph: Graph) -> Mapping[int, Larger]:
    """How much larger the product is that an op is part of, by op."""
    result = dict[int, Larger]()
    for group in product_groups(graph):
        is_left = len({graph.ops[index].inputs[0] for index in group}) == 1
        own = [_own_elements(graph, graph.ops[index], 1 if is_left else 0) for index in group]
        # What multiplies nothing is left as it is.
        if all(own):
            role = Role.N if is_left else Role.M
            result |= {index: Larger(role, sum(own) / n) for index, n in zip(group, own)}
    return result


def _sides(dims: DotDims) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The dimensions of both operands that are summed over, and those of the batch."""
    return (dims.lhs_contracting, dims.lhs_batch), (dims.rhs_contracting, dims.rhs_batch)


def _independent(graph: Graph, group: Sequence[int]) -> list[int]:
    """Those of a group that are made of nothing that an earlier one of them makes."""
    if len(group) < 2:
        return list(group)
    members, made = list[int](), set[int]()
    for index in range(group[0], group[-1] + 1):
        op = graph.ops[index]
        is_made = not made.isdisjoint(op.inputs)
        is_member = index in group and not is_made
        if is_member:
            members.append(index)
        if is_made or is_member:
            made.update(op.outputs)
    return members


def _own_elements(graph: Graph, op: Op, side: int) -> int:
    """Elements of the dimensions of an operand that are neither summed over nor of the batch."""
    dims = op.instruction.attributes.dot
    used = () if dims is None else sum(_sides(dims)[side], ())
    sizes = graph.values[op.inputs[side]].dims
    return math.prod(size for dim, size in enumerate(sizes) if dim not in used)
