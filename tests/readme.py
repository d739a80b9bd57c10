"""What the README shows, as data: its first snippet, and what is typed and printed below it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
import re
import shlex


README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Typed:
    """A command after `$ ` and what is printed until the next."""

    words: tuple[str, ...]
    output: str


def snippet() -> str:
    """The program that the README shows whole."""
    programs = (text for language, text in BLOCK.findall(README) if language == "python")
    return next(text for text in programs if "__main__" in text)


def run_elsewhere() -> str:
    """The program of the README that runs a plan file in another process."""
    programs = (text for language, text in BLOCK.findall(README) if language == "python")
    return next(text for text in programs if "Plan.load" in text)


def typed(text: str) -> Iterator[Typed]:
    """Commands in the blocks of a page, in order."""
    for language, block in BLOCK.findall(text):
        if language == "":
            for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, output = command.partition("\n")
                yield Typed(tuple(shlex.split(line, comments=True)), output)


def settled(text: str) -> str:
    """A text without how long its search took and how much it tried, and without empty lines at its
    ends.
    """
    return re.sub(r"(found by [\w-]+ in) [\d.]+ [mu]?s, \d+", r"\1 ..., ...", text).strip()


def check_first_steps(folder: Path, run: Callable[[tuple[str, ...]], str]) -> None:
    """Do in an empty folder what the README begins with; `run` makes a command's output."""
    (folder / "train.py").write_text(snippet())
    commands = list(typed(README))
    assert [command.words[:2] for command in commands] == [
        ("python", "train.py"),
        ("automap", "plan"),
        ("automap", "explain"),
    ]
    for command in commands:
        assert settled(run(command.words)) == settled(command.output), command.words
