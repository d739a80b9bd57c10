"""What is said of a target that is no function, or returns something else than (step, args)."""

from dataclasses import replace
import sys
from types import ModuleType

import jax
import pytest

import automap
from automap.errors import InputError
from automap.program import load_target


def target(monkeypatch, **names):
    """A module of these names under a name of its own."""
    module = ModuleType("target_of_test")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "target_of_test", module)


@pytest.mark.parametrize(
    ("result", "got"),
    [
        ((print, (1,), {}), r"got a tuple of 3 \(builtin_function_or_method, tuple, dict\)"),
        ((1, (2,)), r"got a tuple of 2 \(int, tuple\)"),
        ((), "got an empty tuple"),
        ([print, ()], "got list"),
    ],
)
def test_what_a_target_returned_is_said(monkeypatch, result, got):
    target(monkeypatch, make=lambda: result)
    with pytest.raises(InputError, match=rf"must return \(step, args\).*{got}$"):
        load_target("target_of_test:make", {})


@pytest.mark.parametrize("wrap", [jax.jit, automap.parallelize, lambda step: step])
def test_of_a_step_in_place_of_a_target_the_function_to_write_is_shown(monkeypatch, wrap):
    target(monkeypatch, train_step=wrap(lambda params, batch: params))
    with pytest.raises(InputError, match="the step itself") as error:
        load_target("target_of_test:train_step", {})
    assert str(error.value).endswith("\n        return train_step, (params, batch)")


def test_what_a_module_imports_is_not_listed_beside_its_own(monkeypatch):
    def workload():
        return print, ()

    target(monkeypatch, replace=replace, workload=workload)
    workload.__module__ = "target_of_test"
    with pytest.raises(InputError, match="has no function make; it has workload; a target is"):
        load_target("target_of_test:make", {})
    # A module that only hands on what others have.
    target(monkeypatch, replace=replace)
    with pytest.raises(InputError, match="it has replace; a target is"):
        load_target("target_of_test:make", {})


def test_a_module_without_functions(monkeypatch):
    target(monkeypatch, number=1)
    with pytest.raises(
        InputError, match="has no function make; it has no function at all; a target is"
    ):
        load_target("target_of_test:make", {})
