"""Plans over two processes of four CPU devices: `several.py` has what each of them does and
compares.
"""

from pathlib import Path
import re
import socket
import subprocess
import sys
import time

import pytest


ROOT = Path(__file__).parents[4]
# Of wall time: several times what the cases take where other programs run too.
SECONDS = 100
SLOW_SECONDS = 400


def run_both(cases, folder, seconds, *, is_first_enough=False) -> None:
    """Start both, and end both as soon as one has failed, or when time is up; or when the first is
    done.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    outputs = [folder / f"{n}.txt" for n in range(2)]
    files = [path.open("w") for path in outputs]
    both = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.automap.runtime.pipeline.several",
                address,
                str(n),
                *cases,
            ],
            cwd=ROOT,
            stdout=files[n],
            stderr=subprocess.STDOUT,
        )
        for n in range(2)
    ]
    end = time.monotonic() + seconds
    watched = both[:1] if is_first_enough else both
    try:
        while any(p.poll() is None for p in watched) and not any(p.poll() for p in watched):
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        codes = [p.poll() for p in watched]
    finally:
        for process in both:
            process.kill()
            process.wait()
        for file in files:
            file.close()
    said = "\n".join(f"process {n}:\n{path.read_text()[-3000:]}" for n, path in enumerate(outputs))
    if None in codes and not any(codes):
        pytest.fail(f"not done after {seconds} s\n{said}")
    assert set(codes) == {0}, said
    for path in outputs[: len(watched)]:
        assert re.findall(r"done: (.*?)\.", path.read_text()) == list(cases)


def test_the_decorator_and_what_is_refused(tmp_path):
    run_both(["the decorator", "other plans"], tmp_path, SECONDS)


def test_one_program_over_both(tmp_path):
    run_both(["ZeRO-3", "keys", "other programs"], tmp_path, SECONDS)


@pytest.mark.parametrize(
    "case",
    [
        "one raises",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ("one is killed", "a stage raises", "a stage is killed")
        ),
    ],
)
def test_one_that_ends_is_reported_by_the_other_instead_of_waited_for(case, tmp_path):
    run_both([case], tmp_path, SECONDS, is_first_enough=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        ("searched",),
        ("two stages gpipe", "two stages", "four stages gpipe", "four stages"),
        ("a stage on both", "unequal", "other devices"),
        ("everything", "everything on unequal stages", "born before the plan", "a number as state"),
        ("equal parts of a loop", "unequal parts of a loop"),
        ("tensors and ZeRO-3", "tensors on both"),
        ("a sharded loop", "a sharded loop on both"),
        ("a placement", "a placement in parts", "a decorated placement", "other placements"),
        ("a placed RNNLM", "a placed NMT in parts"),
    ],
    ids=lambda cases: ", ".join(cases),
)
def test_three_steps_equal_those_on_one_device(cases, tmp_path):
    run_both(cases, tmp_path, SLOW_SECONDS)
