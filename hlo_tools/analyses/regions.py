"""Regions: the part of a linkage group around its weights, where the group can be split and nowhere
else.

Experts of a mixture are a batch dimension of their weights' matmuls, `egcm,emf->egcf`, and a free
or summed one of the matmuls that bring tokens there and back. Split everywhere, the gate and the
dispatch tensors are split too and every token visits every device; split only in the region of the
weights, tokens move by an all-to-all at its edge (GShard's expert parallelism).

A region starts at the factors of matmuls that are major in both operands and the result, one of
which is a weight or its gradient, and grows through ops that move or combine elements one by one,
up to those in which a dimension meets others. Sums over a weight or its gradient, as in a norm of
all gradients, are made in parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hlo_tools.analyses.batches import Batch
from hlo_tools.analyses.linkage import Edges, Linkage
from hlo_tools.analyses.storage import Side
from hlo_tools.opcodes import DOT, ITERATING, REDUCTIONS
from hlo_tools.rules import FactorKind, Rule


Places = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Grouped:
    """A region of a grouped dimension (`hlo_tools.analyses.grouped`): the parts into which the
    class itself has to be split, and into how many the region can be, at most.
    """

    outer: int
    limit: int


@dataclass(frozen=True)
class Regions:
    """`class_of_node` [nodes] and `class_of_factor` [ops, factors]: the class whose region holds
    it, or -1. `grouped` are those of grouped dimensions, by class, and `inner_of_op` the inner
    factor of operations on them.
    """

    class_of_node: np.ndarray
    class_of_factor: np.ndarray
    grouped: Mapping[int, Grouped] = field(default_factory=dict)
    inner_of_op: Mapping[int, int] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes that have a region."""
        return tuple(c for c in np.unique(self.class_of_node).tolist() if c >= 0)


def regions(linkage: Linkage, side: np.ndarray, class_of_group: np.ndarray) -> Regions:
    """Regions of all classes; `side` is that of values, `class_of_group` folds groups of like
    layers.
    """
    graph, edges = linkage.graph, Edges(linkage.node_offset)
    varies = np.array(graph.varies, bool)
    # Batch factors of matmuls with a weight; factors through which a region spreads; reductions
    # over weights, which are made in parts but lead nowhere.
    seeds: list[tuple[Batch, int, Places]] = []
    grown: list[tuple[Batch, int, Places]] = []
    summed: list[tuple[Batch, int, Places]] = []
    for batch in linkage.batches:
        opcode = graph.ops[int(batch.ops[0])].opcode
        for part, held in batch.split(varies[batch.values]):
            for factor, places in enumerate(part.places(held)):
                what = part.rule.factors[factor]
                if not places or what.halo is not None:
                    continue
                has_weight = (side[part.values] != Side.NONE).any(axis=1)
                if what.kind is FactorKind.REDUCTION and opcode in REDUCTIONS:
                    summed.append((part.only(has_weight), factor, places))
                elif what.kind is not FactorKind.PASSTHROUGH:
                    continue
                elif opcode not in ITERATING:
                    grown.append((part, factor, places))
                elif opcode == DOT and _is_batch(part.rule, factor):
                    seeds.append((part.only(has_weight), factor, places))
    for part, factor, places in (*seeds, *grown):
        edges.link(part, places, part.rule.factors[factor].size)
    edges.tie([(a, b) for a, b in graph.ties if varies[a] and varies[b]], graph)
    label = edges.labels()
    inside = np.zeros(len(label), bool)
    for part, _, places in seeds:
        inside[label[edges.nodes(part, places[0])]] = True
    held_by = inside[label] & (linkage.group_of_node >= 0)
    # A step of scalars has no groups at all.
    class_of_node = np.where(held_by, np.append(class_of_group, -1)[linkage.group_of_node], -1)
    class_of_factor = np.full(linkage.factor_groups.shape, -1, np.int64)
    for part, factor, places in (*seeds, *grown, *summed):
        class_of_factor[part.ops, factor] = class_of_node[edges.nodes(part, places[0])]
    class_of_factor[linkage.factor_groups < 0] = -1
    return Regions(class_of_node, class_of_factor)


def _is_batch(rule: Rule, factor: int) -> bool:
    """Whether both operands and the result of a matmul have a dimension of the factor."""
    tensors = (*rule.operands, *rule.results)
    return all(any(factor in dim for dim in tensor) for tensor in tensors)
