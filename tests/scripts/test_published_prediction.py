"""Predicted steps of published runs: the pipeline's value in closed form, and parts by depth."""

from dataclasses import replace

from hypothesis import given, strategies as st
import pytest

from automap.pipeline.schedules import SCHEDULES
from automap.pipeline.task_graph import StageSeconds, pipeline_seconds
from scripts.published_prediction import (
    Efficiencies,
    Parts,
    PartsStore,
    pipeline_value,
    price_run,
    run_topology,
)
from scripts.published_rows import Row
from scripts.published_runs import decoder_as_run


SECONDS = st.floats(1e-3, 1.0)


@given(
    forward=SECONDS,
    backward=SECONDS,
    transfer=st.floats(0.0, 0.1),
    reduce=st.floats(0.0, 0.5),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 9),
)
def test_the_value_of_equal_stages_is_the_simulated_step(
    forward, backward, transfer, reduce, stages, microbatches
):
    transfer = min(transfer, forward / 4, backward / 4)
    found = pipeline_value(
        [forward] * stages,
        [backward] * stages,
        [transfer] * (stages - 1),
        [reduce] * stages,
        microbatches,
    )
    each = StageSeconds(forward=forward, backward=backward, transfer=transfer, reduce=reduce)
    last = replace(each, transfer=0.0)
    simulated = pipeline_seconds([each] * (stages - 1) + [last], microbatches, SCHEDULES["1f1b"])
    # The value is never above the simulated step; of equal stages it is it where transfers are
    # small, and a stage of slow transfers waits for rounds that V does not follow.
    assert found <= simulated * (1 + 1e-9)
    assert found >= simulated * 0.95


def test_one_stage_runs_its_microbatches_one_after_the_other():
    assert pipeline_value([2.0], [3.0], [], [1.0], 4) == pytest.approx(4 * 5.0 + 1.0)


ONES = Parts(**dict.fromkeys(Parts.__slots__, 1.0))


def test_a_pass_takes_its_kernels_or_their_launches():
    assert ONES.seconds("forward", Efficiencies()) == 4.0
    slow = Efficiencies(host_seconds=5.0, pass_seconds=2.0)
    assert ONES.seconds("backward", slow) == 7.0


def test_efficiencies_lengthen_what_they_are_of():
    half = ONES.reached(Efficiencies(products=0.5, attention=0.25, collectives=0.1))
    changed = {n: getattr(half, n) for n in Parts.__slots__ if getattr(half, n) != 1.0}
    assert changed == {
        "forward_products": 2.0,
        "backward_products": 2.0,
        "forward_attention": 4.0,
        "backward_attention": 4.0,
        "forward_waiting": 10.0,
        "backward_waiting": 10.0,
        "sums": 10.0,
    }


def row(**changed):
    fields = {
        "source": "vTrain",
        "model": "GPT h1024 L3 a16",
        "chips": 4,
        "chip": "A100",
        "precision": "fp16?",
        "batch": 8,
        "length": 128,
        "parallelism": "TP2 DP2 PP1 MBS2 1F1B",
        "remat": "full",
        "step_seconds": 1.0,
        "url": "here",
    }
    return Row(**fields | changed)


def test_parts_are_linear_in_the_number_of_layers():
    run, store = row(), PartsStore()
    config = decoder_as_run(run.model, run.family, run.remat)
    one, two, three = (store.parts(run, replace(config, depth=d)) for d in (1, 2, 3))
    layer = two.plus(one, -1.0)
    found = two.plus(layer, 1.0)
    for name in Parts.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(three, name), rel=1e-6, abs=1e-9)


def test_a_run_of_one_stage_is_its_microbatches_and_an_update():
    run, store = row(), PartsStore()
    predicted = price_run(run, store).predict(Efficiencies())
    parts = predicted.parts
    each = parts.seconds("forward", Efficiencies()) + parts.seconds("backward", Efficiencies())
    assert predicted.step_seconds == pytest.approx(2 * each + parts.sums + parts.update)
    # What was priced is asked for again, not priced.
    assert price_run(run, PartsStore(store.known)).predict(Efficiencies()) == predicted


def test_a_slow_host_decides_a_small_step():
    run, store = row(), PartsStore()
    fast, slow = (price_run(run, store).predict(Efficiencies(host_seconds=h)) for h in (0.0, 1.0))
    launches = slow.parts.forward_launches + slow.parts.backward_launches
    assert slow.step_seconds - (slow.parts.sums + slow.parts.update) == pytest.approx(2 * launches)
    assert fast.step_seconds < slow.step_seconds


def test_runs_across_hosts_have_the_network_that_their_source_states():
    vtrain = run_topology(row(chips=16))
    foundry = run_topology(row(chips=16, source="llm-foundry"))
    assert vtrain.levels[-1].bytes_per_s * 8 == pytest.approx(800e9 / 8)
    assert foundry.levels[-1].bytes_per_s * 8 == pytest.approx(1600e9 / 8)
