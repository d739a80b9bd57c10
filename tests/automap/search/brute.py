"""Every plan of a small space, priced one by one: the oracle of exact search."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.deadline import Deadline
from automap.program.imposed import divides
from automap.search import Objective, SearchContext
from automap.search.exhaustive import points
from automap.space.pins import parse_pins
from automap.space.point import Point
from automap.space.space import Space
from automap.topology import get_topology, mesh_shapes
from automap.topology.mesh import Mesh
from tests.steps import shapes_of


NAMES = ("a", "b", "c")


def search_context(problem, topology_name, limit_bytes=float("inf"), pins=(), meshes=None):
    """A search of a problem without a time limit, and without a plan."""
    topology, space = get_topology(topology_name), Space(problem)
    shapes = meshes or mesh_shapes(topology, max_axes=3)
    named = tuple(Mesh(NAMES[: len(shape)], shape) for shape in shapes)
    shapes = shapes_of(problem)
    parsed = parse_pins(pins, problem, shapes, named)
    return SearchContext(
        space=space,
        evaluator=Evaluator(build_tables(problem, topology.platform), problem.n_classes, topology),
        meshes=tuple(
            m
            for m in named
            if all(divides(pin.axes_of_dim, shapes[pin.position], m) for pin in parsed)
        ),
        objective=Objective(limit_bytes),
        pins=parsed,
        seed=0,
        deadline=Deadline.never(),
        on_progress=lambda context: None,
    )


def every_point(context) -> Iterator[Point]:
    """All points, with all sides and parts of the classes that are used."""
    space = context.space
    for mesh in context.meshes:
        for point in points(context, mesh):
            used = {c for classes in point.compute for c in classes}
            sides = _subsets([c for c in space.repeated_classes if c in used])
            parts = _subsets([c for c in space.small_part_classes if c in used])
            for last, whole in product(sides, parts):
                yield replace(point, last_dim_classes=last, small_whole_classes=whole)


def _subsets(classes: list[int]) -> list[frozenset[int]]:
    sizes = range(len(classes) + 1)
    return [frozenset(chosen) for n in sizes for chosen in combinations(classes, n)]
