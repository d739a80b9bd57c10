"""Asking a compiler for its witness of a plan.

    planned program -> (cache, or the compiler's process) -> memory, partitioned program -> Witness

Whether it fits: the TPU compiler refuses what does not; for the others it fits if the bytes of a
device's buffers are within the device's memory                         -> in: `_fits`
A program has groups of partitions where a plan has axes of its mesh
                                                        -> in: `automap.verify.groups`
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
import re
from typing import Final

from automap.choices import CompilerName
from automap.errors import AutomapError, CompilerError
from automap.jaxpr.names import readable
from automap.jaxpr.sites import parse_site
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.verify.cache import cache_key, load_cached, program_name, save_cached
from automap.verify.compilers import COMPILERS, machine_for
from automap.verify.groups import joined_axes
from automap.verify.job_folder import job_folder
from automap.verify.messages import PLANNED_FILE, PROGRAM_FILE, Answer, Request
from automap.verify.process import run_job
from automap.verify.program import ExportedStep, PlannedProgram
from automap.verify.replayed import replayed_step
from automap.verify.witness import CompiledRecord, StepRecord, Witness
from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.errors import HloError
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
"""Axes of a collective whose groups are no set of mesh axes."""


def ask(
    program: PlannedProgram,
    name: CompilerName,
    *,
    timeout_seconds: float,
    cache_folder: Path | None,
) -> Witness:
    """The witness of a compiler for a plan; `cache_folder` None asks anew and keeps nothing.

    Raises as `compile_planned` does.
    """
    return compile_planned(
        program, name, timeout_seconds=timeout_seconds, cache_folder=cache_folder
    ).witness


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler said of a planned step, and the program that it made: a serialized HLO proto,
    None where there is none.
    """

    witness: Witness
    program: bytes | None


def compile_planned(
    program: PlannedProgram,
    name: CompilerName,
    *,
    timeout_seconds: float,
    cache_folder: Path | None,
) -> Compiled:
    """`ask`, with the compiled program.

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
        witness, compiled = cached
        return Compiled(_read_again(witness, compiled, request, topology), compiled)
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
    return Compiled(witness, compiled)


def _read_again(
    cached: Witness, compiled: bytes | None, request: Request, topology: Topology
) -> Witness:
    """A cached witness, with what this version reads in its program."""
    if compiled is None:
        return cached
    return replace(
        cached,
        collectives=_records(compiled, request.shardings.axes),
        step=_step(compiled, request, topology),
    )


def _step(compiled: bytes, request: Request, topology: Topology) -> StepRecord | None:
    """The replayed schedule; None of a compiler that has no seconds, or a program that cannot be
    read.
    """
    if request.machine.compiler == "cpu":
        return None
    axes = request.shardings.axes
    mesh = Mesh(tuple(name for name, _ in axes), tuple(size for _, size in axes))
    try:
        step = replayed_step(compiled, topology, mesh, request.shardings.devices)
    except (HloError, AutomapError):
        return None
    return StepRecord(
        seconds=step.seconds,
        kernel_seconds=step.kernel_seconds,
        collective_seconds=step.transfer_seconds,
    )


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
        raise failure(compiler.name, topology, answer.message)
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
        step=None if compiled is None else _step(compiled, request, topology),
    )


def failure(name: CompilerName, topology: Topology, message: str) -> CompilerError:
    """The error of a compiler that failed, with its own message if it has one."""
    reason = message or "it does not say how much memory the program needs"
    # CUDA 13 has dropped V100: what compiles for it comes with the extra.
    advice = "; install jax-automap[gpu-compiler], which brings a ptxas" * ("ptxas" in reason)
    return CompilerError(f"{COMPILERS[name].title} failed for {topology.name}: {reason}{advice}")


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


def _first_name(op_name: str) -> str:
    """The name without the wrappers; XLA joins those of merged ops as `(one:two:...)`."""
    name = _WRAPPER.sub("", op_name)
    if name.startswith("("):
        name = name[1:].split(":", 1)[0]
    return name[:_MAX_NAME_CHARACTERS]
