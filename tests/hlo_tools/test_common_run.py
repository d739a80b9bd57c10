"""The longest common run against all pairs."""

from hypothesis import given, strategies as st

from hlo_tools.analyses.roles import longest_common_run


items = st.lists(st.integers(0, 3), max_size=12)


@given(items, items)
def test_it_is_the_longest_and_the_earliest(first, second):
    runs = [
        (-length, a, b)
        for a in range(len(first))
        for b in range(len(second))
        for length in range(1, len(first) + 1)
        if a + length <= len(first) and first[a : a + length] == second[b : b + length]
    ]
    expected = min(runs, default=(0, 0, 0))
    assert longest_common_run(first, second) == (-expected[0], *expected[1:])
