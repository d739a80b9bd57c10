"""A profile coarsened to points: at most as many as a solver is meant for.

The line of items is divided in equal segments; each ends one point.
    smallest   at the cut that the fewest bytes cross, of those allowed in it
    even       at its last item, or the last before at which a cut is allowed (Auto-MAP section
               4.5.1, step 2, which takes 128 points at equal distances)
Sums over points stay exact. Point q has items first[q] .. first[q + 1] - 1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from automap.pipeline.profile.profile import Profile
from automap.pipeline.profile.traffic import Uses, segment_bytes, segment_maximum


Coarsening = Literal["smallest", "even"]
# Auto-MAP section 4.5.1 sets the same number "empirically".
DEFAULT_POINTS: Final = 128


@dataclass(frozen=True)
class Points:
    """`first` int64 [n + 1]: the item that point q begins with; the last is the number of items."""

    profile: Profile
    first: np.ndarray

    @property
    def n_points(self) -> int:
        """n."""
        return len(self.first) - 1

    def seconds(self, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """(forward, backward) seconds of all points before each boundary, [n + 1], for a batch in
        `parts` parts.
        """
        forward, backward = (self.sums(each) for each in self.profile.seconds(parts))
        return forward, backward

    def weight_seconds(self, parts: int) -> np.ndarray:
        """Of the backward seconds those of the weight passes, [n + 1]."""
        return self.sums(self.profile.weight_seconds(parts))

    def sums(self, by_item: np.ndarray) -> np.ndarray:
        """Sums over all items before each boundary, [n + 1]."""
        return np.concatenate([[0.0], by_item.cumsum()])[self.first]

    def at_cuts(self, by_item: np.ndarray) -> np.ndarray:
        """What stands after the last item before each boundary, [n + 1]; 0 at both ends."""
        return np.concatenate([[0.0], by_item[self.first[1:-1] - 1], [0.0]])

    def moved(self, uses: Uses) -> Uses:
        """Uses by points."""
        return uses.moved(self._place)

    @cached_property
    def cut_bytes(self) -> np.ndarray:
        """Of the whole batch, [n + 1]; 0 at both ends."""
        return self.at_cuts(self.profile.cut_bytes)

    @cached_property
    def may_cut(self) -> np.ndarray:
        """Whether a stage may begin at each boundary, [n + 1]."""
        inner = self.profile.may_cut[self.first[1:-1] - 1]
        return np.concatenate([[True], inner, [True]])

    @cached_property
    def gradient_bytes(self) -> np.ndarray:
        """[n + 1, n + 1]; of frozen parameters 0."""
        return self._segments(self.profile.gradients)

    @cached_property
    def parameter_bytes(self) -> np.ndarray:
        """[n + 1, n + 1]."""
        return self._segments(self.profile.parameters)

    @cached_property
    def state_bytes(self) -> np.ndarray:
        """[n + 1, n + 1]."""
        return self._segments(self.profile.state)

    @cached_property
    def saved_bytes(self) -> np.ndarray:
        """Of the whole batch, [n + 1, n + 1]."""
        return self._segments(self.profile.saved)

    @cached_property
    def kept_bytes(self) -> np.ndarray:
        """Of the whole batch, [n + 1, n + 1]."""
        return self._segments(self.profile.kept)

    @cached_property
    def working_bytes(self) -> np.ndarray:
        """Of the whole batch, [n + 1, n + 1]."""
        most = np.maximum.reduceat(self.profile.working_bytes, self.first[:-1])
        return segment_maximum(most)

    @property
    def update_seconds_per_byte(self) -> float:
        """Seconds of the update by bytes of gradients."""
        total = self.profile.gradients.total_bytes
        return self.profile.update_seconds / total if total else 0.0

    def _segments(self, uses: Uses) -> np.ndarray:
        return segment_bytes(self.moved(uses), self.n_points)

    @cached_property
    def _place(self) -> np.ndarray:
        """The point of every item."""
        return np.repeat(np.arange(self.n_points), np.diff(self.first))


def coarsen(profile: Profile, most: int = DEFAULT_POINTS, how: Coarsening = "smallest") -> Points:
    """At most `most` points."""
    n = profile.n_items
    ends = []
    for segment in np.array_split(np.arange(n - 1), min(most, n - 1)):
        allowed = segment[profile.may_cut[segment]]
        # A segment in which no cut is allowed ends no point: its items go to the next one.
        if not len(allowed):
            continue
        # Of equal cuts the first: what comes after it can only be later.
        best = allowed[profile.cut_bytes[allowed].argmin()] if how == "smallest" else allowed[-1]
        ends.append(int(best) + 1)
    return Points(profile, np.array([0, *ends, n], np.int64))
