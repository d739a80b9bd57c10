"""A problem's HLO graph as an operator graph.

    operators   `hlo_tools.analyses.kernels` with the factors of their rules along which linkage
                lets an op be split                                          -> in: `_operator`
    edges       each stored value that a kernel reads, from the kernel that wrote it
                                                                             -> in: `kernel_reads`
    next step   outputs that are new versions of inputs, to the kernels that read these inputs
    sums        of partial sums are added up at their end (`automap.simulate.operators.sums`)

Which factor of the kernel does each dimension of a source run along? A kernel computes the fused
ops before it as it goes, so the way from its op back to a stored value leads through their rules.
Along it each dimension carries a *label*: the factor of the kernel that it is split with, or
NO_FACTOR where all of it is read.

    operands of the kernel's op      a dimension has the label of its major factor
    operands of a fused op           its factors take the labels of the result's dimensions in which
                                     they are major; one that is permuted or replicated has none
    two ways to one source           a dimension keeps a label that both agree on

Loops hand their carries on as they are: the source of what enters or leaves one is what was handed
to it                                                                        -> in: `origin`
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from automap.backends import backend_for
from automap.cost.edges.sums import merged_sums
from automap.jaxpr.names import readable
from automap.program.problem import Problem
from automap.simulate.operators.graph import (
    ConsumerStep,
    Edge,
    Operator,
    OperatorGraph,
    SplitFactor,
    Traffic,
)
from automap.simulate.operators.sums import added_at_the_end
from automap.topology.model import Device, Topology
from hlo_tools.analyses.accesses import Access, Kernel
from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.kernels import kernels
from hlo_tools.collector import collector_paused
from hlo_tools.graph import DTYPE_BITS, Graph
from hlo_tools.opcodes import CONTRACTIONS, LOOP_ENTER, LOOP_EXIT
from hlo_tools.rules import FactorKind, Rule
from hlo_tools.rules.rule import DimFactors


# What an operator may be copied to at most: any number of devices.
_COPIES = SplitFactor(size=1 << 62, kind=FactorKind.REPLICATION)

NO_FACTOR = -1
Labels = tuple[int, ...]
# Other kinds need elements of their neighbours, or all of them: what they read is not divided.
_DIVISIBLE = (FactorKind.PASSTHROUGH, FactorKind.REDUCTION)


@dataclass(frozen=True, slots=True)
class Read:
    """A stored value, the kernel's factor of each of its dimensions, and the bytes that are read of
    it.
    """

    value: int
    labels: Labels
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Written:
    """Who writes a value, and its own factor of each dimension."""

    operator: int
    labels: Labels


@dataclass
class _Builder:
    """Collects operators and edges in one pass over the kernels."""

    problem: Problem
    device: Device
    operators: list[Operator] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    written: dict[int, _Written] = field(default_factory=dict)
    input_readers: dict[int, list[tuple[int, Read]]] = field(default_factory=dict)


@collector_paused()
def operator_graph(problem: Problem, topology: Topology) -> OperatorGraph:
    """The operators of one step, timed on the topology's device."""
    builder = _Builder(problem, topology.device)
    n_bytes = [value.n_bytes for value in problem.graph.values]
    # What several operators use is one operator: made again, its sums would be sent twice.
    fuser = replace(backend_for(topology.platform).fuser, remade="cheap")
    for kernel in kernels(problem.graph, fuser, n_bytes):
        _add(builder, kernel)
    # An operator that reads its own new version, split alike, has it where it needs it.
    for output, position in problem.state_map.items():
        made = builder.written.get(origin(problem.graph, problem.graph.outputs[output]))
        for target, read in builder.input_readers.get(problem.graph.inputs[position], []):
            if made is not None and (made.operator, made.labels) != (target, read.labels):
                builder.edges.append(_edge(builder, made, target, read, ConsumerStep.NEXT_STEP))
    # Nothing leaves its loop here, and terms are added in the type that they are made in.
    names = merged_sums(problem.graph, "loops first").sum_by_term
    sums = {m.operator: names[value] for value, m in builder.written.items() if value in names}
    return added_at_the_end(
        OperatorGraph(
            operators=tuple(builder.operators),
            edges=tuple(sorted(builder.edges, key=lambda e: (e.source, e.target))),
        ),
        sums,
    )


