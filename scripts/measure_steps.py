"""Measures whole steps on this machine's first device, and every kernel of them.

    python -m scripts.measure_steps FOLDER --seconds 400

Each case of `scripts.measured_steps` runs in a process of its own. One at a time is timed; others
compile meanwhile, and try kernels on the device for moments, so what is kept is the least of
several short runs. FOLDER gets a row of each (`rows.jsonl`) and its compiled program
(`NUMBER.hlo.xz`), and a second run goes on. `scripts.compare_measured` holds predictions against
them, on any machine.

    in a row   steps that follow each other, each of which takes what the one before left, over
               their number: what a training loop sees
    kernels    from the profiler's trace of three steps: runs in a step by the kernel's name, and
               by the instruction of the compiled program where the trace has it, and the seconds
               of these runs in the fastest step
    span       from the start of a step's first kernel to the end of its last, in that trace

The numbers that a step works on are drawn from a small block, over and over; integers are below
1000. Inputs that a step donates are replaced by outputs of the same shape.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
import fcntl
import json
import lzma
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import click
import jax
from jax.profiler import ProfileData
import numpy as np

from automap.jax_compat import compiled_proto
from scripts.measured_steps import CASES
from scripts.tables import keep_row, kept_rows


_BLOCK: Final = 2**20
_LARGEST_INTEGER: Final = 1000
_TRACED_STEPS: Final = 3
# Steps in a row take about so long, but are at least and at most so many; so often.
_IN_A_ROW_SECONDS: Final = 0.12
_FEWEST, _MOST, _ROWS = 1, 100, 6
# Shorter kernels are counted in the sum only.
_KEPT_SHARE: Final = 0.02
CASE_SECONDS: Final = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel in one step: how often it ran, and the seconds of all its runs."""

    name: str
    instruction: str
    runs: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step; `error` says why there is no more of it, `others_compiled` whether other cases were
    compiled while it was timed.
    """

    name: str
    device: str = ""
    jax_version: str = ""
    measured_on: str = ""
    others_compiled: bool = False
    in_a_row_seconds: float = 0.0
    alone_seconds: float = 0.0
    span_seconds: float = 0.0
    kernel_seconds: float = 0.0
    compiled_bytes: int = 0
    kernels: tuple[Kernel, ...] = ()
    error: str = ""

    @property
    def seconds(self) -> float:
        """Of a step: in a row, or what was least disturbed by others."""
        if not self.others_compiled:
            return self.in_a_row_seconds
        known = (self.in_a_row_seconds, self.span_seconds, self.kernel_seconds)
        return min(seconds for seconds in known if seconds)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Measured":
        """From a line of `rows.jsonl`."""
        return cls(**{**row, "kernels": tuple(Kernel(**k) for k in row["kernels"])})


@contextmanager
def _timing(folder: Path) -> Iterator[None]:
    """While no other process times its case."""
    with (folder / "device.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def measure(number: int, folder: Path) -> Measured:
    """Compiles and runs a case; keeps its program."""
    case = CASES[number]
    step, args = case.load()
    compiled, measured = measured_step(case.name, step, args, folder)
    program = compiled_proto(compiled)
    if program is not None:
        (folder / f"{number}.hlo.xz").write_bytes(lzma.compress(program, preset=1))
    return measured


def measured_step(
    name: str, step: Any, args: Sequence[Any], folder: Path
) -> tuple[jax.stages.Compiled, Measured]:
    """A jitted step with abstract arguments, compiled and timed; one at a time for each folder."""
    lowered: Any = step.lower(*args)
    donated = [info.donated for info in jax.tree.leaves(lowered.args_info)]
    compiled = lowered.compile()
    usage = compiled.memory_analysis()
    loop = _Loop(compiled, args, donated)
    loop.place()
    loop.run(1)
    with _timing(folder):
        alone = [loop.run(1) for _ in range(4)]
        count = int(np.clip(_IN_A_ROW_SECONDS / min(alone), _FEWEST, _MOST))
        in_a_row = min(loop.run(count) / count for _ in range(_ROWS))
        data = _traced(loop)
    kernels, span = _kernels(data)
    return compiled, Measured(
        name=name,
        device=jax.devices()[0].device_kind,
        jax_version=jax.__version__,
        measured_on=str(date.today()),
        in_a_row_seconds=in_a_row,
        alone_seconds=min(alone),
        span_seconds=span,
        kernel_seconds=sum(kernel.seconds for kernel in kernels),
        compiled_bytes=usage.argument_size_in_bytes
        + usage.output_size_in_bytes
        - usage.alias_size_in_bytes
        + usage.temp_size_in_bytes,
        kernels=tuple(k for k in kernels if k.seconds > _KEPT_SHARE * kernels[0].seconds),
    )


class _Loop:
    """Steps that go on with what the one before left."""

    def __init__(self, compiled: Any, args: Sequence[Any], donated: Sequence[bool]):
        self._compiled, self._shapes, self._donated = compiled, args, donated
        self._args: Any = None

    def place(self) -> None:
        """Fill the inputs."""
        self._args = jax.tree.map(_filled, tuple(self._shapes))
        jax.block_until_ready(self._args)

    def run(self, count: int) -> float:
        """Seconds of so many steps."""
        start = time.perf_counter()
        for _ in range(count):
            results = self._compiled(*self._args)
            self._args = self._next(results)
        jax.block_until_ready(results)
        return time.perf_counter() - start

    def _next(self, results: Any) -> Any:
        leaves, tree = jax.tree.flatten(self._args)
        free = defaultdict(list)
        for leaf in reversed(jax.tree.leaves(results)):
            free[leaf.shape, leaf.dtype].append(leaf)
        # A donated input without such an output was not taken, and is still there.
        new = [
            free[leaf.shape, leaf.dtype].pop()
            if is_donated and free[leaf.shape, leaf.dtype]
            else leaf
            for leaf, is_donated in zip(leaves, self._donated, strict=True)
        ]
        return jax.tree.unflatten(tree, new)


def _filled(leaf: Any) -> jax.Array:
    rng = np.random.default_rng(0)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    if jax.numpy.issubdtype(leaf.dtype, np.bool_):
        block = rng.random(_BLOCK) < 0.15
    elif jax.numpy.issubdtype(leaf.dtype, np.integer):
        block = rng.integers(_LARGEST_INTEGER, size=_BLOCK)
    else:
        block = rng.random(_BLOCK, np.float32) * 0.02
    return jax.device_put(np.resize(block.astype(leaf.dtype), leaf.shape))


def _traced(loop: _Loop) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            loop.run(_TRACED_STEPS)
        (found,) = Path(folder).rglob("*.xplane.pb")
        return found.read_bytes()


def _kernels(trace: bytes) -> tuple[tuple[Kernel, ...], float]:
    """Kernels of a step, the longest first, and the span of the fastest step."""
    runs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for plane in ProfileData.from_serialized_xspace(trace).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                instruction = str(dict(event.stats).get("hlo_op", ""))
                start = event.start_ns * 1e-9
                runs[event.name, instruction].append((start, start + event.duration_ns * 1e-9))
    kernels = [
        Kernel(
            name=name,
            instruction=instruction,
            runs=len(found) / _TRACED_STEPS,
            seconds=min(sum(b - a for a, b in step) for step in _steps(found)),
        )
        for (name, instruction), found in runs.items()
    ]
    whole = _steps([run for found in runs.values() for run in found])
    span = min((max(b for _, b in step) - min(a for a, _ in step) for step in whole), default=0.0)
    return tuple(sorted(kernels, key=lambda kernel: -kernel.seconds)), span


def _steps(runs: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Runs by step: as many of each in each step; one step where they are no multiple."""
    ordered, size = sorted(runs), len(runs) // _TRACED_STEPS
    if len(runs) % _TRACED_STEPS or not runs:
        return [ordered] if runs else []
    return [ordered[k : k + size] for k in range(0, len(runs), size)]


