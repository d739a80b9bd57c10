"""The numbers fitted to compilers: what each was fitted on, and how far it is off on it.

    python -m scripts.fit_backends

Where the measurements were kept in the data file (`automap/backends/*/*.toml`) the value is held
against them. All others are fitted anew by hand: compile the programs that `fitted_on` names with
`python -m scripts.compare_compilers` (it needs the extra `tpu`, and no TPU), read the cycles of
their fusions, and write the value, its error and the version into a new file, which the backend
then names.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import click

from automap.backends import BACKENDS
from automap.backends.fitted import FittedFile, entries


@dataclass(frozen=True, slots=True)
class Error:
    """A value beside the least and the most that were measured on a device."""

    name: str
    device: str
    value: float
    least: float
    most: float

    @property
    def worst(self) -> float:
        """The largest relative error of the value on the measurements."""
        return max(abs(self.value / self.least - 1), abs(self.value / self.most - 1))


def fit_errors(file: FittedFile) -> Iterator[Error]:
    """The errors of the numbers whose measurements are in a file."""
    for name, entry in entries(file).items():
        # A range, as several programs were measured for one number.
        for device, least, most in entry.get("measured", ()):
            value = entry["value"]
            own = dict(value)[device] if isinstance(value, list) else value
            yield Error(name, device, own, least, most)


@click.command(help=__doc__)
def main() -> None:
    """Print every number, and the errors that can be worked out."""
    # Backends share files; each is shown once.
    for file in dict.fromkeys(f for b in BACKENDS.values() for f in (b.fitted, b.tiles)):
        fitted_to = f", {file.package} {file.version}" if file.version else ""
        click.echo(f"\n{file.folder}/{file.file}{fitted_to}")
        for name, entry in entries(file).items():
            click.echo(f"  {name} = {entry['value']}  ({entry['unit']})")
            click.echo(f"      fitted on {entry['fitted_on']}; error: {entry['error']}")
        for row in fit_errors(file):
            click.echo(
                f"  {row.name} on {row.device}: {row.value:g} beside {row.least:g} to "
                f"{row.most:g}, {row.worst:.0%} at worst"
            )


if __name__ == "__main__":
    main()
