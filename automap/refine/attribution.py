"""Compiled kernels told apart by the equations that they were made for.

    compiled instruction -> sites of the contractions that are fused in it   (named scopes)
    kernel of the graph  -> site of its contraction, local signature under the plan

For each local signature x, over the kernels of the graph that have it and whose sites are in the
compiled program,

    seconds(x) = compiled seconds of those sites / runs
    predicted(x) = predicted seconds of those kernels / runs             -> in: `learned_prices`

Sums and not single kernels are compared, as a compiler may make one product of several of equal
shape (queries, keys and values). What stands at no site of a contraction is compared as a whole:
compiled over predicted seconds of all other kernels. A compiled kernel with several contractions
belongs to none of them, nor does a site of kernels of different shapes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import math

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.cost.profile import CompiledKernel, KernelPrices
from automap.cost.profile.measured import factor_parts
from automap.cost.profile.prices import CompiledConvolution, CompiledDot
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
)
from automap.cost.shardings import shardings
from automap.jaxpr.sites import parse_site
from automap.space.point import SplitClasses
from automap.topology.model import Topology
from automap.verify.replayed import kernel_prices
from hlo_tools.graph import flatten
from hlo_tools.module import Instruction, Module
from hlo_tools.opcodes import CONTRACTIONS, CUSTOM_CALL, JOINS_DEVICES
from hlo_tools.read.proto import decode_module


Contraction = DotSignature | ConvolutionSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSeconds:
    """Seconds of the kernels of one compiled step, all runs of loops: of all of them, and by the
    site of their only contraction of those that have one.
    """

    total: float
    by_site: Mapping[str, float]


def compiled_seconds(program: bytes, topology: Topology) -> CompiledSeconds:
    """What the compiler says that the kernels of a serialized program take.

    Raises as `automap.verify.replayed.replayed_step` does.
    """
    module = decode_module(program)
    seconds = kernel_prices(program, module, topology)
    by_site: dict[str, float] = defaultdict(float)
    total = 0.0
    for op in flatten(module, fusions="kept").ops:
        instruction = op.instruction
        if instruction.opcode in JOINS_DEVICES:
            continue
        spent = seconds(instruction) * op.trip_count
        total += spent
        sites = set(_contraction_sites(instruction, module))
        if len(sites) == 1:
            by_site[sites.pop()] += spent
    return CompiledSeconds(total=total, by_site=by_site)


def _contraction_sites(instruction: Instruction, module: Module) -> Iterator[str]:
    # Products and convolutions of libraries are custom calls.
    if instruction.opcode in CONTRACTIONS or instruction.opcode == CUSTOM_CALL:
        yield from filter(None, (parse_site(instruction.op_name),))
    for called in instruction.called:
        for inner in module.computations[called].instructions:
            yield from _contraction_sites(inner, module)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPrices:
    """Prices of the contractions of one compiled plan, and the ratio of all other kernels, None
    where there are none.
    """

    kernels: tuple[CompiledKernel, ...]
    other_ratio: float | None


def learned_prices(
    compiled: CompiledSeconds, evaluator: Evaluator, split_classes: SplitClasses
) -> LearnedPrices:
    """What one compiled plan says; `evaluator` predicts without prices."""
    tables = evaluator.tables
    sharding = shardings(tables, evaluator.n_classes, split_classes)
    predicted = evaluator.roofline.seconds(sharding)
    sites = _sites_by_row(evaluator)
    seconds, expected = (
        defaultdict[Contraction, float](float),
        defaultdict[Contraction, float](float),
    )
    runs = Counter[Contraction]()
    kernels = tables.kernels
    for row, row_sites in sites.items():
        spent = [compiled.by_site[site] for site in row_sites if site in compiled.by_site]
        if not sum(spent):
            continue
        signature = _signature(evaluator, row, sharding.factor_of_axis, sharding.sizes)
        seconds[signature] += sum(spent)
        expected[signature] += predicted[row] * kernels.count[row]
        runs[signature] += int(kernels.count[row])
    rows = tuple(
        _ROW_OF_SIGNATURE[type(signature)](
            signature=signature,
            seconds=seconds[signature] / runs[signature],
            predicted_seconds=expected[signature] / runs[signature],
        )
        for signature in seconds
    )
    rest = compiled.total - sum(seconds.values())
    predicted_rest = float(predicted @ kernels.count) - sum(expected.values())
    is_known = rest > 0 and predicted_rest > 0
    return LearnedPrices(kernels=rows, other_ratio=rest / predicted_rest if is_known else None)


_ROW_OF_SIGNATURE = {DotSignature: CompiledDot, ConvolutionSignature: CompiledConvolution}


def _signature(
    evaluator: Evaluator, row: int, factor_of_axis: np.ndarray, sizes: tuple[int, ...]
) -> Contraction:
    """What the kernels of a row are on one device."""
    kernels = evaluator.tables.kernels
    shape = kernels.shape[row]
    split = factor_of_axis[kernels.op_row[row]].tolist()
    local = shape.local(factor_parts(shape, split, sizes), 0)
    assert isinstance(local, DotSignature | ConvolutionSignature)  # noqa: S101 - as it has a kind
    return local


def _sites_by_row(evaluator: Evaluator) -> Mapping[int, frozenset[str]]:
    """The sites of the contractions of each row of kernels; of a site in two rows, none."""
    program, kernels = evaluator.tables.program, evaluator.tables.kernels
    rows_of_site: dict[str, set[int]] = defaultdict(set)
    for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True):
        op = program.problem.graph.ops[kernel.op]
        site = parse_site(op.op_name)
        if kernels.shape[row].kind and site is not None:
            rows_of_site[site].add(row)
    sites: dict[int, set[str]] = defaultdict(set)
    for site, rows in rows_of_site.items():
        if len(rows) == 1:
            sites[rows.pop()].add(site)
    return {row: frozenset(names) for row, names in sites.items()}


def mean_prices(known: KernelPrices, learned: Sequence[LearnedPrices]) -> KernelPrices:
    """Prices known before, and those of the plans that were compiled now: of a signature in
    several of them, and of all other kernels, geometric means.
    """
    logs: dict[Contraction, list[float]] = defaultdict(list)
    newest: dict[Contraction, CompiledKernel] = {}
    for row in (row for each in learned for row in each.kernels):
        logs[row.signature].append(math.log(row.seconds / row.predicted_seconds))
        newest[row.signature] = row
    means = {signature: math.exp(math.fsum(x) / len(x)) for signature, x in logs.items()}
    rows = [
        replace(row, seconds=row.predicted_seconds * means[signature])
        for signature, row in newest.items()
    ]
    others = [math.log(x.other_ratio) for x in learned if x.other_ratio is not None]
    other_ratio = math.exp(math.fsum(others) / len(others)) if others else known.other_ratio
    return replace(known.with_kernels(rows), other_ratio=other_ratio)
