"""Regions made by hand or at random, for tests of issue orders and of their timelines."""

from hypothesis import strategies as st

from automap.simulate.region import Node, NodeKind, Region


def region(*rows):
    """A region of rows (what, seconds, after, urgent); a loop's row is (region, trips, after)."""
    nodes = []
    for slot, row in enumerate(rows):
        if isinstance(row[0], Region):
            body, trips, after = row
            nodes.append(
                Node(
                    kind=NodeKind.LOOP, number=slot, slot=slot, after=after, trips=trips, body=body
                )
            )
        else:
            what, seconds, after, *urgent = row
            nodes.append(
                Node(
                    kind=what,
                    number=slot,
                    slot=slot,
                    after=after,
                    seconds=seconds,
                    is_urgent=bool(urgent),
                )
            )
    return Region(tuple(nodes))


some_seconds = st.integers(0, 40).map(lambda n: n / 7)


@st.composite
def regions(draw, depth=2):
    """Any region; nodes wait for some of those before them."""
    rows = []
    for index in range(draw(st.integers(0, 7))):
        after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        after = tuple(sorted(after))
        if depth and draw(st.integers(0, 4)) == 0:
            rows.append((draw(regions(depth=depth - 1)), draw(st.integers(0, 5)), after))
        else:
            what = draw(st.sampled_from([NodeKind.KERNEL, NodeKind.SPARE, NodeKind.COLLECTIVE]))
            urgent = ("urgent",) if what is NodeKind.COLLECTIVE and draw(st.booleans()) else ()
            rows.append((what, draw(some_seconds), after, *urgent))
    return region(*rows)


def total_seconds(of, *kinds):
    """Seconds of all runs of the nodes of these kinds."""
    return sum(
        n.trips * total_seconds(n.body, *kinds) if n.body else n.seconds * (n.kind in kinds)
        for n in of.nodes
    )
