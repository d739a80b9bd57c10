"""Pins: inputs whose sharding the user decides, as `in_shardings` of the step would.

    pin   := path "=" spec            [0]['params']['wq']=null,model      [1]*=data,null
    path  := an input's path, or a pattern where * stands for anything
    spec  := dim ("," dim)*           one per dimension
    dim   := "null" | axis ("+" axis)*

A search keeps to points that split pinned inputs so (`automap.search.pinned`); pins that none keeps
are imposed on the step, as its own shardings are                        -> in: `with_pins`
and only meshes are searched on which all that is imposed divides        -> in: `meshes_that_divide`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import difflib

from automap.errors import InputError
from automap.jaxpr.names import readable
from automap.program.imposed import divides, imposed
from automap.program.problem import Problem
from automap.program.trace import Workload
from automap.step.specs import spec_text
from automap.topology.mesh import Mesh


AxesOfDim = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """One input (its position) with the axes of each dimension."""

    position: int
    axes_of_dim: AxesOfDim
    text: str

    def dim(self, axis: str) -> int:
        """The dimension that an axis splits, -1 for none."""
        return next((d for d, axes in enumerate(self.axes_of_dim) if axis in axes), -1)


def parse_pins(
    texts: Sequence[str],
    problem: Problem,
    shapes: Sequence[tuple[int, ...]],
    meshes: Sequence[Mesh],
) -> tuple[Pin, ...]:
    """Pins of every input whose path fits.

    `shapes` are those of the inputs as JAX has them: a random key is one element, not its words.
    Raises `InputError` for a text of another form, a path or an axis that is not there, another
    number of dimensions than the input's, and pins that no mesh suits or that contradict.
    """
    # A pattern may fit many inputs, so there are often more pins than texts.
    pins = _parse(texts, problem, shapes)
    for pin in pins.values():
        if not any(divides(pin.axes_of_dim, shapes[pin.position], mesh) for mesh in meshes):
            # The shortest first: those with few axes say most with few words.
            known = sorted({str(dict(mesh.axes)) for mesh in meshes}, key=lambda m: (len(m), m))
            raise InputError(
                f"pin {pin.text!r}: no mesh has these axes in sizes that divide "
                f"{problem.paths[pin.position]}; meshes: {'; '.join(known[:6])}"
            )
    return tuple(pins.values())


def _parse(
    texts: Sequence[str], problem: Problem, shapes: Sequence[tuple[int, ...]]
) -> dict[int, Pin]:
    """By position of the input."""
    pins: dict[int, Pin] = {}
    for text in texts:
        # From the right, as a path may hold = and a spec may not.
        path, equals, spec = text.rpartition("=")
        if not equals or not path:
            raise InputError(f"pin {text!r}: expected PATH=SPEC, as [0]['params']['w']=null,model")
        axes_of_dim = _parse_spec(text, spec)
        for position in _positions(text, path, problem.paths):
            pin = Pin(position, axes_of_dim, text)
            _check_suits(pin, problem, shapes[position])
            if pins.get(position, pin).axes_of_dim != axes_of_dim:
                raise InputError(
                    f"pin {text!r}: {problem.paths[position]} is pinned otherwise by "
                    f"{pins[position].text!r}"
                )
            pins[position] = pin
    return pins


def _check_suits(pin: Pin, problem: Problem, shape: tuple[int, ...]) -> None:
    """Raise `InputError` unless the input may be split so."""
    path, value = problem.paths[pin.position], problem.graph.inputs[pin.position]
    if len(shape) != len(pin.axes_of_dim):
        raise InputError(
            f"pin {pin.text!r}: {path} has {len(shape)} dimensions {list(shape)}, the spec has "
            f"{len(pin.axes_of_dim)}"
        )
    if len(shape) != len(problem.graph.values[value].dims):
        raise InputError(f"pin {pin.text!r}: {path} is random keys, which every device has whole")
    # None where the step's own code leaves a dimension to others.
    given = problem.imposed.specs_by_value.get(value, pin.axes_of_dim)
    if any(
        own is not None and own != axes for own, axes in zip(given, pin.axes_of_dim, strict=True)
    ):
        raise InputError(
            f"pin {pin.text!r}: the step's own code has {path} as {spec_text(given)}; drop the "
            "pin, or "
            "change the code"
        )


def _parse_spec(text: str, spec: str) -> AxesOfDim:
    dims = [() if dim == "null" else tuple(dim.split("+")) for dim in spec.split(",")]
    names = [axis for axes in dims for axis in axes]
    if not all(name.isidentifier() for name in names) or len(set(names)) != len(names):
        raise InputError(
            f"pin {text!r}: cannot read the spec {spec!r}; expected per dimension null, an axis, "
            "or "
            "axes joined by +, each axis once, as null,model or data+model,null"
        )
    return tuple(dims)


def _positions(text: str, path: str, paths: Sequence[str]) -> list[int]:
    positions = [i for i, other in enumerate(paths) if _fits(path, other)]
    if not positions:
        # However far off: some name says more than none.
        closest = difflib.get_close_matches(path, paths, n=3, cutoff=0.0)
        raise InputError(f"pin {text!r}: no input is called {path}; closest: {', '.join(closest)}")
    return positions


def _fits(pattern: str, path: str) -> bool:
    """Whether a path is a pattern's, where each * stands for anything.

    Between the first part and the last, each part may as well be where it comes first, so nothing
    is tried twice.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return path == first
    *middle, last = rest
    if len(path) < len(first) + len(last) or not (path.startswith(first) and path.endswith(last)):
        return False
    at, end = len(first), len(path) - len(last)
    for part in middle:
        at = path.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def with_pins(workload: Workload, pins: Sequence[Pin]) -> Workload:
    """The workload with pinned inputs as if the step itself had their shardings."""
    if not pins:
        return workload
    given = {pin.position: pin.axes_of_dim for pin in pins}
    # As if they were `in_shardings`: what follows from them inside of the step is worked out anew.
    ends = replace(workload.ends, inputs={**workload.ends.inputs, **given})
    problem = workload.problem
    imposed_specs = imposed(problem.graph, ends, problem.state_map)
    return replace(workload, ends=ends, problem=replace(problem, imposed=imposed_specs))


