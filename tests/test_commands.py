"""Every command of a shell that the README and the pages show is run, as it stands there.

Commands with their output below them are held by `tests/test_pages.py` and `tests/test_readme.py`.
The others run here, those of a page one after the other in one empty folder, in which there is what
the page takes for granted; names that stand for the reader's own (`TARGET`) are replaced.
"""

from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
from typing import Final

import pytest

from tests.readme import BLOCK, snippet
from tests.test_pages import ALONE, PAGES


ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PROGRAMS = ("automap ", "eval ", "make ", "pip ", "python ")
# Of other languages are Python, differences of files, and what commands print.
SHELLS = ("", "sh", "text")


def program_of(page: str) -> str:
    """The file `train.py` that a page shows."""
    blocks = (text for _, text in BLOCK.findall((DOCS / page).read_text()))
    return next(text for text in blocks if text.startswith("# train.py"))


MAXTEXT = "ici_fsdp_parallelism: -1\nici_tensor_parallelism: 4\n"
MEGATRON = "torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --use-distributed-optimizer\n"
LLAMA = "from models.llama import llama_tiny as llama\n"


@dataclass(frozen=True)
class Session:
    """What a page's commands find in their folder, and what they are called with here."""

    files: dict[str, str] = field(default_factory=dict)
    called: dict[str, str] = field(default_factory=dict)
    needs: str = ""


TINY: Final = {"TARGET": "models.gpt:gpt_tiny"}
FORWARD: Final = {"my_model:forward": "models.inception:inception_small_forward"}
SESSIONS = {
    "concepts/placement.md": Session(called={"models.nmt:nmt": "models.nmt:nmt_tiny"}),
    "concepts/streams.md": Session(called=FORWARD),
    "how-to/adopt.md": Session(),
    "how-to/calibrate.md": Session(called={"my_model:train": "models.mlp:mlp_tiny", **FORWARD}),
    "how-to/memory.md": Session(called=TINY),
    "how-to/move-in.md": Session(
        files={"train.py": LLAMA, "config.yml": MAXTEXT, "pretrain.sh": MEGATRON}
    ),
    "how-to/pipelines.md": Session(called={"TARGET": "models.gpt:gpt_tiny --arg batch=64"}),
    "how-to/scripts.md": Session(files={"train.py": snippet()}, needs="jq"),
}
COMPILED = {
    "index.md": Session(files={"train.py": program_of("tutorial.md")}),
    "how-to/refine.md": Session(),
    "how-to/verify.md": Session(),
}
MARKS = {"index.md": pytest.mark.tpu_compiler}
# Installed from a registry: `tests/test_wheel.py` installs what is built here, `make` all of it.
INSTALLS = ("pip ", "python -m venv ")


def commands(page: Path, *, with_output: bool) -> list[str]:
    """Lines that a shell is given, in order; with or without those that show their output."""
    found = []
    for language, block in BLOCK.findall(page.read_text()):
        lines = block.splitlines()
        if language not in SHELLS or not lines:
            continue
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        is_compared = language == "" and bool(typed)
        if with_output or not is_compared:
            found += typed or [line for line in lines if line.startswith(PROGRAMS)]
    return found


def shown(page: str) -> list[str]:
    """Commands of a page that no other test runs."""
    # In pages of code a command is compared with what the page shows below it.
    lines = commands(DOCS / page, with_output=page not in {*PAGES, *ALONE})
    return [line for line in lines if not line.startswith((*INSTALLS, "make "))]


def test_every_command_of_a_page_is_run_by_a_test():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    # Help texts, and the demo, which `tests/test_readme.py` runs.
    pages -= {"reference/command.md", "demo.md"}
    assert {page for page in pages if shown(page)} == {*SESSIONS, *COMPILED}


def test_every_target_of_make_is_there():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    found = {line for page in pages for line in commands(page, with_output=True)}
    found = {line.partition("#")[0].split()[1] for line in found if line.startswith("make ")}
    assert {"demo", "test", "docs", "fuzz"} <= found
    made = subprocess.run(["make", "-n", *found], cwd=ROOT, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()


def _run(page: str, session: Session, folder: Path) -> None:
    own = folder / "bin"
    own.mkdir()
    for name, call in (("automap", "-m automap"), ("python", "")):
        (own / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (own / name).chmod(0o755)
    for name, text in session.files.items():
        (folder / name).write_text(text)
    script = "\n".join(shown(page))
    for words, here in session.called.items():
        assert words in script, f"{page} does not say {words!r}"
        script = re.sub(rf"{re.escape(words)}\b", here, script)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {
        "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        "JAX_PLATFORMS": "cpu",
        # Profiles and witnesses of tests are not the user's.
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{script}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", SESSIONS)
def test_commands_of_a_page_run(page, tmp_path):
    session = SESSIONS[page]
    if session.needs and shutil.which(session.needs) is None:
        pytest.skip(f"{session.needs} is not installed")
    _run(page, session, tmp_path)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=MARKS.get(p, pytest.mark.gpu_compiler)) for p in COMPILED]
)
def test_commands_of_a_page_that_ask_a_compiler_run(page, tmp_path):
    _run(page, COMPILED[page], tmp_path)
