"""`automap topologies`: the catalogue of machines, or one machine in full."""

from typing import Any

from automap.report.topologies import show_catalogue, show_machine
from automap.terminal import say_json
from automap.topology import CatalogueEntry, catalogue_entries, get_machine


def run(*, name: str | None, as_json: bool) -> None:
    """Print every family of names, or the machine of one name or TOML file."""
    if as_json:
        entries = {"machines": [_entry(entry) for entry in catalogue_entries()]}
        say_json(entries if name is None else get_machine(name).to_dict())
    elif name is None:
        show_catalogue(catalogue_entries())
    else:
        show_machine(get_machine(name))


def _entry(entry: CatalogueEntry) -> dict[str, Any]:
    """A family of names, with the machine of its example in full."""
    machine = entry.machine.to_dict()
    return {"pattern": entry.pattern, "example": entry.example, "machine": machine}
