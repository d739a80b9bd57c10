"""Where a graph of operators is cut."""

from hypothesis import given, strategies as st

from automap.streams.blocks import Block, articulations, cut_blocks, halves


def _paths(before):
    """For each operator all that are before it."""
    above = []
    for reads in before:
        above.append(set(reads).union(*(above[b] for b in reads)))
    return above


GRAPHS = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        *(st.frozensets(st.integers(0, max(n - 1, 0)), max_size=n) for n in range(count))
    )
)


@given(GRAPHS)
def test_an_articulation_is_before_or_after_each_other(before):
    above = _paths(before)
    count = len(before)
    expected = {
        n
        for n in range(count)
        if all(m in above[n] or n in above[m] for m in range(count) if m != n)
    }
    assert articulations(before) == expected


@given(GRAPHS)
def test_blocks_are_all_operators_in_an_order_that_keeps_what_is_before(before):
    blocks = cut_blocks(before)
    members = [m for block in blocks for m in block.members]
    assert sorted(members) == list(range(len(before)))
    number = {m: index for index, block in enumerate(blocks) for m in block.members}
    for m, reads in enumerate(before):
        assert all(number[b] <= number[m] for b in reads)
    for block in blocks:
        for place, mask in enumerate(block.before):
            inside = {block.members[b] for b in range(place) if mask >> b & 1}
            assert inside == before[block.members[place]] & set(block.members)


def test_a_diamond_is_cut_at_its_ends():
    before = [frozenset(), frozenset({0}), frozenset({0}), frozenset({1, 2})]
    assert [block.members for block in cut_blocks(before)] == [(0,), (1, 2), (3,)]


def test_a_wide_block_is_cut_where_the_fewest_results_cross():
    # Two bundles of three, joined by one operator that all of the second read.
    before = [frozenset(), frozenset(), frozenset(), frozenset({0, 1, 2}), *[frozenset({3})] * 3]
    masks = tuple(sum(1 << b for b in reads) for reads in before)
    first, second = halves(Block(tuple(range(7)), masks))
    assert first.members == (0, 1, 2, 3)
    assert second.before == (0, 0, 0)
