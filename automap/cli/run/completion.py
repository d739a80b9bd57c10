"""`automap completion`: a shell's name -> the script that asks the command what may come next."""

from importlib.metadata import version

import click
from click.shell_completion import get_completion_class

from automap.errors import InputError
from automap.terminal import say_json


def run(*, shell: str, as_json: bool) -> None:
    """Print the script of one of the shells that click knows."""
    group = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    # The command's own list of shells is click's, so there is always one.
    if kind is None:
        raise InputError(f"shell {shell}: unknown to click {version('click')}; upgrade click")
    source = kind(group.command, {}, "automap", "_AUTOMAP_COMPLETE").source()
    if as_json:
        say_json({"shell": shell, "script": source})
    else:
        click.echo(source)
