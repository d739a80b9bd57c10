"""The reference pages of the docs that are made from the code.

    python -m scripts.write_reference -o docs/reference

command.md      what `automap COMMAND --help` prints, of every command
options.md      the options of a plan, as keywords and on the command line
plan-file.md    every record of a plan file, with its fields and its docstring
plan-1.schema.json
                the JSON Schema of the plan file; the same file is installed with automap.plan

`tests/scripts/test_write_reference.py` writes them again and compares.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
import inspect
import json
from pathlib import Path
import types
import typing
from typing import Any, Final, Literal, get_args, get_origin

import click

from automap.cli.commands import main as automap_command
from automap.cli.parameters import OPTIONS
from automap.config import described_options
from automap.plan.record import FORMAT, VERSION, PlanRecord, plan_schema


HELP_COLUMNS: Final = 100
COMMAND_HEAD: Final = """\
# The command

Made by `python -m scripts.write_reference -o docs/reference` from the command's own help. In a
shell, `automap --help` and `automap COMMAND --help` print the same.

TARGET is `module:function`, where the function returns `(step, args)`, or a path to HLO text, an
HLO proto, StableHLO or a folder of XLA dumps. Results go to standard output; everything else, and
whatever a target prints, to standard error, so that `--json` is JSON.

The first Ctrl-C in a search ends it with the best plan it has, which is written and printed;
before the search, and for the second one, the command ends at once. In Python a search does the
same, and puts your own handler of the signal back. What plan files, targets, shared caches and
signals can and cannot do is told in [trust](../reports/trust.md).
"""
OPTIONS_HEAD: Final = """\
# The options of a plan

Made by `python -m scripts.write_reference -o docs/reference` from their descriptions in
`automap/config.py`. The same names are keywords of `automap.plan` and `automap.parallelize`, and
options of `automap plan`, where a name of several words has hyphens. The machine itself is given
with `topology`.
"""
PLAN_HEAD: Final = f"""\
# The plan file

Made by `python -m scripts.write_reference -o docs/reference` from the records of `automap/plan`.

A plan file is JSON. It begins with `"format": "{FORMAT}"` and `"version": {VERSION}`; its other
fields are those of the first record below. `automap.Plan` has the same fields as attributes:
`plan.mesh.axes`, `plan.inputs[0].spec`, `plan.predicted.peak_bytes`. Loading a file never runs
code, and refuses what is missing, unknown, of another type, out of range or at odds with the
rest, with the field's path.

Inputs and outputs are in flattened argument order. A path is `jax.tree_util.keystr` of the leaf
in the tuple of positional arguments (`[0]['params']['w1']`); that of a keyword argument begins
with its name (`['rng']`). A *spec* has one entry for each dimension: null, or the list of mesh
axes that split it, major first. A name that is a keyword of Python has an underscore behind it
there and none in the file.
"""


SCHEMA_NAME: Final = f"plan-{VERSION}.schema.json"
SHIPPED_SCHEMA: Final = Path(inspect.getfile(PlanRecord)).with_name(SCHEMA_NAME)
"""Beside the records, where an installed automap has it."""


def schema_text() -> str:
    """The schema as a file: a line for each record, so that a change is seen in a few lines."""
    schema = plan_schema()
    records = ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in schema["$defs"].items())
    rest = ",\n".join(f' "{key}": {json.dumps(schema[key])}' for key in schema if key != "$defs")
    return f'{{\n{rest},\n "$defs": {{\n{records}\n }}\n}}\n'


def command_page() -> str:
    """The page of the command: one section for each, with its help."""
    context = _context(automap_command, "automap", None)
    sections = [COMMAND_HEAD, _section("automap", automap_command.get_help(context))]
    for name, command in automap_command.commands.items():
        inner = _context(command, name, context)
        sections.append(_section(f"automap {name}", command.get_help(inner)))
    return "\n".join(sections)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """What a command's help is made in, whatever terminal this is."""
    # Or the page would depend on the terminal that it was made in.
    settings = command.context_settings | {"terminal_width": HELP_COLUMNS, "color": False}
    return click.Context(command, parent, name, **settings)


def _section(title: str, help_text: str) -> str:
    return f"## {title}\n\n```text\n{help_text.rstrip()}\n```\n"


def options_page() -> str:
    """A table with a row for each option of a plan."""
    lines = [OPTIONS_HEAD, "| keyword | on the command line | default | what it does |"]
    lines.append("| --- | --- | --- | --- |")
    for option in described_options():
        flag = OPTIONS[option.name].opts[0]
        cells = f"`{option.name}`", f"`{flag}`", f"`{option.default!r}`", option.text("python")
        # A bar ends a cell.
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def plan_page() -> str:
    """The page of the plan file: one section for each record, in the order in which they occur."""
    sections = [PLAN_HEAD]
    for record in _records(PlanRecord, set()):
        rows = "".join(
            f"| `{field.name.rstrip('_')}` | {_type_text(kind)} | {_default_text(field)} |\n"
            for field, kind in _fields(record)
        )
        note = inspect.cleandoc(record.__doc__ or "")
        table = f"| field | type | if it is missing |\n|---|---|---|\n{rows}"
        sections.append(f"## {record.__name__}\n\n{note}\n\n{table}")
    return "\n".join(sections)


def _fields(record: type) -> Iterator[tuple[Any, Any]]:
    """Fields of a dataclass with their resolved types."""
    hints = typing.get_type_hints(record)
    yield from ((field, hints[field.name]) for field in fields(record))


def _records(record: type, seen: set[type]) -> Iterator[type]:
    """A dataclass and all that its fields hold, each once, a record before its parts."""
    # Before its parts: a record may hold itself.
    seen.add(record)
    yield record
    for _, kind in _fields(record):
        for part in _parts(kind):
            if part not in seen:
                yield from _records(part, seen)


def _parts(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and is_dataclass(kind):
        yield kind
    for argument in get_args(kind):
        yield from _parts(argument)


def _type_text(kind: Any) -> str:
    """A type in the words of JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if kind is type(None):
        return "null"
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_text(part) for part in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        part = _type_text(arguments[0])
        return f"list of ({part})" if " or " in part else f"list of {part}"
    if origin is tuple:
        return "[" + ", ".join(_type_text(part) for part in arguments) + "]"
    return _JSON_TYPES.get(origin or kind, str(kind))


_JSON_TYPES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "true or false",
    typing.get_origin(typing.get_type_hints(PlanRecord)["topology"]): "object",
}


def _default_text(field: Any) -> str:
    """What a field is if an older file does not have it; most must be there."""
    # Metadata marks what was added after the first version of the format.
    if not field.metadata:
        return "refused"
    default = field.default if field.default is not MISSING else field.default_factory()
    return {None: "null", (): "[]"}.get(default, f"`{default!r}`" if default != "" else '`""`')


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
def main(output: Path) -> None:
    """Write the pages into a folder."""
    (output / "command.md").write_text(command_page())
    (output / "options.md").write_text(options_page())
    (output / "plan-file.md").write_text(plan_page())
    for path in (output / SCHEMA_NAME, SHIPPED_SCHEMA):
        path.write_text(schema_text())


if __name__ == "__main__":
    main()
