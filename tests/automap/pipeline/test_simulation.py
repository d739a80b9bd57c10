"""Simulated pipelines: closed forms, waits second by second, traces, files of other versions, the
command.
"""

from dataclasses import replace
import json
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

import automap
from automap.api.plan import Plan
from automap.api.simulation import PipelineSimulation
from automap.cli import main
from automap.errors import InputError, PlanError
from automap.pipeline.simulation import simulate_pipeline
from automap.plan.parts import MeshRecord
from automap.plan.pipeline import PipelineRecord, StageRecord
from models.mlp import mlp_tiny
from tests.steps import mlp


# Of a pipeline, which is not refined.
SAMPLE = replace(
    Plan.load(Path(__file__).resolve().parents[1] / "plan" / "plan_sample.json"), refined=None
)


def pipeline(rows, schedule="1f1b", microbatches=4, devices=None) -> PipelineRecord:
    """Stages of `rows`: forward, backward, transfer, reduce; weight passes take as long as
    backward passes where they are apart.
    """
    devices = devices or [1] * len(rows)
    ends = np.cumsum([0, *devices]).tolist()
    last = len(rows) - 1
    return PipelineRecord(
        schedule=schedule,
        microbatches=microbatches,
        stages=tuple(
            StageRecord(
                devices=tuple(range(ends[s], ends[s + 1])),
                cut_after=None if s == last else f"{s}",
                layers=f"layers.{s}",
                forward_seconds=f,
                backward_seconds=b,
                reduce_seconds=r,
                sent_bytes=0 if s == last else 1000 + s,
                peak_bytes=7,
                transfer_seconds=0.0 if s == last else t,
                weights_seconds=b if schedule == "zero-bubble" else 0.0,
            )
            for s, (f, b, t, r) in enumerate(rows)
        ),
    )


def with_pipeline(record: PipelineRecord) -> Plan:
    """The sample plan with a pipeline, which predicts what it simulates."""
    count = sum(len(stage.devices) for stage in record.stages)
    seconds = simulate_pipeline(SAMPLE, record).step_seconds
    return replace(
        SAMPLE,
        topology=automap.get_topology(f"cpu:{count}").to_dict(),
        pipeline=record,
        mesh=MeshRecord(axes=(("device", count),)),
        decisions=(),
        conflicts=(),
        constraints=(),
        search=replace(SAMPLE.search, point=None),
        inputs=tuple(replace(x, spec=(None,) * len(x.spec)) for x in SAMPLE.inputs),
        outputs=tuple(replace(x, spec=(None,) * len(x.spec)) for x in SAMPLE.outputs),
        predicted=replace(SAMPLE.predicted, step_seconds=seconds, collectives=()),
    )


ROWS = [(2.0, 3.0, 1.0, 4.0), (1.0, 2.0, 2.0, 0.0), (3.0, 3.0, 0.0, 1.0)]
RECORD = pipeline(ROWS, devices=[2, 1, 1])
RANDOM = st.builds(
    pipeline,
    st.lists(st.tuples(*[st.integers(0, 4).map(float)] * 4), min_size=1, max_size=5),
    st.sampled_from(["gpipe", "1f1b", "zero-bubble"]),
    st.integers(1, 6),
)


def found_of(record):
    return PipelineSimulation.from_record(simulate_pipeline(SAMPLE, record))


def lanes_of(found) -> dict[tuple[int, str], list]:
    lanes = {}
    for event in found.events:
        lanes.setdefault((event.details["stage"], event.lane.name), []).append(event)
    return lanes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (2, 2), (4, 3), (4, 16)])
def test_the_bubble_of_equal_stages_in_closed_form(schedule, stages, microbatches):
    found = found_of(pipeline([(0.25, 0.5, 0.0, 0.0)] * stages, schedule, microbatches))
    rounds = microbatches + stages - 1
    assert found.step_seconds == pytest.approx(0.75 * rounds)
    assert found.bubble_fraction == pytest.approx((stages - 1) / rounds)
    for row in found.stages:
        assert row.idle_seconds == pytest.approx(0.75 * (stages - 1))
        assert row.transfer_wait_seconds == pytest.approx(0.0)


def test_the_bubble_counts_devices():
    """One microbatch: each stage waits while the other works."""
    found = found_of(pipeline([(1.0, 1.0, 0.0, 0.0)] * 2, microbatches=1, devices=[3, 1]))
    assert found.bubble_fraction == pytest.approx(0.5)
    found = found_of(
        pipeline([(1.0, 1.0, 0.0, 0.0), (0.5, 0.5, 0.0, 0.0)], microbatches=1, devices=[3, 1])
    )
    assert found.bubble_fraction == pytest.approx((3 * 1.0 + 1 * 2.0) / (4 * 3.0))


