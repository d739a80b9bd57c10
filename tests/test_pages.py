"""The code of the documentation's pages runs, and prints what they show."""

import os
from pathlib import Path
import subprocess
import sys

import pytest


ROOT = Path(__file__).resolve().parents[1]
# In one process, since most of it imports JAX, and in one folder: later pages have the devices and
# the `train.py` of the first.
PAGES = (
    "tutorial.md",
    "how-to/read-a-plan.md",
    "how-to/choose-a-machine.md",
    "how-to/report.md",
    "how-to/pin.md",
    "how-to/no-cluster.md",
    "how-to/verify.md",
    "how-to/pipelines.md",
    "how-to/custom-calls.md",
    "how-to/cache.md",
    "how-to/hlo.md",
    "how-to/move-in.md",
)


def test_pages_print_what_they_show(tmp_path):
    run_pages(PAGES, tmp_path)


def test_the_page_of_the_agents_prints_what_it_shows(tmp_path):
    pytest.importorskip("torch")
    run_pages(("how-to/agents.md",), tmp_path)


def run_pages(pages: tuple[str, ...], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.pages", str(folder), *(ROOT / "docs" / p for p in pages)],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
