"""Options that several commands share, as data.

Those of a plan are made from their description in `automap.config`    -> in: `flag`
"""

from collections.abc import Mapping
import os
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from automap import choices
from automap.choices import Option
from automap.config import TOPOLOGY, described_options


class OneOf(click.ParamType):
    """A text that completes to known names; which of them an option allows is checked with the
    others.
    """

    name = "text"

    def __init__(self, *tables: Mapping[str, str]) -> None:
        """Tables of names with a line on each; a name of several has the first one's."""
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


class WrittenPath(click.Path):
    """Where something is written: below the folder in which the command was started, wherever a
    target goes.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The absolute path."""
        return super().convert(os.path.abspath(value), param, ctx)


def table(title: str, names: Mapping[str, str]) -> str:
    """A paragraph of help with a line for each name."""
    width = max(map(len, names))
    rows = (f"  {name:{width}}  {line}" for name, line in names.items())
    return "\n".join(("\b", f"{title}:", *rows))


def flag(option: Option) -> click.Option:
    """The option of the command; its value has the option's name."""
    name = option.flag or f"--{option.name.replace('_', '-')}"
    is_switch = option.type is bool
    has_default = not (is_switch or option.default is None or option.default == ())
    return click.Option(
        [name, option.name],
        type=None if is_switch else _click_type(option),
        is_flag=is_switch,
        multiple=option.is_repeated,
        required=option.is_required,
        metavar=option.metavar,
        help=option.text("command"),
        **({"default": option.default, "show_default": True} if has_default else {}),
    )


def _click_type(option: Option) -> Any:
    if option.choices:
        return OneOf(*(known.names for known in option.choices))
    if get_origin(option.type) is Literal:
        return click.Choice(get_args(option.type))
    types = get_args(option.type) or (option.type,)
    if Path in types:
        return click.Path(dir_okay=False)
    if option.is_repeated or str in types:
        return str
    return float if float in types else int


TARGET: Final = click.Argument(["target"])
TARGET_OPTION: Final = click.Option(
    ["--target"],
    metavar="TARGET",
    help="what was planned, as `automap plan` takes it; a plan file itself never has code imported or called",
)
ARGUMENTS: Final = click.Option(
    ["--arg", "arguments"],
    multiple=True,
    metavar="NAME=VALUE",
    help="a parameter of the target function",
)
PLAN_FILE: Final = click.Argument(["plan_file"], type=click.Path())
JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="print JSON")

OPTIONS: Final = {option.name: flag(option) for option in described_options()}
"""Those of `automap.config`, by name."""

WORKLOAD: Final[tuple[click.Parameter, ...]] = (TARGET, flag(TOPOLOGY), ARGUMENTS)
"""A step and what it is planned for."""

COMPILING: Final = (
    click.Option(
        ["--timeout"],
        default=choices.DEFAULT_COMPILE_TIMEOUT_SECONDS,
        show_default=True,
        help="seconds for each compilation",
    ),
    click.Option(
        ["--cache-dir"], type=WrittenPath(file_okay=False), help="where witnesses are kept"
    ),
    click.Option(["--cache/--no-cache"], default=True, help="use and keep witnesses"),
)
"""Of what asks a compiler."""
