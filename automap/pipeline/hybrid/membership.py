"""What of a step belongs to which items and stages of its pipeline.

Collectives: those of the ops that gather before they run, or sum after it. A row of an edge table
stands for incidences that run `trips` times each; an item has its share of the row's trips. An op
of an unrolled loop belongs to the items of all its trips alike; one of the update to none
                                                                             -> in: `item_shares`

Ops and leaves: stages are sets, as bits of a number. A forward or backward op belongs to the stages
of its items, an op of the update to those whose parameters and optimizer leaves are made with it:
the norm of all gradients to all of them. A parameter and its optimizer leaves belong to the stages
whose items read it, optimizer leaves of no parameter to all, other inputs to the stages of the ops
that read them                                                           -> in: `StageMembership`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from automap.cost.edges import Edges
from automap.pipeline.profile.profile import Profile
from automap.pipeline.profile.stored_bytes import parameter_position
from hlo_tools.analyses.phases import Phase


@dataclass(frozen=True)
class ItemShares:
    """Sparse [items, edges]: shares of an edge's times in each pass, and how many tensors of an
    edge an item reads.
    """

    forward: sparse.csr_matrix
    backward: sparse.csr_matrix
    copies: sparse.csr_matrix


def item_shares(profile: Profile, edges: Edges) -> ItemShares:
    """The shares of an edge table's rows that are each item's."""
    problem, items = profile.timing.problem, profile.structure.items
    backward = profile.structure.backward
    # Columns of an incidence: row, value, op, how often a step sums there, and moves anything else.
    total = np.bincount(edges.incidences[:, 0], edges.incidences[:, 4], len(edges.count))
    shares: dict[bool, list[tuple[int, int, float]]] = {False: [], True: []}
    read: set[tuple[int, int, int]] = set()
    loops = [(loop.enter, loop.leave) for loop in items.loops]
    for row, value, op, _, trips, _ in edges.incidences.tolist():
        is_forward = problem.phases[op] is Phase.FORWARD or any(a <= op <= b for a, b in loops)
        if op not in backward.span and not is_forward:
            continue
        # Equal parts for the items of a loop: each trip issues the same collectives.
        first, last = backward.span.get(op) or items.span(op)
        share = trips / total[row] / (last - first + 1)
        for item in range(first, last + 1):
            shares[op in backward.span].append((item, row, share))
            read.add((item, row, value))
    shape = (profile.n_items, len(edges.count))
    copies = [(item, row, 1.0) for item, row, _ in read]
    return ItemShares(*(_matrix(rows, shape) for rows in (shares[False], shares[True], copies)))


def _matrix(rows: list[tuple[int, int, float]], shape: tuple[int, int]) -> sparse.csr_matrix:
    item, edge, share = np.array(rows, float).reshape(-1, 3).T
    return sparse.csr_matrix((share, (item.astype(int), edge.astype(int))), shape=shape)


@dataclass(frozen=True)
class StageMembership:
    """Members of stages; stage s has items first[s] .. first[s + 1] - 1, as [S + 1] in `first`."""

    profile: Profile
    first: np.ndarray

    @property
    def stages(self) -> int:
        """S."""
        return len(self.first) - 1

    @cached_property
    def _item_bits(self) -> Sequence[int]:
        stage = np.searchsorted(self.first, np.arange(self.profile.n_items), side="right") - 1
        return [1 << s for s in stage.tolist()]

    def _span_stages(self, span: tuple[int, int]) -> int:
        first, last = (self._item_bits[item] for item in span)
        # All stages from the one of the first item to that of the last.
        return (last << 1) - first

    @cached_property
    def stages_by_parameter(self) -> dict[int, int]:
        """By the parameter's position in `Graph.inputs`."""
        uses, stages = self.profile.parameters, dict[int, int]()
        for tensor, item in zip(uses.tensor.tolist(), uses.item.tolist()):
            root = parameter_position(uses, tensor)
            stages[root] = stages.get(root, 0) | self._item_bits[item]
        return stages

    @cached_property
    def _stages_by_state(self) -> dict[int, int]:
        """Of parameters and optimizer leaves."""
        stored, stages = self.profile.structure.stored, dict(self.stages_by_parameter)
        for root, leaves in stored.optimizer.items():
            stages.update(dict.fromkeys(leaves, self.stages_by_parameter.get(root, 0)))
        # A step counter, or a learning rate: every stage's update reads it.
        stages.update(dict.fromkeys(stored.unowned, (1 << self.stages) - 1))
        return stages

    @cached_property
    def stages_by_op(self) -> Sequence[int]:
        """By the op's number."""
        profile, problem = self.profile, self.profile.timing.problem
        graph, structure = problem.graph, profile.structure
        made_for = [0] * len(graph.values)
        for output, position in problem.state_map.items():
            made_for[graph.outputs[output]] |= self._stages_by_state.get(position, 0)
        stages = [0] * len(graph.ops)
        # From the last op back: an op of the update serves whatever is made of its results.
        for index in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[index]
            if index in structure.backward.span:
                stages[index] = self._span_stages(structure.backward.span[index])
            elif problem.phases[index] is Phase.FORWARD:
                stages[index] = self._span_stages(structure.items.span(index))
            else:
                for value in op.outputs:
                    stages[index] |= made_for[value]
                for value in op.inputs:
                    made_for[value] |= stages[index]
        return stages

    @cached_property
    def stages_by_leaf(self) -> Sequence[int]:
        """By the input's position."""
        graph = self.profile.timing.problem.graph
        stages = []
        for position, value in enumerate(graph.inputs):
            bits = self._stages_by_state.get(position)
            if bits is None:
                bits = 0
                for user in graph.users[value]:
                    bits |= self.stages_by_op[user]
            stages.append(bits)
        return stages
