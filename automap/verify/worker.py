"""The compiler's own process: `python -m automap.verify.worker FOLDER`.

A compiler may abort, hang, or hold a lock of the whole machine; here it hurts nobody. The folder
holds the request and gets the answer (`automap.verify.messages`). The process ends when its
standard input is closed, so that it never outlives the one that started it.

Of a pipeline the programs are compiled one after the other, equal ones once, for the devices of
their stages (of TPUs slices of their own): each is told where the values lie that it reads, which
is where the programs before it left them                                  -> in: `_stage_programs`

What is compiled for is not there: JAX shows fake CPU devices, or those of an ahead-of-time topology
                                                                      -> in: `compiler_devices`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import gzip
import math
import os
from pathlib import Path
import re
import sys
import threading
import time
from typing import Any, Final

import jax
from jax import export
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, Sharding
import numpy as np

from automap.atomic_file import write_atomically
from automap.choices import CompilerName
from automap.jax_compat import compiled_proto
from automap.plan.codec import decode, encode
from automap.plan.file import layout, parse
from automap.runtime.meshes import mesh_on, named_shardings, on_own_slices, slice_devices
from automap.runtime.pipeline.places import StagePlace, stage_places
from automap.verify.compilers import CompilerMachine, compile_options
from automap.verify.gpu_targets import gpu_target
from automap.verify.messages import (
    ANSWER_FILE,
    PLANNED_FILE,
    PROGRAM_FILE,
    REQUEST_FILE,
    Answer,
    MemoryBytes,
    PlanShardings,
    ProgramAnswer,
    Request,
    StageInput,
    StageProgram,
    StagesRequest,
    stage_files,
)
from automap.verify.run_both import run_both
from hlo_tools.compiled.estimates import ESTIMATES


# What XLA says when a program needs more memory than the device has: a result, not a failure.
_OUT_OF_MEMORY: Final = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
# What libtpu says when another process uses it.
_BUSY: Final = re.compile(r"lockfile|TPU is already in use")
_MAX_MESSAGE_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class _Retry:
    """Options to compile with once more after a `failure` of the GPU compiler."""

    failure: re.Pattern[str]
    options: dict[str, bool]


# What it says is that of jax 0.10.2.
_RETRIES: Final = (
    # With no GPU to try tiles on it takes the first ones it thinks of, which some shapes do not
    # have: without Triton's products.
    _Retry(
        re.compile(r"Couldn't find output tile sizes"),
        {"xla_gpu_enable_triton_gemm": False},
    ),
    # It has tables of what kernels and collectives take for some GPUs only, and refuses to estimate
    # for others, and for a GB200, whose table has groups that are no whole hosts.
    _Retry(
        re.compile(r"Cannot find key: sm_|Non homogenous replica group"),
        dict.fromkeys(ESTIMATES, False),
    ),
)


def main(folder: Path) -> None:
    """Answer the request of a folder."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The exported step has its own types; nothing of it may be narrowed here.
    jax.config.update("jax_enable_x64", True)
    request: Request = decode(Request, parse((folder / REQUEST_FILE).read_bytes()), "")
    start = time.monotonic()
    try:
        answer = _answer(request, folder, start)
    except Exception as error:  # noqa: BLE001 - compilers raise what they like
        answer = _failure(error, time.monotonic() - start)
    write_atomically(folder / ANSWER_FILE, layout(encode(answer)))


def planned_step(artifact: bytes, mesh: Mesh, plan: PlanShardings) -> tuple[Any, list[Any]]:
    """The jitted planned step on a mesh, and its abstract inputs with their shardings."""
    exported = export.deserialize(bytearray(artifact))

    def step(*inputs: Any) -> Any:
        return exported.call(*inputs)

    run = jax.jit(
        step,
        out_shardings=named_shardings(mesh, plan.outputs, plan.hosted_outputs),
        donate_argnums=plan.donated,
        keep_unused=True,  # donation counts all inputs
    )
    inputs = named_shardings(mesh, plan.inputs, plan.hosted_inputs)
    avals = zip(exported.in_avals, inputs, strict=True)
    return run, [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in avals]


