"""Ops without a rule, and the rules that users give for them."""

import re

from click.testing import CliRunner
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.cli import main
from automap.errors import InputError


UNKNOWN = """HloModule m
ENTRY %e {
  %x = f32[64,32] parameter(0)
  %w = f32[32,16] parameter(1)
  %y = f32[64,16] custom-call(%x, %w), custom_call_target="my_kernel"
  ROOT %z = f32[64,16] tanh(%y)
}
"""
RULE = "bi,io->bo"


@jax.jit
def mix(x, w):
    return jnp.sin(x) @ w


def _step(w, x):
    return jnp.tanh(mix(x, w))


ARGS = (jax.ShapeDtypeStruct((32, 16), "float32"), jax.ShapeDtypeStruct((64, 32), "float32"))


def _run(tmp_path, *options):
    path = tmp_path / "step.hlo"
    path.write_text(UNKNOWN)
    arguments = ["plan", str(path), "--topology", "8xv100", "--json", *options]
    return CliRunner().invoke(main, arguments)


def test_an_unknown_op_is_named_and_refused_if_strict(tmp_path):
    given = _run(tmp_path)
    assert given.exit_code == 0
    assert "no sharding rule for 'my_kernel' (1 times, first at" in given.stdout
    strict = _run(tmp_path, "--strict")
    assert strict.exit_code == 2
    assert re.search("no sharding rule for 'my_kernel'.*without --strict", strict.stderr)


def test_a_rule_makes_it_known(tmp_path):
    given = _run(tmp_path, "--strict", "--rule", f"my_kernel={RULE}")
    assert given.exit_code == 0, given.output
    assert "no sharding rule" not in given.stdout
    assert f'"{RULE}"' in given.stdout


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("my_kernel=bi,io", "expected operands->results"),
        ("my_kernel", "expected name=value"),
        ("my_kernel=b->b", "other numbers of tensors or dimensions"),
    ],
)
def test_bad_rules_are_usage_errors(tmp_path, rule, message):
    given = _run(tmp_path, "--rule", rule)
    assert given.exit_code == 2
    assert message in given.stderr


def test_a_rule_without_its_op_is_a_warning():
    plan = automap.plan(_step, ARGS, topology="cpu:8", rules={"mixer": RULE}, preset="zero-3")
    assert any("'mixer' was not used" in warning for warning in plan.warnings)


@pytest.mark.parametrize(("letters", "dims"), [("i,o", (0, None)), ("b,i", (None, 1))])
def test_a_function_with_a_rule_is_one_op(letters, dims):
    """Of three letters two are said to stay whole, so the third is split: the batch, or the
    features.
    """
    rules = {"mix": f"{RULE} replicate={letters}"}
    plan = automap.plan(_step, ARGS, topology="v5e:2x4", rules=rules, mesh={"data": 8}, strict=True)
    (w, x) = plan.inputs
    assert [leaf.spec.index(("data",)) if any(leaf.spec) else None for leaf in (x, w)] == list(dims)
    plan = automap.plan(_step, ARGS, topology="cpu:8", rules=rules, mesh={"data": 8}, strict=True)
    rng = np.random.default_rng(0)
    values = [jnp.asarray(rng.standard_normal(a.shape), a.dtype) for a in ARGS]
    again = automap.Plan.from_json(plan.to_json())
    np.testing.assert_allclose(again.jit(_step)(*values), _step(*values), rtol=1e-5, atol=1e-6)


def test_a_rule_that_differentiation_makes_unfit_is_a_warning():
    def train(w, x):
        return w - jax.grad(lambda w: _step(w, x).sum())(w)

    plan = automap.plan(train, ARGS, topology="cpu:8", rules={"mix": RULE}, preset="zero-3")
    assert any("'mix' was not used" in warning for warning in plan.warnings)


def test_a_plan_with_a_bad_rule_is_refused():
    plan = automap.plan(_step, ARGS, topology="cpu:8", rules={"mix": RULE}, preset="zero-3")
    raw = plan.to_json()
    raw["workload"]["rules"][0][1] = "mix"
    with pytest.raises(automap.PlanError, match="rules"):
        automap.Plan.from_json(raw)


def test_rules_are_read_before_anything_is_traced():
    with pytest.raises(InputError, match="cannot read"):
        automap.plan(None, (), topology="cpu:8", rules={"mix": "b-c->b"})
