"""The group of commands: errors made on purpose -> one message and their exit status."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click

from automap.errors import AutomapError


# As a shell reports a process that SIGINT ended.
_INTERRUPTED = 130

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Group(click.Group):
    """Turns the errors made on purpose into one message and their exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except AutomapError as error:
            click.echo(f"automap: {error}", err=True)
            ctx.exit(error.exit_status)
        except KeyboardInterrupt:
            click.echo("automap: interrupted before there was a result", err=True)
            ctx.exit(_INTERRUPTED)


class Command(click.Command):
    """A command whose help ends with examples, and whose module is imported when it runs."""

    def __init__(
        self,
        name: str,
        *,
        runs: str,
        summary: str,
        details: Sequence[str] = (),
        examples: Sequence[str],
        params: Sequence[click.Parameter],
    ) -> None:
        """`runs` names the module whose `run` takes the values of `params` as keywords.

        `summary` is the line in the list of commands, `details` are further paragraphs of its own help.
        """
        super().__init__(
            name,
            callback=run_of(runs),
            params=list(params),
            help="\n\n".join((summary, *details)),
            short_help=summary,
            epilog="\b\nExamples:\n" + "\n".join(f"  $ {example}" for example in examples),
            context_settings=CONTEXT_SETTINGS,
        )


def run_of(module: str) -> Callable[..., Any]:
    """`run` of a module that is imported at the call."""

    def run(**given: Any) -> Any:
        return import_module(module).run(**given)

    return run
