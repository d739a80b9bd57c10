"""Roles and phases of a train step whose parts are known."""

from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from tests.steps import mlp, problem_of


def test_roles_and_phases_of_a_train_step():
    problem = problem_of(*mlp())
    roles = dict(zip(problem.paths, problem.roles))
    assert roles["[0]['params']['w1']"] is Role.PARAMETER
    assert roles["[0]['m']['w1']"] is Role.OPTIMIZER
    assert roles["[1]['x']"] is Role.BATCH
    dots = [p for op, p in zip(problem.graph.ops, problem.phases) if op.opcode == "dot"]
    assert dots.count(Phase.FORWARD) == 2
    assert dots.count(Phase.BACKWARD) == 3
    assert dots.count(Phase.UPDATE) == 0
