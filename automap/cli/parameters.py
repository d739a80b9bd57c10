"""What parameters of commands are made of: kinds of values that complete in a shell, options made
from their description, the two that every command has, and those that several have.
"""

from collections.abc import Callable, Mapping
import os
from pathlib import Path
import textwrap
from typing import Any, Final, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from automap import choices
from automap.choices import Option
from automap.config import TOPOLOGY, described_options
from automap.terminal import VERBOSITY_KEY, Verbosity


# Of lines that click leaves as they are, and sets in by two more.
COLUMNS: Final = 78


class OneOf(click.ParamType):
    """A text that completes to known names; which of them an option allows is checked with the
    others.
    """

    name = "text"

    def __init__(self, *tables: Mapping[str, str]) -> None:
        """Tables of names with a line on each; a name of several has the first one's."""
        # Reversed, so that the first table's line is the one that is left.
        self._lines = {name: line for table in reversed(tables) for name, line in table.items()}

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so."""
        return [
            CompletionItem(name, help=line)
            for name, line in self._lines.items()
            if name.startswith(incomplete)
        ]


class Machine(click.ParamType):
    """A name of the catalogue, which completes to its examples, or a TOML file."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The examples that begin so."""
        # Loads numpy, for which a command line that is read would have to wait.
        from automap.topology import catalogue_entries

        return [
            CompletionItem(entry.example, help=entry.pattern)
            for entry in catalogue_entries()
            if entry.example.startswith(incomplete)
        ]


class WrittenPath(click.Path):
    """Where something is written: below the folder in which the command was started, wherever a
    target goes.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The absolute path."""
        # While the command line is read, before a target changes the folder.
        return super().convert(os.path.abspath(value), param, ctx)


def table(title: str, names: Mapping[str, str]) -> str:
    """A paragraph of help with a line for each name."""
    width = max(map(len, names))
    rows = (
        textwrap.fill(line, COLUMNS, initial_indent=f"  {name:{width}}  ", subsequent_indent=indent)
        for indent in [" " * (width + 4)]
        for name, line in names.items()
    )
    # The control character tells click to leave the lines as they are.
    return "\n".join(("\b", f"{title}:", *rows))


def output(sentence: str) -> click.Option:
    """`-o FILE`; the sentence says what is written there."""
    return click.Option(["-o", "--output"], type=WrittenPath(dir_okay=False), help=sentence)


def flag(option: Option, kind: click.ParamType | None = None) -> click.Option:
    """The option of the command, by default of its own type; its value has the option's name."""
    name = option.flag or f"--{option.name.replace('_', '-')}"
    is_switch = option.type is bool
    # Only these are shown in the help; a default of nothing is said in the sentence.
    has_default = not (is_switch or option.default is None or option.default == ())
    return click.Option(
        [name, option.name],
        type=None if is_switch else kind or _click_type(option),
        # Of an option that is said to be no switch, click takes `-1` for the next option.
        is_flag=is_switch or None,
        multiple=option.is_repeated,
        required=option.is_required,
        metavar=option.metavar,
        help=option.text("command"),
        **({"default": option.default, "show_default": True} if has_default else {}),
    )


def _click_type(option: Option) -> Any:
    # Names complete in a shell and are checked by `Options`, which knows in which space each is
    # allowed.
    if option.choices:
        return OneOf(*(known.names for known in option.choices))
    if get_origin(option.type) is Literal:
        return click.Choice(get_args(option.type))
    # Of a union, as `str | Path | None`, the kind of value that a text on the command line is.
    types = get_args(option.type) or (option.type,)
    if Path in types:
        return click.Path(dir_okay=False)
    if option.is_repeated or str in types:
        return str
    return float if float in types else int


def _choose_verbosity(level: Verbosity) -> Callable[..., None]:
    def choose(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:  # noqa: FBT001
        before = ctx.meta.get(VERBOSITY_KEY, level)
        if is_given and before is not level:
            raise click.UsageError("--quiet and --verbose exclude each other; give one", ctx)
        if is_given:
            # Shared by the contexts of the group and of its commands.
            ctx.meta[VERBOSITY_KEY] = level

    return choose


def verbosity_options() -> tuple[click.Option, ...]:
    """`--quiet` and `--verbose`, which stand before a command's name or behind it."""
    sentences = {
        Verbosity.QUIET: "say nothing on stderr but why there is no result",
        Verbosity.VERBOSE: "say each step of the work, and show whole tracebacks of your code",
    }
    return tuple(
        click.Option(
            [f"-{level.name[0].lower()}", f"--{level.name.lower()}"],
            is_flag=True,
            expose_value=False,
            callback=_choose_verbosity(level),
            # Before the others, whose reading may say something.
            is_eager=True,
            help=sentence,
        )
        for level, sentence in sentences.items()
    )


# Shared by several commands: click's options have no state, so one object may be in many.
TARGET: Final = click.Argument(["target"])
TARGET_OPTION: Final = click.Option(
    ["--target"],
    metavar="TARGET",
    help="what was planned, as `automap plan` takes it; a plan file itself never has code imported "
    "or called",
)
ARGUMENTS: Final = click.Option(
    ["--arg", "arguments"],
    multiple=True,
    metavar="NAME=VALUE",
    help="a parameter of the target function",
)
PLAN_FILE: Final = click.Argument(["plan_file"], type=click.Path())
JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="print JSON")

REPORT: Final = click.Option(
    ["--report"],
    type=WrittenPath(dir_okay=False),
    help="write a page with pictures of the plan here, one file that any browser opens",
)

OPTIONS: Final = {option.name: flag(option) for option in described_options()}
"""Those of `automap.config`, by name."""

WORKLOAD: Final[tuple[click.Parameter, ...]] = (TARGET, flag(TOPOLOGY, Machine()), ARGUMENTS)
"""A step and what it is planned for."""

NUMERICS: Final = (
    click.Option(
        ["--numerics/--no-numerics"], default=True, help="compare with the step on one device"
    ),
    click.Option(
        ["--numerics-limit"],
        default=choices.DEFAULT_NUMERICS_GIB,
        show_default=True,
        help="GiB that both may take on CPU devices",
    ),
)
"""Of what runs the planned step beside the step on one device."""

COMPILING: Final = (
    click.Option(
        ["--timeout"],
        default=choices.DEFAULT_COMPILE_TIMEOUT_SECONDS,
        show_default=True,
        help="seconds for each compilation; all programs of a pipeline are one",
    ),
    click.Option(
        ["--cache-dir"],
        type=WrittenPath(file_okay=False),
        help="the folder where what compilers said is kept",
    ),
    click.Option(
        ["--cache/--no-cache"],
        default=True,
        help="use and keep what compilers said of a plan; plans themselves are not kept",
    ),
)
"""Of what asks a compiler."""
