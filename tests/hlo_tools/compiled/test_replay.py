"""Replayed schedules beside closed forms: programs written by hand, with costs by name."""

from hypothesis import given, strategies as st
import pytest

from hlo_tools.compiled.replay import Cost, Transfer, replay
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module


_ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
"""


def _entry(*lines):
    return "\n  ".join(
        ["ENTRY %main (x: f32[8]) -> f32[8] {", "%x = f32[8] parameter(0)", *lines, "}"]
    )


def _module(entry, *others):
    text = "\n".join(["HloModule step, is_scheduled=true", _ADD, *others, entry])
    return decode_module(text_to_proto(text))


def _replayed(costs, entry, *others):
    module = _module(entry, *others)
    return replay(module, lambda instruction: costs.get(instruction.name, Cost()))


def _kernel(seconds):
    return Cost(kernel_seconds=seconds)


def _transfer(seconds, *links):
    return Cost(transfers=(Transfer(seconds, frozenset(links or ("net",))),))


_START = "%{0} = f32[8] all-reduce-start(%x), replica_groups={{}}, to_apply=%add"
_BESIDE = _entry(
    _START.format("begin"),
    "%one = f32[8] exponential(%x)",
    "%end = f32[8] all-reduce-done(%begin)",
    "ROOT %two = f32[8] exponential(%end)",
)


@given(kernel=st.floats(0, 10), transfer=st.floats(0.001, 10), after=st.floats(0, 10))
def test_a_transfer_hides_behind_the_kernels_between_its_start_and_its_done(
    kernel, transfer, after
):
    costs = {"one": _kernel(kernel), "two": _kernel(after), "begin": _transfer(transfer)}
    step = _replayed(costs, _BESIDE)
    assert step.seconds == pytest.approx(max(kernel, transfer) + after)
    assert step.waited_seconds == pytest.approx(max(transfer - kernel, 0))
    assert step.transfer_seconds == pytest.approx(transfer)


def test_a_transfer_without_a_done_is_waited_for():
    entry = _entry(
        "%one = f32[8] exponential(%x)",
        "%sum = f32[8] all-reduce(%one), replica_groups={}, to_apply=%add",
        "ROOT %two = f32[8] exponential(%sum)",
    )
    step = _replayed({"one": _kernel(2), "sum": _transfer(3), "two": _kernel(5)}, entry)
    assert (step.seconds, step.kernel_seconds, step.waited_seconds) == (10, 7, 3)


@pytest.mark.parametrize(("links", "seconds"), [(("east", "west"), 4), (("east", "east"), 7)])
def test_transfers_over_different_links_run_together(links, seconds):
    entry = _entry(
        _START.format("first"),
        _START.format("second"),
        "%a = f32[8] all-reduce-done(%first)",
        "%b = f32[8] all-reduce-done(%second)",
        "ROOT %two = f32[8] add(%a, %b)",
    )
    costs = {"first": _transfer(3, links[0]), "second": _transfer(4, links[1])}
    assert _replayed(costs, entry).seconds == seconds


_CONDITION = """
%condition (c: (s32[], f32[8])) -> pred[] {
  %c = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(TRIPS)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}
