"""Numbers of a column are in one unit, in which the smallest can still be read."""

from hypothesis import given, strategies as st
import pytest

from automap.quantities import bytes_column, seconds_column


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (
            [0.0014138, 0.0003798, None, 0.0010326],
            ["1.414 ms", "0.380 ms", "-", "1.033 ms"],
        ),
        ([13.184e-6, 4.931e-6], ["13.18 us", "4.93 us"]),
        ([1234.0, 1300.0], ["1,234 s", "1,300 s"]),
        ([0.0, 0.0], ["0 ns", "0 ns"]),
        ([None], ["-"]),
        ([], []),
    ],
)
def test_seconds(column, expected):
    assert seconds_column(column) == expected


def test_bytes():
    assert bytes_column([76 * 2**20, 116 * 2**20]) == ["76.0 MiB", "116.0 MiB"]
    assert bytes_column([100, 12]) == ["100 B", "12 B"]
    assert bytes_column([2**40, 1.5 * 2**40]) == ["1.00 TiB", "1.50 TiB"]


@given(st.lists(st.floats(1e-3, 1e15), min_size=1, max_size=8))
def test_any_column_has_one_unit_and_its_order(column):
    texts = bytes_column(column)
    assert len({text.split()[1] for text in texts}) == 1
    shown = [float(text.split()[0].replace(",", "")) for text in texts]
    for first, a in zip(column, shown, strict=True):
        for second, b in zip(column, shown, strict=True):
            assert first >= second or a <= b


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=8))
def test_the_smallest_is_not_zero_unless_it_is_nothing_beside_the_others(column):
    texts = seconds_column(column)
    for seconds, text in zip(column, texts, strict=True):
        assert float(text.split()[0].replace(",", "")) > 0 or seconds < 1e-3 * max(column)
