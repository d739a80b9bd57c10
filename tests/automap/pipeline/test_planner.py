"""Pipeline plans as a user gets them: the command, the function, the file."""

import json

from click.testing import CliRunner
import pytest

import automap
from automap.api.plan import Plan
from automap.cli import main
from automap.errors import InfeasiblePlanError, InputError
from automap.pipeline.schedules import GPIPE, ONE_FORWARD_ONE_BACKWARD, SCHEDULES
from automap.planner.pipeline_records import bubble, layer_name
from models.gpt import gpt_tiny
from models.mlp import mlp_tiny
from models.t5 import t5_tiny
from tests.automap.pipeline.problems import assert_simulated_as_predicted, only


def planned(**options):
    step, args = t5_tiny()
    return automap.plan(step, args, topology="2x2xv100", space="pipeline", budget=600, **options)


@pytest.mark.parametrize(
    ("step", "busy", "idle"), [(1.0, 0.75, 0.25), (0.1 + 0.2, 0.3, 0.0), (0.3, 0.1 + 0.2, 0.0)]
)
def test_the_rounding_of_two_sums_is_no_bubble(step, busy, idle):
    assert step - busy != 0
    assert bubble(step, busy) == idle


@pytest.fixture(scope="module")
def plan():
    return planned(stages=2)


def test_a_plan_has_stages_on_all_devices(plan, tmp_path):
    record = plan.pipeline
    assert record is not None
    assert [d for stage in record.stages for d in stage.devices] == [0, 1, 2, 3]
    assert 16 % record.microbatches == 0
    assert record.stages[0].cut_after is not None
    assert record.stages[1].cut_after is None
    parts = plan.predicted
    assert parts.step_seconds == pytest.approx(
        parts.compute_seconds + parts.collective_seconds + parts.bubble_seconds
    )
    assert parts.peak_bytes == max(stage.peak_bytes for stage in record.stages)
    assert plan.search.gap is not None
    assert plan.search.gap >= 0
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_explain_says_where_it_is_cut(plan):
    text = plan.explain()
    assert "pipeline of 2 stages" in text
    assert "stage 1 on devices" in text
    assert f"cut after {plan.pipeline.stages[0].cut_after}" in text


def test_diff_names_the_pipelines(plan):
    other = planned(stages=1, microbatches=1)
    text = plan.diff(other)
    assert "pipeline: " in text
    assert "2+2 devices, cut after" in text
    assert "-> gpipe, 1 microbatch, 4 devices" in text


@pytest.mark.parametrize("schedule", list(SCHEDULES.values()))
def test_the_record_alone_gives_the_predicted_step(schedule, monkeypatch, tmp_path):
    only((schedule,), monkeypatch)
    automap.plan(
        *gpt_tiny(), topology="2x2xv100", space="pipeline", stages=4, microbatches=4, budget=600
    ).save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.pipeline.schedule == schedule.name
    assert all(stage.transfer_seconds > 0 for stage in plan.pipeline.stages[:-1])
    assert_simulated_as_predicted(plan)


def test_no_strategy_is_better_than_the_exact_one(plan):
    for strategy in ("local-search", "even", "servers"):
        other = planned(stages=2, strategy=strategy)
        assert other.search.gap is None
        least = plan.predicted.step_seconds / (1 + plan.search.gap)
        assert other.predicted.step_seconds >= least * (1 - 1e-9)


@pytest.mark.slow
def test_an_agent_that_learns_comes_to_the_optimum(monkeypatch):
    """Of the schedules that it may learn of."""
    pytest.importorskip("torch")
    only((GPIPE, ONE_FORWARD_ONE_BACKWARD), monkeypatch)
    exact, learnt = (
        planned(stages=2, microbatches=4, strategy=name) for name in ("exact", "rainbow")
    )
    assert learnt.search.gap is None
    assert learnt.search.evaluations <= 2
    assert learnt.predicted.step_seconds == pytest.approx(exact.predicted.step_seconds, rel=1e-3)


@pytest.mark.slow
def test_the_agent_says_what_it_lost_when_asked(monkeypatch):
    """Of the schedules that it has learnt of."""
    only((GPIPE, ONE_FORWARD_ONE_BACKWARD), monkeypatch)
    plan = planned(stages=2)
    monkeypatch.undo()
    quick, asked = (planned(stages=2, strategy=name) for name in ("agent", "agent-gap"))
    assert quick.search.gap is None
    assert quick.predicted.step_seconds == asked.predicted.step_seconds
    bound = asked.predicted.step_seconds / (1 + asked.search.gap)
    assert bound == pytest.approx(plan.predicted.step_seconds / (1 + plan.search.gap))


def test_one_stage_is_data_parallel():
    found = planned(stages=1, microbatches=1)
    assert found.pipeline is not None
    assert len(found.pipeline.stages) == 1
    sharded = automap.plan(*t5_tiny(), topology="2x2xv100", preset="data-parallel")
    # Its passes are two programs, and it adds gradients up: one kernel at most for each parameter.
    parameters = sum(leaf.role == "parameter" for leaf in found.inputs)
    more = found.predicted.compute_seconds - sharded.predicted.compute_seconds
    assert 0 <= more <= 2 * parameters * automap.get_topology("2x2xv100").device.launch_seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 5}, "4 devices"),
        ({"stages": 0}, "auto, or an integer from 1"),
        ({"microbatches": 3}, "does not divide the batch of 16"),
        ({"strategy": "greedy"}, "of pipelines; allowed: auto, exact"),
        ({"mesh": "data=4"}, "--mesh is of shardings"),
        ({"preset": "zero-1"}, "--preset is of shardings"),
    ],
)
def test_options_that_do_not_suit(options, message):
    with pytest.raises(InputError, match=message):
        planned(**options)


def test_options_of_pipelines_need_the_space():
    with pytest.raises(InputError, match="--space pipeline"):
        automap.plan(*mlp_tiny(), topology="4xv100", stages=2)


@pytest.mark.slow
def test_what_does_not_fit_says_how_much_it_needs():
    with pytest.raises(InfeasiblePlanError, match=r"the smallest needs .* on a device, 1 MiB"):
        planned(stages=2, memory_limit=2.0**-10)
    with pytest.raises(InfeasiblePlanError, match="must divide a microbatch's examples"):
        planned(stages=1, microbatches=16)


@pytest.mark.parametrize("strategy", ["auto", "agent"])
def test_the_command(tmp_path, strategy):
    path = tmp_path / "plan.json"
    run = CliRunner().invoke(
        main,
        [
            "plan",
            "models.t5:t5_tiny",
            "--topology",
            "2x2xv100",
            "--space",
            "pipeline",
            "--stages",
            "2",
            "--microbatches",
            "4",
            "--strategy",
            strategy,
            "-o",
            str(path),
        ],
    )
    assert run.exit_code == 0, run.output
    assert "pipeline of 2 stages, 4 microbatches" in run.output
    data = json.loads(path.read_text())
    assert {"schedule", "microbatches", "stages"} == set(data["pipeline"])
    data["pipeline"]["stages"][0]["devices"] = [0]
    path.write_text(json.dumps(data))
    again = CliRunner().invoke(main, ["explain", str(path)])
    assert again.exit_code == 2
    assert "pipeline.stages" in again.output


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("[0]['params']['encoder']['layers'][3]['mlp']['kernel']", "encoder.layers.3"),
        ("[0]['params']['tokens']['embedding']", "tokens"),
        ("[0][2]", "2"),
        ("[0].params.w", "w"),
        ("", "inputs"),
    ],
)
def test_layers_by_path(path, layer):
    assert layer_name(path) == layer
