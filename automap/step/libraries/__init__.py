"""Objects of libraries in a step's arguments and results: the arrays that JAX traces, and a rest
that it does not.

A library is recognized once the user has imported it (-> in: `loaded_libraries`), never imported
here, and only its public functions are called. What needs one is in one file:

    equinox    modules are trees: arrays are traced, all else is static
    nnx        modules are mutable graphs: what a step changes in them is written back after it
"""

from collections.abc import Mapping
from functools import cache
import sys
from types import MappingProxyType, ModuleType
from typing import Any, Final

from automap.step.libraries.equinox import EquinoxLibrary
from automap.step.libraries.library import Library as Library
from automap.step.libraries.nnx import NnxLibrary


LIBRARIES: Final[Mapping[str, Any]] = MappingProxyType(
    {"equinox": EquinoxLibrary, "flax.nnx": NnxLibrary}
)
"""By the module that is imported with each."""


def loaded_libraries() -> tuple[Library, ...]:
    """Those that this process has imported."""
    # What was never imported cannot have made an argument.
    modules = {name: sys.modules.get(name) for name in LIBRARIES}
    return tuple(_library(name, module) for name, module in modules.items() if module is not None)


@cache
def _library(name: str, module: ModuleType) -> Library:
    return LIBRARIES[name](module)
