"""What an agent may choose: Auto-MAP's filters, and no way into a dead end.

    near[d]        whether unit boundary d is within RADIUS units of one where the network parts units. A level of
                   the network counts with all that are outside it; the outermost that has S - 1 boundaries is taken
    held[i, j]     whether a stage of points [i, j) has a variable: a parameter with gradients
    cut_then[k, i] whether k stages can begin with point i, part_then[k, d] the same of unit d. So a boundary is
                   allowed only if what comes after it can be divided           -> in: `_stages_from`

A filter that leaves no partition at all is not kept.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.pipeline.arrays import Arrays


RADIUS: Final = 3


@dataclass(frozen=True)
class Rules:
    """`cut_then` [S + 1, n + 1], `part_then` [S + 1, U + 1], `held` [n + 1, n + 1], all bool."""

    cut_then: np.ndarray
    part_then: np.ndarray
    held: np.ndarray

    @property
    def stages(self) -> int:
        """S."""
        return len(self.cut_then) - 1


def rules_of(arrays: Arrays, stages: int, parted_by: np.ndarray) -> Rules | None:
    """The rules for S stages; `parted_by` as in `Fabric`. None if there is no partition in so many."""
    points, units = np.arange(arrays.n_points + 1), np.arange(arrays.n_units + 1)
    longer = points[None, :] > points[:, None]
    sizes = units[None, :] - units[:, None]
    usable = (sizes > 0) & arrays.usable[np.maximum(sizes, 0)]
    for held in (longer & (arrays.gradient_bytes > 0.0), longer):
        cut_then = _stages_from(held, arrays.may_cut, stages)
        if cut_then[stages, 0]:
            break
    else:
        return None
    for near in (near_parting(parted_by, stages), np.ones(len(units), bool)):
        part_then = _stages_from(usable, arrays.may_part & near, stages)
        if part_then[stages, 0]:
            return Rules(cut_then, part_then, held)
    return None


def near_parting(parted_by: np.ndarray, stages: int, radius: int = RADIUS) -> np.ndarray:
    """near [U + 1] for S stages."""
    inner = parted_by[1:-1]
    enough = [level for level in np.unique(inner) if (inner >= level).sum() >= stages - 1]
    at = np.flatnonzero(parted_by >= max(enough, default=0))
    distances = np.abs(np.arange(len(parted_by))[:, None] - at[None, :])
    near = np.any(distances <= radius, axis=1)
    near[[0, -1]] = True
    return near


def _stages_from(can_be: np.ndarray, may_begin: np.ndarray, stages: int) -> np.ndarray:
    """From `can_be` [N + 1, N + 1], whether [i, j) can be a stage, to whether k stages can be [i,
    N): [S + 1, N + 1].
    """
    then = np.zeros((stages + 1, len(may_begin)), bool)
    then[0, -1] = True
    for k in range(1, stages + 1):
        then[k] = may_begin & (can_be & then[k - 1]).any(1)
    return then
