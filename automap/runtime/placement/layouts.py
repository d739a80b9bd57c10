"""How operators lie on devices, and arrays in operators.

layout    the devices of an operator's parts and the degrees of its classes: a mesh with an axis for
          each class; one device for an operator in one part
sharding  an array is split along the dimensions of the layout's classes, and copied along those
          that it has not
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from automap.plan.placement import PlacedOperatorRecord, PlacementRecord
from automap.runtime.meshes import mesh_on


class Layout(NamedTuple):
    """Numbers of the devices of an operator's parts, and (class, degree) of what is split."""

    devices: tuple[int, ...]
    degrees: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shardings:
    """How arrays lie in layouts: `classes` [variables] has the class of each dimension, of those
    that are split somewhere; `devices` are JAX's by number.
    """

    devices: Sequence[Any]
    classes: Mapping[Any, tuple[int | None, ...]]
    meshes: dict[Layout, Mesh] = field(default_factory=dict)

    def on(self, layout: Layout, var: Any) -> NamedSharding:
        """The sharding of an array in a layout."""
        return NamedSharding(self.mesh(layout), self.spec(layout, self.classes.get(var, ())))

    def spec(self, layout: Layout, classes: Sequence[int | None]) -> PartitionSpec:
        """That of dimensions of these classes."""
        axes = {each: _axis(each) for each, _ in layout.degrees}
        return PartitionSpec(*(None if each is None else axes.get(each) for each in classes))

    def mesh(self, layout: Layout) -> Mesh:
        """The first class varies fastest, so it is the last axis."""
        if layout not in self.meshes:
            axes = [(_axis(each), degree) for each, degree in reversed(layout.degrees)]
            devices = [self.devices[number] for number in layout.devices]
            self.meshes[layout] = mesh_on(devices, axes or (("device", 1),))
        return self.meshes[layout]


def _axis(each: int) -> str:
    return f"class {each}"


def operator_layout(operator: PlacedOperatorRecord) -> Layout:
    """That of an operator."""
    return Layout(operator.devices, operator.degrees)


def input_layouts(record: PlacementRecord) -> list[Layout | None]:
    """Where inputs are stored, None for what is where it is read."""
    if not record.input_operators:
        return [None if d is None else Layout((d,), ()) for d in record.input_devices]
    operators = (None if o is None else record.operators[o] for o in record.input_operators)
    return [None if o is None else operator_layout(o) for o in operators]
