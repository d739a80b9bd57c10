"""The command line as a user runs it: output, exit status, messages."""

import json

from click.testing import CliRunner
import jax
import pytest

from automap.cli import main
from tests.steps import mlp


def _run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_plan_then_explain_then_compare(tmp_path):
    path = str(tmp_path / "plan.json")
    done = _run(
        "plan", "tests.steps:mlp", "--arg", "hidden=256", "--topology", "v5e:2x4", "-o", path
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "automap-plan"
    assert "w1" in _run("explain", path, "[0]['params']['w1']").output
    compared = _run("compare", "tests.steps:mlp", "--topology", "v5e:2x4")
    # In the units of so small a step.
    assert "0.00 GiB" not in compared.output and " KiB " in compared.output
    assert all(name in compared.output for name in ("data-parallel", "zero-3", "search"))


def test_an_hlo_dump_is_planned_without_its_source(tmp_path):
    step, args = mlp()
    proto = jax.jit(step, donate_argnums=0, keep_unused=True).lower(*args).compiler_ir("hlo")
    path = tmp_path / "dump.hlo.pb"
    path.write_bytes(proto.as_serialized_hlo_module_proto())
    done = _run("plan", str(path), "--topology", "2x8xv100", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["topology"]["name"] == "2x8xv100"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["plan", "tests.steps:nothing", "--topology", "v5e:2x4"], 2, "has no function nothing"),
        (["plan", "absent:f", "--topology", "v5e:2x4"], 2, "cannot import absent"),
        (["plan", "train.py:f", "--topology", "v5e:2x4"], 2, "such as train:FUNCTION in"),
        (["plan", "./src/train:f", "--topology", "v5e:2x4"], 2, "such as train:FUNCTION in"),
        (["plan", "absent.hlo", "--topology", "v5e:2x4"], 2, "No such file"),
        (["plan", "tests.steps:mlp", "--topology", "v9:2x4"], 2, "v9:2x4"),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--arg", "depth=3"],
            2,
            "allowed: batch",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--mesh", "a=b"],
            2,
            "or different names",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "9x4xv100", "--mesh", "a=6,b=6"],
            2,
            "in no order of its axes",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "3x3xv100", "--mesh", "a=9,b=2"],
            2,
            "nearest that do: 9, 3x3",
        ),
        (["plan", "tests.steps:mlp", "--topology", "haswell-2xk80"], 2, "serves --space placement"),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--pin", "[0]"],
            2,
            "expected PATH=SPEC",
        ),
        (["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--pin", "[9]=null"], 2, "closest: "),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--pin", "[1]*=data"],
            2,
            "has 2 dimensions",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--pin", "[1]*=dat,null"],
            2,
            "meshes: ",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--memory-limit", "1e-6"],
            1,
            "no plan fits",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "-o", "absent/p.json"],
            2,
            "absent; make it first",
        ),
        (["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "-o", ""], 2, "is a directory"),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "-o", "/dev/null"],
            2,
            "is no regular file",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--seed", "-1"],
            2,
            "seed -1; allowed: an integer from 0",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--seed", str(2**63)],
            2,
            "allowed: an integer from 0",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--memory-limit", "1e-30"],
            2,
            "allowed: from 1 to",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--memory-limit", "1e300"],
            2,
            "memory limit",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--memory-limit", "-1"],
            2,
            "memory limit -1.0: must be a positive number of GiB",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--memory-limit"],
            2,
            "'--memory-limit' requires an argument",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--memory-limit", "--json"],
            2,
            "'--json' is not a valid float",
        ),
        (["explain", "absent.json"], 2, "absent.json"),
        (["plan", "tests.broken_targets:raises", "--topology", "v5e:2x4"], 2, "RuntimeError at "),
        (
            ["plan", "tests.broken_targets:exits", "--topology", "v5e:2x4"],
            2,
            "failed with SystemExit at ",
        ),
        (
            ["plan", "tests.broken_targets:step_exits", "--topology", "v5e:2x4"],
            2,
            "broken_targets.py:31: enough",
        ),
        (
            ["plan", "tests.broken_targets:raises_no_exception", "--topology", "v5e:2x4"],
            2,
            "failed with Odd at ",
        ),
        (
            ["plan", "tests.broken_targets:step_raises_no_exception", "--topology", "v5e:2x4"],
            2,
            "failed with Odd at ",
        ),
        (
            ["plan", "tests.broken_targets:generator_step", "--topology", "v5e:2x4"],
            2,
            "jax.jit does not take the step: ",
        ),
        (["plan", "builtins:dict", "--topology", "v5e:2x4"], 2, "a target is a function of Python"),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--mesh", "a=" + "9" * 5000],
            2,
            "or different names",
        ),
        (
            [
                "plan",
                "tests.steps:mlp",
                "--topology",
                "v5e:2x4",
                "--space",
                "pipeline",
                "--stages",
                "9" * 5000,
            ],
            2,
            "an integer from 1",
        ),
        (
            [
                "plan",
                "tests.steps:mlp",
                "--topology",
                "v5e:2x4",
                "--arg",
                "batch=8",
                "--arg",
                "batch=9",
            ],
            2,
            "given as 8 already",
        ),
        (
            ["plan", "tests.steps:mlp", "--topology", "v5e:2x4", "--arg", "batch=abc"],
            2,
            "passed as text: batch=abc",
        ),
        (
            ["plan", "tests.broken_targets:needs", "--topology", "v5e:2x4"],
            2,
            "pass --arg batch=VALUE",
        ),
        (
            ["plan", "tests.broken_targets:no_pair", "--topology", "v5e:2x4"],
            2,
            "must return (step, args)",
        ),
        (
            ["plan", "tests.broken_targets:no_tuple", "--topology", "v5e:2x4"],
            2,
            "a tuple of arguments",
        ),
        (
            ["plan", "tests.broken_targets:computes", "--topology", "v5e:2x4", "--arg", "size=8k"],
            2,
            "unsupported operand type(s) for //: 'str' and 'int'; passed as text: size=8k",
        ),
        (["plan", "tests.broken_targets:untraceable", "--topology", "v5e:2x4"], 2, "tracing"),
    ],
)
def test_bad_input_gets_one_message_and_the_documented_status(arguments, status, message):
    done = _run(*arguments)
    assert done.exit_code == status
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("kind", ["loop of links", "too long", "folder"])
def test_where_nothing_can_be_written_is_said_before_the_search(kind, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    if kind == "loop of links":
        path.symlink_to(path)
    elif kind == "too long":
        path = tmp_path / ("x" * 1000)
    else:
        path.mkdir()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("automap.cli.run.plan._plan", lambda *_: pytest.fail("it searched"))
    done = _run("plan", "tests.steps:mlp", "--topology", "v5e:2x4", "-o", str(path))
    assert done.exit_code == 2
    assert "-o" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_topologies_lists_the_catalogue():
    done = _run("topologies")
    assert done.exit_code == 0
    assert "h100" in done.output


def test_what_calls_back_into_python_is_lowered_for_the_host_with_a_warning():
    done = _run("plan", "tests.broken_targets:prints", "--topology", "v5e:2x4")
    assert done.exit_code == 0
    assert "lowered for cpu, as lowering for tpu failed" in done.output
