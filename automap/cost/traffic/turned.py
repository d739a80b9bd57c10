"""Arrays that are there besides because of collectives: sums that are whole until they are
scattered, what is turned, and state that is gathered.

A device makes its term of a sum, U bytes, and keeps its part of the whole, U / n on n devices. A
backend that scatters all of it at once has the term and the part at one time, until the collective
is over, beside which one may make the next product too. XLA:GPU may also cut and join arrays only
along the dimension that is the first in memory, of those that have more than one element on a
device. What is no product is written and read in whatever order that takes. A product reads its
operands and writes its result with its dimensions in any order but for those of one kind, which lie
one after the other as one:

    result       of the batch        of the left operand        of the right operand
    operand      of the batch        that it alone has          that are summed over

So of each kind only the first dimension can be the first in memory         -> in: `is_turned`
A term that lies otherwise is turned before it is scattered, and an operand after it was gathered:
all of it is there twice for that time

    beside a part = U, and U - U / n more while it is turned                -> in: `whole_sums`
    beside what is gathered = U while it is turned

Where these are in the schedule                                             -> in: `with_turned`

Each is a kernel that reads and writes U bytes (`Priced.copying_seconds` of
`automap.cost.evaluate`). With them sequence-parallel presets of five models on 8xh100 are predicted
3.7 % too fast to 4.7 % too slow, 12 % too fast to 1.9 % too slow without (2026-11-29, one script
for both, not kept; XLA:GPU's schedule of jax 0.10.2).

With sums that are whole on TPUs too, the memory of zero-3 of eight models is 19 % off what libtpu
0.0.51 allocates in the mean, 25 % without, and of none further off (2026-11-28). Where it puts
several reduce-scatters off until the backward pass is over, more sums are there at once than that.

*State that is gathered*, as new parameters under ZeRO-1, is not written over what the step was
given where a backend copies it. XLA:TPU copies it when the step begins and once more when it ends,
so that all of it is there twice in between (`Edges.is_handed_on`). Of arrays that fit on the chip
47 to 58 % of the bytes of both copies were moved in T5, GPT and ViT, so they are counted once.
Under ZeRO-1 T5, BERT, GPT, ViT, an MLP and an RNN need 7.3, 10.8, 8.8, 9.4, 5.3 and 1.4 GiB of a
v5e, are predicted at 7.2, 10.8, 8.8, 9.3, 5.0 and 1.4, and were at 6.4, 8.4, 8.3, 9.0, 3.0 and 1.0.
A mixture of experts and Llama nearly fill it, and the compiler computes values again: 13.5 and 15.1
GiB where 16.5 and 18.9 are predicted (2026-11-29, libtpu 0.0.51, one script for all, not kept). A
step that does not donate its state is predicted without copies; the RNN's has those of the end all
the same, and none in the beginning.

Seen in programs of jax 0.10.2 for H100 (2026-11), of GPT, T5 and Llama in little memory: logits
[batch, positions, classes] are turned where positions are scattered, and where their gradient is
gathered along them, once for each of the products that read it; not where batches or classes are.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace

import numpy as np

from automap.backends import ScatteredSums
from automap.cost.edges import Copies, Edges
from automap.cost.edges.loops import innermost_loops
from automap.cost.shardings import Shardings
from automap.cost.traffic.flows import devices_over
from hlo_tools.graph import Graph
from hlo_tools.opcodes import CONTRACTIONS


def whole_sums(
    edges: Edges, sharding: Shardings, scattered: np.ndarray, n_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of results that are scattered over the axes `scattered` [edges], bit masks, whose terms have
    `n_bytes` [edges] on a device: bytes of each sum, and what is there besides while it is turned,
    0 where it is not, both [edges].
    """
    # A backend that scatters part by part has told no sizes.
    is_whole = (scattered != 0) & edges.sizes.any(axis=1)
    devices = devices_over(scattered, sharding.sizes)
    beside = np.where(is_turned(edges, sharding, scattered), (1 - 1 / devices) * n_bytes, 0.0)
    return np.where(is_whole, n_bytes, 0.0), beside


