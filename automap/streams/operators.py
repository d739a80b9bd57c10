"""The kernels of a step as operators: what is put into stages.

kernel     what XLA runs by itself (`hlo_tools.analyses.kernels`)
operator   kernels that no schedule takes apart:
           - a contraction with the elementwise kernel that alone reads its result (its bias, batch
             norm, activation), which runs as part of it                 -> in: `_join_epilogues`
           - an elementwise kernel with the operator that alone reads it -> in: `_join_only_readers`
           - a depthwise convolution with the pointwise one that alone reads it, IOS's unit of
             separable convolutions                                      -> in: `_join_only_readers`
           - all of a loop, of a branch, of a `shard_map`, or of one equation of the step, which
             stands where it stands                                      -> in: `_units`

u is before v if v reads what u writes. Sizes are those of one device (`LocalSizes`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import Protocol

from automap.backends import Backend
from automap.jaxpr.sites import parse_site
from automap.program.problem import Problem
from automap.streams.products import MergeClass, Product, matrix_product, merge_class
from automap.topology.model import OpClass
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.widths import stored_bytes
from hlo_tools.graph import Op
from hlo_tools.opcodes import (
    CONTRACTIONS,
    CONVOLUTION,
    OWN_KERNEL,
    REDUCTIONS,
    STRUCTURAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kernel of an operator: `runs` of it in a step, `product` None unless it is one.

    `reads` are (value, bytes); `written_bytes` those that it writes.
    """

    op_class: OpClass
    product: Product | None
    reads: tuple[tuple[int, int], ...]
    written_bytes: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What is put into a stage.

    - `site`: of its equation (`automap.jaxpr.sites`), an instruction's name for a program without.
    - `label`: for people.
    - `parts`: its kernels in order.
    - `before`: numbers of the operators whose results it reads.
    - `merge`: with which others it could be one; None for none.
    - `equations`: of the step itself, whose results its kernels write, in order.
    """

    site: str
    label: str
    parts: tuple[Part, ...]
    before: frozenset[int]
    merge: MergeClass | None
    equations: tuple[str, ...] = ()


@dataclass
class _Unit:
    """Kernels that are becoming an operator; `main` is the op that it is called by."""

    main: int
    kernels: list[Kernel]
    launched: list[bool]
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    is_region: bool = False


class LocalSizes(Protocol):
    """Of how many parts of equal size one device has one; None in its place is of one device."""

    def value_parts(self, value: int) -> int:
        """Of a value."""
        ...

    def factor_parts(self, op: int) -> Sequence[int]:
        """Of each factor of an op's rule."""
        ...


def step_operators(
    problem: Problem,
    backend: Backend,
    operand_of_site: Mapping[str, object],
    local: LocalSizes | None = None,
) -> tuple[Operator, ...]:
    """The operators of a step in an order in which they can run.

    `operand_of_site` has the first operand of each equation: only operators of one operand can be
    merged. A program without equations has none, and merges by the operands of its instructions.
    On several devices none is merged: weights beside each other would be split in other places.
    """
    graph = problem.graph
    n_bytes = stored_bytes(graph, [False] * len(graph.values))
    if local is not None:
        n_bytes = [math.ceil(n / local.value_parts(v)) for v, n in enumerate(n_bytes)]
    units = _units(problem, kernels(graph, backend.fuser, n_bytes))
    _join_epilogues(problem, units)
    _join_only_readers(problem, units)
    return tuple(_operators(problem, _in_order(units), operand_of_site, local))


def _units(problem: Problem, kernel_list: Sequence[Kernel]) -> list[_Unit]:
    """A unit for each equation's kernels, and one for each region."""
    graph = problem.graph
    region_of_op = graph.outermost_region
    units: list[_Unit] = []
    by_region: dict[int, _Unit] = {}
    by_site: dict[str, _Unit] = {}
    for kernel in kernel_list:
        region, site = region_of_op.get(kernel.op), parse_site(graph.ops[kernel.op].op_name)
        unit = by_site.get(site or "") if region is None else by_region.get(region)
        if unit is None:
            unit = _Unit(kernel.op if region is None else region, [], [])
            units.append(unit)
            if region is not None:
                by_region[region], unit.is_region = unit, True
            elif site:
                by_site[site] = unit
        unit.kernels.append(kernel)
        unit.launched.append(True)
        unit.reads |= {access.value for access in kernel.reads}
        unit.writes |= {access.value for access in kernel.writes}
    for op, region in region_of_op.items():
        if region in by_region:
            # Values cross the edge of a region through its structural ops, which are no kernels.
            by_region[region].reads |= set(graph.ops[op].inputs)
            by_region[region].writes |= set(graph.ops[op].outputs)
    for unit in by_region.values():
        unit.reads -= unit.writes
    return units


