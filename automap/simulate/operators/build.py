"""A problem's HLO graph as an operator graph.

operators   `hlo_tools.analyses.kernels` with the factors of their rules that linkage lets an op keep split
edges       `reads`: each stored value a kernel reads, from the kernel that wrote it
next step   outputs that are new versions of inputs, to the kernels that read these inputs
sums        of partial sums are added up at their end (`automap.simulate.operators.sums`)
"""

from dataclasses import dataclass, field

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
from automap.simulate.operators.reads import (
    NO_FACTOR,
    Labels,
    Read,
    dimension_labels,
    kernel_reads,
    origin,
)
from automap.simulate.operators.sums import added_at_the_end
from automap.topology.model import Device, Topology
from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.kernels import Access, Kernel, kernels
from hlo_tools.collector import collector_paused
from hlo_tools.graph import DTYPE_BITS
from hlo_tools.opcodes import CONTRACTIONS
from hlo_tools.rules import FactorKind


# What an operator may be copied to at most: any number of devices.
_COPIES = SplitFactor(size=1 << 62, kind=FactorKind.REPLICATION)


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
    for kernel in kernels(problem.graph, backend_for(topology.platform).fuser, n_bytes):
        _add(builder, kernel)
    for output, position in problem.state_map.items():
        made = builder.written.get(origin(problem.graph, problem.graph.outputs[output]))
        for target, read in builder.input_readers.get(problem.graph.inputs[position], []):
            if made is not None and (made.operator, made.labels) != (target, read.labels):
                builder.edges.append(_edge(builder, made, target, read, ConsumerStep.NEXT_STEP))
    # Nothing leaves its loop here, and terms are added in the type that they are made in.
    names = merged_sums(problem.graph, "loops first").name_of
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
    kept = [
        f
        for f, factor in enumerate(rule.factors)
        if groups[f] >= 0
        and factor.halo is None
        and (
            factor.kind is FactorKind.PASSTHROUGH
            and f in in_result
            or factor.kind is FactorKind.REDUCTION
            and not is_joint
        )
    ]
    return {factor: number for number, factor in enumerate(kept)}


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
