"""Hybrid plans as a user gets them: the command, the function, the file."""

import copy

from click.testing import CliRunner
import jax
import pytest

import automap
from automap.api.plan import Plan
from automap.choices import HYBRID_STRATEGIES
from automap.cli import main
from automap.config import Options
from automap.errors import InfeasiblePlanError, InputError, PlanError
from automap.pipeline.hybrid.inner_plans import INNER_SEARCHES
from automap.pipeline.schedules import PRICED, Interleaved
from automap.planner.spaces import plan_workload
from automap.program.trace import trace_step
from automap.report.progress import SearchProgress
from automap.search.agent.play import roll_out, shipped_player
from automap.search.progress import ChoiceProgress
from automap.topology import get_topology
from models.gpt import gpt_tiny
from models.mlp import mlp_tiny
from tests.automap.pipeline.problems import assert_simulated_as_predicted, only


def planned(space="hybrid", **options):
    return automap.plan(*gpt_tiny(), topology="2x4xv100", space=space, budget=600, **options)


@pytest.fixture(scope="module")
def replicated() -> Plan:
    return planned("pipeline", stages=2, microbatches=4)


@pytest.fixture(scope="module")
def limit() -> float:
    """GiB in which two stages of replicas do not fit."""
    with pytest.raises(InfeasiblePlanError, match="--space hybrid") as refused:
        planned("pipeline", stages=2, microbatches=4, memory_limit=2.0**-20)
    number, unit = str(refused.value).partition("the smallest needs ")[2].split()[:2]
    return 0.9 * float(number) * {"KiB": 2.0**-20, "MiB": 2.0**-10}[unit]


@pytest.fixture(scope="module")
def plan(limit: float) -> Plan:
    """Two stages where replicas do not fit."""
    return planned(stages=2, microbatches=4, memory_limit=limit)


def test_stages_are_sharded_where_replicas_do_not_fit(plan, replicated, tmp_path):
    record = plan.pipeline
    assert record is not None
    assert record.is_sharded_inside
    assert plan.predicted.fits
    assert plan.predicted.peak_bytes < replicated.predicted.peak_bytes
    assert plan.predicted.peak_bytes == max(stage.peak_bytes for stage in record.stages)
    parts = plan.predicted
    assert parts.step_seconds == pytest.approx(
        parts.compute_seconds + parts.collective_seconds + parts.bubble_seconds
    )
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_what_fits_is_found_without_a_search_of_inner_plans(plan, limit, monkeypatch):
    # As of a large model, where the budget is over before they are found.
    monkeypatch.setattr("automap.pipeline.hybrid.search.find_inner_plans", lambda *_: [])
    first = planned(stages=2, microbatches=4, memory_limit=limit)
    assert first.pipeline.is_sharded_inside
    assert first.predicted.fits
    # It is the first bound, and no more.
    assert plan.predicted.step_seconds <= first.predicted.step_seconds


@pytest.mark.slow
def test_inner_plans_are_the_agents_roll_outs_if_it_is_asked_for(limit, monkeypatch):
    led = []

    def watched(context, seen, player, start):
        reached = roll_out(context, seen, player, start)
        led.append((player, start, reached, context.objective.cost))
        return reached

    given = {"stages": 2, "microbatches": 4, "memory_limit": limit}
    with monkeypatch.context() as patched:
        patched.setattr("automap.pipeline.hybrid.search.find_inner_plans", lambda *_: [])
        presets = planned(**given)
    monkeypatch.setattr("automap.pipeline.hybrid.inner_plans.roll_out", watched)
    monkeypatch.setattr("automap.pipeline.hybrid.inner_plans.climb", None)
    plan = planned(strategy="agent", **given)
    assert plan.pipeline.is_sharded_inside and plan.predicted.fits
    assert plan.search.strategy == "agent"
    assert plan.predicted.step_seconds <= presets.predicted.step_seconds
    assert {player for player, *_ in led} == {shipped_player()}
    # From several meshes of a number of devices, and never to something worse.
    assert len({start.point.mesh for _, start, _, _ in led}) > 1
    for _, start, reached, cost in led:
        assert reached.point.mesh.sizes == start.point.mesh.sizes
        assert cost(reached.estimate) <= cost(start.estimate)


