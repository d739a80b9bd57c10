"""`module:function` -> (step, args): the command line's way to name a workload."""

from collections.abc import Callable, Mapping
import importlib
import inspect
from pathlib import Path
import sys
from typing import Any

from automap.errors import InputError


def load_target(
    target: str, options: Mapping[str, str]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Import `module:function` (the current folder is searched too) and call it with `options`.

    Raises `InputError` for a missing module, function or parameter, or a result of another form.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InputError(f"target {target!r}: expected module:function, or a path to an HLO file")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"target {target!r}: cannot import {module_name}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        raise InputError(
            f"target {target!r}: {module_name} has no function {name}; it has {', '.join(names)}"
        )
    allowed = inspect.signature(function).parameters
    for option in options:
        if option not in allowed:
            raise InputError(
                f"--arg {option}: {target} has no such parameter; allowed: {', '.join(allowed) or 'none'}"
            )
    result = function(**{key: _parsed(value) for key, value in options.items()})
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[0])):
        raise InputError(f"{target} must return (step, args); got {type(result).__name__}")
    return result[0], tuple(result[1])


def _parsed(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