def in_process(name: str, words: Sequence[str], seconds: float) -> Measured:
    """A step measured by a process of its own, `python -m` and these words, which prints it."""
    command = [sys.executable, "-m", *words]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if seconds < 1:
        return Measured(name=name, error="no time was left")
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Measured(name=name, error=f"took more than {seconds:.0f} s")
    if done.returncode:
        return Measured(name=name, error=done.stderr.strip()[-400:])
    return Measured.from_row(json.loads(done.stdout.splitlines()[-1]))


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seconds", default=3600.0, help="no case is begun after so long")
@click.option("--processes", default=1, help="how many run at once")
@click.option("--only", type=int, default=None, help="measure the case of this number here")
def main(folder: Path, seconds: float, processes: int, only: int | None) -> None:
    """Measure all cases that are not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if only is not None:
        click.echo(json.dumps(asdict(measure(only, folder))))
        return
    end = time.monotonic() + seconds
    rows = folder / "rows.jsonl"
    known = {row["name"] for row in kept_rows(rows)}
    missing = [number for number, case in enumerate(CASES) if case.name not in known]

    def one(number: int) -> Measured:
        words = ["scripts.measure_steps", str(folder), "--only", str(number)]
        row = in_process(CASES[number].name, words, min(CASE_SECONDS, end - time.monotonic()))
        return replace(row, others_compiled=processes > 1)

    with ThreadPoolExecutor(processes) as pool:
        for row in pool.map(one, missing):
            ms = f"{row.seconds * 1e3:.2f} ms"
            click.echo(f"{row.name}: {row.error or ms}")
            if not row.error:
                keep_row(rows, asdict(row))


if __name__ == "__main__":
    main()
