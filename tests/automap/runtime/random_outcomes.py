"""Plans at random: any classes on any axes, in any order, as long as they divide."""

from automap.config import Options
from automap.planner.records import Outcome
from automap.planner.sharding import find
from automap.search.context import Candidate
from automap.space.point import Point, StorageLevel
from automap.topology import get_topology
from automap.topology.mesh import Mesh


TOPOLOGY = get_topology("cpu:8")
MESHES = (
    Mesh(("a",), (8,)),
    Mesh(("a", "b"), (4, 2)),
    Mesh(("a", "b"), (2, 4)),
    Mesh(("a", "b", "c"), (2, 2, 2)),
)


def random_outcome(workload, rng, levels=(StorageLevel.REPLICATED,)):
    """A plan on a random mesh of eight devices; leaves are stored at one of `levels` by axis."""
    mesh = rng.choice(MESHES)
    context = find(workload, TOPOLOGY, Options(mesh=mesh)).context
    point = random_point(context, mesh, rng, levels)
    estimate = context.evaluator.evaluate(context.space.split_classes(point))
    return Outcome(
        workload=workload,
        topology=TOPOLOGY,
        context=context,
        strategy="random",
        seconds=0.0,
        best=Candidate(point, estimate, "random"),
    )


def random_point(context, mesh, rng, levels):
    """Up to six classes on each axis, half of them on the last of the dimensions that hold them."""
    problem = context.space.problem
    limits = problem.limits
    parts: dict[int, int] = {}
    compute: list[tuple[int, ...]] = []
    for size in mesh.sizes:
        fitting = [c for c in range(problem.n_compute) if limits[c] % (parts.get(c, 1) * size) == 0]
        chosen = rng.sample(fitting, rng.randint(0, min(len(fitting), 6)))
        for group_class in chosen:
            parts[group_class] = parts.get(group_class, 1) * size
        compute.append(tuple(chosen))
    used = [c for classes in compute for c in classes]
    last = frozenset(c for c in used if rng.random() < 0.5)
    whole = frozenset(c for c in used if rng.random() < 0.25)
    storage = tuple(tuple(rng.choice(levels) for _ in context.space.leaves) for _ in mesh.sizes)
    return Point(mesh, tuple(compute), storage, last, whole)
