"""`automap simulate` as a user runs it."""

import json
from pathlib import Path

from click.testing import CliRunner
import jax
import pytest

from automap.cli import main
from tests.steps import mlp


SAMPLE = Path(__file__).resolve().parents[1] / "plan" / "plan_sample.json"


TARGET = ("--target", "tests.steps:mlp", "--arg", "batch=64")


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
    done = run("simulate", plan_file, "--topology", "8xk80")
    assert done.exit_code == 2
    assert "again with --target tests.steps:mlp --arg batch=64 behind it" in done.stderr
    done = run("simulate", plan_file, "--topology", "8xk80", *TARGET, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["topology"] == "8xk80" and answer["step_seconds"] > 0
    assert "planned for 8xh100" in answer["warnings"][0]


def test_the_record_of_a_plan_says_what_its_step_does(plan_file):
    by_record, again = (
        json.loads(run("simulate", plan_file, *target, "--json").stdout) for target in ((), TARGET)
    )
    assert by_record == again


def test_a_plan_file_never_has_code_run_or_a_file_opened(plan_file, tmp_path):
    """Finding D1: `simulate` and `verify` imported and called what the plan names."""
    witness = tmp_path / "ran"
    data = json.loads(plan_file.read_text())
    data["workload"] |= {"target": "os:system", "arguments": [["command", f"touch {witness}"]]}
    hostile = tmp_path / "hostile.json"
    hostile.write_text(json.dumps(data))
    assert run("simulate", hostile).exit_code == 0
    for command in (
        ["verify", hostile, "--compiler", "cpu"],
        ["simulate", hostile, "--topology", "8xk80"],
    ):
        done = run(*command)
        assert done.exit_code == 2
        # For people to read: the command is quoted so that a shell takes it as words.
        assert f"--target os:system --arg 'command=touch {witness}'" in done.stderr
    assert not witness.exists()


def test_a_plan_of_a_program_file_is_simulated(tmp_path):
    step, args = mlp()
    lowered = jax.jit(step, keep_unused=True).lower(*args)
    program = tmp_path / "step.pb"
    program.write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    plan = planned(tmp_path / "plan.json", program, "--topology", "v5e:2x4")
    for options in ([], ["--target", program]):
        done = run("simulate", plan, *options)
        assert done.exit_code == 0, done.output
        assert "(+0.0%)" in done.stdout
    assert run("simulate", plan, "--target", program, "--arg", "x=1").exit_code == 2
    program.write_bytes(b"")
    assert run("simulate", plan, "--target", program).exit_code == 2
    assert run("simulate", plan).exit_code == 0


def test_help_says_how_to_open_a_trace():
    done = run("simulate", "--help")
    assert "ui.perfetto.dev" in done.stdout and "chrome://tracing" in done.stdout


BAD = {
    "no file": (["missing.json"], "missing.json"),
    "no folder for the trace": (["PLAN", "--trace", "no/such/trace.json"], "there is no folder"),
    "unknown topology": (["PLAN", *TARGET, "--topology", "8xabacus"], "8xabacus"),
    "a topology of other devices": (["PLAN", *TARGET, "--topology", "v5e:4x4"], "does not lie"),
    "another model": (
        ["PLAN", *TARGET[:2], "--arg", "batch=128"], "the plan was made with --arg batch=64",
    ),
    "no such parameter": (["PLAN", *TARGET, "--arg", "size=1"], "no such parameter"),
    "no value": (["PLAN", *TARGET[:2], "--arg", "size"], "expected name=value"),
    "arguments for no target": (["PLAN", "--arg", "batch=64"], "--arg needs what was planned"),
    "no profile": (["PLAN", *TARGET, "--profile", "missing.json"], "missing.json"),
    "a program that is not there": ([SAMPLE, "--target", "missing.pb"], "missing.pb"),
    "a plan of an earlier version": ([SAMPLE], "did not record its tasks"),
    "no such target": (
        ["PLAN", "--target", "tests.nowhere:step"], "automap.simulate(plan, step, args)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_message(plan_file, arguments, message):
    done = run("simulate", *(plan_file if a == "PLAN" else a for a in arguments))
    assert done.exit_code == 2, done.output
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
    assert message in done.stderr
    assert done.stdout == ""


def test_a_plan_that_does_not_say_its_point_is_to_be_made_again(plan_file, tmp_path):
    data = json.loads(plan_file.read_text())
    del data["search"]["point"]
    older = tmp_path / "older.json"
    older.write_text(json.dumps(data))
    done = run("simulate", older, *TARGET)
    assert done.exit_code == 2 and "plan again with `automap plan tests.steps:mlp" in done.stderr
    data["search"]["point"] = {"layers": "folded", "compute": "all"}
    older.write_text(json.dumps(data))
    done = run("simulate", older)
    assert done.exit_code == 2 and "search.point" in done.stderr
