"""The `automap` command: `main` is the group of all commands, which `automap.__main__` starts.

    commands    every command as data: its options, its help with examples, the module that runs it
    parameters  kinds of values, and the options of every command
    group       errors made on purpose -> one message and an exit status
    run/        what each command does, imported when it is called

The first three import click and names alone, so that help, version and completion answer at once.
"""

from automap.cli.commands import main as main
