"""Runs the code that pages of the documentation show, in order, and holds what it prints against
what the page shows below it.

    python -m tests.pages FOLDER PAGE...

A Python block that begins with `# name.py` is written to that file; all others of a page are one
session. A block without a language is what the Python block above it prints or, if it begins with
`$`, commands and their output, which is not compared where the page shows none. Blocks of any other
language are not run. All pages run in one process and one folder, each in a session of its own.
"""

from contextlib import chdir, redirect_stdout
import io
import os
from pathlib import Path
import re
import sys
from typing import Any

from click.testing import CliRunner
import jax

from automap.cli.commands import main as automap_command
from tests.readme import BLOCK, settled, typed


# Another JAX has other steps for the same functions, as the derivative of tanh in 0.12.
_JAX_OF_PAGES = "0.10."
_NUMBER = re.compile(r"\d[\d,.]*")
_FILE = re.compile(r"# (\w+\.py)\n")


def run_page(page: Path, folder: Path) -> None:
    """Run what a page shows in a folder; raises `AssertionError` where it shows something else."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for language, block in BLOCK.findall(page.read_text()):
        if language == "python":
            file = _FILE.match(block)
            if file is None:
                printed = _printed(block, names)
            else:
                (folder / file[1]).write_text(block)
        elif not language and block.startswith("$ "):
            for command in typed(f"```\n{block}```"):
                got = _output(command.words)
                assert not command.output.strip() or _equal(got, command.output), got
        elif not language:
            assert _equal(printed, block), printed


def _printed(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "a block of the page", "exec"), names)
    return out.getvalue()


def _output(words: tuple[str, ...]) -> str:
    """What a command of automap prints, run in this process, where JAX is loaded already."""
    assert words[0] == "automap", words
    run = CliRunner().invoke(automap_command, words[1:])
    assert run.exit_code == 0, run.output
    return run.stdout


def _equal(got: str, shown: str) -> bool:
    """Whether a page shows what is printed; by another JAX than its own, up to the numbers."""
    if jax.__version__.startswith(_JAX_OF_PAGES):
        return settled(got) == settled(shown)
    return _NUMBER.sub("0", settled(got)) == _NUMBER.sub("0", settled(shown))


def main() -> None:
    """Run the pages of the command line."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    with chdir(folder):
        for page in sys.argv[2:]:
            run_page(Path(page), folder)


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    main()
