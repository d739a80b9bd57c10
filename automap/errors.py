"""The error classes: every failure a user can cause or meet has one of these types.

A message says what was got, what is allowed, and what to do. The command line prints it without a
traceback and exits with `exit_status`.
"""

from automap.exit_status import ExitStatus


class AutomapError(Exception):
    """Root of all errors raised on purpose; `exit_status` is what the command returns."""

    exit_status = ExitStatus.BAD_INPUT


class InputError(AutomapError):
    """A workload, option or file that cannot be used as given."""


class TopologyError(AutomapError):
    """A topology name or file that cannot be used."""


class PlanError(AutomapError):
    """A plan that is malformed, or does not belong to the step it is applied to."""


class MeshMismatchError(PlanError):
    """A plan for another number or kind of devices than those given."""


class ProfileError(AutomapError):
    """A profile of measured kernels that is malformed, or of another device."""


class CalibrationError(AutomapError):
    """A device that is absent, busy, or cannot be measured."""


class UnknownOpError(InputError):
    """An HLO op without a rule, under `--strict`."""


class CompilerError(AutomapError):
    """A compiler that is not installed, does not know the machine, fails, or is not done in
    time.
    """

    exit_status = ExitStatus.COMPILER_FAILED


class CompilerTimeoutError(CompilerError):
    """A compiler that was not done in time, or stayed busy until then."""


class ProcessLostError(AutomapError):
    """Another process of the same program has gone, without which a step cannot go on."""


class NotSeparableError(AutomapError):
    """A step whose samples cannot be computed one microbatch at a time."""


class CacheWarning(UserWarning):
    """A cache that cannot be used: work goes on without it."""


class PlanWarning(UserWarning):
    """Something about a step and its plan that its user should know, though it runs."""


class InfeasiblePlanError(AutomapError):
    """No plan in the space fits the memory of the devices."""

    exit_status = ExitStatus.DOES_NOT_FIT
