"""Schedules by what a device says of stages: devices that are written down here say it."""

from dataclasses import replace
import random

from hypothesis import given, settings, strategies as st
import pytest

from automap.deadline import Deadline
from automap.streams.blocks import make_block
from automap.streams.measured import find_measured
from automap.streams.schedule import find_schedule
from automap.streams.strategies import Limits
from tests.automap.streams.blocks import least_seconds
from tests.automap.streams.test_schedule import check_is_schedule, priced_graph


IOS = Limits(groups=8, group_size=3)
BRANCHES = [set(), {0}, {0}, {0}, {1}, {2}, {4, 5, 3}]


class Device:
    """Says of each stage the model's seconds times `factor` of it."""

    def __init__(self, priced, factor):
        self.priced, self.factor, self.asked = priced, factor, {}

    def __call__(self, stage):
        column = 1 if stage.together == "merged" else 0
        seconds = self.priced.stage_seconds(stage.members)[column] * self.factor(stage)
        assert (stage.together, stage.members) not in self.asked
        self.asked[stage.together, stage.members] = seconds
        return seconds

    def sum(self, schedule):
        return sum(self.asked[stage.together, stage.members] for stage in schedule.stages)


def _found(priced, ask, limits=IOS):
    return find_measured(priced, "dos", limits, Deadline.never(), ask)


def test_a_device_that_is_the_model_three_times_as_slow_has_the_model_s_schedule():
    priced = priced_graph(BRANCHES)
    schedule, prices = _found(priced, Device(priced, lambda stage: 3.0))
    model = find_schedule(priced, "dos", IOS, Deadline.never())
    assert [stage.groups for stage in schedule.stages] == [stage.groups for stage in model.stages]
    assert schedule.seconds == pytest.approx(3 * model.seconds)
    assert prices.corrections == (pytest.approx(1.0), 1.0)


def test_a_device_that_runs_nothing_at_once_gets_one_operator_after_another():
    priced = priced_graph(BRANCHES)

    def factor(stage):
        alone = sum(priced.stage_seconds((number,))[0] for number in stage.members)
        # Streams that wait for each other cost a little more than nothing.
        waiting = 1.0 if len(stage.members) == 1 else 1.01
        return waiting * alone / priced.stage_seconds(stage.members)[0]

    device = Device(priced, factor)
    schedule, _ = _found(priced, device)
    assert all(len(stage.members) == 1 for stage in schedule.stages)
    # What the first stages at once were like is believed of the rest.
    assert len(device.asked) < 2 * len(BRANCHES)


def test_a_device_that_says_nothing_leaves_the_model():
    priced = priced_graph(BRANCHES)
    model = find_schedule(priced, "dos", IOS, Deadline.never())
    assert _found(priced, lambda stage: None)[0] == model


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), limits=st.sampled_from([IOS, Limits(), Limits(groups=2)]))
def test_no_simple_schedule_is_faster_as_measured_and_none_at_all_by_what_is_known(seed, limits):
    rng = random.Random(seed)
    before = [set(rng.sample(range(n), min(n, rng.randrange(3)))) for n in range(7)]
    priced = priced_graph(before, seed)
    device = Device(priced, lambda stage: rng.choice([0.3, 1.0, 2.0, 5.0]))
    schedule, prices = _found(priced, device, limits)
    check_is_schedule(priced, schedule, limits)
    assert schedule.seconds == pytest.approx(device.sum(schedule))
    for simple in ("sequential", "greedy"):
        other = find_schedule(priced, simple, limits, Deadline.never())
        assert schedule.seconds <= device.sum(other) * (1 + 1e-12)
    measured = replace(priced, measured=prices)
    block = measured.block(make_block(range(7), [op.before for op in priced.operators]))
    least = least_seconds(block, limits.most_groups, limits.group_size, measured.machine)
    assert schedule.seconds == pytest.approx(least)