def is_turned(edges: Edges, sharding: Shardings, moved: np.ndarray) -> np.ndarray:
    """Whether an operand or a result of each edge is turned, [edges], if it is gathered or
    scattered over the axes `moved` [edges], bit masks.
    """
    result = np.zeros(len(moved), bool)
    rows = np.flatnonzero((moved != 0) & (edges.dim_group >= 0).any(axis=1))
    if not len(rows):
        return result
    factors, group, over = edges.factor_of_dim[rows], edges.dim_group[rows], _bits(moved, sharding)
    local = edges.sizes[rows].astype(float)
    is_moved = np.zeros(local.shape, bool)
    for axis, size in enumerate(sharding.sizes):
        split = sharding.factor_of_axis[edges.op_row[rows], axis]
        local /= np.where((factors == split[:, None]) & (split >= 0)[:, None], size, 1)
        stored = sharding.dim_of_axis[edges.value_row[rows], axis]
        is_moved |= (stored[:, None] == np.arange(local.shape[1])) & over[rows, axis, None]
    is_long = local > 1
    # [rows, dims]: how many long dimensions of a dimension's own kind come before it.
    before = np.zeros(local.shape, np.int64)
    for number in range(3):
        own = is_long & (group == number)
        before += np.where(group == number, np.cumsum(own, axis=1) - own, 0)
    result[rows] = (is_moved & (before > 0)).any(axis=1)
    return result


def _bits(mask: np.ndarray, sharding: Shardings) -> np.ndarray:
    """Which axes are in each mask, [masks, axes]."""
    return mask[:, None] >> np.arange(len(sharding.sizes)) & 1 != 0


def with_turned(
    copies: Copies,
    operands: Edges,
    results: Edges,
    graph: Graph,
    position: np.ndarray,
    scattered_sums: ScatteredSums,
) -> Copies:
    """`copies` of operands, with those of them that are turned when they are made, with each sum
    that is there whole until it is scattered, and with those of these that are turned; edges are
    numbered as in `automap.cost.traffic.Collectives.held_bytes`.
    """
    is_whole = results.sizes[results.incidences[:, 0]].any(axis=1)
    ends = _ScatterEnds(graph, position) if scattered_sums == "beside products" else None
    uses = set[tuple[int, int, int]]()
    for edge, _, op, _, _, summed in results.incidences[is_whole].tolist():
        # What is added to other terms first is scattered where the last sum is made.
        made = graph.values[summed].producer
        at = made if made >= 0 else op
        begin, end = (at, at) if ends is None else ends(at, summed)
        uses.add((edge, begin, end))
    sums, first, last = np.array(sorted(uses), np.int64).reshape(-1, 3).T
    n_operands, n_results = len(operands.count), len(results.count)
    turned = np.flatnonzero(operands.sizes[copies.edge].any(axis=1))
    first_turned = n_operands + n_results
    made = results.incidences[:, 0]
    handed_on = made[results.is_handed_on[made]]
    begins, ends = np.zeros(len(handed_on), np.int64), np.full(len(handed_on), len(graph.ops) - 1)
    return replace(
        copies,
        edge=np.concatenate(
            [
                copies.edge,
                sums + n_operands,
                copies.edge[turned] + first_turned,
                sums + first_turned + n_operands,
                handed_on + first_turned + n_operands,
            ]
        ),
        first=np.concatenate([copies.first, first, copies.first[turned], first, begins]),
        last=np.concatenate([copies.last, last, copies.first[turned], first, ends]),
    )


class _ScatterEnds:
    """Until which op a sum is there, from the one that makes it: the scheduler puts the next
    product of the same trip beside its reduce-scatter, unless that needs what is scattered.
    """

    def __init__(self, graph: Graph, position: np.ndarray) -> None:
        self._graph, self._position = graph, position.tolist()
        self._loops = innermost_loops(graph)
        products: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, op in enumerate(graph.ops):
            if op.opcode in CONTRACTIONS:
                products[self._loops[index]].append((self._position[index], index))
        self._products = {loop: sorted(ops) for loop, ops in products.items()}

    def __call__(self, op: int, value: int) -> tuple[int, int]:
        """The first and the last op of a sum."""
        products = self._products.get(self._loops[op], [])
        later = bisect_right(products, (self._position[op], len(self._graph.ops)))
        if later == len(products) or self._needs(products[later][1], value):
            return op, op
        return op, products[later][1]

    def _needs(self, op: int, value: int) -> bool:
        """Whether an op needs a value, straight or by others that run before it."""
        graph, last = self._graph, self._position[op]
        seen, left = set[int](), [value]
        while left:
            for user in graph.users[left.pop()]:
                if user == op:
                    return True
                if user not in seen and self._position[user] <= last:
                    seen.add(user)
                    left.extend(graph.ops[user].outputs)
        return False
