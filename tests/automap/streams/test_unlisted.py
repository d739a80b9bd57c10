"""Networks that nothing was tuned on are scheduled and run as those of the papers are."""

import jax
import numpy as np
import pytest

import automap
from automap.deadline import Deadline
from automap.planner.streams import priced_operators
from automap.program import trace_step
from automap.streams.blocks import cut_blocks
from automap.streams.schedule import find_schedule
from automap.streams.strategies import Limits
from automap.topology import get_topology
from scripts.stream_networks import NETWORKS
from tests.automap.streams.blocks import least_seconds


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("topology", ["1xv100", "1xh100", "1x2080ti"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_simple_schedule_is_faster_and_small_blocks_are_as_brute_force_has_them(name, topology):
    workload = trace_step(*NETWORKS[name](2), platform="cuda")
    priced = priced_operators(workload, get_topology(topology))
    for limits in (Limits(), Limits(groups=8, group_size=3)):
        schedule = find_schedule(priced, "dos", limits, Deadline.never())
        simple = min(schedule.sequential_seconds, schedule.greedy_seconds)
        assert schedule.seconds <= simple * (1 + 1e-12)
        for number, block in enumerate(cut_blocks([op.before for op in priced.operators])):
            if len(block.members) <= 10:
                least = least_seconds(
                    priced.block(block), limits.most_groups, limits.group_size, priced.machine
                )
                got = sum(stage.seconds for stage in schedule.stages if stage.block == number)
                assert got == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("topology", ["1xv100", "1xh100"])
@pytest.mark.parametrize("name", NETWORKS)
def test_such_a_plan_computes_what_the_step_computes(name, topology):
    step, args = NETWORKS[name](2)
    rng = np.random.default_rng(0)
    values = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, leaf.dtype) * 0.05, args)
    plan = automap.plan(step, args, topology=topology, space="streams", budget=600)
    expected = step(*values)
    got = plan.jit(step, devices=jax.devices()[:1])(*values)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
