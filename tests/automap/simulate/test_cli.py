"""`automap simulate` as a user runs it."""

import json
from pathlib import Path

from click.testing import CliRunner
import jax
import pytest

from automap.cli import main
from tests.steps import mlp


SAMPLE = Path(__file__).resolve().parents[1] / "plan_sample.json"


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def planned(path, *arguments):
    done = run("plan", *arguments, "--budget", "2", "-o", path)
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    return planned(path, "tests.steps:mlp", "--arg", "batch=64", "--topology", "8xh100")


def test_a_plan_is_simulated_and_its_trace_written(plan_file, tmp_path):
    trace = tmp_path / "trace.json"
    done = run("simulate", plan_file, "--trace", trace)
    assert done.exit_code == 0, done.output
    assert "simulated step" in done.stdout and "predicted" in done.stdout
    assert "ui.perfetto.dev" in done.stderr and "chrome://tracing" in done.stderr
    rows = json.loads(trace.read_text())["traceEvents"]
    names = {row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert names <= {"compute", "link: collectives"} and "compute" in names
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_json_for_another_machine(plan_file):
    done = run("simulate", plan_file, "--topology", "8xk80", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["topology"] == "8xk80" and found["step_seconds"] > 0
    assert "planned for 8xh100" in found["warnings"][0]


def test_a_plan_of_a_program_file_is_simulated(tmp_path):
    step, args = mlp()
    lowered = jax.jit(step, keep_unused=True).lower(*args)
    program = tmp_path / "step.pb"
    program.write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    plan = planned(tmp_path / "plan.json", program, "--topology", "v5e:2x4")
    done = run("simulate", plan)
    assert done.exit_code == 0, done.output
    assert "(+0.0%)" in done.stdout
    program.write_bytes(b"")
    assert run("simulate", plan).exit_code == 2


def test_help_says_how_to_open_a_trace():
    done = run("simulate", "--help")
    assert "ui.perfetto.dev" in done.stdout and "chrome://tracing" in done.stdout


BAD = {
    "no file": (["missing.json"], "missing.json"),
    "no folder for the trace": (["PLAN", "--trace", "no/such/trace.json"], "there is no folder"),
    "unknown topology": (["PLAN", "--topology", "8xabacus"], "8xabacus"),
    "a topology of other devices": (["PLAN", "--topology", "v5e:4x4"], "does not lie"),
    "another model": (["PLAN", "--arg", "batch=128"], "inputs are not those of the plan"),
    "no such parameter": (["PLAN", "--arg", "size=1"], "no such parameter"),
    "no value": (["PLAN", "--arg", "size"], "expected name=value"),
    "no profile": (["PLAN", "--profile", "missing.json"], "missing.json"),
    "a program that is not there": ([SAMPLE], "program cannot be read again"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message(plan_file, arguments, message):
    done = run("simulate", *(plan_file if a == "PLAN" else a for a in arguments))
    assert done.exit_code == 2, done.output
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
    assert message in done.stderr
    assert done.stdout == ""


def test_a_plan_made_in_python_is_simulated_there(plan_file, tmp_path):
    data = json.loads(plan_file.read_text())
    data["workload"]["target"] = "tests.nowhere:step"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data))
    done = run("simulate", other)
    assert done.exit_code == 2 and "automap.simulate(plan, step, args)" in done.stderr


def test_a_plan_that_does_not_say_its_point_is_to_be_made_again(plan_file, tmp_path):
    data = json.loads(plan_file.read_text())
    del data["search"]["point"]
    older = tmp_path / "older.json"
    older.write_text(json.dumps(data))
    done = run("simulate", older)
    assert done.exit_code == 2 and "plan again with `automap plan tests.steps:mlp" in done.stderr
    data["search"]["point"] = {"layers": "folded", "compute": "all"}
    older.write_text(json.dumps(data))
    done = run("simulate", older)
    assert done.exit_code == 2 and "search.point" in done.stderr
