"""Presets against what people write for models that are known."""

from automap.space.leaves import leaf_classes
from automap.space.presets import feature_classes
from automap.space.space import Space
from tests.steps import decoder, problem_of


def test_megatron_is_what_the_feature_classes_say():
    space = Space(problem_of(*decoder()))
    chosen = feature_classes(space, 4)
    split = {}
    for leaf in leaf_classes(space.problem):
        for path in (space.problem.paths[i] for i in leaf.inputs):
            split[path.split("'")[-2]] = [d for d, c in enumerate(leaf.compute) if c in chosen]
    assert split["q"] == split["k"] == split["v"] == split["up"] == [1]
    assert split["o"] == split["down"] == split["embedding"] == [0]
    assert split["norm1"] == split["norm2"] == []
