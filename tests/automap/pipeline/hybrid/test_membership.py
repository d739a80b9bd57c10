"""Which stages ops and leaves belong to."""

import numpy as np
import pytest

from automap.cost.kernels.roofline import Roofline
from automap.cost.tables import build_tables
from automap.pipeline.hybrid.membership import StageMembership
from automap.pipeline.profile.profile import pipeline_profile
from automap.topology import get_topology
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from models.gpt import gpt_tiny
from tests.steps import problem_of


@pytest.fixture(scope="module")
def membership() -> StageMembership:
    problem = problem_of(*gpt_tiny())
    tables = build_tables(problem, "cuda")
    profile = pipeline_profile(problem, tables, Roofline(tables.kernels, get_topology("4xv100")))
    second = next(i for i, label in enumerate(profile.labels) if "[1]" in label[3:])
    return StageMembership(profile, np.array([0, second, profile.n_items]))


def paths(membership: StageMembership, bits: int, role: Role) -> list[str]:
    problem = membership.profile.timing.problem
    return [
        path
        for path, of, found in zip(
            problem.paths, problem.roles, membership.stages_by_leaf, strict=True
        )
        if found == bits and of is role
    ]


def test_layers_are_in_one_stage_and_tied_weights_in_both(membership):
    first, last, both = (paths(membership, bits, Role.PARAMETER) for bits in (1, 2, 3))
    assert any("[0]" in path[3:] for path in first)
    assert not any("[1]" in path[3:] for path in first)
    assert any("[1]" in path[3:] for path in last)
    assert not any("[0]" in path[3:] for path in last)
    assert both, "the embedding is read at both ends"


def test_moments_are_where_their_parameter_is(membership):
    for root, leaves in membership.profile.structure.stored.optimizer.items():
        assert {membership.stages_by_leaf[leaf] for leaf in leaves} <= {
            membership.stages_by_leaf[root]
        }


def test_ops_are_in_the_stages_of_their_items_and_of_what_they_update(membership):
    problem = membership.profile.timing.problem
    by_phase = {phase: set[int]() for phase in Phase}
    for phase, bits in zip(problem.phases, membership.stages_by_op, strict=True):
        by_phase[phase].add(bits)
    assert by_phase[Phase.FORWARD] >= {1, 2}
    assert by_phase[Phase.BACKWARD] >= {1, 2}
    # What is updated with its stage's gradients alone, and what all share: the norm, the counter.
    assert by_phase[Phase.UPDATE] >= {1, 2, 3}


def test_a_batch_input_is_in_the_stages_that_read_it(membership):
    batch = [
        bits
        for bits, role in zip(
            membership.stages_by_leaf, membership.profile.timing.problem.roles, strict=True
        )
        if role is Role.BATCH
    ]
    assert batch
    assert all(batch)
