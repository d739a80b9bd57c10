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


def section(heading: str = "") -> str:
    """What is under a heading of the second level; above the first of them for an empty one."""
    parts = re.split(r"^## (.*)\n", README, flags=re.MULTILINE)
    return parts[0] if not heading else parts[parts.index(heading) + 1]


def snippet() -> str:
    """The first Python that the README shows."""
    return next(text for language, text in BLOCK.findall(section()) if language == "python")


def typed(text: str) -> Iterator[Typed]:
    """Commands in the blocks of a part of the README, in order."""
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
    commands = list(typed(section()))
    assert [command.words[:2] for command in commands] == [
        ("python", "train.py"),
        ("automap", "plan"),
        ("automap", "explain"),
    ]
    for command in commands:
        assert settled(run(command.words)) == settled(command.output), command.words
