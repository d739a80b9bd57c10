"""The fuzzer: `make fuzz`, or `python -m tests.fuzz [--inputs N] [--format NAME]... [-o FILE]`.

Each format's inputs are tried by workers (`worker.py`), some hundreds by each; one that ends before
its time is a failure, and the next goes on. Inputs that failed are kept in a folder, to be tried
again and to become tests.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
import json
import os
from pathlib import Path
import platform
import select
import subprocess
import sys
import tempfile
import time

import click

from tests.fuzz.formats import FORMATS
from tests.fuzz.worker import HANG_SECONDS, INPUT, MOST_BYTES, Tried


CHUNK = 500
# A worker starts, and makes its seeds, in this time.
START_SECONDS = 600
# An input is answered in this time; a worker ends what hangs in Python by itself.
PATIENCE_SECONDS = 120
DEVICES = "--xla_force_host_platform_device_count=4"


@dataclass
class Result:
    """What came of one format's inputs."""

    name: str
    tried: list[Tried] = field(default_factory=list)
    peak_bytes: int = 0

    def count(self, outcome: str) -> int:
        """How many inputs came to this."""
        return sum(one.outcome == outcome for one in self.tried)

    @property
    def slowest_seconds(self) -> float:
        """Of all inputs."""
        return max((one.seconds for one in self.tried), default=0.0)

    @property
    def failures(self) -> Counter[str]:
        """What went wrong, and how often."""
        found = Counter(one.failure for one in self.tried if one.failure)
        if self.peak_bytes > MOST_BYTES:
            found[f"the process took {self.peak_bytes} bytes"] += 1
        return found


def run_format(name: str, inputs: int, seed: int, kept: Path) -> Result:
    """Tries inputs of a format until there are so many."""
    result = Result(name)
    while len(result.tried) < inputs:
        count = min(CHUNK, inputs - len(result.tried))
        _run_worker(result, count, seed * 10**6 + len(result.tried), kept)
    return result


def _run_worker(result: Result, count: int, number: int, kept: Path) -> None:
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "wb") as log:
        words = [sys.executable, "-m", "tests.fuzz.worker", result.name, str(count), str(number)]
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" 3>&{writing}', "sh", *words, folder],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writing,),
            env={**os.environ, "XLA_FLAGS": DEVICES, "JAX_PLATFORMS": "cpu"},
        )
        os.close(writing)
        is_done = False
        try:
            for line in _lines(reading):
                row = json.loads(line)
                if "peak_bytes" in row:
                    result.peak_bytes = max(result.peak_bytes, row["peak_bytes"])
                    is_done = True
                else:
                    result.tried.append(Tried(**row))
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            process.kill()
            status = process.wait()
        if not is_done:
            if status == 1:  # an error of the fuzzer itself, as signals and aborts are others
                raise SystemExit((Path(folder) / "log").read_text()[-4000:])
            how = "no answer" if status == -9 else f"the process ended with status {status}"
            result.tried.append(Tried("failed", float(HANG_SECONDS), f"{how}"))
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"{result.name.replace(' ', '-')}-{number}").write_bytes(
                (Path(folder) / INPUT).read_bytes()
            )
        for file in Path(folder).glob("failed-*"):
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"{result.name.replace(' ', '-')}-{file.name}").write_bytes(file.read_bytes())


def _lines(reading: int) -> Iterator[str]:
    """Lines of a pipe until it is closed, or nothing comes for too long."""
    with open(reading, "rb", buffering=0) as pipe:
        rest = b""
        patience_seconds = START_SECONDS
        while select.select([pipe], [], [], patience_seconds)[0]:
            patience_seconds = PATIENCE_SECONDS
            data = pipe.read(2**16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from (line.decode() for line in lines)


def row(result: Result) -> str:
    """A format's row of the table."""
    cells = [
        result.name,
        f"{len(result.tried):,}",
        f"{result.count('refused'):,}",
        f"{result.count('accepted'):,}",
        f"{result.slowest_seconds:.1f}",
        f"{result.peak_bytes / 2**30:.2f}",
        f"{sum(result.failures.values())}",
        f"{date.today()}",
    ]
    return f"| {' | '.join(cells)} |"


def page(rows: Mapping[str, str]) -> str:
    """The page of the documentation, of rows by format."""
    text = Path(__file__).with_name("page.md").read_text()
    cores = len(os.sched_getaffinity(0))
    version = platform.python_version()
    machine = f"{platform.machine()}, {cores} cores, {platform.system()}, Python {version}"
    lines = [rows[name] for name in FORMATS if name in rows]
    return text.format(rows="\n".join(lines), machine=machine)


def rows_of_page(text: str) -> dict[str, str]:
    """The rows of a page that was written before, by format."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return {name: line for line in lines if (name := line.split(" | ")[0][2:]) in FORMATS}


@click.command()
@click.option("--inputs", default=10_000, show_default=True, help="of each format")
@click.option(
    "--format", "names", multiple=True, type=click.Choice(list(FORMATS)), help="default: all"
)
@click.option("--seed", default=0, show_default=True, help="equal seeds make equal inputs")
@click.option(
    "--keep", default="fuzz-failures", show_default=True, help="folder for inputs that failed"
)
@click.option(
    "-o",
    "--output",
    help="write the table here, in Markdown; keeps the rows of formats that are not tried",
)
def main(inputs: int, names: tuple[str, ...], seed: int, keep: str, output: str | None) -> None:
    """Try changed inputs of every format; exit status 1 if something else than a refusal came of
    one.
    """
    is_clean = True
    for name in names or FORMATS:
        start = time.monotonic()
        result = run_format(name, inputs, seed, Path(keep))
        is_clean = is_clean and not result.failures
        click.echo(
            f"{name}: {len(result.tried)} inputs in {time.monotonic() - start:.0f} s, "
            f"{result.count('refused')} refused, {result.count('accepted')} accepted, slowest "
            f"{result.slowest_seconds:.1f} s, peak {result.peak_bytes / 2**30:.2f} GiB, "
            f"{sum(result.failures.values())} failures"
        )
        for failure, count in result.failures.most_common():
            click.echo(f"  {count} x {failure}")
        if output:
            path = Path(output)
            kept = rows_of_page(path.read_text()) if path.exists() else {}
            path.write_text(page(kept | {name: row(result)}))
    sys.exit(not is_clean)


if __name__ == "__main__":
    main()
