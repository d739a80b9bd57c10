"""`automap plan --refine` as a user runs it: what is refused, and real compilers."""

from importlib.util import find_spec
import json

from click.testing import CliRunner
import pytest

import automap
from automap.api.plan import Plan
from automap.cli import main
from automap.errors import InputError
from tests.steps import mlp


MLP = ("tests.steps:mlp", "--budget", "2")
needs_tpu = [
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed (extra tpu)"),
]
needs_gpu = [
    pytest.mark.gpu_compiler,
    pytest.mark.skipif(
        find_spec("jax_cuda12_plugin") is None or find_spec("nvidia") is None,
        reason="ptxas or the CUDA plugin is not installed (extra gpu-compiler)",
    ),
]


def _run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--topology", "cpu:4", "--refine", "5"), 4, "no compiler says how long a step takes on"),
        (("--topology", "v6e:2x2", "--refine", "5"), 4, "allowed: GPUs, and slices of v4, v5e"),
        (("--topology", "8xh100", "--refine", "0"), 2, "refine 0.0: must be a positive number"),
        (("--topology", "8xh100", "--refine", "soon"), 2, "'soon' is not a valid float"),
        (("--topology", "8xh100", "--refine", "5", "--verify"), 2, "give one of the two"),
    ],
)
def test_what_cannot_be_refined_is_refused_before_the_search(arguments, status, message):
    done = _run("plan", *MLP, *arguments)
    assert done.exit_code == status and message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("space", ["pipeline", "hybrid"])
def test_pipelines_are_not_refined_with_a_compiler_or_without(space):
    done = _run("plan", *MLP, "--topology", "8xh100", "--refine", "5", "--space", space)
    assert done.exit_code == 2 and f"--refine with --space {space}" in done.stderr


def test_a_program_without_a_step_is_not_refined(tmp_path, monkeypatch):
    monkeypatch.setattr("automap.cli.run.plan.check_can_refine", lambda topology: None)
    path = tmp_path / "step.hlo"
    path.write_text("HloModule m\nENTRY e { ROOT x = f32[8] parameter(0) }\n")
    done = _run("plan", path, "--topology", "8xh100", "--refine", "5")
    assert done.exit_code == 2 and "is a program without a step" in done.stderr


def test_python_refuses_the_same():
    step, args = mlp()
    with pytest.raises(InputError, match="give one of the two"):
        automap.plan(step, args, topology="8xh100", verify=True, refine=5.0)
    with pytest.raises(InputError, match="refine nan: must be a positive number of seconds"):
        automap.plan(step, args, topology="8xh100", refine=float("nan"))


@pytest.mark.parametrize(
    "topology", [pytest.param("8xh100", marks=needs_gpu), pytest.param("v5e:2x2", marks=needs_tpu)]
)
def test_a_real_compiler_in_the_loop(topology, tmp_path):
    path = tmp_path / "plan.json"
    done = _run(
        *("plan", "tests.steps:mlp", "--arg", "batch=512", "--arg", "width=256"),
        *("--arg", "hidden=1024", "--topology", topology, "--refine", "120", "-o", path),
        *("--cache-dir", tmp_path / "cache"),
    )
    assert done.exit_code == 0, done.output
    plan = Plan.load(path)
    assert plan.refined is not None and plan.refined.chosen is not None
    steps = [row.compiled_seconds for row in plan.refined.compiled if row.fits]
    assert None not in steps
    assert plan.refined.compiled[plan.refined.chosen].compiled_seconds == min(steps)
    assert plan.verified is not None and plan.verified.fits
    (prices,) = (tmp_path / "cache" / "prices").glob("*.json")
    # The products of the step are kept, and were found in the compiled program.
    assert json.loads(prices.read_text())["dots"]
    assert "refined with the" in done.stdout and "best so far" in done.stderr
