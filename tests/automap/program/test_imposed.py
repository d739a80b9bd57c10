"""What a step imposes, on graphs by hand: state, outputs, loops; and the point that follows it."""

from functools import partial

from hypothesis import given, strategies as st
import jax
from jax import lax
import jax.numpy as jnp
import pytest

from automap.program import trace_step
from automap.program.imposed import agreed
from automap.space.point import StorageLevel
from automap.space.presets import imposed_point
from automap.space.space import Space
from automap.step.own_shardings import ImposedEnds
from automap.step.specs import read_spec, spec_text
from automap.topology.mesh import Mesh
from tests.user_shardings import FOUR_BY_TWO, PROGRAMS, arguments, free


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name != "null")
MESH = Mesh(("data", "model"), (4, 2))


@given(st.lists(st.none() | st.lists(NAMES, max_size=3).map(tuple), max_size=4).map(tuple))
def test_a_spec_is_read_as_written(spec):
    assert read_spec(spec_text(spec)) == spec


def test_leaves_that_come_and_go_otherwise_are_no_state():
    ends = ImposedEnds(inputs={0: (("a",),), 1: ((),)}, outputs={0: (("a",),), 1: (("a",),), 2: ()})
    assert agreed(ends, {0: 0, 1: 1, 2: 5, 3: 6}) == {0: 0, 2: 5, 3: 6}


def _problem(step, args=None, **options):
    return trace_step(jax.jit(step, **options), args or arguments()).problem


def _weights(*up):
    return {"up": FOUR_BY_TWO(*up), "down": None}


@pytest.mark.parametrize("side", ["in_shardings", "out_shardings"])
def test_a_sharding_of_state_holds_for_old_and_new(side):
    plain = partial(PROGRAMS["plain"], free, None)
    given_to = (_weights(None, "data"), None)
    problem = _problem(plain, donate_argnums=0, **{side: given_to})
    assert problem.paths[1] == "[0]['up']"
    assert problem.imposed.specs_by_value == {
        problem.graph.inputs[1]: ((), ("data",), ()),
        problem.graph.outputs[1]: ((), ("data",), ()),
    }


def test_the_carry_of_a_loop_is_what_its_body_ends_with():
    rows = FOUR_BY_TWO("data", "model")

    def step(weights, x):
        def body(h, w):
            return lax.with_sharding_constraint(jnp.tanh(h @ w), rows), None

        return lax.scan(body, x + 1, weights)[0].sum()

    args = (jnp.ones((3, 8, 8)), jnp.ones((8, 8)))
    problem = _problem(step, args)
    ties = problem.graph.ties
    (constrained,) = (problem.graph.ops[op].outputs[0] for op in problem.imposed.specs_by_op)
    (carried,) = (b for a, b in ties if a == constrained)
    tied = {carried, *(a for a, b in ties if b == carried)}
    assert len(tied) == 4
    assert problem.imposed.specs_by_value == dict.fromkeys(tied, (("data",), ("model",)))


def test_a_carry_that_starts_as_an_input_is_stored_as_the_plan_says():
    def step(weights, x):
        def body(h, w):
            return lax.with_sharding_constraint(jnp.tanh(h @ w), FOUR_BY_TWO("data")), None

        return lax.scan(body, x, weights)[0].sum()

    problem = _problem(step, (jnp.ones((3, 8, 8)), jnp.ones((8, 8))))
    assert len(problem.imposed.specs_by_op) == 1
    assert problem.imposed.specs_by_value == {}


def test_the_point_follows_constraints_by_computing():
    step = partial(
        PROGRAMS["in a scan"], lax.with_sharding_constraint, FOUR_BY_TWO("data", "model")
    )
    space = Space(_problem(step))
    point = imposed_point(space, MESH)
    assert space.is_valid(point)
    batch, hidden = (
        space.problem.compute_classes(space.problem.graph.inputs[2])[0],
        (space.problem.compute_classes(space.problem.graph.inputs[1])[2]),
    )
    assert point.compute == ((batch,), (hidden,))


def test_the_point_follows_stored_parameters_by_storing():
    plain = partial(PROGRAMS["plain"], free, None)
    weights = {"up": FOUR_BY_TWO(None, None, "data"), "down": FOUR_BY_TWO(None, "data")}
    space = Space(_problem(plain, donate_argnums=0, in_shardings=(weights, FOUR_BY_TWO("data"))))
    point = imposed_point(space, MESH)
    assert point.compute == ((space.problem.batch_class,), ())
    assert set(point.storage[0]) == {StorageLevel.FULL}
    dims = {leaf.inputs: leaf.imposed_dim("data") for leaf in space.leaves}
    assert dims == {(1,): 2, (0,): 1}


def test_no_point_without_anything_imposed():
    space = Space(_problem(partial(PROGRAMS["plain"], free, None)))
    assert imposed_point(space, MESH) == space.point(MESH, [(), ()])
