"""Random programs over all rule families under random decisions, on eight CPU devices.

    python -m scripts.random_programs -n 2000 -o docs/reports/random_programs.md

Each program is planned with random classes on random axes, checked
(`tests/automap/runtime/test_random_programs.py`: legal shardings, local bytes and FLOPs by brute
force), run sharded, and compared with one device. With `-o` the table of that file is replaced.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import multiprocessing
from multiprocessing.connection import Connection
import os
from pathlib import Path
import platform
from random import Random

import click
import jax
from rich.progress import track

from scripts.tables import made_by, markdown, replace_table


DEVICES = 8
# Programs per process: XLA keeps what it compiled.
CHUNK = 50
# After which a program is given up.
MOST_SECONDS = 300
COMMAND = "python -m scripts.random_programs -n {count} -o docs/reports/random_programs.md"


@dataclass(frozen=True)
class Result:
    """One seed: the families of its steps, why XLA could not compile it, what was wrong."""

    seed: int
    families: tuple[str, ...]
    refused: str | None
    failure: str | None


def _check_all(seeds: list[int], results: Connection) -> None:
    """Check the programs of some seeds in this process; each result is sent when it is there."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    from tests.automap.runtime.test_random_programs import MOST_STEPS, check
    from tests.random_programs import random_program

    for seed in seeds:
        families = random_program(Random(seed), MOST_STEPS).families
        refused = failure = None
        try:
            refused = check(seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table is for
            failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        results.send(Result(seed, families, refused, failure))


def run(seeds: range) -> list[Result]:
    """Check some seeds in a process of their own; one that ends it is a failure, and the rest goes
    on.
    """
    context = multiprocessing.get_context("spawn")
    # A program that ends the process is a result; the ones after it go on in a new one.
    left, results = list(seeds), []
    while left:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_check_all, args=(left, sender))
        process.start()
        sender.close()
        reason = "the process ended"
        try:
            while len(results) < len(seeds):
                if not receiver.poll(MOST_SECONDS):
                    reason = f"not done after {MOST_SECONDS} s"
                    break
                results.append(receiver.recv())
        except EOFError:
            pass
        process.kill()
        process.join()
        done = {result.seed for result in results}
        left = [seed for seed in left if seed not in done]
        if left:
            results.append(Result(left.pop(0), (), None, reason))
    return results


def report(results: list[Result], command: str) -> str:
    """Totals, failures, and how often each family was in a program."""
    failed = [r for r in results if r.failure]
    refused = Counter(r.refused for r in results if r.refused)
    steps = sum(len(r.families) for r in results)
    lines = [
        f"{len(results) - len(failed) - refused.total()} of {len(results)} programs with {steps} "
        f"steps are right; {len(failed)} are wrong.\n",
        *(f"{n} could not be compiled: {reason}.\n" for reason, n in refused.items()),
        *(f"\nseed {r.seed}: {r.failure}\n" for r in failed),
    ]
    counts = Counter(name for r in results for name in r.families)
    rows = [[name, str(n)] for name, n in sorted(counts.items())]
    machine = f"jax {jax.__version__}, {platform.machine()} CPU with {DEVICES} devices"
    return made_by(command, machine) + "".join(lines) + "\n" + markdown(["family", "steps"], rows)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-n", "count", default=2000, show_default=True, help="programs, with seeds from 0")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(count: int, output: Path | None) -> None:
    """Run the programs."""
    chunks = [range(a, min(a + CHUNK, count)) for a in range(0, count, CHUNK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [
            r for chunk in track(pool.map(run, chunks), "running", len(chunks)) for r in chunk
        ]
    table = report(results, COMMAND.format(count=count))
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table)


if __name__ == "__main__":
    main()
