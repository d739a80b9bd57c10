"""What the command line names, read and checked: a target with its arguments, a topology, options.

    what is to be planned    -> in: `read_request`, and the workload of it -> in: `read_target`
    the step of a plan file  -> in: `load_step`

What a plan file names is never imported, called or opened. Only `--target` says what is run, and
`--arg` what with. Where they are missing, the message has the words that the plan itself suggests,
for people to read before they type them                              -> in: `needs_target`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import os
import shlex
from typing import Any, Final, Literal

import jax

from automap.config import Options, read_options
from automap.errors import InputError, PlanError
from automap.plan.record import PlanRecord
from automap.program import Workload, load_target, naming_texts, read_workload, target_example
from automap.program.contained import contained
from automap.program.trace import lower_call
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import traced_call
from automap.topology import Graph, Topology, get_machine, get_topology
from automap.verify.applied import make_cpu_devices


Purpose = Literal["apply", "verify", "simulate"]

_IN_PYTHON: Final[Mapping[Purpose, str]] = {
    "apply": "plan.jit(step)(*args)",
    "verify": "automap.verify(plan, step, args)",
    "simulate": "automap.simulate(plan, step, args)",
}


def hide_accelerators() -> None:
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
        # The same twice is no contradiction: scripts put options together.
        if values.setdefault(name, value) != value:
            raise InputError(f"{option} {text!r}: {name} is given as {values[name]} already")
    return values


def is_program_file(target: str) -> bool:
    """Whether a target is a path to a program, rather than `module:function`."""
    # `Path.exists` raises for a name that no system takes.
    return os.path.exists(target) or ":" not in target


def needs_target(plan: PlanRecord, purpose: Purpose, why: str) -> InputError:
    """The error where `--target` is missing; `why` says what for."""
    in_python = _IN_PYTHON[purpose]
    if plan.workload.made_from == "step":
        return InputError(
            f"{why}; a plan file never has code run, so --target has to name a function that "
            "returns (step, args). This plan was made in Python, of the step "
            f"{plan.workload.target} itself, which is no such function. In Python there is "
            f"{in_python}; for the command write a target beside the step\n"
            f"{target_example(plan.workload.target)}\n"
            "and type the command again with --target and its module:function behind it"
        )
    # Text of the file: quoted for a shell, and printed as visible characters only.
    words = ["--target", plan.workload.target]
    for name, value in plan.workload.arguments:
        words += ["--arg", f"{name}={value}"]
    return InputError(
        f"{why}; a plan file never has code run, so --target has to say what may be imported and "
        "called. The plan says that it "
        f"was made from {plan.workload.target}: if you trust that, type the command again with "
        f"{shlex.join(words)} behind it. "
        f"For a plan made in Python there is {in_python}"
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
            f"{_IN_PYTHON[purpose]}"
        ) from error


@dataclass(frozen=True)
class Request:
    """What a command was asked to plan."""

    target: str
    arguments: tuple[str, ...]
    topology: Topology | Graph
    options: Options


def read_request(given: dict[str, Any], *, runs: bool = False) -> Request:
    """What was asked for, checked; the topology, target and options as the command has them. With
    `runs` the plan is to be run in this process.
    """
    target, arguments = given.pop("target"), given.pop("arguments")
    name = given.pop("topology")
    # "local" is what JAX sees, so only there, and to run a plan, it may look.
    if name != "local" and not runs:
        hide_accelerators()
    # Only operators on devices of their own need no mesh.
    topology = (get_machine if given["space"] == "placement" else get_topology)(name)
    if runs:
        make_cpu_devices(topology.device_count)
    given["rules"] = names_and_values(given["rules"], "--rule")
    return Request(target, arguments, topology, read_options(**given))


def read_target(request: Request) -> tuple[Workload, TracedCall | None]:
    """The workload, with the traced call if the target is a function."""
    target, options = request.target, request.options
    rules = user_rules(options.rules)
    if is_program_file(target):
        if not os.path.lexists(target):
            raise InputError(
                f"target {target!r}: No such file or directory; a target is module:function "
                "returning (step, args), as train:small, or a path to a program"
            )
        return read_workload(target, rules, options.layers), None
    given = names_and_values(request.arguments, "--arg")
    # Importing and calling a target runs the user's code, which may print, change the folder or
    # exit.
    with contained():
        step, args = load_target(target, given)
        with naming_texts(given):
            call = traced_call(step, args, mesh=options.axes, name=target)
        workload = lower_call(
            call,
            platform=request.topology.platform,
            target=target,
            rules=rules,
            layers=options.layers,
            arguments=given,
        )
    return workload, call


@contextmanager
def naming_planned_arguments(plan: PlanRecord, given: Sequence[str]) -> Iterator[None]:
    """Add to a `PlanError` which arguments the plan was made with, if others are given."""
    planned: Mapping[str, str] = dict(plan.workload.arguments)
    try:
        yield
    except PlanError as error:
        # The arguments are not the reason.
        if planned == names_and_values(given, "--arg"):
            raise
        texts = [f"--arg {name}={value}" for name, value in planned.items()]
        raise PlanError(
            f"{error}; the plan was made with {' '.join(texts) or 'no --arg'}"
        ) from None