def _readers(units: Sequence[_Unit]) -> dict[int, list[_Unit]]:
    readers: dict[int, list[_Unit]] = {}
    for unit in units:
        for value in unit.reads - unit.writes:
            readers.setdefault(value, []).append(unit)
    return readers


def _is_plain(problem: Problem, unit: _Unit) -> bool:
    """Whether a unit is one kernel of elementwise ops."""
    opcode = problem.graph.ops[unit.main].opcode
    return (
        len(unit.kernels) == 1
        and not unit.is_region
        and opcode not in OWN_KERNEL
        and opcode not in REDUCTIONS
        and opcode not in STRUCTURAL
    )


def _join_epilogues(problem: Problem, units: list[_Unit]) -> None:
    """Elementwise kernels run as part of the latest contraction that they alone read."""
    graph, outputs = problem.graph, set(problem.graph.outputs)
    readers, writer = _readers(units), {v: unit for unit in units for v in unit.writes}
    for unit in list(units):
        if not _is_plain(problem, unit):
            continue
        written = sum(access.n_bytes for access in unit.kernels[0].writes)
        best: _Unit | None = None
        for value in sorted(unit.reads):
            maker = writer.get(value)
            if maker is None or maker.is_region or value in outputs or len(readers[value]) > 1:
                continue
            is_product = graph.ops[maker.kernels[0].op].opcode in CONTRACTIONS
            # Of one device, both.
            made = sum(a.n_bytes for k in maker.kernels for a in k.writes if a.value == value)
            if is_product and made == written:
                best = maker
        if best is not None:
            _join(best, unit, is_launched=False)
            units.remove(unit)
            writer.update(dict.fromkeys(unit.writes, best))


def _join_only_readers(problem: Problem, units: list[_Unit]) -> None:
    """What one operator alone reads goes with it: elementwise kernels, depthwise convolutions."""
    outputs = set(problem.graph.outputs)
    readers = _readers(units)
    for unit in list(units):
        is_joined = _is_plain(problem, unit) or _is_depthwise(problem, unit)
        after = {
            id(reader): reader
            for value in unit.writes
            for reader in readers.get(value, ())
            if reader is not unit
        }
        if not is_joined or len(after) != 1 or unit.writes & outputs:
            continue
        (reader,) = after.values()
        if reader.is_region:
            continue
        if _is_depthwise(problem, unit) and not _is_pointwise(problem, reader):
            continue
        reader.kernels[:0], reader.launched[:0] = unit.kernels, unit.launched
        reader.reads |= unit.reads
        reader.writes |= unit.writes
        for value in unit.reads:
            readers[value] = [reader if r is unit else r for r in readers[value]]
        units.remove(unit)


def _join(unit: _Unit, other: _Unit, *, is_launched: bool) -> None:
    unit.kernels += other.kernels
    unit.launched += [is_launched] * len(other.kernels)
    unit.reads |= other.reads
    unit.writes |= other.writes


def _is_depthwise(problem: Problem, unit: _Unit) -> bool:
    op = problem.graph.ops[unit.main]
    if op.opcode != CONVOLUTION or unit.is_region:
        return False
    numbers = op.instruction.attributes.conv
    groups = op.instruction.attributes.feature_group_count
    image = problem.graph.values[op.inputs[0]].dims
    return numbers is not None and groups == image[numbers.input_feature] > 1


def _is_pointwise(problem: Problem, unit: _Unit) -> bool:
    op = problem.graph.ops[unit.main]
    window = op.instruction.attributes.window
    return op.opcode == CONVOLUTION and not unit.is_region and all(w.size == 1 for w in window)