def _add(builder: _Builder, kernel: Kernel) -> None:
    problem, index = builder.problem, len(builder.operators)
    graph, rules = problem.graph, problem.linkage.rules
    op, rule = graph.ops[kernel.op], rules[kernel.op]
    number = _numbers(problem, kernel.op)
    reads = [
        Read(read.value, _renumbered(read.labels, number), read.n_bytes)
        for read in kernel_reads(graph, rules, kernel)
    ]
    results = {
        value: _renumbered(dimension_labels(rule, dims), number)
        for value, dims in zip(op.outputs, rule.results, strict=True)
    }
    builder.operators.append(_operator(builder, kernel, number, reads, results))
    for read in reads:
        source = origin(graph, read.value)
        if source in builder.written:
            made = builder.written[source]
            builder.edges.append(_edge(builder, made, index, read, ConsumerStep.SAME_STEP))
        elif graph.values[source].producer < 0:
            builder.input_readers.setdefault(source, []).append((index, read))
    for access in kernel.writes:
        builder.written[access.value] = _Written(index, results[access.value])


def _numbers(problem: Problem, op: int) -> dict[int, int]:
    """Number of each factor that can be split among those that can."""
    rule, groups = problem.linkage.rules[op], problem.linkage.factor_groups[op]
    is_joint = problem.graph.ops[op].is_joint_reduction
    in_result = {d[0] for dims in rule.results for d in dims if d}
    # A window that reads its neighbours' elements makes its factor none of these kinds. Partial
    # sums of a window, or of a joint reduction, cannot be added up.
    splittable = [
        f
        for f, factor in enumerate(rule.factors)
        if groups[f] >= 0
        and (
            factor.kind is FactorKind.PASSTHROUGH
            and f in in_result
            or factor.kind is FactorKind.REDUCTION
            and factor.halo is None
            and not is_joint
        )
    ]
    return {factor: number for number, factor in enumerate(splittable)}


def _renumbered(labels: Labels, number: dict[int, int]) -> Labels:
    """Labels by an operator's own factors, each at its first dimension only."""
    result: list[int] = []
    for label in labels:
        factor = number.get(label, NO_FACTOR)
        result.append(NO_FACTOR if factor in result else factor)
    return tuple(result)


def _operator(
    builder: _Builder,
    kernel: Kernel,
    number: dict[int, int],
    reads: list[Read],
    results: dict[int, Labels],
) -> Operator:
    problem, device = builder.problem, builder.device
    graph = problem.graph
    op, rule = graph.ops[kernel.op], problem.linkage.rules[kernel.op]
    bytes_per_s = device.hbm_bytes_per_s * device.memory_efficiency

    def traffic(access: Access | Read, labels: Labels) -> Traffic:
        return Traffic(access.n_bytes / bytes_per_s, tuple(f for f in labels if f >= 0))

    groups = problem.linkage.factor_groups[kernel.op]
    factors = [
        SplitFactor(
            size=rule.factors[f].size,
            kind=rule.factors[f].kind,
            is_batch=int(problem.class_of_group[groups[f]]) == problem.batch_class,
            group_class=int(problem.class_of_group[groups[f]]),
        )
        for f in number
    ]
    # Of several results, what divides all of them divides their sum of bytes.
    written = sum(access.n_bytes for access in kernel.writes)
    shared = [set(results[access.value]) for access in kernel.writes]
    divides = set.intersection(*shared) - {NO_FACTOR} if shared else set[int]()
    return Operator(
        name=readable(op.op_name) or op.instruction.name,
        phase=problem.phases[kernel.op].name.lower(),
        factors=(*factors, _COPIES),
        trips=op.trip_count,
        compute_seconds=flops(graph, op, rule) / _flops_per_s(builder, kernel),
        traffic=(
            *(traffic(read, read.labels) for read in reads),
            *(traffic(access, results[access.value]) for access in kernel.writes),
        ),
        launch_seconds=device.launch_seconds,
        result_bytes=float(written * op.trip_count),
        result_factors=tuple(sorted(divides)),
    )


