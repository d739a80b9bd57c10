"""Planners that are ended at random moments, and many at once with one cache: what is lost, and
what is left behind.

    kill         SIGKILL: the plan file is the old one or the new one, whole
    verify       the same, while a compiler runs in a process of its own
    terminate    SIGTERM: status 143, or 0 with a plan
    interrupt    SIGINT: status 130, or 0 with a plan
    cache        eight processes plan one step with one cache, and half of them are killed: the
                 others have equal plans

Each run has folders of its own for the plan, the cache and temporary files; what is in them
afterwards, and which processes of it still run, is counted. Moments are uniform over 1.8 times what
a run takes that is left alone.

Python itself starts before the first line of the command; what SIGINT and SIGTERM do until then is
counted apart. That line has run when the process catches SIGTERM, which Python by itself does not.

    python -m scripts.end_planners -o docs/reports/trust.md
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
import os
from pathlib import Path
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Final, Literal

import click

from automap.api.plan import Plan
from automap.errors import PlanError
from scripts.tables import made_by, markdown, replace_table


Way = Literal["kill", "verify", "terminate", "interrupt"]
SIGNALS: Final[dict[Way, signal.Signals]] = {
    "kill": signal.SIGKILL,
    "verify": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
}
ROOT: Final = Path(__file__).resolve().parents[1]
# Small, so that a run takes seconds and the moments fall on all parts of it.
_TARGET: Final = ("tests.steps:decoder", "--topology", "cpu:4", "--budget", "2")
_TOGETHER: Final = 8
# Of the time of a planner that is left alone; together they take longer.
_SPREAD: Final = 1.8
# A planner that is still there so long after its signal has not heard it.
_LATE_SECONDS: Final = 60.0
# Children of a killed planner end when their pipe does, which takes them a moment.
_GONE_SECONDS: Final = 20.0
RUNS: Final[dict[Way, int]] = {"kill": 140, "verify": 60, "terminate": 30, "interrupt": 60}
TOO_EARLY: Final = "before its first line"
_CACHED: Final = """
import hashlib, sys
import automap
from tests.steps import decoder
step, args = decoder()
plan = automap.parallelize(step, topology="cpu:4", budget=2, cache_dir=sys.argv[1]).plan_for(*args)
decided = plan.mesh, plan.inputs, plan.outputs, plan.constraints, plan.predicted
print(hashlib.sha256(repr(decided).encode()).hexdigest())
"""


@dataclass
class Outcomes:
    """What came of the runs of one way; `slowest_seconds` is from the signal to the end."""

    runs: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    files_left: list[str] = field(default_factory=list)
    processes_left: int = 0
    slowest_seconds: float = 0.0

    def row(self, name: str) -> list[str]:
        """A row of the table."""
        how = ", ".join(f"{text}: {count}" for text, count in sorted(self.ended.items()))
        slowest = f"{self.slowest_seconds:.1f}" if self.slowest_seconds else "not measured"
        return [
            name,
            str(self.runs),
            how,
            str(len(self.lost)),
            str(len(self.files_left)),
            str(self.processes_left),
            slowest,
        ]


HEADER: Final = [
    "what ends it",
    "runs",
    "how it ended",
    "plans lost",
    "files left",
    "processes left",
    "slowest end, s",
]


def ended(way: Way, moments_seconds: Sequence[float], workers: int) -> Outcomes:
    """Planners that get the signal of a way, one at each moment after their start."""
    outcomes = Outcomes()
    # A shell has its background ignore SIGINT, which planners would inherit; what is caught is not
    # inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadPoolExecutor(workers) as pool:
        for one in pool.map(lambda moment: _ended_once(way, moment), moments_seconds):
            outcomes.runs += 1
            outcomes.ended.update(one.ended)
            outcomes.lost += one.lost
            outcomes.files_left += one.files_left
            outcomes.processes_left += one.processes_left
            outcomes.slowest_seconds = max(outcomes.slowest_seconds, one.slowest_seconds)
    return outcomes


def undisturbed_seconds(way: Way, workers: int) -> float:
    """How long planners take that are left alone, as many at once as there are workers."""
    start = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        for once in pool.map(lambda _: _ended_once(way, None), range(workers)):
            if once.lost or once.ended != Counter({"done": 1}):
                raise click.ClickException(f"a planner that is left alone fails: {once}")
    return time.monotonic() - start


def _ended_once(way: Way, moment_seconds: float | None) -> Outcomes:
    outcomes = Outcomes(runs=1)
    with _folders() as folders:
        plan = folders["plan"] / "plan.json"
        # A plan that is there already: after a kill it must be whole, or the new one.
        plan.write_text(_OLD)
        with _planner(way, folders) as process:
            start = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment_seconds)
            asked = time.monotonic()
            # Asked before the signal: afterwards the answer may be that of a process that is
            # ending.
            has_begun = process.poll() is not None or _catches_termination(process.pid)
            process.send_signal(SIGNALS[way])
            try:
                _, said = process.communicate(timeout=_LATE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                _, said = process.communicate()
                outcomes.ended["did not hear it"] += 1
            else:
                is_counted = has_begun or SIGNALS[way] == signal.SIGKILL
                outcomes.ended[_ending(process.returncode, said) if is_counted else TOO_EARLY] += 1
            outcomes.slowest_seconds = time.monotonic() - max(asked, start)
        # Counted before the folders go, whose name is how a run's processes are known.
        outcomes.processes_left = _processes_left(folders["temporary"])
        if problem := _problem(plan, process.returncode):
            outcomes.lost.append(f"{problem} {moment_seconds} s: {said[-2000:]}")
        outcomes.files_left = _left(folders, plan)
    return outcomes


def _catches_termination(pid: int) -> bool:
    """Whether the command's first line has run, by the mask of signals that a process handles."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _planner(way: Way, folders: dict[str, Path]) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "automap",
        "plan",
        *_TARGET,
        "-o",
        str(folders["plan"] / "plan.json"),
    ]
    if way == "verify":
        command += ["--verify", "--verify-top", "2", "--cache-dir", str(folders["cache"])]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(folders),
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _environment(folders: dict[str, Path]) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": str(folders["temporary"]),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }


