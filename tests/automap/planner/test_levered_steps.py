"""Every lever, alone and in pairs, computes what the plain step on one device computes."""

import pytest

from tests.levered_steps import COMBINATIONS, STEPS, NoSuchLeverError, compare


# What each step has no use for, or is refused: all else has to run.
_NO_LOOP = {"BERT", "MLP", "Flax, transformer", "ResNet"}
_NOT_SEPARABLE = {"MoE", "ResNet"}
CASES = [
    pytest.param(step, levers, id=f"{step.name}: {'+'.join(levers)}")
    for step in STEPS
    for levers in COMBINATIONS
]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "levers"), CASES)
def test_levers_compute_what_the_step_computes(step, levers):
    def is_one(names):
        return any(step.name.startswith(name) for name in names)

    refused = ("batch" in levers and is_one(_NOT_SEPARABLE)) or (
        "kept" in levers and is_one(_NO_LOOP)
    )
    if refused:
        with pytest.raises(NoSuchLeverError):
            compare(step, levers)
        return
    comparison = compare(step, levers)
    assert comparison.excess <= 1, comparison.where
