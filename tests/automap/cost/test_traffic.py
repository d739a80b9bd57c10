"""Collectives of small steps in closed form; against compiled programs: tests/automap/apply/test_models.py."""

from collections import Counter

from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.cost.traffic import KINDS, collectives
from automap.space.point import Mesh
from automap.space.presets import PRESETS
from automap.space.space import Space
from tests.steps import mlp, problem_of


def test_zero_3_gathers_each_parameter_once_and_scatters_each_gradient():
    problem = problem_of(*mlp())
    space, tables = Space(problem), build_tables(problem, "cpu")
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["zero-3"].points(space, mesh)
    found = collectives(tables, shardings(tables, problem.n_classes, space.lanes(point)), (8,))
    weight_bytes = 4 * 32 * 64
    counts = Counter()
    for kind, n_bytes, count in zip(found.kind, found.n_bytes, found.count):
        counts[KINDS[kind].value, int(n_bytes)] += int(count)
    assert counts == {
        ("all-gather", weight_bytes): 2,
        ("reduce-scatter", weight_bytes): 2,
        ("all-reduce", 4): 1,
    }