def _ending(status: int, said: str) -> str:
    if "Traceback" in said:
        return "a traceback"
    if status == 0:
        return "done"
    return f"signal {-status}" if status < 0 else f"status {status}"


def _problem(plan: Path, status: int) -> str:
    """What is wrong with the plan file: one that is neither the old nor a new one, or the old one
    after success.
    """
    try:
        target = Plan.load(plan).workload.target
    except PlanError as error:
        return f"{error} after"
    if status == 0 and target == "old":
        return "a success without a plan after"
    return ""


def _processes_left(temporary: Path) -> int:
    """How many processes still have the folder of a planner in their command or environment."""
    end = time.monotonic() + _GONE_SECONDS
    while (count := sum(1 for _ in _processes_using(temporary))) and time.monotonic() < end:
        time.sleep(0.1)
    return count


def _processes_using(temporary: Path) -> Iterator[int]:
    wanted = f"TMPDIR={temporary}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)


def _left(folders: dict[str, Path], *expected: Path) -> list[str]:
    """Files that are no plan, and in the cache no entry that another planner could use."""
    # Whole entries are what a cache is for; only half-written files count as left.
    entries = {*folders["cache"].glob("*.json"), *folders["cache"].glob("*.pb.gz")}
    files = (path for folder in folders.values() for path in folder.rglob("*"))
    return [path.name for path in files if path not in {*expected, *entries}]


class _folders:
    """The folders of one run, removed after it."""

    def __enter__(self) -> dict[str, Path]:
        self._root = tempfile.TemporaryDirectory(prefix="end-planners-")
        folders = {name: Path(self._root.name) / name for name in ("plan", "cache", "temporary")}
        for folder in folders.values():
            folder.mkdir()
        return folders

    def __exit__(self, *_: object) -> None:
        self._root.cleanup()


def cached_together(rounds: int, random_moments: random.Random, seconds: float) -> Outcomes:
    """Rounds of eight planners with one cache, half of which are killed; those left alone must have
    equal plans.
    """
    outcomes = Outcomes()
    for number in range(rounds):
        with _folders() as folders:
            together = [_cached(folders) for _ in range(_TOGETHER)]
            start = time.monotonic()
            moments = sorted(
                (random_moments.uniform(0, seconds * _TOGETHER / 2), process)
                # Nobody in the first round: all eight must agree when none is disturbed.
                for process in together[:: 2 if number else _TOGETHER + 1]
            )
            for moment, process in moments if number else ():
                time.sleep(max(start + moment - time.monotonic(), 0.0))
                process.kill()
            texts = [process.communicate()[0] for process in together]
            for process in together:
                outcomes.ended[_ending(process.returncode, "")] += 1
                if process.returncode > 0:
                    outcomes.lost.append(f"status {process.returncode}")
            outcomes.runs += len(together)
            # Equal plans have equal hashes, whoever made the entry.
            alone = {t for t, p in zip(texts, together, strict=True) if p.returncode == 0}
            entries = list(folders["cache"].glob("*.json"))
            if len(alone) > 1 or len(entries) > 1:
                outcomes.lost.append(f"{len(alone)} plans, {len(entries)} entries")
            outcomes.lost += [str(p.name) for p in entries if _problem(p, 1)]
            outcomes.files_left += _left(folders)
            outcomes.processes_left += _processes_left(folders["temporary"])
    return outcomes


def _cached(folders: dict[str, Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CACHED, str(folders["cache"])],
        cwd=ROOT,
        env=_environment(folders),
        text=True,
        stdout=subprocess.PIPE,
    )


_OLD: Final = (
    (ROOT / "tests/automap/plan/plan_sample.json")
    .read_text()
    .replace('"target": "models.mlp:small"', '"target": "old"')
)


@click.command()
@click.option("--share", default=1.0, show_default=True, help="of the runs of each way")
@click.option("--rounds", default=9, show_default=True, help="of eight planners with one cache")
@click.option("--workers", default=2, show_default=True, help="planners at the same time")
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False))
def main(share: float, rounds: int, workers: int, seed: int, output: Path | None) -> None:
    """End planners and count what is lost and left."""
    moments = random.Random(seed)
    given = f"--share {share:g} --rounds {rounds}"
    command = f"python -m scripts.end_planners {given} -o docs/reports/trust.md"
    made = made_by(command, f"{platform.machine()}, {os.cpu_count()} cores")
    rows: list[list[str]] = []

    def record(name: str, outcomes: Outcomes) -> None:
        """Write down the table so far, as the whole takes half an hour."""
        for problem in (*outcomes.lost, *outcomes.files_left):
            click.echo(problem, err=True)
        rows.append(outcomes.row(name))
        click.echo(rows[-1])
        if output is not None:
            replace_table(output, made + markdown(HEADER, rows), "ended planners")

    seconds = 0.0
    for way, runs in RUNS.items():
        seconds = undisturbed_seconds(way, workers)
        drawn = [moments.uniform(0, _SPREAD * seconds) for _ in range(round(share * runs))]
        name = f"{SIGNALS[way].name}" + ", with --verify" * (way == "verify")
        record(name, ended(way, drawn, workers))
    together = cached_together(rounds, moments, seconds)
    record("eight with one cache, half of them killed but in the first round", together)


if __name__ == "__main__":
    main()
