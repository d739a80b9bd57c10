"""Messages of sums, as the table has them predicted."""

import pytest

from automap.config import Options
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.compare_messages import Case, predicted_messages, step_of_case


@pytest.mark.parametrize(
    ("preset", "mebibytes", "messages"),
    [
        ("zero-1", 2, 1.0),
        ("zero-1", 8, 1.0),
        ("zero-1", 12, 1.5),
        # Each fills one by itself.
        ("zero-1", 32, 2.0),
        ("data-parallel", 112, 1.0),
        ("data-parallel", 128, 128 / 120),
    ],
)
def test_sums_of_a_trip_fill_messages(preset, mebibytes, messages):
    step, args = step_of_case(Case("v5e:2x4", preset, mebibytes))
    workload = trace_step(step, args, platform="tpu")
    options = Options(mesh=Mesh(("data",), (8,)), preset=preset)
    outcome = find(workload, get_topology("v5e:2x4"), options)
    assert predicted_messages(outcome) == pytest.approx(messages, rel=1e-6)
