"""Targets of the command line that are wrong, or hard."""

import atexit
import ctypes
import os
import signal
import sys
import warnings

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


class Odd(BaseException):
    """What is raised to end a process, or by mistake."""


def raises_no_exception():
    """Raises what is no `Exception`."""
    raise Odd("no")


def step_raises_no_exception():
    """A step that does."""

    def step(x):
        raise Odd("no")

    return step, (SQUARE,)


def generator_step():
    """A step that yields what it should return."""

    def step(x):
        yield x

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


def computes(size):
    """Takes a number."""
    return lambda x: x, (jax.ShapeDtypeStruct((size // 2,), "float32"),)


def prints():
    """A step that calls back into Python."""

    def step(x):
        jax.debug.print("{}", x[0, 0])
        return 2 * x

    return step, (SQUARE,)


def meddles(folder):
    """Prints in every way, when it is called, when its step is traced and at the end, and changes
    the process.
    """
    print("printed by Python")  # noqa: T201 - as targets do
    os.write(1, b"written to the descriptor\n")
    ctypes.CDLL(None).puts(b"put by C")
    ctypes.CDLL(None).fflush(None)
    atexit.register(print, "printed at the end")
    os.chdir(folder)
    os.environ["COLUMNS"] = "1"
    os.umask(0o777)
    sys.stderr = None
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, lambda *_: None)

    def step(x):
        print("printed while tracing")  # noqa: T201
        return x * 2

    sys.setrecursionlimit(900)
    return step, (SQUARE,)
