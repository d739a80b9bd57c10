"""What is decided of models whose structure is known: candidates, folded layers, sides."""

import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.space.point import SplitClasses
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder, problem_of


def test_layers_fold():
    two, four = (Space(problem_of(*decoder(layers=n))) for n in (2, 4))
    assert len(two.candidates) == len(four.candidates)
    assert [len(leaf.inputs) * 2 for leaf in two.leaves if len(leaf.inputs) > 1] == [
        len(leaf.inputs) for leaf in four.leaves if len(leaf.inputs) > 1
    ]


def test_the_sequence_meets_itself_and_is_offered_after_the_features():
    space = Space(problem_of(*decoder()))
    conflicting = {c.group_class for c in space.problem.self_conflicts}
    tokens = space.problem.paths.index("[1]['tokens']")
    sequence = space.problem.compute_classes(space.problem.graph.inputs[tokens])[1]
    assert sequence in conflicting
    assert sequence in space.activations
    weights = [c for c in space.candidates if c not in space.activations]
    order = [space.candidates.index(c) for c in (weights[-1], sequence, space.problem.batch_class)]
    assert order == sorted(order)


def test_layers_apart_have_their_own_decisions_and_the_same_presets():
    step, args = decoder(layers=3)
    folded, apart = (Space(problem_of(step, args, layers=layers)) for layers in ("folded", "apart"))
    assert len(apart.candidates) > len(folded.candidates)
    assert all(len(leaf.inputs) == 1 for leaf in apart.leaves)
    mesh, topology = Mesh(("data", "model"), (2, 4)), get_topology("8xv100")
    for preset in ("data-parallel", "zero-3", "megatron", "sequence-parallel"):
        estimates = []
        for space in (folded, apart):
            (point,) = PRESETS[preset].points(space, mesh)
            tables = build_tables(space.problem, "cuda")
            evaluator = Evaluator(tables, space.problem.n_classes, topology)
            estimates.append(evaluator.evaluate(space.split_classes(point)))
        first, second = estimates
        assert first.step_seconds == pytest.approx(second.step_seconds, rel=1e-9)
        assert first.peak_bytes == pytest.approx(second.peak_bytes, rel=1e-9)


def test_a_class_splits_the_first_or_the_last_dimension_that_holds_it():
    problem = problem_of(*decoder())
    space, tables = Space(problem), build_tables(problem, "cpu")
    (length,) = (c for c in space.repeated_classes if c in space.activations)
    scores = problem.self_conflicts[[c.group_class for c in problem.self_conflicts].index(length)]
    held = [d for d, c in enumerate(problem.compute_classes(scores.value)) if c == length]
    assert len(held) == 2
    for last, dim in ((frozenset(), held[0]), (frozenset({length}), held[1])):
        split_classes = SplitClasses(Mesh(("model",), (8,)), ((length,),), last)
        sharding = shardings(tables, problem.n_classes, split_classes)
        assert sharding.dim_of_axis[tables.row_of_value[scores.value], 0] == dim
