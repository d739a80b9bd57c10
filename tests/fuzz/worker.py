"""A process that tries inputs: `python -m tests.fuzz.worker FORMAT COUNT SEED FOLDER`.

The input that is tried stands in FOLDER, so that it is known which one ended the process; a line of
JSON says what came of each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
import json
import os
from pathlib import Path
from random import Random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from hypothesis.errors import StopTest

from tests.fuzz import seeds
from tests.fuzz.formats import FORMATS, one_parser


HANG_SECONDS = 20
MOST_BYTES = 4 * 2**30
INPUT = "input"


@dataclass(frozen=True)
class Tried:
    """What came of an input; `failure` is "" for one that was refused or accepted."""

    outcome: str
    seconds: float
    failure: str


class Hang(BaseException):
    """An input took longer than `HANG_SECONDS`."""


def try_inputs(name: str, count: int, number: int, folder: Path) -> Iterator[Tried]:
    """What comes of `count` inputs of a format; equal numbers make equal inputs."""
    made = FORMATS[name]
    found: list[Tried] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def each(random: Random) -> None:
        found.append(_tried(made.make, made.use, random, folder))

    each()
    return iter(found)


def _tried(make: Any, use: Any, random: Random, folder: Path) -> Tried:
    content = make(random)
    (folder / INPUT).write_bytes(content)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / INPUT
        path.write_bytes(content)
        try:
            with _limited():
                outcome, failure = use(path, random), ""
        except StopTest:  # Hypothesis' own: an input drew more than it gives, and is left out
            raise
        except Hang:
            outcome, failure = "failed", f"over {HANG_SECONDS} s: {_where(sys.exc_info()[1])}"
        except BaseException as error:  # noqa: BLE001 - this is what is looked for
            outcome, failure = "failed", f"{type(error).__name__} at {_where(error)}: {error}"[:400]
    tried = Tried(outcome, time.monotonic() - start, failure)
    if failure:
        shutil.copy(folder / INPUT, folder / f"failed-{abs(hash(content)) % 10**10}")
    _say(tried)
    return tried


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _where(error: BaseException | None) -> str:
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    own = [f for f in frames if "/fuzz/" not in f.filename]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(own[-3:]))


def _say(tried: Tried) -> None:
    os.write(3, (json.dumps(asdict(tried)) + "\n").encode())


def main(name: str, count: int, number: int, folder: Path) -> None:
    """Try inputs, and say what came of each on descriptor 3."""
    # A little above what counts as a failure, so that the peak is seen and the machine spared.
    resource.setrlimit(resource.RLIMIT_AS, (2 * MOST_BYTES, 2 * MOST_BYTES))
    seeds.plans()  # what a search compiles is compiled before an input has to wait for it
    with one_parser():
        list(try_inputs(name, count, number, folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    os.write(3, (json.dumps({"peak_bytes": peak}) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