def _in_order(units: Sequence[_Unit]) -> list[_Unit]:
    """Units after those whose results they read, else as they stand."""
    writer = {value: number for number, unit in enumerate(units) for value in unit.writes}
    before = [
        {writer[v] for v in unit.reads if v in writer} - {number}
        for number, unit in enumerate(units)
    ]
    done: dict[int, None] = {}
    for number in range(len(units)):
        stack = [number]
        while stack:
            missing = [b for b in sorted(before[stack[-1]], reverse=True) if b not in done]
            if missing:
                stack += missing
            else:
                done.setdefault(stack.pop())
    return [units[number] for number in done]


def _operators(
    problem: Problem,
    units: Sequence[_Unit],
    operand_of_site: Mapping[str, object],
    local: LocalSizes | None,
) -> Iterator[Operator]:
    graph = problem.graph
    writer = {value: number for number, unit in enumerate(units) for value in unit.writes}
    for number, unit in enumerate(units):
        op = graph.ops[unit.main]
        site = parse_site(op.op_name) or op.instruction.name
        # A site's operand is a variable of the step; without one, the instruction's operand.
        operand = operand_of_site.get(site, op.inputs[0] if op.inputs else None)
        is_single = sum(unit.launched) == 1 and not unit.is_region and local is None
        yield Operator(
            site=site,
            label=_label(problem, op),
            parts=tuple(_parts(problem, unit, local)),
            before=frozenset(writer[v] for v in unit.reads if v in writer) - {number},
            merge=merge_class(problem, op, operand) if is_single else None,
            equations=_equations(problem, unit),
        )


def _equations(problem: Problem, unit: _Unit) -> tuple[str, ...]:
    """Those of the step itself: a loop's kernels are of the loop."""
    names = [problem.graph.ops[kernel.op].op_name for kernel in unit.kernels]
    sites = [parse_site(name) for name in (*names, problem.graph.ops[unit.main].op_name)]
    return tuple(dict.fromkeys(site.partition(".")[0] for site in sites if site))


def _parts(problem: Problem, unit: _Unit, local: LocalSizes | None) -> Iterator[Part]:
    """The kernels that are launched; an epilogue's reads and writes are its contraction's."""
    graph = problem.graph
    inside = {a.value for kernel in unit.kernels for a in kernel.writes}
    groups: list[list[Kernel]] = []
    for kernel, is_launched in zip(unit.kernels, unit.launched, strict=True):
        if is_launched:
            groups.append([])
        groups[-1].append(kernel)
    for group in groups:
        op = graph.ops[group[0].op]
        made = {a.value for kernel in group for a in kernel.writes}
        reads = {a.value: a.n_bytes for k in group for a in k.reads if a.value not in made}
        written = sum(a.n_bytes for a in group[-1].writes)
        yield Part(
            op_class=_class(op),
            product=matrix_product(
                problem, op, local.factor_parts(group[0].op) if local is not None else None
            ),
            # What the operator itself has made stays its own: no other reads it at once.
            reads=tuple((-1 if value in inside else value, n) for value, n in reads.items()),
            written_bytes=written,
            runs=op.trip_count,
        )


def _class(op: Op) -> OpClass:
    if op.opcode in CONTRACTIONS:
        return "product"
    return "reduce" if op.opcode in ("reduce", "reduce-window") else "elementwise"


def _label(problem: Problem, op: Op) -> str:
    """`conv 3x3 448 -> 384 at 8x8`, or the opcode with the shape of its result."""
    graph, numbers = problem.graph, op.instruction.attributes.conv
    dims = graph.values[op.outputs[0]].dims if op.outputs else ()
    if numbers is None or op.opcode != CONVOLUTION:
        return f"{op.opcode} {'x'.join(map(str, dims))}".strip()
    image, kernel = (graph.values[v].dims for v in op.inputs[:2])
    window = "x".join(str(kernel[d]) for d in numbers.kernel_spatial)
    place = "x".join(str(dims[d]) for d in numbers.output_spatial)
    channels = f"{image[numbers.input_feature]} -> {dims[numbers.output_feature]}"
    name = "depthwise" if op.instruction.attributes.feature_group_count > 1 else "conv"
    return f"{name} {window} {channels} at {place or math.prod(dims)}"
