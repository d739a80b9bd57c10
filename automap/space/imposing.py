"""What the user imposes on a workload beside its code: pins, and meshes on which all that is
imposed can be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from automap.errors import InputError
from automap.jaxpr.names import readable
from automap.program.imposed import divides, imposed
from automap.program.problem import Problem
from automap.program.trace import Workload
from automap.space.pins import Pin
from automap.step.specs import spec_text
from automap.topology.mesh import Mesh


def with_pins(workload: Workload, pins: Sequence[Pin]) -> Workload:
    """The workload with pinned inputs as if the step itself had their shardings."""
    if not pins:
        return workload
    given = {pin.position: pin.axes_of_dim for pin in pins}
    ends = replace(workload.ends, inputs={**workload.ends.inputs, **given})
    problem = workload.problem
    of_problem = imposed(problem.graph, ends, problem.state_map)
    return replace(workload, ends=ends, problem=replace(problem, imposed=of_problem))


def meshes_that_divide(workload: Workload, meshes: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Meshes on which all that is imposed divides. Raises `InputError` if there is none."""
    broken = {mesh: _undivided(workload.problem, mesh) for mesh in meshes}
    found = tuple(mesh for mesh, of in broken.items() if not of)
    if not found:
        mesh = min(broken, key=lambda mesh: len(broken[mesh]))
        raise InputError("; ".join(_why_not(workload, mesh, broken[mesh])))
    return found


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
    yield f"no mesh has sizes that divide all that pins and the step's own shardings split; on {dict(mesh.axes)}"
    for value in broken[:3]:
        dims, spec = problem.graph.values[value].dims, problem.imposed.specs_by_value[value]
        yield f"{_name(workload, value)} {list(dims)} is to be {spec_text(spec)}"
    yield "change the shapes or the shardings, or give another --mesh"


def _name(workload: Workload, value: int) -> str:
    graph = workload.problem.graph
    for leaves, values in ((workload.inputs, graph.inputs), (workload.outputs, graph.outputs)):
        if value in values:
            return leaves[values.index(value)].path
    makers = (op for op in graph.ops if value in op.outputs)
    op = next(makers, None)
    return "a value" if op is None else readable(op.op_name) or op.instruction.name
