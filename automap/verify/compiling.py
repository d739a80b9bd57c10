"""Asking a compiler for its witness of a plan.

    planned program -> (cache, or the compiler's process) -> memory, partitioned program -> Witness

Whether it fits: the TPU compiler refuses what does not; for the others it fits if the bytes of a
device's buffers are within the device's memory                         -> in: `_fits`
A program has groups of partitions where a plan has axes of its mesh    -> in: `joined_axes`
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
import re
from typing import Final

from automap.choices import CompilerName
from automap.errors import CompilerError
from automap.jaxpr.names import readable
from automap.jaxpr.sites import parse_site
from automap.topology.model import Topology
from automap.verify.cache import cache_key, load_cached, program_name, save_cached
from automap.verify.compilers import COMPILERS, machine_for
from automap.verify.job_folder import job_folder
from automap.verify.messages import PLANNED_FILE, PROGRAM_FILE, Answer, Request
from automap.verify.process import run_job
from automap.verify.program import ExportedStep, PlannedProgram
from automap.verify.witness import CompiledRecord, Witness
from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.errors import HloError
from hlo_tools.module import Groups
from hlo_tools.read.proto import decode_module


# "Used 20.1G of 15.7G hbm", "... HLO temporaries (47.68G) exceeds ..."
_NEEDED: Final = (
    re.compile(r"Used ([\d.]+)([KMGT]?)i?B? of"),
    re.compile(r"\(([\d.]+)([KMGT]?)i?B?\) exceeds"),
)
_UNIT_BYTES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# What the exported step's own wrappers put before its names.
_WRAPPER: Final = re.compile(r"^.*call_exported(?:/(?:jit\([^/]*\)/)?)?")
_MAX_NAME_CHARACTERS: Final = 200
OTHER_DEVICES: Final = ("?",)
"""Axes of a collective whose groups are no set of mesh axes."""


def ask(
    program: PlannedProgram,
    name: CompilerName,
    *,
    timeout_seconds: float,
    cache_folder: Path | None,
) -> Witness:
    """The witness of a compiler for a plan; `cache_folder` None asks anew and keeps nothing.

    Raises `CompilerError` for a compiler that is missing, fails or is not done in time,
    `InputError` for a step that cannot be sent to one.
    """
    compiler = COMPILERS[name]
    topology = Topology.from_dict(program.plan.topology)
    machine = machine_for(name, topology)
    compiler.check_installed()
    exported = program.exported(compiler.platform)
    request = Request(machine=machine, shardings=program.shardings, run=None)
    key = cache_key(exported.sha256, request.shardings, machine, topology.device.memory_bytes)
    cached = load_cached(cache_folder, key) if cache_folder is not None else None
    if cached is not None:
        return _read_again(*cached, request)
    with job_folder() as folder:
        (folder / PLANNED_FILE).write_bytes(exported.artifact)
        answer = run_job(request, folder, timeout_seconds=timeout_seconds)
        file = folder / PROGRAM_FILE
        compiled = file.read_bytes() if file.is_file() else None
    # A witness names a program only if there will be one beside it.
    has_file = cache_folder is not None and compiled is not None
    witness = _witness(
        request, answer, exported, topology, compiled, program_name(key) if has_file else None
    )
    if cache_folder is not None:
        save_cached(cache_folder, key, witness, compiled)
    return witness


def _read_again(cached: Witness, compiled: bytes | None, request: Request) -> Witness:
    """A cached witness, with the collectives of its program as this version reads them."""
    if compiled is None:
        return cached
    return replace(cached, collectives=_records(compiled, request.shardings.axes))


def _witness(
    request: Request,
    answer: Answer,
    exported: ExportedStep,
    topology: Topology,
    compiled: bytes | None,
    file_name: str | None,
) -> Witness:
    compiler = COMPILERS[request.machine.compiler]
    is_refused = answer.outcome == "out-of-memory"
    if not is_refused and (answer.outcome != "done" or answer.memory is None):
        reason = answer.message or "it does not say how much memory the program needs"
        # CUDA 13 has dropped V100: what compiles for it comes with the extra.
        advice = "; install jax-automap[gpu-compiler], which brings a ptxas" * ("ptxas" in reason)
        raise CompilerError(f"{compiler.title} failed for {topology.name}: {reason}{advice}")
    peak = _bytes_it_needs(answer.message) if answer.memory is None else answer.memory.peak
    return Witness(
        compiler=compiler.name,
        versions=compiler.versions(),
        topology=topology.name,
        planned_sha256=exported.sha256,
        fits=not is_refused and _fits(compiler.name, peak, topology),
        memory_limit_bytes=topology.device.memory_bytes,
        peak_bytes=peak,
        memory=answer.memory,
        refusal=answer.message if is_refused else "",
        collectives=None if compiled is None else _records(compiled, request.shardings.axes),
        compile_seconds=answer.seconds,
        program=file_name,
    )


def _fits(name: CompilerName, peak_bytes: int | None, topology: Topology) -> bool:
    # The TPU compiler knows its device, whose memory is not to the byte that of the catalogue.
    return name == "tpu" or (peak_bytes or 0) <= topology.device.memory_bytes


def _bytes_it_needs(message: str) -> int | None:
    for pattern in _NEEDED:
        if match := pattern.search(message):
            return round(float(match[1]) * _UNIT_BYTES[match[2]])
    return None


def _records(
    compiled: bytes, axes: tuple[tuple[str, int], ...]
) -> tuple[CompiledRecord, ...] | None:
    """Collectives of a partitioned program, the most bytes first; None if it cannot be read."""
    counts: Counter[tuple[str, tuple[str, ...], int, str, str]] = Counter()
    try:
        for c in compiled_collectives(decode_module(compiled)):
            joined = joined_axes(c.groups, axes, is_pairs=c.kind == "collective-permute")
            name = _first_name(c.op_name)
            site = parse_site(name) or ""
            counts[c.kind, joined, c.n_bytes, site, readable(name)] += c.count
    except HloError:
        return None
    records = (
        CompiledRecord(kind=kind, axes=joined, bytes=n, count=count, site=site, op_name=name)
        for (kind, joined, n, site, name), count in counts.items()
    )
    return tuple(sorted(records, key=lambda r: (-r.bytes * r.count, r.kind, r.axes, r.site)))


@cache
def joined_axes(
    groups: Groups | None, axes: tuple[tuple[str, int], ...], *, is_pairs: bool
) -> tuple[str, ...]:
    """The mesh axes that a collective's groups join; `OTHER_DEVICES` if they are no set of axes."""
    names = tuple(name for name, size in axes if size > 1)
    if groups is None:
        return names
    # Partition d is device d of the mesh, row-major: the last axis varies fastest.
    coordinates = list(product(*(range(size) for _, size in axes)))
    if not all(0 <= device < len(coordinates) for group in groups for device in group):
        return OTHER_DEVICES
    # A permutation has pairs (source, target) where others have groups: it runs over the axes along
    # which any pair moves.
    if is_pairs:
        moved = {
            name
            for source, target in groups
            for (name, _), a, b in zip(axes, coordinates[source], coordinates[target])
            if a != b
        }
        return tuple(name for name in names if name in moved)
    # The fewest axes first: axes of size 1 may join any set of axes without changing its groups.
    wanted = {frozenset(group) for group in groups}
    for count in range(len(axes) + 1):
        for chosen in combinations(range(len(axes)), count):
            if _groups_over(chosen, coordinates) == wanted:
                return tuple(axes[a][0] for a in chosen if axes[a][1] > 1)
    return OTHER_DEVICES


def _groups_over(
    chosen: Sequence[int], coordinates: Sequence[tuple[int, ...]]
) -> set[frozenset[int]]:
    groups: dict[tuple[int, ...], set[int]] = {}
    for device, place in enumerate(coordinates):
        rest = tuple(c for a, c in enumerate(place) if a not in chosen)
        groups.setdefault(rest, set()).add(device)
    return {frozenset(group) for group in groups.values()}


def _first_name(op_name: str) -> str:
    """The name without the wrappers; XLA joins those of merged ops as `(one:two:...)`."""
    name = _WRAPPER.sub("", op_name)
    if name.startswith("("):
        name = name[1:].split(":", 1)[0]
    return name[:_MAX_NAME_CHARACTERS]
