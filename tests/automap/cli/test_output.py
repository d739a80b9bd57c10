"""What every command has: JSON of a documented shape, quiet and verbose, no colours on request,
progress, completion.
"""

import dataclasses
import json
from pathlib import Path
import re
import time

from click.shell_completion import ShellComplete
from click.testing import CliRunner
import pytest

from automap import progress_bar
from automap.cli import main
from automap.plan.record import plan_schema
from automap.progress_bar import Bar
from automap.verify.verification import PipelineVerificationRecord
from tests.automap.plan.test_file import SAMPLE


PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/scripts.md"
MLP = ["tests.steps:mlp", "--topology", "v5e:2x2", "--strategy", "greedy"]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")
COMMANDS = {
    "plan": ["plan", *MLP, "--json"],
    "compare": ["compare", *MLP, "--json"],
    "advise": ["advise", *MLP, "--no-cache", "--json"],
    "explain": ["explain", str(SAMPLE), "--json"],
    "explain WHAT": ["explain", str(SAMPLE), "w1", "--json"],
    "explain OTHER": ["explain", str(SAMPLE), str(SAMPLE), "--json"],
    "topologies": ["topologies", "--json"],
    "topologies NAME": ["topologies", "8xh100", "--json"],
    "completion": ["completion", "zsh", "--json"],
}


def _run(*arguments, **environment):
    return CliRunner().invoke(main, list(arguments), env=environment)


def _documented():
    """Command -> the fields that the page lists for it."""
    rows = re.findall(r"^\| `automap ([^`]+) --json` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    fields = {command: set(re.findall(r"`([a-z_]+)`", text)) for command, text in rows}
    # The page refers to the plan file, whose fields are its schema's.
    return fields | {"plan": set(plan_schema()["properties"])}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_json_of_the_documented_shape(name):
    done = _run(*COMMANDS[name])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)) == _documented()[name]


def test_a_simulation_has_the_documented_shape(tmp_path):
    path = str(tmp_path / "plan.json")
    assert _run("plan", *MLP, "-o", path).exit_code == 0
    done = _run("simulate", path, "--json")
    assert set(json.loads(done.stdout)) == _documented()["simulate"]
    applied = _run("apply", path, "--target", "tests.steps:mlp", "--json")
    assert set(json.loads(applied.stdout)) == _documented()["apply"]
    written = _run("export", path, "--to", "maxtext", "--json")
    assert set(json.loads(written.stdout)) == _documented()["export"]


@pytest.mark.slow
def test_a_verification_has_the_documented_shape(tmp_path):
    path = str(tmp_path / "plan.json")
    assert _run("plan", *MLP, "-o", path).exit_code == 0
    words = ["--target", "tests.steps:mlp", "--compiler", "cpu", "--no-cache", "--no-numerics"]
    done = _run("verify", path, *words, "--json")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)) == _documented()["verify"]


def test_a_verification_of_a_pipeline_has_the_documented_fields():
    derived = {"fits", "peak_bytes"}
    fields = {field.name for field in dataclasses.fields(PipelineVerificationRecord)}
    # Of each stage the page names what is predicted and compiled.
    assert fields | derived | {"predicted", "compiled"} == _documented()["verify PIPELINE"]


def test_every_command_has_json_quiet_and_verbose_and_is_on_the_page():
    for name, command in main.commands.items():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {"--json", "--quiet", "-q", "--verbose", "-v"} <= flags, name
    assert {name.split()[0] for name in _documented()} == set(main.commands)


def test_a_difference_names_its_field_and_both_values(tmp_path):
    data = json.loads(SAMPLE.read_text())
    data["predicted"]["step_seconds"] *= 2
    data["inputs"][0]["spec"] = [None] * len(data["inputs"][0]["shape"])
    data["inputs"].pop()
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data))
    said = json.loads(_run("explain", str(SAMPLE), str(path), "--json").stdout)
    rows = {row["field"]: (row["old"], row["new"]) for row in said["differences"]}
    before = json.loads(SAMPLE.read_text())
    first, last = before["inputs"][0], before["inputs"][-1]
    assert not said["equal"]
    assert rows == {
        "predicted.step_seconds": (
            before["predicted"]["step_seconds"],
            data["predicted"]["step_seconds"],
        ),
        f"inputs.path={first['path']}.spec": (first["spec"], data["inputs"][0]["spec"]),
        f"inputs.path={last['path']}": (last, None),
    }


@pytest.mark.parametrize("place", ["before", "behind"])
def test_quiet_says_nothing_but_why_there_is_no_result(place, tmp_path):
    def run(*words):
        return _run("--quiet", *words) if place == "before" else _run(*words, "-q")

    done = run("plan", *MLP, "-o", str(tmp_path / "plan.json"))
    assert (done.exit_code, done.stderr) == (0, "")
    assert "plan written to" in _run("plan", *MLP, "-o", str(tmp_path / "plan.json")).stderr
    assert "absent.json" in run("explain", "absent.json").stderr


def test_verbose_shows_the_whole_traceback_of_the_users_code():
    words = ["plan", "tests.broken_targets:raises", "--topology", "v5e:2x4"]
    short, long = _run(*words).stderr, _run(*words, "--verbose").stderr
    assert "Traceback" not in short and "broken_targets.py" in short
    assert "Traceback" in long and "in raises" in long
    assert long.endswith(short)


def test_quiet_and_verbose_exclude_each_other():
    done = _run("--quiet", "topologies", "--verbose")
    assert done.exit_code == 2
    assert "--quiet and --verbose exclude each other; give one" in done.stderr


def test_no_color_leaves_colours_out():
    coloured = _run("compare", *MLP, FORCE_COLOR="1", NO_COLOR=None, TERM="xterm-256color")
    plain = _run("compare", *MLP, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")
    assert COLOUR.search(coloured.output)
    assert plain.exit_code == 0 and not COLOUR.search(plain.output)


def test_a_job_that_takes_long_says_in_a_log_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "_FIRST_LINE_SECONDS", 0.01)
    with Bar("compiling [w]") as bar:
        _wait_for(capsys, "automap: compiling [w] (0 s)")
        bar.describe("running \x1b")
        _wait_for(capsys, "automap: running \\x1b (0 s)")
    assert capsys.readouterr().out == ""


def _wait_for(capsys, line):
    said, until = "", time.monotonic() + 30
    while line not in said:
        assert time.monotonic() < until, said
        time.sleep(0.01)
        said += capsys.readouterr().err


def test_a_job_that_is_done_soon_says_nothing_in_a_log(capsys):
    with Bar("compiling"):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        (["plan", "--topology"], "v5", {"v5e:4x4", "v5p:4x4x4"}),
        (["topologies"], "8x", set()),
    ],
)
def test_a_shell_completes_names_of_machines(words, incomplete, expected):
    complete = ShellComplete(main, {}, "automap", "_AUTOMAP_COMPLETE")
    assert {item.value for item in complete.get_completions(words, incomplete)} == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shells_script_asks_the_command(shell):
    assert f"_AUTOMAP_COMPLETE={shell}_complete" in _run("completion", shell).stdout