def _answer(request: Request, folder: Path, start: float) -> Answer:
    plan = request.shardings
    if request.stages is not None:
        answers = tuple(_stage_programs(request, request.stages, folder))
        seconds = time.monotonic() - start
        return Answer(
            outcome="done", message="", seconds=seconds, memory=None, leaves=(), programs=answers
        )
    mesh = mesh_on(compiler_devices(request.machine), plan.axes, plan.devices)
    run, inputs = planned_step((folder / PLANNED_FILE).read_bytes(), mesh, plan)
    compiled = _compiled(run.lower(*inputs), request)
    if request.run is not None:
        leaves = run_both(compiled, inputs, folder, request.run)
        seconds = time.monotonic() - start
        return Answer(outcome="done", message="", seconds=seconds, memory=None, leaves=leaves)
    seconds = time.monotonic() - start
    program = compiled_proto(compiled)
    if program is not None:
        write_atomically(folder / PROGRAM_FILE, gzip.compress(program, mtime=0))
    memory = _memory(compiled.memory_analysis())
    return Answer(outcome="done", message="", seconds=seconds, memory=memory, leaves=())


def _compiled(lowered: jax.stages.Lowered, request: Request) -> jax.stages.Compiled:
    """The compiled step, without what the GPU compiler fails at (`_RETRIES`)."""
    options = compile_options(request.machine)
    tried = _RETRIES if request.machine.compiler == "gpu" else ()
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            retry = next((r for r in tried if r.failure.search(str(error))), None)
            if retry is None:
                raise
            options |= retry.options
            tried = tuple(r for r in tried if r is not retry)


@dataclass(frozen=True)
class _StageResults:
    """The outputs of a compiled program, as shapes with their shardings; None where that is not
    known, as the compiler refused it.
    """

    number: int
    answer: ProgramAnswer
    outputs: Sequence[jax.ShapeDtypeStruct | None]


def _stage_programs(
    request: Request, stages: StagesRequest, folder: Path
) -> Iterator[ProgramAnswer]:
    """What comes of each program of a pipeline."""
    plan = request.shardings
    machine = request.machine
    devices = [*mesh_on(compiler_devices(machine), plan.axes, plan.devices).devices.flat]
    if machine.compiler == "tpu":
        groups = {stage.devices for stage in stages.pipeline.stages}
        devices = on_own_slices(machine.kind, devices, groups)
    places = stage_places(devices, stages.pipeline)
    done: list[_StageResults] = []
    compiled: dict[Any, _StageResults] = {}
    for number, program in enumerate(stages.programs):
        place = places[program.stage]
        given = [_where_it_lies(each, place, done) for each in program.inputs]
        # Equal programs whose inputs lie alike on devices that lie alike, and whose outputs are to
        # lie alike, are one.
        asked = (program.outputs, program.donated, program.laid_freely)
        key = (program.sha256, _shape(place), tuple(map(_layout, given)), asked)
        if None in given:
            unknown = ProgramAnswer(
                outcome="unknown",
                message="",
                same_as=None,
                memory=None,
                input_bytes=(),
                output_bytes=(),
            )
            results = _StageResults(number, unknown, [None] * len(program.outputs))
        elif key in compiled:
            first = compiled[key]
            again = replace(first.answer, same_as=first.number)
            outputs = [None if x is None else _moved(x, place) for x in first.outputs]
            results = _StageResults(number, again, outputs)
        else:
            results = _stage_program(request, folder, number, program, given, place)
            compiled[key] = results
        done.append(results)
        yield results.answer


def _where_it_lies(
    each: StageInput, place: StagePlace, done: Sequence[_StageResults]
) -> Sharding | Format | None:
    if each.spec is not None:
        return place.split([axes or () for axes in each.spec])
    assert each.made is not None  # noqa: S101 - one of the two is said
    program, output = each.made
    value = done[program].outputs[output]
    if value is None:
        return None
    return value.format if each.received is None else place.received(each.received, value)


def _moved(value: jax.ShapeDtypeStruct, place: StagePlace) -> jax.ShapeDtypeStruct:
    """An output of an equal program, on a stage of its own."""
    assert isinstance(value.sharding, NamedSharding)  # noqa: S101 - others are compiled again
    sharding = NamedSharding(place.mesh, value.sharding.spec)
    laid = Format(value.format.layout, sharding)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=laid)


def _shape(place: StagePlace) -> Any:
    """A stage's mesh, and where its devices lie: the first of them left out of account."""
    # Those of several hosts, or of other rows of a slice, are compiled otherwise.
    first, *_ = place.devices
    lie = [
        (d.process_index - first.process_index, *np.subtract(_coords(d), _coords(first)))
        for d in place.devices
    ]
    return tuple(place.mesh.shape.items()), tuple(lie)


def _coords(device: Any) -> np.ndarray:
    # Of a TPU three numbers; other devices have their number in its place, or nothing.
    return np.atleast_1d(getattr(device, "coords", device.id))


