"""What a restarted simulation would not do again, on timelines made by hand."""

import numpy as np

from automap.simulate.operators.simulator import PlacedTimeline
from scripts.flexflow_profile import share_before_change


def timeline(starts: dict[int, float]) -> PlacedTimeline:
    """Tasks of a second, by their numbers."""
    ident = np.array(sorted(starts))
    start = np.array([starts[i] for i in sorted(starts)])
    return PlacedTimeline(
        ident=ident,
        resource=np.zeros(len(ident), np.int64),
        ready_seconds=start,
        start_seconds=start,
        end_seconds=start + 1.0,
    )


def test_tasks_count_that_start_before_the_first_that_another_timeline_has_otherwise():
    known = timeline({0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0})
    assert share_before_change(known, known) == 1.0
    # The last is later, and the third starts at another time.
    assert share_before_change(known, timeline({0: 0.0, 1: 1.0, 2: 2.0, 3: 4.0})) == 3 / 4
    assert share_before_change(known, timeline({0: 0.0, 1: 1.0, 2: 2.5, 3: 3.5})) == 2 / 4
    # A task that is gone, and one that is new.
    assert share_before_change(known, timeline({0: 0.0, 2: 2.0, 3: 3.0})) == 1 / 3
    assert share_before_change(known, timeline({0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 0.5})) == 1 / 5
