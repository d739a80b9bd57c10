"""Blocks of the published networks: the dynamic programme finds the best of all schedules."""

import pytest

from automap.deadline import Deadline
from automap.planner.streams import priced_operators
from automap.program import load_target, trace_step
from automap.streams.blocks import cut_blocks, make_block
from automap.streams.strategies import BlockProblem, Limits, dos
from automap.topology import get_topology
from scripts.stream_networks import NETWORKS as OTHERS
from tests.automap.streams.blocks import least_seconds


MOST = 12
"""Operators of a block of which all schedules are tried."""
TARGETS = {
    "SqueezeNet": "squeezenet:squeezenet",
    "Inception-v3": "inception:inception_v3_forward",
    "RandWire": "randwire:randwire",
    "NASNet-A": "nasnet:nasnet_large",
}
LIMITS = [Limits(), Limits(groups=8, group_size=3)]


def _blocks(priced):
    """The blocks that are small enough, and of wider ones as many operators as that, in order."""
    before = [op.before for op in priced.operators]
    for block in cut_blocks(before):
        for first in range(0, len(block.members), MOST):
            yield make_block(block.members[first : first + MOST], before)


@pytest.mark.parametrize(
    "name",
    ["SqueezeNet", *(pytest.param(n, marks=pytest.mark.slow) for n in [*TARGETS, "GoogLeNet"][1:])],
)
def test_dos_equals_trying_all_schedules_of_each_block(name):
    if name in OTHERS:
        step, args = OTHERS[name](1)
    else:
        step, args = load_target(f"models.{TARGETS[name]}", {})
    priced = priced_operators(trace_step(step, args, platform="cuda"), get_topology("1xv100"))
    known, count = set(), 0
    for block in _blocks(priced):
        ops = priced.block(block)
        # Cells and modules repeat: equal blocks are tried once.
        key = tuple(column.tobytes() for column in ops if hasattr(column, "tobytes"))
        if len(block.members) == 1 or key in known:
            continue
        known.add(key)
        count += 1
        for limits in LIMITS:
            problem = BlockProblem(ops, priced.machine, limits, Deadline.never())
            stages = dos(problem).stages
            seconds = float(problem.best_seconds(stages).min(axis=1).sum())
            least = least_seconds(ops, limits.most_groups, limits.group_size, priced.machine)
            assert seconds == pytest.approx(least, rel=1e-12)
    assert count > 0
