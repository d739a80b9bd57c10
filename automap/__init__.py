"""Automatic parallelization of unmodified single-device JAX steps.

What is public is named here and loaded at its first use (PEP 562), so that `import automap` takes
no time and neither JAX nor a compiler of kernels is loaded before something needs it. Type checkers
and editors read the imports under TYPE_CHECKING; a test holds `_MODULE_OF` against them.
"""

from importlib import import_module
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final


# What type checkers and editors see of the names that `__getattr__` gives.
if TYPE_CHECKING:
    from automap.api.advise import Advice as Advice, advise as advise
    from automap.api.comparison import Comparison as Comparison, compare as compare
    from automap.api.parallel import ParallelStep as ParallelStep, parallelize as parallelize
    from automap.api.plan import Plan as Plan
    from automap.api.planning import plan as plan
    from automap.api.simulation import (
        PipelineSimulation as PipelineSimulation,
        PlacementSimulation as PlacementSimulation,
        Simulation as Simulation,
        simulate as simulate,
    )
    from automap.api.verification import (
        PipelineVerification as PipelineVerification,
        Verification as Verification,
        verify as verify,
    )
    from automap.errors import (
        AutomapError as AutomapError,
        CacheWarning as CacheWarning,
        CalibrationError as CalibrationError,
        CompilerError as CompilerError,
        CompilerTimeoutError as CompilerTimeoutError,
        InfeasiblePlanError as InfeasiblePlanError,
        InputError as InputError,
        MeshMismatchError as MeshMismatchError,
        NotSeparableError as NotSeparableError,
        PlanError as PlanError,
        PlanWarning as PlanWarning,
        ProcessLostError as ProcessLostError,
        ProfileError as ProfileError,
        TopologyError as TopologyError,
        UnknownOpError as UnknownOpError,
    )
    from automap.runtime.transfer import fetch as fetch
    from automap.topology import Topology as Topology, get_topology as get_topology


__version__ = "0.1.0"

# A public name -> the module that defines it: see CONTRIBUTING, "a public name".
_MODULE_OF: Final = {
    "Advice": "automap.api.advise",
    "AutomapError": "automap.errors",
    "CacheWarning": "automap.errors",
    "CalibrationError": "automap.errors",
    "Comparison": "automap.api.comparison",
    "CompilerError": "automap.errors",
    "CompilerTimeoutError": "automap.errors",
    "InfeasiblePlanError": "automap.errors",
    "InputError": "automap.errors",
    "MeshMismatchError": "automap.errors",
    "NotSeparableError": "automap.errors",
    "ParallelStep": "automap.api.parallel",
    "PipelineSimulation": "automap.api.simulation",
    "PipelineVerification": "automap.api.verification",
    "PlacementSimulation": "automap.api.simulation",
    "Plan": "automap.api.plan",
    "PlanError": "automap.errors",
    "PlanWarning": "automap.errors",
    "ProcessLostError": "automap.errors",
    "ProfileError": "automap.errors",
    "Simulation": "automap.api.simulation",
    "Topology": "automap.topology",
    "TopologyError": "automap.errors",
    "UnknownOpError": "automap.errors",
    "Verification": "automap.api.verification",
    "advise": "automap.api.advise",
    "compare": "automap.api.comparison",
    "fetch": "automap.runtime.transfer",
    "get_topology": "automap.topology",
    "parallelize": "automap.api.parallel",
    "plan": "automap.api.planning",
    "simulate": "automap.api.simulation",
    "verify": "automap.api.verification",
}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


class _Face(ModuleType):
    """This module's class: `plan`, `simulate` and `verify` are functions here, and modules of the
    package too.

    Python sets a package's attribute to each submodule that it loads, which would hide the function
    of that name; the setter lets it pass unheard. `import automap.plan` still finds the module.
    """

    def __getattr__(self, name: str) -> Any:
        """A public name, kept once it is loaded."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'automap' has no attribute {name!r}")
        # Once: from then on Python finds the name without asking here.
        value = getattr(import_module(_MODULE_OF[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless a submodule would take the place of a public function."""
        # Python sets `automap.plan` to the package of that name when that is loaded.
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """The public names, loaded or not, and what every module has; nothing that is imported here
        for the face itself.
        """
        own = (name for name in super().__dir__() if name.startswith("__"))
        return sorted({*own, *_MODULE_OF})


# A module's class may be changed to one of its subclasses (Python's data model says so);
# `__getattr__` alone could be a function of the module, `__setattr__` could not.
sys.modules[__name__].__class__ = _Face
