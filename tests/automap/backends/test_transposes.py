"""How much longer transposes take, in closed form."""

from hypothesis import given, strategies as st
import pytest

from automap.backends.transposes import CACHE_SPEEDUP, TILED, strided_times, transpose_times


@pytest.mark.parametrize(
    ("before", "after", "dims", "times"),
    [
        ((0, 1, 2), (1, 0, 2), (8, 8, 4), 1.0),  # the innermost one stays
        ((0, 1, 2), (0, 2, 1), (8, 1024, 4), 1 + 3 / CACHE_SPEEDUP),
        ((0, 2, 1), (0, 1, 2), (8, 1024, 4), 1 + 3 / CACHE_SPEEDUP),
        ((0, 1, 2), (0, 2, 1), (8, 1024, TILED), 1.0),
        ((0, 1, 2), (0, 2, 1), (8, 1, 4), 1.0),  # of one element
        ((), (), (), 1.0),
    ],
)
def test_only_short_dimensions_that_become_innermost_are_slow(before, after, dims, times):
    assert transpose_times(before, after, dims) == pytest.approx(times)


@given(st.integers(1, 1000))
def test_a_line_is_fetched_once_and_then_read_from_the_cache(n_asked):
    assert strided_times(n_asked) == pytest.approx(1 + (n_asked - 1) / CACHE_SPEEDUP)
    assert strided_times(1) == 1
