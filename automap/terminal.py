"""What is said on a terminal: results on stdout, everything else on stderr.

Names in plans, programs, machines and modules come from files, which may hold what a terminal
obeys: escape sequences, control characters, marks that turn the direction of a line. Everything
that is no visible character is shown as its number                          -> in: `printable`

How much is said beside the result is the command's `--quiet` or `--verbose`, kept in click's
context; in Python it is the level of the logger "automap"                   -> in: `verbosity`

    quiet      errors only
    normal     what was written, warnings, progress
    verbose    every step of the work at once, and whole tracebacks of the user's code
"""

from collections.abc import Mapping
from enum import IntEnum
import json
import logging
import re
from typing import Any, Final

import click


# Most characters are plain ASCII: only the others are asked what they are.
_NOT_PLAIN: Final = re.compile(r"[^\n\t\x20-\x7e]")


class Verbosity(IntEnum):
    """How much a command says on stderr."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


VERBOSITY_KEY: Final = "automap.terminal.verbosity"
"""Where click's context keeps it, for the options that set it."""


def verbosity() -> Verbosity:
    """That of the command which runs; in Python that of the logger's own level."""
    context = click.get_current_context(silent=True)
    if context is not None:
        return context.meta.get(VERBOSITY_KEY, Verbosity.NORMAL)
    # Its own level: the root's is WARNING unless somebody asks, which nobody means for a progress
    # bar.
    level = logging.getLogger("automap").level
    if level > logging.INFO:
        return Verbosity.QUIET
    return Verbosity.VERBOSE if 0 < level <= logging.DEBUG else Verbosity.NORMAL


def printable(text: str) -> str:
    r"""A text with `\x1b` or `\u202e` for each character that is neither visible nor a line break
    or tab.
    """
    return _NOT_PLAIN.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def say_result(text: str) -> None:
    """Print a result; it ends in one line break."""
    click.echo(printable(text.removesuffix("\n")))


def say_json(values: Mapping[str, Any]) -> None:
    """Print JSON, in which everything but DEL is a visible character of ASCII already."""
    # NaN is no JSON: a reader would refuse the file.
    click.echo(json.dumps(values, indent=1, allow_nan=False).replace("\x7f", "\\u007f"))


def say(text: str) -> None:
    """Print a line on stderr, unless it is quiet: what was done, what is waited for, a warning."""
    if verbosity() > Verbosity.QUIET:
        say_error(text)


def say_error(text: str) -> None:
    """Print on stderr why there is no result, however quiet it is."""
    click.echo(printable(text), err=True)
