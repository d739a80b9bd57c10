"""Bytes of stages by distinct use against sets."""

from hypothesis import given, settings, strategies as st
import numpy as np

from automap.pipeline.profile.traffic import UseList, segment_bytes, segment_maximum


ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=30)


@settings(deadline=None)
@given(rows=ROWS, place=st.lists(st.integers(0, 1), min_size=8, max_size=8))
def test_segments_count_each_tensor_once(rows, place):
    found = UseList()
    for tensor, item in rows:
        found.add(tensor, item, 10.0**tensor)
    moved = np.cumsum([0, *place[1:]])
    n = int(moved[-1]) + 1
    table = segment_bytes(found.done().moved(moved), n)
    for i in range(n + 1):
        for j in range(n + 1):
            held = {tensor for tensor, item in rows if i <= moved[item] < j}
            assert abs(table[i, j] - sum(10.0**t for t in held)) < 1e-6
    assert found.done().total_bytes == sum(10.0**t for t in {t for t, _ in rows})


@given(values=st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_maxima(values):
    table = segment_maximum(np.array(values))
    for i in range(len(values)):
        for j in range(i + 1, len(values) + 1):
            assert table[i, j] == max(values[i:j])
    assert not table[-1].any()
