"""The code of the documentation's pages runs, and prints what they show."""

import os
from pathlib import Path
import subprocess
import sys

import pytest

from tests.readme import BLOCK


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
    "how-to/custom-calls.md",
    "how-to/hlo.md",
    "how-to/move-in.md",
)


# Each in a process of its own on a processor that is one device, as whoever reads that page alone
# has it: nothing that an earlier page has set helps.
ALONE = ("how-to/cache.md", "how-to/pipelines.md")
# The README's sketch, whose program is run by `tests/test_readme.py`; and XLA's errors, each with a
# test that the page names.
NOT_RUN = {"index.md", "reports/partitioner.md"}


def test_pages_print_what_they_show(tmp_path):
    run_pages(PAGES, tmp_path, ROOT)


@pytest.mark.parametrize("page", ALONE)
def test_a_page_needs_nothing_but_the_train_py_that_it_names(page, tmp_path):
    tutorial = (ROOT / "docs" / PAGES[0]).read_text()
    program = next(block for _, block in BLOCK.findall(tutorial) if block.startswith("# train.py"))
    (tmp_path / "train.py").write_text(program)
    run_pages((page,), tmp_path, ROOT)


def test_the_page_of_the_agents_prints_what_it_shows(tmp_path, built):
    """With what a wheel installs, in which `rl` is inside of automap."""
    pytest.importorskip("torch")
    run_pages(("how-to/agents.md",), tmp_path, built, ROOT)


def test_every_page_with_code_is_run():
    shown = {
        str(page.relative_to(ROOT / "docs"))
        for page in (ROOT / "docs").rglob("*.md")
        if any(language == "python" for language, _ in BLOCK.findall(page.read_text()))
    }
    assert shown - {*PAGES, *ALONE, "how-to/agents.md"} == NOT_RUN


def run_pages(pages: tuple[str, ...], folder: Path, *paths: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.pages", str(folder), *(ROOT / "docs" / p for p in pages)],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


# Commands of the clone's own models: page, what is planned, a budget that the search does not need.
OF_MODELS = {
    "how-to/fit.md": (
        "models.llama:llama_8b --arg batch=8 --arg seq=4096 --arg dtype=bfloat16 --topology 8xh100 "
        "--levers none",
        "automap: no plan fits",
    ),
    "how-to/memory.md": (
        "models.gpt:gpt_tiny --arg batch=512 --arg layers=scanned --topology v5e:2x2 "
        "--memory-limit 0.03",
        "  rematerialization of",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", OF_MODELS)
def test_what_pages_show_of_models_is_what_is_planned(page):
    words, beginning = OF_MODELS[page]
    text = (ROOT / "docs" / page).read_text()
    assert words in text
    (shown,) = (block for _, block in BLOCK.findall(text) if block.startswith(beginning))
    run = subprocess.run(
        [sys.executable, "-m", "automap", "plan", *words.split(), "--budget", "300"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = run.stdout + run.stderr
    # A list that goes on is cut where the page has dots.
    missing = [line for line in shown.splitlines() if line.removesuffix(", ...") not in printed]
    assert not missing, printed
