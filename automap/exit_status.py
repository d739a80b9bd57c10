"""What the command returns to the shell: scripts rely on these numbers."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


# 0 to 4 are what a script may want to tell apart; 70 is EX_SOFTWARE of sysexits.h, and 128 + n is a
# process that signal n ended (2 SIGINT, 13 SIGPIPE, 15 SIGTERM).
class ExitStatus(IntEnum):
    """Why a command ended. Those above 128 are what a shell reports of a process that a signal
    ended.
    """

    DONE = 0
    DOES_NOT_FIT = 1
    BAD_INPUT = 2
    WRONG_NUMBERS = 3
    COMPILER_FAILED = 4
    INTERNAL_ERROR = 70
    INTERRUPTED = 130
    NOBODY_READS = 141
    TERMINATED = 143


MEANING: Final[Mapping[ExitStatus, str]] = {
    ExitStatus.DONE: "done",
    ExitStatus.DOES_NOT_FIT: "no plan fits, or the compiler says that the plan does not",
    ExitStatus.BAD_INPUT: "usage, bad input, or a file that cannot be read or written",
    ExitStatus.WRONG_NUMBERS: "the planned step does not compute what the step computes",
    ExitStatus.COMPILER_FAILED: "a compiler is missing, failed, or was not done in time",
    ExitStatus.INTERNAL_ERROR: "an error of automap's own: please report it",
    ExitStatus.INTERRUPTED: "Ctrl-C before there was a result",
    ExitStatus.NOBODY_READS: "nobody reads the output any more",
    ExitStatus.TERMINATED: "ended by SIGTERM",
}