def test_one_microbatch_waits_for_everything_in_turn():
    found = found_of(pipeline([(1.0, 2.0, 0.5, 3.0), (4.0, 5.0, 0.0, 0.25)], microbatches=1))
    first, second = found.stages
    assert found.step_seconds == 1.0 + 0.5 + 9.0 + 0.5 + 2.0 + 3.0
    assert (first.stage_wait_seconds, first.transfer_wait_seconds) == (9.5, 0.5)
    assert (second.stage_wait_seconds, second.transfer_wait_seconds) == (1.0, 0.5)
    assert (first.end_wait_seconds, second.end_wait_seconds) == (0.0, 5.25)


def _seconds_of_waits(found, s: int) -> tuple[int, int, int]:
    """Seconds in which stage s waits for stages, for transfers, and at the end; all times are whole
    seconds.
    """
    events = {
        (e.category, e.details["stage"], e.details.get("microbatch")): e for e in found.events
    }

    def end(event):
        return event.start_seconds + event.seconds

    mine = [e for e in found.events if e.details["stage"] == s and e.lane.name == "passes"]
    last = events["all-reduce", s, None]
    counts = [0, 0, 0]
    for now in range(round(found.step_seconds)):
        if any(e.start_seconds <= now < end(e) for e in [*mine, last]):
            continue
        left = [e for e in mine if e.start_seconds > now]
        if not left:
            counts[2] += 1
            continue
        job = min(left, key=lambda e: e.start_seconds)
        m = job.details["microbatch"]
        sender = s - 1 if job.category == "forward" else s + 1
        counts[end(events[job.category, sender, m]) <= now] += 1
    return counts[0], counts[1], counts[2]


@settings(max_examples=60, deadline=None)
@given(record=RANDOM)
def test_every_second_of_a_stage_is_accounted_for(record):
    found = found_of(record)
    busy = 0.0
    for row in found.stages:
        assert row.busy_seconds + row.idle_seconds == pytest.approx(found.step_seconds)
        wanted = _seconds_of_waits(found, row.stage)
        assert (row.stage_wait_seconds, row.transfer_wait_seconds, row.end_wait_seconds) == wanted
        busy += row.busy_seconds
    total = len(found.stages) * found.step_seconds
    assert found.bubble_fraction == pytest.approx(1 - busy / total if total else 0.0)


@settings(max_examples=30, deadline=None)
@given(record=RANDOM)
def test_lanes_do_one_thing_at_a_time_and_all_that_is_counted(record):
    found, m = found_of(record), record.microbatches
    lanes = lanes_of(found)
    for events in lanes.values():
        events.sort(key=lambda e: (e.start_seconds, e.seconds))
        for one, other in zip(events, events[1:]):
            assert one.start_seconds + one.seconds <= other.start_seconds
    n = len(found.stages)
    for s, row in enumerate(found.stages):
        sums = {name: sum(e.seconds for e in x) for (t, name), x in lanes.items() if t == s}
        links = {f"link {way} stage {s + 1}": row.link_seconds for way in ("to", "from")}
        assert sums == {
            "passes": row.forward_seconds + row.backward_seconds + row.weights_seconds,
            "all-reduce and update": row.reduce_seconds,
        } | (links if s < n - 1 else {})
    kinds = 3 if record.schedule == "zero-bubble" else 2
    assert len(found.events) == kinds * m * n + 2 * m * (n - 1) + n
    ends = [e.start_seconds + e.seconds for e in found.events]
    assert max(ends) == found.step_seconds


def test_tasks_say_what_they_are():
    found = found_of(RECORD)
    for event in found.events:
        is_transfer = event.lane.name.startswith("link")
        assert event.lane.device == RECORD.stages[event.details["stage"]].devices[0]
        assert ("microbatch" in event.details) == (event.category != "all-reduce")
        assert event.details.get("bytes") == (
            1000 + event.details["stage"] if is_transfer else None
        )
    assert found.stages[0].sent_bytes == 4 * 1000 and found.stages[0].sends == 4
    assert found.stages[2].sent_bytes == 0 == found.stages[2].sends


def test_a_trace_has_a_process_for_each_stage(tmp_path):
    found = found_of(RECORD)
    found.save_trace(tmp_path / "trace.json")
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {r["pid"]: r["args"]["name"] for r in rows if r["name"] == "process_name"}
    assert names == {
        0: "stage 0: devices 0 to 1",
        2: "stage 1: device 2",
        3: "stage 2: device 3",
    }
    threads = {(r["pid"], r["args"]["name"]) for r in rows if r["name"] == "thread_name"}
    own = {(pid, name) for pid in (0, 2, 3) for name in ("passes", "all-reduce and update")}
    links = {
        (pid, f"link {way} stage {s}") for pid, s in ((0, 1), (2, 2)) for way in ("to", "from")
    }
    assert threads == own | links
    assert len([r for r in rows if r["ph"] == "X"]) == len(found.events)


