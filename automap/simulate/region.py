"""A program as one device runs it: nodes with what they wait for, loops as nodes with a body.

    Region      the nodes of the step, or of one trip of a loop
    Node        a kernel, a collective, or a loop; `after` are nodes of the same region
    slot        where a node stands in the program (`automap.cost.schedule.order`): a collective
                where its result is needed, gradient sums and gathers of new parameters at the end,
                as nothing of importance waits for them

A loop runs its trips one after the other, and nothing of one is done in another: the compiled body
is one program.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property


class NodeKind(Enum):
    """What a node is."""

    KERNEL = "kernel"
    SPARE = "a kernel that can wait: products that make gradients, the update"
    COLLECTIVE = "collective"
    LOOP = "loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One thing to do in one run of a region; a loop takes the time of its `body`, `trips` times.

    `number` is the op of a kernel or loop (-1: the first touch of new memory), the entry of
    `Collectives` for a collective, whose op and value are `edge_op` and `edge_value`. `is_urgent`
    of a collective: kernels of importance wait for it.
    """

    kind: NodeKind
    number: int
    slot: int
    after: tuple[int, ...]
    seconds: float = 0.0
    edge_op: int = -1
    edge_value: int = -1
    is_urgent: bool = False
    trips: int = 1
    body: "Region | None" = None

    @property
    def communicates(self) -> bool:
        """Whether it is a collective, or a loop with some inside."""
        return self.kind is NodeKind.COLLECTIVE or self.body is not None and self.body.communicates


@dataclass(frozen=True)
class Region:
    """Nodes in program order: each stands after those it waits for."""

    # Thousands of nodes for one layer: a message that shows a region shows no page of them.
    nodes: tuple[Node, ...] = field(repr=False)

    @cached_property
    def communicates(self) -> bool:
        """Whether some node, or one of a loop inside, is a collective."""
        return any(node.communicates for node in self.nodes)
