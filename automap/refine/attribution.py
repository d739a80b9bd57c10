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

What compilers said of kernels, kept in the user's cache folder for later searches.

    key = SHA-256 of (device, versions of the compiler and of this package, the compiler's flags and
                      options)                                          -> in: `prices_path`

A folder holds <device>-<key>.json beside the witnesses: JSON that is read with checks and runs
nothing. It is written whole or not at all; one that cannot be used is ignored with a warning and
written over. Of a kernel in several workloads the newest price is kept; the ratio of kernels that
are no contractions is that of one workload, and is not.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final
import warnings

import numpy as np

from automap.atomic_file import reason, write_atomically
from automap.cost.evaluate import Evaluator
from automap.cost.profile import CompiledKernel, KernelPrices
from automap.cost.profile.measured import factor_parts
from automap.cost.profile.prices import CompiledConvolution, CompiledDot
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
)
from automap.cost.shardings import shardings
from automap.errors import CacheWarning, PlanError
from automap.jaxpr.sites import parse_site
from automap.plan import codec
from automap.plan.checks import check_version, refuse
from automap.plan.file import layout, read
from automap.space.point import SplitClasses
from automap.topology.model import Topology
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS, compile_options, machine_for
from automap.verify.kernel_seconds import kernel_prices
from automap.verify.process import compiler_flags
from hlo_tools.graph import flatten
from hlo_tools.module import Instruction, Module
from hlo_tools.opcodes import CONTRACTIONS, CUSTOM_CALL, JOINS_DEVICES
from hlo_tools.read.proto import decode_module


FORMAT: Final = "automap-prices"
VERSION: Final = 1
MOST_KERNELS: Final = 10_000
"""Of each list of a file, the newest ones: a large workload has some hundred."""

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


def prices_path(folder: Path, topology: Topology) -> Path:
    """The file of a topology's device in a folder of witnesses."""
    name = COMPILER_BY_PLATFORM[topology.platform]
    parts = {
        "device": topology.device.name,
        "versions": codec.encode(COMPILERS[name].versions()),
        "flags": codec.encode(compiler_flags()),
        "options": compile_options(machine_for(name, topology)),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return folder / "prices" / f"{topology.device.name}-{key[:32]}.json"


def load_prices(path: Path) -> KernelPrices:
    """The prices that are kept; none, with a `CacheWarning` if there is a file that is not one."""
    if not path.is_file():
        return KernelPrices()
    try:
        return _parse(read(path))
    except PlanError as error:
        warnings.warn(
            f"prices of kernels are not used, and written anew: {str(path)!r}: {error}",
            CacheWarning,
            stacklevel=2,
        )
        return KernelPrices()


def save_prices(path: Path, prices: KernelPrices) -> None:
    """Keep prices of kernels; a `CacheWarning` if that cannot be done."""
    kept = KernelPrices(
        dots=prices.dots[-MOST_KERNELS:], convolutions=prices.convolutions[-MOST_KERNELS:]
    )
    table = {"format": FORMAT, "version": VERSION, **codec.encode(kept)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, layout(table), links="replace")
    except (PlanError, OSError) as error:
        warnings.warn(
            f"what the compiler says of kernels is not kept in {str(path)!r}: {reason(error)}; "
            "give another --cache-dir, or --no-cache",
            CacheWarning,
            stacklevel=2,
        )


def _parse(node: Any) -> KernelPrices:
    if not isinstance(node, dict) or node.get("format") != FORMAT:
        raise refuse("format", node, f'an object with "format": "{FORMAT}"')
    check_version(node.get("version"), VERSION, "delete the file")
    fields = {key: node[key] for key in node if key not in ("format", "version")}
    return codec.decode(KernelPrices, fields, "")
