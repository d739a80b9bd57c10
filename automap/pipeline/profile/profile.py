"""What a step costs item by item: the input of every pipeline planner (Auto-MAP section 3.5.2: the
arrays C, A and W).

    C   seconds of an item's forward and backward kernels, by the evaluator's roofline (or measured
        kernels), for a batch in k parts: work on examples shrinks, weights are read whole
                                                                   -> in: `Profile.seconds`
    A   bytes that cross a cut after it            -> in: `automap.pipeline.profile.traffic`
    W   bytes of gradients, by the parameters that it reads; shared ones are counted once in every
        stage that uses them                       -> in: `automap.pipeline.profile.traffic`
    and for memory: what it stores of parameters, optimizer and gradients in all, and of each
    microbatch

The paper profiles instructions on a device and divides their seconds by the replicas; here they are
computed for each size of a part.

A cut is allowed where two items are of different equations of the step, so not within a loop, a
branch or what is opaque otherwise, and not between items that the backward pass makes again in one
equation (remat): such a cut moves to the edge                                -> in: `_may_cut`
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.backends import backend_for
from automap.cost.kernels.roofline import Roofline
from automap.cost.shardings import shardings
from automap.cost.tables import Tables, build_tables
from automap.errors import InputError
from automap.jaxpr.sites import parse_site
from automap.pipeline.profile.backward import (
    Backward,
    backward_items,
    outermost_equation,
    weight_ops,
)
from automap.pipeline.profile.flow import Flow, data_flow, left_for_backward
from automap.pipeline.profile.items import Items, forward_items
from automap.pipeline.profile.stored_bytes import (
    StoredBytes,
    gradient_uses,
    parameter_position,
    stored_bytes,
)
from automap.pipeline.profile.traffic import (
    Changes,
    Uses,
    Working,
    crossing,
    fixed_uses,
    kept_uses,
    parameter_uses,
    saved_uses,
    working,
)
from automap.program.problem import Problem
from automap.space.point import SplitClasses
from automap.topology.mesh import Mesh
from automap.topology.model import Platform
from hlo_tools.analyses.phases import Phase


@dataclass(frozen=True)
class Timing:
    """Kernels of all items: entry e is `runs[e]` runs of kernel row `row[e]` for item `item[e]`, by
    an op of number `op[e]`.
    """

    problem: Problem
    tables: Tables
    roofline: Roofline
    batch_class: int
    item: np.ndarray
    op: np.ndarray
    row: np.ndarray
    runs: np.ndarray
    is_backward: np.ndarray
    update: np.ndarray

    def kernel_seconds(self, parts: int) -> np.ndarray:
        """Seconds of each kernel row on one of `parts` parts of the batch."""
        split_classes = SplitClasses(Mesh(("data",), (parts,)), ((self.batch_class,),))
        return self.roofline.seconds(shardings(self.tables, self.problem.n_classes, split_classes))

    @property
    def is_batched(self) -> np.ndarray:
        """Whether a value holds examples, [values]."""
        # One part for each example: what is split then has examples.
        size = int(self.problem.limits[self.batch_class])
        one_each = SplitClasses(Mesh(("data",), (size,)), ((self.batch_class,),))
        parts = shardings(self.tables, self.problem.n_classes, one_each).parts_of_value
        return (parts > 1)[self.tables.row_of_value]


@dataclass(frozen=True)
class StepStructure:
    """What belongs to which item, what is stored, and which tensors a cut and an item have, value
    by value.
    """

    flow: Flow
    items: Items
    backward: Backward
    crossing: Changes
    working: Working
    stored: StoredBytes


@dataclass(frozen=True)
class Profile:
    """A step as a line of `n_items` items.

    `cut_bytes` float64 and `may_cut` bool [items] are of a cut after each (of the last: 0, False);
    `names` say where that is (an equation's site and, in an unrolled loop, `#` and the trips done;
    an instruction where a program has no sites); `labels` the parameter that it reads, or the one
    before. Bytes of `parameters`, `gradients` (0 of frozen parameters) and `state` (parameter,
    gradient sum, optimizer, and what is computed once a step) are of whole tensors, of `saved`,
    `kept` (what weight passes read) and `working_bytes` [items] of the whole batch. `batch_size` is
    what the number of parts must divide.
    """

    timing: Timing
    structure: StepStructure
    cut_bytes: np.ndarray
    may_cut: np.ndarray
    names: tuple[str, ...]
    labels: tuple[str, ...]
    parameters: Uses
    gradients: Uses
    state: Uses
    saved: Uses
    kept: Uses
    working_bytes: np.ndarray
    batch_size: int
    weight_ops: frozenset[int]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.cut_bytes)

    def seconds(self, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """(forward, backward) seconds of every item on one of `parts` parts of the batch, each
        [items].
        """
        timing = self.timing
        each = timing.kernel_seconds(parts)[timing.row] * timing.runs
        both = [
            np.bincount(timing.item[chosen], each[chosen], self.n_items)
            for chosen in (~timing.is_backward, timing.is_backward)
        ]
        return both[0], both[1] + self.adding_seconds()

    def weight_seconds(self, parts: int) -> np.ndarray:
        """Of the backward seconds those of the weight passes, [items]."""
        each = self.timing.kernel_seconds(parts)[self.timing.row] * self.timing.runs
        chosen = self.is_weights
        weights = np.bincount(self.timing.item[chosen], each[chosen], self.n_items)
        return weights + self.adding_seconds()

    def adding_seconds(self, parts_of_leaf: np.ndarray | float = 1.0) -> np.ndarray:
        """Of adding a microbatch's gradients to their sums, [items]; `parts_of_leaf` [inputs] is in
        how many parts each is stored. A parameter's are of the first item that reads it.
        """
        stored, first = self.structure.stored, self.parameters.first_uses()
        root = stored.root[first.tensor]
        share = first.n_bytes / np.maximum(stored.leaf_bytes[root], 1.0)
        device = self.timing.roofline.topology.device
        moved = (stored.adding_bytes / parts_of_leaf)[root] * share
        seconds = moved / device.memory_bytes_per_s("elementwise")
        apart = stored.adding_kernels[root]
        seconds = np.maximum(seconds, apart * device.launch_seconds)
        return np.bincount(first.item, seconds, self.n_items)

    @cached_property
    def is_weights(self) -> np.ndarray:
        """Whether each entry of `timing` is of a weight pass."""
        return np.isin(self.timing.op, sorted(self.weight_ops))

    @property
    def update_seconds(self) -> float:
        """Seconds of the whole update on one device."""
        return float(self.timing.kernel_seconds(1) @ self.timing.update)


def stage_tables(problem: Problem, platform: Platform) -> Tables:
    """The tables of a step whose forward and backward passes are programs of their own."""
    return build_tables(problem, platform, left_for_backward(problem, data_flow(problem)))


def pipeline_profile(problem: Problem, tables: Tables, roofline: Roofline) -> Profile:
    """The profile of a step.

    Raises `InputError` for a step that no microbatches can be made of: one without a batch, or
    without two items.
    """
    batch_class = problem.batch_class
    if batch_class is None:
        raise InputError(
            "no dimension of the inputs was found to be the batch, so there are no microbatches to "
            "make a pipeline of; plan with --space sharding"
        )
    kernels, flow = tables.program.kernels, data_flow(problem)
    items = forward_items(problem, kernels, flow)
    if len(items) < 2:
        raise InputError(
            f"the forward pass has {len(items)} kernels that work on the batch, which cannot be "
            "cut; plan with --space sharding"
        )
    backward = backward_items(problem, flow, items)
    parameters = parameter_uses(problem, flow, items)
    timing = _timing(problem, tables, roofline, batch_class, items, backward)
    is_batched = timing.is_batched
    weights = weight_ops(problem, backward, is_batched)
    fixed = fixed_uses(problem, flow, items, backward)
    structure = StepStructure(
        flow,
        items,
        backward,
        crossing(problem, kernels, flow, items),
        working(problem, kernels, items, backward),
        stored_bytes(problem, parameters, fixed, backend_for(roofline.topology.platform).fuser),
    )
    n_bytes = np.array([value.n_bytes for value in problem.graph.values], float)
    return Profile(
        timing=timing,
        structure=structure,
        cut_bytes=structure.crossing.alive(n_bytes),
        may_cut=_may_cut(problem, flow, items, backward, parameters),
        names=tuple(_names(problem, items)),
        labels=tuple(_labels(problem, parameters, len(items))),
        parameters=parameters,
        gradients=gradient_uses(problem, parameters),
        state=structure.stored.uses(np.ones(len(problem.graph.values))),
        saved=saved_uses(problem, kernels, flow, backward),
        kept=kept_uses(problem, kernels, backward, weights, is_batched),
        working_bytes=structure.working.n_bytes(np.where(is_batched, n_bytes, 0.0)),
        batch_size=int(problem.limits[batch_class]),
        weight_ops=weights,
    )


def _timing(
    problem: Problem,
    tables: Tables,
    roofline: Roofline,
    batch_class: int,
    items: Items,
    backward: Backward,
) -> Timing:
    rows: list[tuple[int, int, int, float, bool]] = []
    update = np.zeros(len(tables.kernels.op_row))
    looped = [(loop.enter, loop.leave) for loop in items.loops]
    for kernel, row in zip(tables.program.kernels, tables.program.row_of_kernel, strict=True):
        runs = problem.graph.ops[kernel.op].trip_count
        is_backward = kernel.op in backward.span
        in_loop = any(enter <= kernel.op <= leave for enter, leave in looped)
        if is_backward or in_loop or problem.phases[kernel.op] is Phase.FORWARD:
            first, last = backward.span.get(kernel.op) or items.span(kernel.op)
            # A kernel of an unrolled loop is one row that runs every trip: items share its runs.
            share = runs / (last - first + 1)
            rows += [(item, kernel.op, row, share, is_backward) for item in range(first, last + 1)]
        else:
            update[row] += runs
    item, op, row, runs, is_backward = zip(*rows, strict=True)
    return Timing(
        problem=problem,
        tables=tables,
        roofline=roofline,
        batch_class=batch_class,
        item=np.array(item),
        op=np.array(op),
        row=np.array(row),
        runs=np.array(runs),
        is_backward=np.array(is_backward),
        update=update,
    )


def _top(problem: Problem, op: int) -> str | None:
    """The outermost equation that an op is of."""
    return outermost_equation(problem.graph.ops[op].op_name)


def _may_cut(
    problem: Problem, flow: Flow, items: Items, backward: Backward, parameters: Uses
) -> np.ndarray:
    allowed = np.ones(len(items), bool)
    # An instruction without a site (None) is of a program that was not traced here: any cut goes.
    tops = [_top(problem, op) for op in items.op_of_item]
    for item, (top, after) in enumerate(zip(tops, tops[1:])):
        allowed[item] = top is None or top != after
    for loop in items.loops:
        allowed[loop.span[0] : loop.span[1]] = True
    for first, last in _rematerialized(problem, flow, backward, parameters):
        allowed[first:last] = False
    allowed[-1] = False
    return allowed


def _rematerialized(
    problem: Problem, flow: Flow, backward: Backward, parameters: Uses
) -> Sequence[tuple[int, int]]:
    """Items that one opaque equation of the backward pass covers, by the parameters read by one
    item alone.
    """
    graph = problem.graph
    items_of_root = Counter(
        parameter_position(parameters, tensor) for tensor in parameters.tensor.tolist()
    )
    # A parameter that one item alone reads tells which item an op of the backward pass makes again;
    # one that several read (a shared embedding) tells nothing.
    alone = {root for root, count in items_of_root.items() if count == 1}
    twins = [(enter, graph.exit_by_entry[enter]) for enter in backward.twin]
    ranges: dict[str, tuple[int, int]] = {}
    for index, (first, last) in backward.span.items():
        site = parse_site(graph.ops[index].op_name)
        # Sites with a dot are inside of an equation's body. A twin loop's trips can be cut apart.
        if site is None or "." not in site or any(a <= index <= b for a, b in twins):
            continue
        if any(flow.roots[v] & alone for v in graph.ops[index].inputs):
            top = site.partition(".")[0]
            low, high = ranges.get(top, (first, last))
            ranges[top] = min(low, first), max(high, last)
    return list(ranges.values())


def _names(problem: Problem, items: Items) -> Sequence[str]:
    graph = problem.graph
    names = []
    trips = {loop.enter: loop for loop in items.loops if loop.trips > 1}
    for item, op in enumerate(items.op_of_item):
        name = _top(problem, op) or graph.ops[op].instruction.name
        loop = trips.get(op)
        names.append(f"{name}#{item - loop.first_item + 1}" if loop else name)
    return names


def _labels(problem: Problem, parameters: Uses, n_items: int) -> Sequence[str]:
    """The parameter that each item is the first to read, else that of the item before."""
    labels = [""] * n_items
    for tensor, item in sorted(zip(parameters.tensor.tolist(), parameters.item.tolist())):
        labels[item] = labels[item] or problem.paths[parameter_position(parameters, tensor)]
    for item in range(1, n_items):
        labels[item] = labels[item] or labels[item - 1]
    return labels
