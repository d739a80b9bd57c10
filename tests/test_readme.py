"""What the README shows is what happens."""

import os
from pathlib import Path
import subprocess
import sys

import pytest

from tests.readme import (
    BLOCK,
    README,
    check_first_steps,
    run_elsewhere,
    settled,
    snippet,
    typed,
)


ROOT = Path(__file__).resolve().parents[1]
_PROGRAMS = {"python": (sys.executable,), "automap": (sys.executable, "-m", "automap")}


def _output(words: tuple[str, ...], folder: Path, *paths: Path) -> str:
    """Standard output of a command of the README, by these sources, on no particular number of
    devices.
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [*_PROGRAMS[words[0]], *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_first_snippet_and_commands_run_in_an_empty_folder(tmp_path):
    check_first_steps(tmp_path, lambda words: _output(words, tmp_path, ROOT))


@pytest.mark.slow
def test_the_plan_file_runs_in_another_process_on_sixteen_devices(tmp_path):
    """As the README shows it. All rows of its batch are equal, so that a few of them have the same
    mean, and the same gradient.
    """
    (tmp_path / "train.py").write_text(snippet())
    plan = next(command for command in typed(README) if command.words[:2] == ("automap", "plan"))
    _output(plan.words, tmp_path, ROOT)
    check = """
import numpy as np

expected, mean = jax.jit(step)(init(jax.random.key(0)), {k: v[:64] for k, v in batch.items()})
assert len(params["up"].sharding.device_set) == 16, params["up"].sharding
np.testing.assert_allclose(loss, mean, rtol=1e-4)
for name, value in expected.items():
    np.testing.assert_allclose(params[name], value, rtol=1e-4, atol=1e-6)
"""
    (tmp_path / "elsewhere.py").write_text(run_elsewhere() + check)
    _output(("python", "elsewhere.py"), tmp_path, ROOT)


@pytest.mark.slow
def test_the_demo_prints_what_its_page_shows(tmp_path):
    page = (ROOT / "docs/demo.md").read_text()
    (command,) = typed(page)
    assert " ".join(command.words) in (ROOT / "Makefile").read_text()
    assert settled(_output(command.words, tmp_path, ROOT)) == settled(command.output)
    printed = _output(("python", "-m", "examples.train_on_cpu_mesh"), tmp_path, ROOT)
    (table,) = (text for _, text in BLOCK.findall(page) if text.startswith("┏"))
    assert settled(printed).endswith(settled(table))
