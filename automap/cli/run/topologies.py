"""`automap topologies`: the catalogue of machines, or one machine in full."""

from automap.report.topologies import show_catalogue, show_machine
from automap.topology import catalogue_entries, get_machine


def run(*, name: str | None) -> None:
    """Print every family of names, or the machine of one name or TOML file."""
    if name is None:
        show_catalogue(catalogue_entries())
    else:
        show_machine(get_machine(name))