def meshes_that_divide(workload: Workload, meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Meshes on which all that is imposed divides. Raises `InputError` if there is none."""
    broken = {mesh: _undivided(workload.problem, mesh) for mesh in meshes}
    dividing = tuple(mesh for mesh, values in broken.items() if not values)
    if not dividing:
        # The mesh that comes closest, so that the message is about what is really in the way.
        mesh = min(broken, key=lambda mesh: len(broken[mesh]))
        raise InputError("; ".join(_why_not(workload, mesh, broken[mesh])))
    return dividing


def _undivided(problem: Problem, mesh: Mesh) -> list[int]:
    """Values that are to be split so that the axes of a mesh do not divide them."""
    return [
        value
        for value, spec in problem.imposed.specs_by_value.items()
        if not divides(spec, problem.graph.values[value].dims, mesh)
    ]


def _why_not(workload: Workload, mesh: Mesh, broken: Sequence[int]) -> Iterator[str]:
    """What does not divide on a mesh, and what to do."""
    problem = workload.problem
    yield (
        "no mesh has sizes that divide all that pins and the step's own shardings split; on "
        f"{dict(mesh.axes)}"
    )
    for value in broken[:3]:
        dims, spec = problem.graph.values[value].dims, problem.imposed.specs_by_value[value]
        yield f"{_name(workload, value)} {list(dims)} is to be {spec_text(spec)}"
    yield "change the shapes or the shardings, or give another --mesh"


def _name(workload: Workload, value: int) -> str:
    graph = workload.problem.graph
    for leaves, values in ((workload.inputs, graph.inputs), (workload.outputs, graph.outputs)):
        if value in values:
            return leaves[values.index(value)].path
    # An inner value has no path: the name of the op that makes it says where it is.
    makers = (op for op in graph.ops if value in op.outputs)
    op = next(makers, None)
    return "a value" if op is None else readable(op.op_name) or op.instruction.name
