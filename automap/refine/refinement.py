"""How long a search is refined, and where what compilers say is kept."""

from collections.abc import Callable
from dataclasses import dataclass, field
import math
from pathlib import Path
import time

from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS
from automap.errors import CompilerError, InputError
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS, machine_for
from automap.verify.kernel_seconds import CLOCK_HZ, has_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """How to refine: for `seconds` on the clock after the first search, at most `timeout_seconds`
    for one plan; `cache_folder`, of witnesses, None for none. `clock` says seconds from any moment.
    """

    seconds: float
    timeout_seconds: float = DEFAULT_COMPILE_TIMEOUT_SECONDS
    cache_folder: Path | None = field(default_factory=default_folder)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Raise `InputError` for numbers out of range."""
        for name, given in (("refine", self.seconds), ("timeout", self.timeout_seconds)):
            if not (math.isfinite(given) and given > 0):
                raise InputError(f"{name} {given}: must be a positive number of seconds")


def check_one_compiler_option(
    *, verify: bool, refine: float | None, preset: str | None, space: str
) -> None:
    """Raise `InputError` if a search is to be refined and its plans to be verified as well, if
    there is no search, or if it is one of plans of several programs.
    """
    if refine is not None and space != "sharding":
        raise InputError(
            f"--refine with --space {space}: it compiles plans of one program; give --space "
            "sharding, or leave --refine out"
        )
    if refine is not None and preset is not None:
        raise InputError(
            f"--refine with --preset {preset}: a preset is one plan, and nothing is searched; give "
            "--verify, or leave --preset out"
        )
    if verify and refine is not None:
        raise InputError(
            "--verify with --refine: a refined plan is one that the compiler confirms; give one of "
            "the two"
        )


def check_can_refine(topology: Topology) -> None:
    """Raise `CompilerError` before a search for what no compiler could say after it: one that is
    not installed, does not know the machine, or has no seconds for it.
    """
    if not has_seconds(topology):
        raise CompilerError(
            f"--refine: no compiler says how long a step takes on {topology.name}; allowed: GPUs, "
            f"and slices of {', '.join(CLOCK_HZ)}; --verify asks about memory alone"
        )
    name = COMPILER_BY_PLATFORM[topology.platform]
    machine_for(name, topology)
    COMPILERS[name].check_installed()
