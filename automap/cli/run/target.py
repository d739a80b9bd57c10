"""The step that a plan is of, from the command line: what a plan file names is never imported,
called or opened.

Only `--target` says what is run, and `--arg` what with. Where they are missing, the message has the
words that the plan itself suggests, for people to read before they type them -> in: `needs_target`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import os
import shlex
from typing import Any, Literal

import jax

from automap.errors import InputError, PlanError
from automap.plan.record import PlanRecord
from automap.program import load_target


Purpose = Literal["verify", "simulate"]


def leave_accelerators_alone() -> None:
    """Let JAX use the CPU only in this process, unless the user chose.

    It would load libtpu if that is installed, and hold the lock that the compiler's process needs.
    """
    if not getattr(jax.config, "jax_platforms", None):
        jax.config.update("jax_platforms", "cpu")


def names_and_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """Each `name=value`. Raises `InputError` for another form, and a name with two values."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise InputError(f"{option} {text!r}: expected name=value")
        if values.setdefault(name, value) != value:
            raise InputError(f"{option} {text!r}: {name} is given as {values[name]} already")
    return values


def is_program_file(target: str) -> bool:
    """Whether a target is a path to a program, rather than `module:function`."""
    # `Path.exists` raises for a name that no system takes.
    return os.path.exists(target) or ":" not in target


def needs_target(plan: PlanRecord, purpose: Purpose, why: str) -> InputError:
    """The error where `--target` is missing; `why` says what for."""
    words = ["--target", plan.workload.target]
    for name, value in plan.workload.arguments:
        words += ["--arg", f"{name}={value}"]
    return InputError(
        f"{why}; a plan file never has code run, so --target has to say what may be imported and "
        "called. The plan says that it "
        f"was made from {plan.workload.target}: if you trust that, type the command again with "
        f"{shlex.join(words)} behind it. "
        f"For a plan made in Python there is automap.{purpose}(plan, step, args)"
    )


def load_step(
    target: str, arguments: Sequence[str], purpose: Purpose
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step and its arguments, from what the command line names. Raises `InputError`."""
    try:
        return load_target(target, names_and_values(arguments, "--arg"))
    except InputError as error:
        raise InputError(
            f"the plan's step cannot be made again: {error}; for a plan made in Python there is "
            f"automap.{purpose}(plan, step, args)"
        ) from error


@contextmanager
def saying_the_arguments(plan: PlanRecord, given: Sequence[str]) -> Iterator[None]:
    """Add to a `PlanError` which arguments the plan was made with, if others are given."""
    planned: Mapping[str, str] = dict(plan.workload.arguments)
    try:
        yield
    except PlanError as error:
        if planned == names_and_values(given, "--arg"):
            raise
        texts = [f"--arg {name}={value}" for name, value in planned.items()]
        raise PlanError(
            f"{error}; the plan was made with {' '.join(texts) or 'no --arg'}"
        ) from None