"""


def _loop(trips, *lines):
    body = "\n  ".join(
        [
            "%body (c: (s32[], f32[8])) -> (s32[], f32[8]) {",
            "%c = (s32[], f32[8]) parameter(0)",
            "%i = s32[] get-tuple-element(%c), index=0",
            "%v = f32[8] get-tuple-element(%c), index=1",
            "%unit = s32[] constant(1)",
            "%next = s32[] add(%i, %unit)",
            *lines,
            "ROOT %t = (s32[], f32[8]) tuple(%next, %out)",
            "}",
        ]
    )
    entry = _entry(
        "%zero = s32[] constant(0)",
        _START.format("before"),
        "%start = (s32[], f32[8]) tuple(%zero, %x)",
        "%loop = (s32[], f32[8]) while(%start), condition=%condition, body=%body",
        "%y = f32[8] get-tuple-element(%loop), index=1",
        "%late = f32[8] all-reduce-done(%before)",
        "ROOT %sum = f32[8] add(%y, %late)",
    )
    return entry, body, _CONDITION.replace("TRIPS", str(trips))


_BODY = (
    "%begin = f32[8] all-reduce-start(%v), replica_groups={}, to_apply=%add",
    "%one = f32[8] exponential(%v)",
    "%end = f32[8] all-reduce-done(%begin)",
    "%out = f32[8] add(%end, %one)",
)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 12, 100_000])
def test_a_loop_runs_as_often_as_its_counter_says(trips):
    costs = {"begin": _transfer(5), "one": _kernel(2)}
    step = _replayed(costs, *_loop(trips, *_BODY))
    assert step.seconds == pytest.approx(5 * trips)
    assert step.kernel_seconds == pytest.approx(2 * trips)
    assert step.transfer_seconds == pytest.approx(5 * trips)


@given(before=st.integers(0, 50), transfer=st.integers(1, 6), kernel=st.integers(0, 6))
def test_links_that_are_busy_as_a_loop_begins_delay_its_first_trips(before, transfer, kernel):
    trips = 9
    costs = {"before": _transfer(before), "begin": _transfer(transfer), "one": _kernel(kernel)}
    free = float(before)
    now = 0.0
    for _ in range(trips):
        end = max(now, free) + transfer
        now, free = max(now + kernel, end), end
    step = _replayed(costs, *_loop(trips, *_BODY))
    assert step.seconds == pytest.approx(max(now, before))


def test_the_slowest_branch_is_taken():
    branch = (
        "%{0}_branch (p: f32[8]) -> f32[8] {{\n  %p = f32[8] parameter(0)\n"
        "  ROOT %{0} = f32[8] exponential(%p)\n}}"
    )
    entry = _entry(
        "%which = s32[] constant(0)",
        "ROOT %c = f32[8] conditional(%which, %x, %x),"
        " branch_computations={%fast_branch, %slow_branch}",
    )
    costs = {"fast": _kernel(1), "slow": _kernel(7)}
    step = _replayed(costs, entry, branch.format("fast"), branch.format("slow"))
    assert (step.seconds, step.kernel_seconds) == (7, 7)


def test_what_an_async_start_wraps_is_a_transfer():
    wrapped = (
        "%scattered (p: f32[8]) -> f32[4] {\n  %p = f32[8] parameter(0)\n"
        "  ROOT %scatter = f32[4] reduce-scatter(%p), replica_groups={{0,1}}, dimensions={0},"
        " to_apply=%add\n}"
    )
    entry = _entry(
        "%begin = ((f32[8]), f32[4]) async-start(%x), calls=%scattered",
        "%one = f32[8] exponential(%x)",
        "%end = f32[4] async-done(%begin)",
        "ROOT %two = f32[8] exponential(%one)",
    )
    costs = {"scatter": _transfer(4), "one": _kernel(3), "two": _kernel(1)}
    assert _replayed(costs, entry, wrapped).seconds == 5


def test_what_is_started_and_not_waited_for_ends_within_the_step():
    entry = _entry(_START.format("begin"), "ROOT %one = f32[8] exponential(%x)")
    assert _replayed({"begin": _transfer(4), "one": _kernel(1)}, entry).seconds == 4


def test_a_done_of_what_was_not_started_is_refused():
    entry = _entry("ROOT %end = f32[8] all-reduce-done(%x)")
    with pytest.raises(HloError, match="end: waits for what was not started before it"):
        _replayed({}, entry)


@pytest.mark.parametrize(("transfer", "seconds"), [(4, 7), (6, 8)])
def test_kernels_that_share_a_transfer_run_beside_it(transfer, seconds):
    entry = _entry(
        "%one = f32[8] exponential(%x)",
        "%two = f32[8] exponential(%one)",
        "ROOT %three = f32[8] exponential(%two)",
    )
    gather = Transfer(transfer, frozenset(["net"]), name="gather")
    costs = {"one": Cost(3, (gather,)), "two": Cost(2, ends=("gather",)), "three": _kernel(2)}
    step = _replayed(costs, entry)
    assert (step.seconds, step.kernel_seconds) == (seconds, 7)


def test_instructions_run_as_the_schedule_says_and_not_as_the_program_lists_them():
    module = _module(_BESIDE)
    entry = module.computations[module.entry_id]
    listed = {i.name: i for i in entry.instructions}
    names = ["x", "begin", "end", "one", "two"]
    module.schedule[entry.id] = tuple(listed[name].id for name in names)
    costs = {"one": _kernel(3), "two": _kernel(1), "begin": _transfer(2)}
    step = replay(module, lambda instruction: costs.get(instruction.name, Cost()))
    assert (step.seconds, step.waited_seconds) == (6, 2)


@pytest.mark.parametrize("change", [lambda ids: ids[:-1], lambda ids: (*ids[:-1], 999_999)])
def test_a_schedule_of_other_instructions_is_refused(change):
    module = _module(_BESIDE)
    module.schedule[module.entry_id] = change(module.schedule[module.entry_id])
    with pytest.raises(
        HloError, match="main: its schedule has . instructions, which are not its 5"
    ):
        replay(module, lambda instruction: Cost())