def _layout(laid: Sharding | Format | None) -> Any:
    layout, sharding = (laid.layout, laid.sharding) if isinstance(laid, Format) else (None, laid)
    # What has no name in axes of the mesh is like nothing else.
    return (layout, sharding.spec) if isinstance(sharding, NamedSharding) else object()


def _stage_program(
    request: Request,
    folder: Path,
    number: int,
    program: StageProgram,
    given: Sequence[Any],
    place: StagePlace,
) -> _StageResults:
    artifact, compiled_file = (folder / name for name in stage_files(number))
    exported = export.deserialize(bytearray(artifact.read_bytes()))

    def run(*leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(exported.in_tree, leaves)
        return jax.tree.leaves(exported.call(*args, **kwargs))

    inputs = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s)
        for a, s in zip(exported.in_avals, given, strict=True)
    ]
    wanted = [
        None if spec is None else place.split([axes or () for axes in spec])
        for spec in program.outputs
    ]
    free = set(program.laid_freely)
    laid = [Format(Layout.AUTO, s) if n in free else s for n, s in enumerate(wanted)]
    step = jax.jit(run, out_shardings=laid, donate_argnums=program.donated, keep_unused=True)
    message, memory, shardings = "", None, wanted
    try:
        compiled = _compiled(step.lower(*inputs), request)
    except jax.errors.JaxRuntimeError as error:
        message = _text(error)
        if not _OUT_OF_MEMORY.search(message) or _BUSY.search(message):
            raise
    else:
        proto = compiled_proto(compiled)
        if proto is not None:
            write_atomically(compiled_file, gzip.compress(proto, mtime=0))
        memory = _memory(compiled.memory_analysis())
        formats = jax.tree.leaves(compiled.output_formats)
        # In the order that is everyone's own a value lies as one that says none.
        shardings = [f if n in free else f.sharding for n, f in enumerate(formats)]
    outputs = [
        None if s is None else jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s)
        for a, s in zip(exported.out_avals, shardings, strict=True)
    ]
    answer = ProgramAnswer(
        outcome="out-of-memory" if message else "done",
        message=message,
        same_as=None,
        memory=memory,
        input_bytes=tuple(map(_shard_bytes, inputs)),
        output_bytes=tuple(0 if x is None else _shard_bytes(x) for x in outputs),
    )
    return _StageResults(number, answer, outputs)


def _shard_bytes(value: jax.ShapeDtypeStruct) -> int:
    assert value.sharding is not None  # noqa: S101 - it was made with one
    return math.prod(value.sharding.shard_shape(value.shape)) * value.dtype.itemsize


def compiler_devices(machine: CompilerMachine) -> Sequence[Any]:
    """As many devices as the machine has; to be called before JAX has made any in this process."""
    return _DEVICES[machine.compiler](machine)


def _fake_cpus(machine: CompilerMachine) -> Sequence[Any]:
    jax.config.update("jax_num_cpu_devices", machine.device_count)
    return jax.devices("cpu")[: machine.device_count]


def _gpus(machine: CompilerMachine) -> Sequence[Any]:
    return topologies.get_topology_desc(
        platform="cuda",
        topology_name=machine.kind,
        target_config=gpu_target(machine.kind).text(machine.memory_bytes),
        topology=machine.grid,
    ).devices


def _slice(machine: CompilerMachine) -> Sequence[Any]:
    return slice_devices(machine.kind, machine.device_count)


_DEVICES: Final[Mapping[CompilerName, Callable[[CompilerMachine], Sequence[Any]]]] = {
    "cpu": _fake_cpus,
    "gpu": _gpus,
    "tpu": _slice,
}


def _memory(usage: Any) -> MemoryBytes | None:
    if usage is None:
        return None
    return MemoryBytes(
        arguments=usage.argument_size_in_bytes,
        outputs=usage.output_size_in_bytes,
        aliased=usage.alias_size_in_bytes,
        temporaries=usage.temp_size_in_bytes,
        generated_code=usage.generated_code_size_in_bytes,
    )


def _failure(error: Exception, seconds: float) -> Answer:
    text = _text(error)
    is_compilers = isinstance(error, jax.errors.JaxRuntimeError)
    outcome = "failed"
    if is_compilers and _OUT_OF_MEMORY.search(text):
        outcome = "out-of-memory"
    elif is_compilers and _BUSY.search(text):
        outcome = "busy"
    return Answer(outcome=outcome, message=text, seconds=seconds, memory=None, leaves=())


def _text(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARACTERS]
    # A path in a message may hold bytes that are no UTF-8, which JSON has no place for.
    return text.encode("utf-8", "replace").decode()


def _end_with_parent() -> None:
    # The parent never writes: the read ends when the parent closes the pipe, or is gone.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
