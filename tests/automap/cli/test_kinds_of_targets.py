"""A target of the command may return what a library has jitted, or a method."""

from click.testing import CliRunner
import jax
import pytest

import automap
from automap.cli import main
from tests.automap.runtime.kinds import BATCH, KINDS, equal


ARGUMENTS = {"nnx.jit": (BATCH,), "eqx.filter_jit": (BATCH, 2), "method": (BATCH,)}


def target(kind: str):
    """The target: a step of a kind and its arguments, the state in one or two of them."""
    made = KINDS[kind]()
    state = (made.state,) if kind == "method" else made.state
    return made.step, (*state, *ARGUMENTS[kind])


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_its_plan_file_runs_the_step(kind, tmp_path):
    path = tmp_path / "plan.json"
    done = CliRunner().invoke(
        main,
        [
            "plan",
            f"{__name__}:target",
            "--arg",
            f"kind={kind}",
            "--topology",
            "cpu:8",
            "--budget",
            "1",
            "-o",
            str(path),
        ],
    )
    assert done.exit_code == 0, done.output
    step, args = target(kind)
    plain, other = target(kind)
    planned = automap.Plan.load(path).jit(step)
    equal(planned(*args), plain(*other))
    equal(jax.tree.leaves(args), jax.tree.leaves(other))
