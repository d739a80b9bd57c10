"""`module:function` -> (step, args): the command line's way to name a workload."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
import importlib
import inspect
from pathlib import Path
import sys
from types import ModuleType
from typing import Any

from automap.errors import AutomapError, InputError
from automap.interrupts import importing
from automap.step.call import is_jitted
from automap.step.raised import raised_text
from automap.step.step import Step


def load_target(
    target: str, options: Mapping[str, str]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Import `module:function` (the current folder is searched too) and call it with `options`.

    Raises `InputError` for a missing module, function or parameter, or a result of another form.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InputError(f"target {target!r}: expected module:function, or a path to an HLO file")
    # As `python -m` does; an installed command would not look there.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with importing():
        module = _ran(f"importing {module_name}", lambda: _imported(module_name))
    function = getattr(module, name, None)
    if not callable(function):
        functions = {n: v for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"}
        # Not what it imports, where it has functions of its own.
        own = [n for n, v in functions.items() if v.__module__ == module.__name__]
        names = own or list(functions)
        has = f"it has {', '.join(names)}" if names else "it has no function at all"
        raise InputError(
            f"target {target!r}: {module_name} has no function {name}; {has}; a target is a "
            "function that returns (step, args)"
        )
    signature = _signature(target, function)
    if is_jitted(function) or isinstance(getattr(function, "step", None), Step):
        raise InputError(
            f"{target} is the step itself; a target is a function that returns it with its "
            f"arguments:\n{target_example(target)}"
        )
    _check_parameters(target, signature, options)
    arguments = {key: _parsed(value) for key, value in options.items()}
    with naming_texts(options):
        result = _ran(f"calling {target}", lambda: function(**arguments))
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[0])):
        raise InputError(
            f"{target} must return (step, args), a callable and a tuple of its arguments; got "
            f"{_form(result)}"
        )
    if not isinstance(result[1], tuple | list):
        raise InputError(
            f"{target} must return (step, args) with a tuple of arguments; args is of type "
            f"{type(result[1]).__name__}; for one argument return (step, (argument,))"
        )
    return result[0], tuple(result[1])


@contextmanager
def naming_texts(options: Mapping[str, str]) -> Iterator[None]:
    """Add to an `InputError` which of a target's options are no numbers: whoever typed them may not
    know, and it is JAX that says it late.
    """
    try:
        yield
    except InputError as error:
        texts = [f"{name}={text}" for name, text in options.items() if _parsed(text) == text]
        if not texts:
            raise
        raise InputError(f"{error}; passed as text: {', '.join(texts)}") from error


def target_example(step: str) -> str:
    """A target for a step, by the name `module:function` that it has, for people to complete."""
    name = step.rpartition(":")[2]
    # A method, a `partial`, or text of a file: what is no name has one here.
    name = name if name.isidentifier() else "step"
    return (
        "    def workload():\n"
        "        params = jax.eval_shape(init_params, jax.random.key(0))\n"
        '        batch = jax.ShapeDtypeStruct((64, 128), "float32")\n'
        f"        return {name}, (params, batch)"
    )


def _signature(target: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError) as error:  # of what is written in C
        raise InputError(
            f"target {target!r}: {error}; a target is a function of Python that returns (step, "
            "args)"
        ) from error


def _form(result: Any) -> str:
    """What a target returned, for messages."""
    if not isinstance(result, tuple):
        return type(result).__name__
    kinds = ", ".join(type(part).__name__ for part in result)
    return f"a tuple of {len(result)} ({kinds})" if result else "an empty tuple"


def _imported(module_name: str) -> ModuleType:
    path = Path(module_name)
    name = path.stem or "train"
    # `train.py` would import `train`, and then say that there is no module `train.py`.
    if path.suffix == ".py" or path.name != module_name:
        raise InputError(
            f"target: got the path {module_name}; allowed: a module as Python imports it, such as "
            f"{name}:FUNCTION in the folder that holds {name}.py"
        )
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # It is the module itself that is missing, or its package; a missing import of its own is
        # the user's code failing, with a line.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"cannot import {module_name}: no module {error.name} is installed or in {Path.cwd()}; "
            "run the command in the folder that holds it"
        ) from error


def _check_parameters(
    target: str, signature: inspect.Signature, options: Mapping[str, str]
) -> None:
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    allowed = [n for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD]
    for option in options:
        if option not in allowed and not takes_any:
            raise InputError(
                f"--arg {option}: {target} has no such parameter; allowed: "
                f"{', '.join(allowed) or 'none'}"
            )
    for name, parameter in signature.parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if is_needed and name not in options:
            raise InputError(
                f"{target} needs the parameter {name}; pass --arg {name}=VALUE; or if {target} is "
                "the step itself: a target is a function that returns it with its arguments:\n"
                f"{target_example(target)}"
            )


def _ran(what: str, run: Callable[[], Any]) -> Any:
    """The result of the user's code; its exceptions become one message with the line they came
    from.
    """
    try:
        return run()
    except (AutomapError, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise InputError(f"{what} failed: syntax error at {where}: {error.msg}") from error
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        raise InputError(f"{what} failed with {raised_text(error)}") from error


def _parsed(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
