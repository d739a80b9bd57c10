"""The group of commands: whatever happens in one -> what it says, and its exit status
(`automap.exit_status`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
import io
import os
import sys
import textwrap
import traceback
from typing import Any, Final
import warnings

import click

from automap.cli.parameters import COLUMNS, verbosity_options
from automap.cli.streams import leave_stdout, own_stdout, without_notices
from automap.errors import AutomapError, CacheWarning
from automap.exit_status import ExitStatus
from automap.interrupts import Terminated, importing, interruptible
from automap.terminal import Verbosity, say, say_error, verbosity
from hlo_tools.collector import collector_paused, skip_final_collection


# Of all commands; click has no default for either that one could change.
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


# Words that one may try for a command; what is only misspelt click finds by itself.
OTHER_NAMES: Final[Mapping[str, str]] = {
    "benchmark": "calibrate",
    "catalogue": "topologies",
    "check": "verify",
    "compile": "verify",
    "diff": "explain",
    "find": "plan",
    "import": "degrees",
    "list": "topologies",
    "machines": "topologies",
    "measure": "calibrate",
    "optimize": "plan",
    "parallelize": "plan",
    "profile": "calibrate",
    "recommend": "advise",
    "run": "simulate",
    "search": "plan",
    "show": "explain",
    "test": "verify",
    "topology": "topologies",
    "trace": "simulate",
    "validate": "verify",
    "view": "explain",
}


class Group(click.Group):
    """Runs a command; click itself would exit with 1 for some of what ends one."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - click's own
        **extra: Any,
    ) -> Any:
        """Run the command line and exit; `args` are None in the process that is the command."""
        # In a process of its own: a test that calls `main` goes on afterwards, and wants its
        # collector back.
        if args is None:
            skip_final_collection()
        try:
            # The streams first, so that what is said of a signal goes where messages go.
            with without_notices(), own_stdout(), interruptible(), warnings.catch_warnings():
                warnings.showwarning = _say_warning(warnings.showwarning)
                status = self._status(args, prog_name, complete_var, extra)
        except KeyboardInterrupt as error:  # before or after `invoke`
            status = _say_interrupted(error)
        if args is None:
            leave_stdout()
        if standalone_mode:
            sys.exit(status)
        return status

    def _status(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> int:
        try:
            # Not standalone: click would print what ends a command and exit by its own numbers.
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()
        except click.ClickException as error:
            text = io.StringIO()
            # With the usage line, as click shows it, but through `say`, which leaves nothing in it
            # that a terminal obeys.
            error.show(text)
            say_error(text.getvalue().rstrip())
            return ExitStatus.BAD_INPUT
        except (
            click.Abort
        ) as error:  # click's for a KeyboardInterrupt while it reads the command line
            return _say_interrupted(error.__cause__)
        except (_NobodyReads, BrokenPipeError):
            _drop_what_is_left()
            return ExitStatus.NOBODY_READS
        # A disk that is full, a terminal that is gone: no error of ours, and no traceback.
        except OSError as error:
            what = error.strerror or str(error)
            say_error(
                f"automap: {what}: {error.filename!r}" if error.filename else f"automap: {what}"
            )
            _drop_what_is_left()
            return ExitStatus.BAD_INPUT
        return status or ExitStatus.DONE

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        """Read the command line; prints help and version."""
        with _closed_pipes():
            return super().make_context(*given, **options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a name; for one that is not there, the one that does what it says."""
        name = args[0] if args else ""
        if name in OTHER_NAMES:
            meant = OTHER_NAMES[name]
            raise click.UsageError(f"No such command {name!r}. Did you mean {meant!r}?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what it raises becomes one message."""
        try:
            with _closed_pipes():
                return super().invoke(ctx)
        except AutomapError as error:
            _say_cause(error)
            say_error(f"automap: {error}")
            ctx.exit(error.exit_status)
        except KeyboardInterrupt as error:
            ctx.exit(_say_interrupted(error))
        # `main` has a message and a status for each of these.
        except (click.ClickException, click.exceptions.Exit, click.Abort, _NobodyReads, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - nothing else may look like a plan that does not fit
            say_error(traceback.format_exc().rstrip())
            say_error(
                f"automap: {type(error).__name__}, which is an error of automap's own; please "
                "report it with these lines, the "
                "command and the files that it read"
            )
            ctx.exit(ExitStatus.INTERNAL_ERROR)


def _say_cause(error: AutomapError) -> None:
    """With --verbose the whole traceback of what the user's code raised, if that is the reason."""
    if error.__cause__ is not None and verbosity() is Verbosity.VERBOSE:
        say_error("".join(traceback.format_exception(error.__cause__)).rstrip())


def _say_interrupted(error: BaseException | None) -> ExitStatus:
    if isinstance(error, Terminated):
        say_error("automap: ended by SIGTERM")
        return ExitStatus.TERMINATED
    say_error("automap: interrupted before there was a result")
    return ExitStatus.INTERRUPTED


def _say_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Warnings of this package as a line, others as they are."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, CacheWarning):
            say(f"automap: warning: {message}")
        else:
            otherwise(message, category, *where, **more)

    return show


class _NobodyReads(Exception):
    """A closed pipe, by a name for which click does not exit with 1."""


@contextmanager
def _closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _NobodyReads from error


def _drop_what_is_left() -> None:
    """Have nothing written to a standard output that takes nothing, also not when the interpreter
    ends.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return
    # The interpreter flushes stdout when it ends, and would print an exception then.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


class Command(click.Command):
    """A command whose help has examples after its options, then what options may name, and whose
    module is imported when it runs.
    """

    def __init__(
        self,
        name: str,
        *,
        summary: str,
        details: Sequence[str] = (),
        examples: Sequence[str],
        params: Sequence[click.Parameter],
        tables: Sequence[str] = (),
    ) -> None:
        """`run` of `automap.cli.run.NAME` takes the values of `params` as keywords.

        `summary` is the line in the list of commands, `details` are further paragraphs of its own
        help, `tables` of what its options may name (`automap.cli.parameters.table`).
        """
        example_lines = "\b\nExamples:\n" + "\n".join(map(_example, examples))
        super().__init__(
            name,
            callback=deferred_run(f"automap.cli.run.{name}"),
            params=[*params, *verbosity_options()],
            help="\n\n".join((summary, *details)),
            short_help=summary,
            epilog="\n\n".join((example_lines, *tables)),
            context_settings=CONTEXT_SETTINGS,
        )


def _example(words: str) -> str:
    """A command on as many lines as it needs, as a shell takes it."""
    lines = textwrap.wrap(words, COLUMNS - 6, break_long_words=False, break_on_hyphens=False)
    return "  $ " + " \\\n      ".join(lines)


def deferred_run(module: str) -> Callable[..., Any]:
    """`run` of a module that is imported at the call."""

    def run(**given: Any) -> Any:
        # A signal in the middle of an import ends the process at once: see `automap.interrupts`.
        # Modules stay: looking for garbage among them finds none.
        with importing(), collector_paused():
            run_given = import_module(module).run
        return run_given(**given)

    return run