def test_every_strategy_of_the_space_has_a_search_of_inner_plans():
    assert list(INNER_SEARCHES) == list(HYBRID_STRATEGIES)


@pytest.mark.parametrize("schedule", list(PRICED))
def test_the_record_alone_gives_the_predicted_step(schedule, monkeypatch, tmp_path):
    only((schedule,), monkeypatch)
    automap.plan(
        *gpt_tiny(), topology="2x2xv100", space="hybrid", stages=2, microbatches=4, budget=600
    ).save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.pipeline.is_sharded_inside
    assert plan.pipeline.schedule == schedule.name
    assert plan.pipeline.stages[0].transfer_seconds > 0
    assert_simulated_as_predicted(plan)


@pytest.mark.slow
def test_interleaved_stages_are_sharded_where_replicas_do_not_fit(monkeypatch):
    """Two stages on each of two groups of devices."""
    only((Interleaved(2),), monkeypatch)
    given = {"topology": "2x2xv100", "stages": 4, "microbatches": 4, "budget": 600}
    step, args = gpt_tiny()
    replicas = automap.plan(step, args, space="pipeline", **given)
    limit = 0.7 * replicas.predicted.peak_bytes / 2**30
    with pytest.raises(InfeasiblePlanError):
        automap.plan(step, args, space="pipeline", memory_limit=limit, **given)
    plan = automap.plan(step, args, space="hybrid", memory_limit=limit, **given)
    assert plan.pipeline.schedule == "interleaved" and plan.pipeline.is_sharded_inside
    assert plan.predicted.peak_bytes == max(s.peak_bytes for s in plan.pipeline.stages)
    assert plan.predicted.peak_bytes <= limit * 2**30
    assert_simulated_as_predicted(plan)


def test_every_leaf_of_the_state_is_in_a_stage(plan):
    stages = [stage.inside for stage in plan.pipeline.stages if stage.inside is not None]
    held = {leaf.path for inside in stages for leaf in inside.inputs}
    if len(stages) == len(plan.pipeline.stages):
        assert held == {leaf.path for leaf in plan.inputs}
    split = [leaf for inside in stages for leaf in inside.inputs if any(leaf.spec)]
    assert split, "nothing is split"
    # A parameter's moments are where it is.
    for inside in stages:
        paths = {leaf.path for leaf in inside.inputs}
        for path in paths:
            if "['params']" in path and "['opt']" not in path:
                assert any(path.partition("['params']")[2] in other for other in paths - {path})


def test_explain_says_what_is_split_in_each_stage(plan):
    text = plan.explain()
    inside = next(s.inside for s in plan.pipeline.stages if s.inside is not None)
    mesh = " x ".join(f"{name}={size}" for name, size in inside.mesh.axes)
    assert f"    mesh {mesh}\n" in text
    assert f"      {inside.mesh.axes[0][0]} splits " in text
    assert "of optimizer state" in text


def test_it_can_run(plan):
    """What it computes is compared in `tests/automap/runtime/pipeline/test_hybrid_zoo.py`."""
    step, args = gpt_tiny()
    run = plan.jit(step)
    run.prepare(*args)
    devices = [set(s.device_set) for s in run.input_shardings]
    own = [{jax.devices()[n] for n in stage.devices} for stage in plan.pipeline.stages]
    assert all(each in own for each in devices)


@pytest.mark.slow
def test_no_space_is_better():
    """Without limits one program or a pure pipeline may win, and is returned then."""
    best, *others = (
        automap.plan(*mlp_tiny(), topology="4xv100", space=space)
        for space in ("hybrid", "sharding", "pipeline")
    )
    assert best.predicted.step_seconds <= min(p.predicted.step_seconds for p in others) * (1 + 1e-9)


