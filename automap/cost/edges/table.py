"""Edges: every place where a tensor meets an op, folded to distinct rows.

An operand edge says what must be gathered before an op can run, a result edge what must be summed,
scattered or gathered after it; `automap.cost.traffic.step` reads them under a plan.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from automap.program.problem import Problem
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, DOT, ITERATING, REDUCTIONS
from hlo_tools.rules import Halo, Rule


# Operations that may choose which of their factors an axis splits:
# `automap.cost.shardings.factor_choices`.
CHOOSING_OPCODES = ITERATING | REDUCTIONS


class AtOnce(IntEnum):
    """What an operation's partial sums over all axes end in, where part of it could be scattered.

    NEVER: a reduce-scatter and an all-reduce over the other axes. ALWAYS: one all-reduce.
    UNLESS_SLICED: one all-reduce, which XLA:GPU takes apart again where it is over all devices and
    its result is split along the last axis of the mesh only (all_reduce_splitter.cc; another one
    over the axes of one of the two must be there beside it, which is not looked at).
    """

    NEVER = 0
    ALWAYS = 1
    UNLESS_SLICED = 2


class Partials(IntEnum):
    """What each device has of a result along the axes that split a reduction.

    TERMS are summed. CANDIDATES are gathered and combined on every device (argmax). ROWS are the
    device's own part of the result, which is gathered: the look-up of all rows in order.
    """

    TERMS = 0
    CANDIDATES = 1
    ROWS = 2


@dataclass(frozen=True, slots=True)
class Window:
    """A window along dimension `dim` of `size` elements, of which `factor` is the factor."""

    dim: int
    factor: int
    size: int
    halo: Halo
    is_convolution: bool


@dataclass(frozen=True)
class Edges:
    """Tensor-to-operation incidences. Arrays are [edges] unless said.

    value_row, op_row   the rows of the tensor and of the operation
    factor_of_dim       [edges, rank]: the operation's factor a dimension is major in, -1 if none
    inner_of_dim        [edges, rank]: the factor inside of it that axes may split as well
                        (`hlo_tools.analyses.grouped`), -1 if none
    is_reduced          [edges, factors]: whether the operation sums over a factor (of result edges)
    n_bytes             of the whole tensor
    count, trips        of results how often a step sums there, and how often anything else is
                        moved, or scattered; of operands how often they are exchanged, and gathered
    phase               of the operation (`hlo_tools.analyses.phases.Phase`)
    combinable          whether compilers merge these collectives into few messages: those of
                        gradients and parameters
    least_messages      the part of a message that each execution is at least: 0 outside loops,
                        where anything may be merged; 1 in a loop, every trip of which sends its
                        own; less of what goes together in one trip (`automap.cost.edges.loops`),
                        and of activations that are summed side by side
    loop, loop_trips    the innermost loop that it runs in the trips of, -1 if none, and how many
                        these are in a step
    sums_at_once        an `AtOnce`: reduces and scatters end in one all-reduce, contractions
                        scatter first
    sum_of_factor       [edges, factors]: factors of one number are summed over in one all-reduce
    is_alone            [edges, factors]: whether all is summed at once if the factor is split
                        (`hlo_tools.rules.convolution.partitioned_alone`)
    partials            what the devices hold that split a reduction, `Partials`
    widened             how many times `n_bytes` an all-reduce has that is done in a wider type
                        (`automap.cost.edges.sums`)
    value, op           one example incidence that each row stands for, to name it
    last_dim, last_size the last dimension of tensors that have several, -1 of others, and its
                        elements
    sizes               [edges, rank]: elements along each dimension, where a backend's collectives
                        are particular about dimensions (`automap.cost.traffic.turned`): of a
                        product's operands and of sums; of all other edges 0
    dim_group           [edges, rank], of those: what a dimension is to a product, 0 of its batch,
                        1 or 2 of either kind of others (`sized_dims`); -1 if it is none
    is_handed_on        whether a result is new state in the place of what the step was given, which
                        is copied if it is gathered (`automap.cost.traffic.turned`)
    repeats             [pairs, 2]: (edge, an edge of the same tensor or the same sum before it); if
                        both gather, or all before it reduce, over the same axes, the second does
                        nothing
    windows             of each edge, the dimensions that the operation slides a window along
    own_kind, own_mask, own_bytes
                        the collective that the operation itself is, in the step's `shard_map`s;
                        -1, 0, 0 if it is none
    incidences          [incidences, 6]: row, value, op, `count`, `trips`, and the value that a sum
                        of it is done on: of a term that is added to others first the last that is
                        made of them
    """

    value_row: np.ndarray
    op_row: np.ndarray
    factor_of_dim: np.ndarray
    inner_of_dim: np.ndarray
    is_reduced: np.ndarray
    n_bytes: np.ndarray
    count: np.ndarray
    trips: np.ndarray
    phase: np.ndarray
    combinable: np.ndarray
    least_messages: np.ndarray
    loop: np.ndarray
    loop_trips: np.ndarray
    sums_at_once: np.ndarray
    sum_of_factor: np.ndarray
    is_alone: np.ndarray
    partials: np.ndarray
    widened: np.ndarray
    value: np.ndarray
    op: np.ndarray
    last_dim: np.ndarray
    last_size: np.ndarray
    sizes: np.ndarray
    dim_group: np.ndarray
    is_handed_on: np.ndarray
    repeats: np.ndarray
    windows: tuple[tuple[Window, ...], ...]
    own_kind: np.ndarray
    own_mask: np.ndarray
    own_bytes: np.ndarray
    incidences: np.ndarray


@dataclass(frozen=True)
class Copies:
    """Gathered copies of tensors, one per distinct demand of an op for one, and sums that are there
    whole (`automap.cost.traffic.turned`); [copies] unless said.

    `first`, `last`: the ops that use it. `repeats` [pairs, 3]: (copy, an earlier copy of the same
    tensor, row of the two edges in `Edges.repeats`).
    """

    edge: np.ndarray
    first: np.ndarray
    last: np.ndarray
    repeats: np.ndarray


NO_LOOP = -1, 1
"""The loop and the trips of what is in none."""


class OwnFlow(NamedTuple):
    """The collective that an operation itself is: its kind (an index into
    `automap.cost.collectives.KINDS`), its axes as a bit mask, its bytes.
    """

    kind: int = -1
    mask: int = 0
    n_bytes: int = 0


class EdgeKey(NamedTuple):
    """What makes two incidences the same row; `earlier` are edges of the same tensor before it.

    A tuple, as tens of thousands are hashed.
    """

    value_row: int
    op_row: int
    factor_of_dim: tuple[int, ...]
    reduced: tuple[int, ...]
    n_bytes: int
    phase: int
    combinable: bool
    sums_at_once: AtOnce = AtOnce.NEVER
    sum_of_factor: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    partials: Partials = Partials.TERMS
    earlier: tuple[int, ...] = ()
    windows: tuple[Window, ...] = ()
    least_messages: float = 0.0
    loop: tuple[int, int] = NO_LOOP
    last_size: int = 0
    widened: float = 1.0
    own: OwnFlow = OwnFlow()
    sized: tuple[tuple[int, int], ...] = ()
    is_handed_on: bool = False
    inner: tuple[int, ...] = ()


class EdgeList:
    """Collects incidences and folds equal ones."""

    def __init__(self, rank: int, width: int):
        self.rank, self.width = rank, width
        self.index: dict[EdgeKey, int] = {}
        self.counts: list[int] = []
        self.trips: list[int] = []
        self.examples: list[tuple[int, int]] = []
        self.repeats: dict[tuple[int, int], int] = {}
        self.incidences: list[tuple[int, int, int, int, int, int]] = []

    def add(
        self,
        key: EdgeKey,
        count: int,
        value: int,
        op: int,
        trips: int | None = None,
        whole: int | None = None,
    ) -> int:
        """Count an incidence of `value` with `op`, which runs `trips` times (`count` if None) and
        is summed as `whole` (`value` if None); the number of its row.
        """
        row = self.index.setdefault(key, len(self.index))
        # A new row: the number that was just given is the length of the lists.
        if row == len(self.counts):
            self.counts.append(0)
            self.trips.append(0)
            self.examples.append((value, op))
            for earlier in key.earlier:
                self.repeats.setdefault((row, earlier), len(self.repeats))
        moved = count if trips is None else trips
        self.counts[row] += count
        self.trips[row] += moved
        # Rows add up how often they run, but where each one stands in the schedule is still needed.
        summed = value if whole is None else whole
        self.incidences.append((row, value, op, count, moved, summed))
        return row

    def edges(self) -> Edges:
        """All that was added."""
        n = len(self.index)
        dims, inner, groups = np.full((3, n, self.rank), -1, np.int64)
        sizes = np.zeros((n, self.rank), np.int64)
        reduced = np.zeros((n, self.width), bool)
        alone = np.zeros((n, self.width), bool)
        sums = np.zeros((n, self.width), np.int64)
        # Integer fields of keys, a row each in the order in which they are read below.
        scalars = np.zeros((12, n), np.int64)
        for row, key in enumerate(self.index):
            dims[row, : len(key.factor_of_dim)] = key.factor_of_dim
            inner[row, : len(key.inner)] = key.inner
            for dim, each in enumerate(key.sized):
                sizes[row, dim], groups[row, dim] = each
            reduced[row, list(key.reduced)] = True
            alone[row, list(key.alone)] = True
            sums[row, : len(key.sum_of_factor)] = key.sum_of_factor
            scalars[:, row] = (
                key.value_row,
                key.op_row,
                key.n_bytes,
                key.phase,
                key.combinable,
                key.sums_at_once,
                key.partials,
                # A vector has no last dimension in the sense of `Edges.last_dim`.
                len(key.factor_of_dim) - 1 if len(key.factor_of_dim) > 1 else -1,
                key.last_size,
                *key.loop,
                key.is_handed_on,
            )
        own = np.array([key.own for key in self.index], np.int64).reshape(n, 3)
        examples = np.array(self.examples, np.int64).reshape(n, 2)
        return Edges(
            value_row=scalars[0],
            op_row=scalars[1],
            factor_of_dim=dims,
            inner_of_dim=inner,
            is_reduced=reduced,
            n_bytes=scalars[2],
            count=np.array(self.counts, np.int64),
            trips=np.array(self.trips, np.int64),
            phase=scalars[3],
            combinable=scalars[4].astype(bool),
            sums_at_once=scalars[5],
            least_messages=np.array([key.least_messages for key in self.index], float),
            loop=scalars[9],
            loop_trips=scalars[10],
            widened=np.array([key.widened for key in self.index], float),
            sum_of_factor=sums,
            is_alone=alone,
            partials=scalars[6],
            last_dim=scalars[7],
            last_size=scalars[8],
            sizes=sizes,
            dim_group=groups,
            is_handed_on=scalars[11].astype(bool),
            value=examples[:, 0],
            op=examples[:, 1],
            repeats=np.array(list(self.repeats), np.int64).reshape(-1, 2),
            windows=tuple(key.windows for key in self.index),
            own_kind=own[:, 0],
            own_mask=own[:, 1],
            own_bytes=own[:, 2],
            incidences=np.array(self.incidences, np.int64).reshape(-1, 6),
        )


def gathered_bytes(graph: Graph, op: Op, value: int, *, narrows: bool) -> int:
    """Size of an operand as it is gathered; a backend that `narrows` rounds float32 first where it
    multiplies.
    """
    array = graph.values[value]
    # A user who asks for precision gets float32, moved as it is.
    is_narrow = narrows and op.opcode in CONTRACTIONS and array.dtype == "f32"
    return array.n_bytes // (2 if is_narrow and op.instruction.attributes.precision == 0 else 1)


def sized_dims(
    graph: Graph, value: int, op: Op, rule: Rule, dims: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, int], ...]:
    """(elements, kind) of each of `dims`, the factors of an operand's or a result's dimensions.

    Kinds: 0 of a product's batch; of its operand 1 that it alone has, 2 that are summed over; of
    its result 1 of the left operand, 2 of the right one; -1 of what is no product.
    """
    sizes = graph.values[value].dims
    if op.opcode != DOT:
        return tuple((size, -1) for size in sizes)
    left, right = (_factors(operand) for operand in rule.operands[:2])
    made = _factors(rule.results[0])
    # The result has no summed factors, the operands have none of each other.
    first = left - right if dims == rule.results[0] else made
    return tuple(
        (size, 0 if factor in left & right & made else 1 if factor in first else 2)
        for size, factor in zip(sizes, majors(dims), strict=True)
    )


def _factors(dims: tuple[tuple[int, ...], ...]) -> set[int]:
    return {factor for own in dims for factor in own}


def last_size(graph: Graph, value: int) -> int:
    """Elements along the last dimension of a value, 1 if it has none."""
    return (1, *graph.values[value].dims)[-1]


# Rules are shared between like operations, so the same few tuples come tens of thousands of times.
@cache
def majors(dims: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The major factor of each dimension, -1 for one that no factor runs over.

    A mesh axis can only split the major factor: parts of a minor one would lie in strides, unless
    each device has one part of the major one (`inners`).
    """
    return tuple(factors[0] if factors else -1 for factors in dims)


def inners(problem: Problem, op: int, dims: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The factor of each dimension that an axis may split inside of its major one, -1 for none;
    nothing for an operation without any.
    """
    inner = problem.regions.inner_of_op.get(op)
    if inner is None:
        return ()
    return tuple(inner if inner in factors[1:] else -1 for factors in dims)


def highest_rank(problem: Problem) -> int:
    """Highest rank of any value, at least one."""
    return max((len(v.dims) for v in problem.graph.values), default=0) or 1
