"""A logical mesh: named axes with their sizes, laid row-major on the devices of a topology."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mesh:
    """Logical mesh: axis names and sizes, major to minor, laid row-major on the devices."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """(name, size) pairs."""
        return tuple(zip(self.names, self.sizes, strict=True))
