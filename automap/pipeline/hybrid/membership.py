"""Which stages an op and a leaf of the step belong to.

Stages are sets, as bits of a number. A forward or backward op belongs to the stages of its items,
an op of the update to those whose parameters and optimizer leaves are made with it: the norm of all
gradients to all of them. A parameter and its optimizer leaves belong to the stages whose items read
it, optimizer leaves of no parameter to all, other inputs to the stages of the ops that read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.pipeline.profile.profile import Profile
from automap.pipeline.profile.stored_bytes import parameter_position
from hlo_tools.analyses.phases import Phase


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
    def _bits_of_item(self) -> Sequence[int]:
        stage = np.searchsorted(self.first, np.arange(self.profile.n_items), side="right") - 1
        return [1 << s for s in stage.tolist()]

    def _of_span(self, span: tuple[int, int]) -> int:
        first, last = (self._bits_of_item[item] for item in span)
        # All stages from the one of the first item to that of the last.
        return (last << 1) - first

    @cached_property
    def of_parameter(self) -> dict[int, int]:
        """By the parameter's position in `Graph.inputs`."""
        uses, found = self.profile.gradients, dict[int, int]()
        for tensor, item in zip(uses.tensor.tolist(), uses.item.tolist()):
            root = parameter_position(uses, tensor)
            found[root] = found.get(root, 0) | self._bits_of_item[item]
        return found

    @cached_property
    def _of_state(self) -> dict[int, int]:
        """Of parameters and optimizer leaves."""
        stored, found = self.profile.anatomy.stored, dict(self.of_parameter)
        for root, leaves in stored.optimizer.items():
            found.update(dict.fromkeys(leaves, self.of_parameter.get(root, 0)))
        found.update(dict.fromkeys(stored.unowned, (1 << self.stages) - 1))
        return found

    @cached_property
    def of_op(self) -> Sequence[int]:
        """By the op's number."""
        profile, problem = self.profile, self.profile.timing.problem
        graph, anatomy = problem.graph, profile.anatomy
        made_for = [0] * len(graph.values)
        for output, position in problem.state_map.items():
            made_for[graph.outputs[output]] |= self._of_state.get(position, 0)
        found = [0] * len(graph.ops)
        for index in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[index]
            if index in anatomy.backward.span:
                found[index] = self._of_span(anatomy.backward.span[index])
            elif problem.phases[index] is Phase.FORWARD:
                found[index] = self._of_span(anatomy.items.span(index))
            else:
                for value in op.outputs:
                    found[index] |= made_for[value]
                for value in op.inputs:
                    made_for[value] |= found[index]
        return found

    @cached_property
    def of_leaf(self) -> Sequence[int]:
        """By the input's position."""
        graph = self.profile.timing.problem.graph
        found = []
        for position, value in enumerate(graph.inputs):
            bits = self._of_state.get(position)
            if bits is None:
                bits = 0
                for user in graph.users[value]:
                    bits |= self.of_op[user]
            found.append(bits)
        return found
