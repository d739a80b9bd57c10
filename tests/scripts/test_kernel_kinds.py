"""Kinds of kernels, and the shares that they have in an error."""

import pytest

from automap.config import Options
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.kernel_kinds import OTHERS, WAITING, error_shares, kind_of, predicted_seconds
from tests.steps import decoder


@pytest.mark.parametrize(
    ("opcodes", "kind"),
    [
        (["fusion", "parameter", "dot", "reduce"], "products"),
        (["custom-call"], "products"),
        (["fusion", "parameter", "scatter", "reduce"], "look-ups and scatters"),
        (["fusion", "parameter", "multiply", "reduce"], "sums and maxima"),
        (["fusion", "exponential", "dynamic-update-slice"], "stacks of loops, filled"),
        (["fusion", "parameter", "transpose"], "copies and transposes"),
        (["fusion", "constant", "broadcast"], "zeros"),
        (["while"], "zeros"),
        (["fusion", "parameter", "broadcast", "add"], OTHERS),
        (["add"], OTHERS),
    ],
)
def test_a_kernel_is_of_the_first_kind_that_it_belongs_to(opcodes, kind):
    assert kind_of(opcodes) == kind


@pytest.mark.parametrize("topology", ["8xh100", "v5e:2x4"])
def test_kinds_of_a_prediction_add_up_to_its_step(topology):
    step, args = decoder()
    machine = get_topology(topology)
    workload = trace_step(step, args, platform=machine.platform)
    mesh = Mesh(("data",), (8,))
    outcome = find(workload, machine, Options(mesh=mesh, preset="zero-3"))
    seconds = predicted_seconds(outcome)
    assert sum(seconds.values()) == pytest.approx(outcome.best.estimate.step_seconds)
    assert seconds["products"] > 0
    assert seconds[WAITING] == outcome.best.estimate.collective_seconds


def test_shares_are_of_errors_over_their_steps():
    plans = [
        ({"a": 1.0, "b": 4.0}, {"a": 2.0, "b": 2.0}),  # of a step of 4: 1/4 and 2/4
        ({"a": 10.0}, {"a": 5.0, "c": 5.0}),  # of a step of 10: 5/10 and 5/10
    ]
    shares = error_shares(plans)
    assert shares == pytest.approx({"a": 0.75 / 1.75, "b": 0.5 / 1.75, "c": 0.5 / 1.75})
    assert next(iter(shares)) == "a"