EDITS = {
    "a mesh of other devices": (
        ("inside", "mesh", "axes", 0, 1), 3,
        r"stages\[\d\]\.inside\.mesh\.axes: got .*the devices of the stage",
    ),
    "an axis that the stage has not": (
        ("inside", "inputs", 0, "spec"), [["nowhere"]],
        r"inside\.inputs\[0\]\.spec\[0\]\[0\]: unknown axis",
    ),
    "a leaf that the step has not": (
        ("inside", "inputs", 0, "path"), "[9]", r"inside\.inputs\[0\]\.path: got '\[9\]'",
    ),
    "a leaf twice": (
        ("inside", "inputs", 1, "path"), None, r"inside\.inputs\[1\]\.path.*not there yet",
    ),
    "an unknown field": (("inside", "more"), 1, r"inside\.more: unknown field"),
    "a class below 0": (
        ("inside", "point", "compute"), [[-1]], r"point\.compute\[0\]\[0\]: got -1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_bad_files_are_refused_by_path(plan, name):
    keys, value, message = EDITS[name]
    data = copy.deepcopy(plan.to_json())
    stage = next(s for s in data["pipeline"]["stages"] if s["inside"] is not None)
    node = stage
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = stage["inside"]["inputs"][0]["path"] if value is None else value
    with pytest.raises(PlanError, match=message):
        Plan.from_json(data)


def test_files_without_the_field_are_read(replicated):
    data = replicated.to_json()
    for stage in data["pipeline"]["stages"]:
        assert stage.pop("inside") is None
    assert Plan.from_json(data) == replicated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "exact"}, "of --space hybrid; allowed: auto"),
        ({"mesh": "data=8"}, "--space hybrid decides stages"),
        ({"refine": 5.0}, "--refine with --space hybrid: it compiles plans of one program"),
        ({"stages": 9}, "8 devices"),
    ],
)
def test_options_that_do_not_suit(options, message):
    with pytest.raises(InputError, match=message):
        planned(**options)


def test_what_does_not_fit_says_how_much_it_needs():
    with pytest.raises(InfeasiblePlanError, match="with stages sharded inside: the smallest needs"):
        planned(stages=2, microbatches=4, memory_limit=2.0**-20)


def test_progress_says_what_is_tried_and_the_best_so_far():
    workload = trace_step(*mlp_tiny(), platform="cuda")
    seen: list[ChoiceProgress] = []
    options = Options(space="hybrid", stages=2, microbatches=2)
    found = Plan.from_record(
        plan_workload(workload, get_topology("4xv100"), options, on_stages=seen.append)
    )
    what = [tried.what for tried in seen]
    assert any(text.startswith("plans inside stages of") for text in what)
    last = [tried for tried in seen if tried.what == "hybrid pipelines of 2 stages"]
    assert [tried.done for tried in last] == list(range(1, last[-1].of + 1))
    assert last[-1].best_seconds == pytest.approx(found.predicted.step_seconds)
    with SearchProgress(1.0) as progress:
        for tried in seen:
            progress.update_stages(tried)


def test_diff_shows_the_meshes_inside(plan, replicated):
    inside = next(s.inside for s in plan.pipeline.stages if s.inside is not None)
    mesh = " x ".join(f"{name}={size}" for name, size in inside.mesh.axes)
    assert f"({mesh})" in replicated.diff(plan)


@pytest.mark.slow
def test_compare_shows_all_spaces():
    run = CliRunner().invoke(
        main, ["compare", "models.mlp:mlp_tiny", "--topology", "4xv100", "--space", "hybrid"]
    )
    assert run.exit_code == 0, run.output
    for row in ("data-parallel", "search (auto)", "pipeline", "hybrid"):
        assert row in run.output
