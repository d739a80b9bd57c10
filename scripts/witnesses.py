"""What the compiler of a plan's machine makes of it, kept between runs of the scripts."""

from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS
from automap.planner.records import Outcome, build_plan
from automap.step.call import TracedCall
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILER_BY_PLATFORM
from automap.verify.compiling import ask
from automap.verify.program import planned_program
from automap.verify.witness import Witness


def compile_witness(
    outcome: Outcome, call: TracedCall, timeout_seconds: float = DEFAULT_COMPILE_TIMEOUT_SECONDS
) -> Witness:
    """What the compiler of the outcome's machine makes of its plan, kept between runs.

    Raises `CompilerError` if the compiler is missing, or takes longer.
    """
    return ask(
        planned_program(build_plan(outcome), call),
        COMPILER_BY_PLATFORM[outcome.topology.platform],
        timeout_seconds=timeout_seconds,
        cache_folder=default_folder(),
    )
