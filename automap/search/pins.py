"""Pins: inputs whose sharding the user decides; no strategy ever proposes a point that breaks one.

    pin   := path "=" spec            [0]['params']['wq']=null,model      [1]*=data,null
    path  := an input's path, or a pattern where * stands for anything
    spec  := dim ("," dim)*           one per dimension
    dim   := "null" | axis ("+" axis)*

A pin holds for a point if the input's sharding is exactly the spec -> in: `Pin.holds`.  To reach such
points, `Pin.imposed` changes a point that breaks it: the class on each pinned dimension goes first on its
axes (or the leaf is stored split there), and what else would split the leaf leaves the axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
import difflib
import math
import re

from automap.cost.shardings import Shardings
from automap.cost.tables import Tables
from automap.errors import InputError
from automap.space.point import Level, Mesh, Point
from automap.space.space import Space
from automap.space.specs import spec_text


AxesOfDim = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """One input (its position) with the axes of each dimension."""

    position: int
    axes_of_dim: AxesOfDim
    text: str

    @property
    def axes(self) -> set[str]:
        """Every axis the pin names."""
        return {axis for axes in self.axes_of_dim for axis in axes}

    def holds(self, space: Space, tables: Tables, sharding: Shardings, point: Point) -> bool:
        """Whether the input is split exactly so."""
        row = tables.row_of_value[space.problem.graph.inputs[self.position]]
        dims = sharding.dim_of_axis[row].tolist()
        return all(dim == self.dim(name) for dim, name in zip(dims, point.mesh.names, strict=True))

    def dim(self, axis: str) -> int:
        """The dimension that an axis splits, -1 for none."""
        return next((d for d, axes in enumerate(self.axes_of_dim) if axis in axes), -1)

    def suits(self, space: Space, mesh: Mesh) -> bool:
        """Whether a mesh has the axes, in sizes that divide the dimensions."""
        sizes = dict(mesh.axes)
        dims = space.problem.graph.values[space.problem.graph.inputs[self.position]].dims
        return self.axes <= set(sizes) and all(
            size % math.prod(sizes[axis] for axis in axes) == 0
            for size, axes in zip(dims, self.axes_of_dim, strict=True)
        )

    def imposed(self, space: Space, point: Point) -> Point:
        """The point changed so that the input is split as pinned, where the space allows it."""
        own = space.problem.classes_of(space.problem.graph.inputs[self.position])
        compute = [set(classes) for classes in point.compute]
        storage = [list(levels) for levels in point.storage]
        leaf = next((k for k, x in enumerate(space.leaves) if self.position in x.inputs), None)
        for axis, name in enumerate(point.mesh.names):
            dim = self.dim(name)
            computed = dim >= 0 and own[dim] in space.candidates
            compute[axis] -= set(own)
            if computed:
                rivals = {c for c in compute[axis] if space.meet(c, own[dim])}
                compute[axis] = compute[axis] - rivals | {own[dim]}
            if leaf is not None:
                whole = min(storage[axis][leaf], Level.OPTIMIZER)
                storage[axis][leaf] = whole if computed or dim < 0 else Level.FULL
        return replace(
            point,
            compute=tuple(space.ordered(classes) for classes in compute),
            storage=tuple(tuple(levels) for levels in storage),
        )


def parse_pins(texts: Sequence[str], space: Space, meshes: Sequence[Mesh]) -> tuple[Pin, ...]:
    """Pins of every input whose path fits.

    Raises `InputError` for a text of another form, a path or an axis that is not there, another
    number of dimensions than the input's, and pins that no mesh suits.
    """
    pins: dict[int, Pin] = {}
    for text in texts:
        path, equals, spec = text.rpartition("=")
        if not equals or not path:
            raise InputError(f"pin {text!r}: expected PATH=SPEC, as [0]['params']['w']=null,model")
        axes_of_dim = _parse_spec(text, spec)
        for position in _positions(text, path, space.problem.paths):
            dims = space.problem.graph.values[space.problem.graph.inputs[position]].dims
            if len(dims) != len(axes_of_dim):
                raise InputError(
                    f"pin {text!r}: {space.problem.paths[position]} has {len(dims)} dimensions "
                    f"{list(dims)}, the spec has {len(axes_of_dim)}"
                )
            if position in pins and pins[position].axes_of_dim != axes_of_dim:
                raise InputError(
                    f"pin {text!r}: {space.problem.paths[position]} is pinned otherwise by "
                    f"{pins[position].text!r}"
                )
            _check_is_free(text, position, axes_of_dim, space)
            pins[position] = Pin(position, axes_of_dim, text)
    for pin in pins.values():
        if not any(pin.suits(space, mesh) for mesh in meshes):
            known = sorted({str(dict(mesh.axes)) for mesh in meshes}, key=lambda m: (len(m), m))
            raise InputError(
                f"pin {pin.text!r}: no mesh has these axes in sizes that divide "
                f"{space.problem.paths[pin.position]}; meshes: {'; '.join(known[:6])}"
            )
    return tuple(pins.values())


def _check_is_free(text: str, position: int, axes_of_dim: AxesOfDim, space: Space) -> None:
    problem = space.problem
    given = problem.imposed.of_value.get(problem.graph.inputs[position], axes_of_dim)
    if any(own is not None and own != axes for own, axes in zip(given, axes_of_dim)):
        raise InputError(
            f"pin {text!r}: the step's own code has {problem.paths[position]} as {spec_text(given)}; drop the pin, or "
            "change the code"
        )


def _parse_spec(text: str, spec: str) -> AxesOfDim:
    dims = [() if dim == "null" else tuple(dim.split("+")) for dim in spec.split(",")]
    names = [axis for axes in dims for axis in axes]
    if not all(name.isidentifier() for name in names) or len(set(names)) != len(names):
        raise InputError(
            f"pin {text!r}: cannot read the spec {spec!r}; expected per dimension null, an axis, or "
            "axes joined by +, each axis once, as null,model or data+model,null"
        )
    return tuple(dims)


def _positions(text: str, path: str, paths: Sequence[str]) -> list[int]:
    pattern = re.compile(".*".join(map(re.escape, path.split("*"))))
    found = [i for i, other in enumerate(paths) if pattern.fullmatch(other)]
    if not found:
        closest = difflib.get_close_matches(path, paths, n=3, cutoff=0.0)
        raise InputError(f"pin {text!r}: no input is called {path}; closest: {', '.join(closest)}")
    return found