def test_json_and_text_say_the_same():
    found = found_of(RECORD)
    data = json.loads(json.dumps(found.to_json()))
    assert "events" not in data
    assert data["step_seconds"] == found.step_seconds and data["tasks"] == len(found.events)
    for node, row in zip(data["stages"], found.stages, strict=True):
        assert node.pop("busy_seconds") + node.pop("idle_seconds") == found.step_seconds
        assert {**node, "devices": tuple(node["devices"])} == {k: getattr(row, k) for k in node}
    text = found.explain()
    assert "pipeline of 3 stages, 4 microbatches, schedule 1f1b: 43 tasks" in text
    assert f"bubble {found.bubble_fraction:.1%}" in text
    assert "stage 0 on devices 0 to 1: layers.0" in text and "stage 2 on device 3: layers.2" in text


def test_a_file_of_an_older_automap_is_simulated_without_transfers(tmp_path):
    plan = with_pipeline(RECORD)
    plan.save(tmp_path / "plan.json")
    assert automap.simulate(Plan.load(tmp_path / "plan.json")).warnings == ()
    data = json.loads((tmp_path / "plan.json").read_text())
    for stage in data["pipeline"]["stages"]:
        del stage["transfer_seconds"]
    (tmp_path / "older.json").write_text(json.dumps(data))
    older = Plan.load(tmp_path / "older.json")
    found = automap.simulate(older)
    free = pipeline([(f, b, 0.0, r) for f, b, _, r in ROWS], devices=[2, 1, 1])
    assert found.step_seconds == found_of(free).step_seconds < plan.predicted.step_seconds
    (warning,) = found.warnings
    assert "seconds of transfers" in warning and warning in found.explain()
    assert "each way" in plan.explain() and "each way" not in older.explain()


def test_a_record_that_was_changed_is_a_warning():
    plan = with_pipeline(RECORD)
    predicted = replace(plan.predicted, step_seconds=plan.predicted.step_seconds * 1.01)
    (warning,) = automap.simulate(replace(plan, predicted=predicted)).warnings
    assert "changed after it was planned" in warning


@pytest.fixture(scope="module")
def planned():
    return automap.plan(
        *mlp_tiny(), topology="2x2xv100", space="pipeline", stages=2, microbatches=4, budget=60
    )


def test_a_pipeline_needs_no_step_but_one_that_is_given_is_checked(planned):
    found = automap.simulate(planned)
    assert isinstance(found, automap.PipelineSimulation)
    assert automap.simulate(planned, *mlp_tiny()) == found
    with pytest.raises(PlanError, match="inputs are not those of the plan"):
        automap.simulate(planned, *mlp())
    for option in ({"topology": "8xh100"}, {"profile": "profile.json"}):
        with pytest.raises(InputError, match="is not for a pipeline.*plan again with --space pip"):
            automap.simulate(planned, *mlp_tiny(), **option)


def test_an_older_plan_of_one_program_is_to_be_made_again():
    with pytest.raises(PlanError, match=r"^program: missing: .*plan again, or give the step"):
        automap.simulate(SAMPLE)
    with pytest.raises(InputError, match=r"automap\.simulate\(plan, step, args, topology="):
        automap.simulate(SAMPLE, topology="8xh100")


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """A plan whose target is not there: it is not needed."""
    path = tmp_path_factory.mktemp("plans") / "pipeline.json"
    with_pipeline(RECORD).save(path)
    return path


def test_the_command_says_writes_and_prints(plan_file, tmp_path):
    trace = tmp_path / "trace.json"
    done = run("simulate", plan_file, "--trace", trace)
    assert done.exit_code == 0, done.output
    assert "(+0.0%)" in done.stdout and "for transfers" in done.stdout
    assert "ui.perfetto.dev" in done.stderr
    tasks = [r for r in json.loads(trace.read_text())["traceEvents"] if r["ph"] == "X"]
    done = run("simulate", plan_file, "--json")
    assert json.loads(done.stdout) == found_of_file(plan_file).to_json()
    assert json.loads(done.stdout)["tasks"] == len(tasks)


def found_of_file(path):
    return automap.simulate(Plan.load(path))


@pytest.mark.parametrize(
    "option", [("--topology", "v5e:2x2"), ("--arg", "batch=8"), ("--profile", "profile.json")]
)
def test_options_that_change_seconds_are_refused(plan_file, option):
    done = run("simulate", plan_file, *option)
    assert done.exit_code == 2 and done.stdout == ""
    assert f"{option[0]} is not for a pipeline" in done.stderr
    assert "plan again with --space pipeline" in done.stderr


def test_help_teaches_pipelines():
    assert "pipeline" in run("simulate", "--help").stdout
