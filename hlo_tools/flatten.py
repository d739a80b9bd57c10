"""Module -> Graph: inline calls, take tuples apart, visit each loop body once.

The trip count of a loop is read from its counter (`hlo_tools.trips`); a loop whose count cannot be
read is counted once and named in `Graph.assumptions`.

What XLA has fused is inlined too, unless fusions are kept as the ops that run
(`hlo_tools.scheduled`).
"""

from collections.abc import Mapping
from typing import Literal

from hlo_tools.collector import collector_paused
from hlo_tools.errors import HloError
from hlo_tools.flattener import Flattener
from hlo_tools.graph import Graph
from hlo_tools.handlers import HANDLERS, KEEPING_FUSIONS
from hlo_tools.module import Module
from hlo_tools.rules.notation import Notation


Fusions = Literal["inlined", "kept"]


@collector_paused()
def flatten(
    module: Module,
    user_rules: Mapping[str, Notation] | None = None,
    *,
    fusions: Fusions = "inlined",
) -> Graph:
    """Inline `module` to one flat graph.

    A function that has a rule for its shapes in `user_rules` becomes one custom call of its name.

    Raises `HloError` where an instruction refers to a tuple element that is not there, or when
    inlining grows past two million ops.
    """
    handlers = HANDLERS if fusions == "inlined" else KEEPING_FUSIONS
    try:
        return Flattener(module, user_rules or {}, handlers).graph()
    except HloError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise HloError(
            f"module {module.name!r} is not well formed ({type(error).__name__}: {error}); "
            "dump it again with XLA, or pass the StableHLO it came from"
        ) from error
