"""What XLA's backends do with a program beyond partitioning it, as far as costs depend on it."""

from collections.abc import Mapping
from enum import Enum

from automap.topology.model import Platform


class Habit(Enum):
    """SIMPLIFIES programs before and after it partitions them: sums are merged, indices are seen
    through.

    LOOPS_FIRST: sums are taken out of loops before any are merged (`automap.cost.sums`). NARROWS
    float32 to bfloat16 where it is multiplied, and stores and moves it so (`hlo_tools.analyses.narrow`).
    FILLS: zeros of several loops are one tensor, and written number by number
    (`automap.cost.loop_fills`). RINGS: a product and the reduce-scatter of its result are one loop
    (`automap.cost.rings`). MERGES_GATHERS: small gathers of parameters are one message, as small
    sums are on all backends. ASYNCHRONOUS: collectives run beside kernels (`automap.cost.overlap`),
    updates late (`hlo_tools.analyses.liveness`).
    """

    SIMPLIFIES = "simplifies"
    LOOPS_FIRST = "loops first"
    NARROWS = "narrows"
    FILLS = "fills"
    RINGS = "rings"
    MERGES_GATHERS = "merges gathers"
    ASYNCHRONOUS = "asynchronous"


HABITS: Mapping[Platform, frozenset[Habit]] = {
    "tpu": frozenset(set(Habit) - {Habit.ASYNCHRONOUS}),
    "cuda": frozenset({Habit.SIMPLIFIES, Habit.MERGES_GATHERS, Habit.ASYNCHRONOUS}),
    "cpu": frozenset(),
}
