"""What user's code raises: its own last line is named, whoever raises below it."""

from contextlib import contextmanager
import json
from pathlib import Path

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import pytest

from automap.errors import InputError
from automap.program.target import load_target
from automap.step.raised import raised_text
from automap.step.step import traced_call


SHAPE = jax.ShapeDtypeStruct((8,), "float32")


def _doubled(x):
    def kernel(x, out):
        out[...] = x[...] * 2

    return pl.pallas_call(kernel, out_shape=SHAPE)(x)


def _in_python():
    json.loads("no json")


def _in_jax():
    jnp.zeros((8,)) @ jnp.zeros((4,))


def _in_a_context():
    @contextmanager
    def context():
        yield

    with context():
        assert len(Path.cwd().parts) == 0


@pytest.mark.parametrize("run", [_in_python, _in_jax, _in_a_context])
def test_the_line_is_the_last_one_of_the_users_own(run):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of several types
        run()
    first = run.__code__.co_firstlineno
    last = max(line for _, _, line in run.__code__.co_lines() if line)
    _, _, place = raised_text(raised.value).partition(f"{__file__}:")
    assert first < int(place.partition(":")[0].split()[0]) <= last


def test_what_came_through_no_code_of_the_users_has_no_line():
    assert raised_text(AttributeError("absent")) == "AttributeError: absent"


@pytest.mark.parametrize("error", [AssertionError(), ValueError(" "), KeyError()])
def test_what_has_no_text_leaves_no_gap(error):
    def step(x):
        raise error

    with pytest.raises(InputError) as raised:
        traced_call(step, (SHAPE,))
    message = str(raised.value)
    assert f"{__file__}:{step.__code__.co_firstlineno + 1}; the step must" in message


def test_a_kernel_without_a_derivative_is_at_the_line_that_calls_it():
    def step(x):
        return jax.grad(lambda x: _doubled(x).sum())(x)

    line = _doubled.__code__.co_firstlineno + 4
    with pytest.raises(InputError, match=f"ValueError at {__file__}:{line}: "):
        traced_call(step, (SHAPE,))


def target(batch=8):
    mesh = jax.make_mesh((4096,), ("data",))
    return lambda x: mesh, (batch,)


def test_a_mesh_of_devices_that_are_not_here_is_an_abstract_one():
    line = target.__code__.co_firstlineno + 1
    message = rf"target failed with ValueError at {__file__}:{line}: .*jax\.sharding\.AbstractMesh"
    with pytest.raises(InputError, match=message):
        load_target(f"{__name__}:target", {})
