"""The options of `automap plan` that ask a compiler: what is compiled after a search.

They are no part of `Options` (`automap.config`), which say what is planned: a plan does not depend
on whether a compiler looked at it.
"""

from typing import Final

from automap.choices import DEFAULT_VERIFY_TOP, Option


VERIFY: Final = Option(
    name="verify",
    type=bool,
    default=False,
    help="compile the best plans, and take the best that the topology's compiler confirms to fit",
)
VERIFY_TOP: Final = Option(
    name="verify_top",
    type=int,
    default=DEFAULT_VERIFY_TOP,
    help="plans to compile at most",
)
REFINE: Final = Option(
    name="refine",
    type=float | None,
    unit="seconds",
    help="for which, after the search, the most promising plans are compiled: what the compiler "
    "says of their kernels and memory corrects the prices, the search goes on with them, and the "
    "plan that is fastest by the compiler's schedule and fits is taken; the presets are among them",
)
