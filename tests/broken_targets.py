"""Targets of the command line that are wrong, or hard."""

import jax
import jax.numpy as jnp


SQUARE = jax.ShapeDtypeStruct((8, 8), "float32")


def raises():
    """Fails when called."""
    raise RuntimeError("not today")


def exits():
    """Ends the process, as a parser of arguments may."""
    raise SystemExit(3)


def step_exits():
    """A step that ends the process."""

    def step(x):
        raise SystemExit("enough")

    return step, (SQUARE,)


def needs(batch):
    """Needs a parameter."""
    return lambda x: x, (jax.ShapeDtypeStruct((batch,), "float32"),)


def no_pair():
    """Returns no (step, args)."""
    return 3


def no_tuple():
    """Returns an argument that is not in a tuple."""
    return lambda x: x, SQUARE


def untraceable():
    """A step that does not trace."""
    return lambda x: x @ jnp.ones((3, 3)), (SQUARE,)


def prints():
    """A step that calls back into Python."""

    def step(x):
        jax.debug.print("{}", x[0, 0])
        return 2 * x

    return step, (SQUARE,)