def _flops_per_s(builder: _Builder, kernel: Kernel) -> float:
    """The matrix unit's rate for contractions; everything else is bound by memory."""
    graph, device = builder.problem.graph, builder.device
    op = graph.ops[kernel.op]
    if op.opcode not in CONTRACTIONS:
        return float("inf")
    # The wider operand decides on which unit a mixed product runs.
    dtype = max((graph.values[v].dtype for v in op.inputs[:2]), key=lambda t: DTYPE_BITS[t])
    return device.peak_flops_per_s(dtype) * device.matmul_efficiency


def _edge(builder: _Builder, made: _Written, target: int, read: Read, when: ConsumerStep) -> Edge:
    dims = tuple(
        pair
        for pair in zip(made.labels, read.labels, strict=True)
        if pair != (NO_FACTOR, NO_FACTOR)
    )
    whole_bytes = builder.problem.graph.values[read.value].n_bytes
    source_trips = builder.operators[made.operator].trips
    # A loop that reads a slice in each trip reads all of it once; one that reads all each trip has
    # it still.
    n_bytes = min(read.n_bytes * builder.operators[target].trips, whole_bytes * source_trips)
    return Edge(
        source=made.operator, target=target, n_bytes=float(n_bytes), dims=dims, consumer_step=when
    )


def dimension_labels(rule: Rule, dims: DimFactors) -> Labels:
    """Factor of each dimension of a tensor of the op itself."""
    return tuple(
        factors[0] if factors and rule.factors[factors[0]].kind in _DIVISIBLE else NO_FACTOR
        for factors in dims
    )


def kernel_reads(graph: Graph, rules: Sequence[Rule], kernel: Kernel) -> tuple[Read, ...]:
    """Every stored value that a kernel reads, in the order of `kernel.reads`."""
    # Labels only ever fall to NO_FACTOR, so a value is looked at again a bounded number of times.
    wanted = {access.value for access in kernel.reads}
    labels_by_value: dict[int, Labels] = {}
    op, rule = graph.ops[kernel.op], rules[kernel.op]
    todo = [(v, dimension_labels(rule, d)) for v, d in zip(op.inputs, rule.operands, strict=True)]
    while todo:
        value, labels = todo.pop()
        known = labels_by_value.get(value)
        merged = labels if known is None else _agreed(known, labels)
        if merged == known:
            continue
        labels_by_value[value] = merged
        producer = graph.values[value].producer
        # A stored value ends the way; any other is computed inside of the kernel.
        if value not in wanted and producer >= 0:
            todo += _operands(graph, rules, producer, value, merged)
    rank = {value: len(graph.values[value].dims) for value in wanted}
    nothing = {value: (NO_FACTOR,) * rank[value] for value in wanted}
    return tuple(
        Read(access.value, labels_by_value.get(access.value, nothing[access.value]), access.n_bytes)
        for access in kernel.reads
    )


def origin(graph: Graph, value: int) -> int:
    """The value that loops hand on as `value`."""
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in (LOOP_ENTER, LOOP_EXIT):
            break
        value = op.inputs[op.outputs.index(value)]
    return value


def _agreed(known: Labels, labels: Labels) -> Labels:
    return tuple(a if a == b else NO_FACTOR for a, b in zip(known, labels, strict=True))


def _operands(
    graph: Graph, rules: Sequence[Rule], producer: int, value: int, labels: Labels
) -> list[tuple[int, Labels]]:
    op, rule = graph.ops[producer], rules[producer]
    if not op.inputs or not rule.operands:
        return []
    label_by_factor: dict[int, int] = {}
    for factors, label in zip(rule.results[op.outputs.index(value)], labels, strict=True):
        if factors and rule.factors[factors[0]].kind in _DIVISIBLE:
            label_by_factor[factors[0]] = label
    return [
        (operand, tuple(label_by_factor.get(d[0], NO_FACTOR) if d else NO_FACTOR for d in dims))
        for operand, dims in zip(op.inputs, rule.operands, strict=True)
    ]
