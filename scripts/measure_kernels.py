"""Measures kernels one by one on this machine's first device.

    python -m scripts.measure_kernels FOLDER --seconds 400

Each case of `scripts.kernel_cases` runs by itself, some times under the profiler; FOLDER gets a row
of each (`rows.jsonl`), with the seconds of its kernels in the fastest step, copies left out, and a
second run goes on. `scripts.compare_kernels` holds predictions against them, on any machine.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
import time
from typing import Any

import click
import jax

from scripts.kernel_cases import CASES
from scripts.measure_steps import Kernel, measured_step
from scripts.tables import keep_row, kept_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernels:
    """Seconds of a case's kernels, and of each by its name."""

    name: str
    device: str
    jax_version: str
    measured_on: str
    seconds: float
    kernels: Mapping[str, float]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "MeasuredKernels":
        """From a line of `rows.jsonl`."""
        return cls(**row)


def is_work(kernel: Kernel) -> bool:
    """Whether a kernel is one, and no copy nor fill of the driver's."""
    return not kernel.name.lower().startswith(("memcpy", "memset"))


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seconds", default=3600.0, help="no case is begun after so long")
def main(folder: Path, seconds: float) -> None:
    """Measure all cases that are not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    end, rows = time.monotonic() + seconds, folder / "rows.jsonl"
    known = {row["name"] for row in kept_rows(rows)}
    for case in CASES:
        if case.name in known or time.monotonic() > end:
            continue
        step = jax.jit(case.step, donate_argnums=case.donated)
        _, measured = measured_step(case.name, step, case.args, folder)
        work = [kernel for kernel in measured.kernels if is_work(kernel)]
        row = MeasuredKernels(
            name=case.name,
            device=measured.device,
            jax_version=measured.jax_version,
            measured_on=measured.measured_on,
            seconds=sum(kernel.seconds for kernel in work),
            kernels={kernel.name: kernel.seconds for kernel in work},
        )
        click.echo(f"{row.name}: {row.seconds * 1e6:.1f} us")
        keep_row(rows, asdict(row))


if __name__ == "__main__":
    main()
