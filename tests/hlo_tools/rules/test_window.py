"""Halos by brute force: which elements the windows of each device's part read."""

from dataclasses import replace

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest

from hlo_tools.module import WindowDim
from hlo_tools.rules.window import halos, neighbours, overlap, result_halo, window_halo


@st.composite
def cut_windows(draw):
    """(window, elements read, results made, parts), with parts that divide both."""
    parts = draw(st.integers(2, 6))
    size, stride, dilation, base = (draw(st.integers(1, most)) for most in (7, 3, 3, 3))
    read, made = (parts * draw(st.integers(1, 8)) for _ in range(2))
    window = WindowDim(
        size=size,
        stride=stride,
        padding_low=draw(st.integers(-2, 6)),
        padding_high=0,
        base_dilation=base,
        window_dilation=dilation,
        reversal=False,
    )
    return window, read, made, parts


def _around(reads, read, base, parts):
    """(elements before, elements after) that the neediest device lacks; `reads` [parts] are (first,
    last).
    """
    share, before, after = read // parts, [0], [0]
    for device, (first, last) in enumerate(reads):
        # Elements stand at multiples of `base`; those that a window meets are between first and
        # last.
        needed = range(-(-first // base), last // base + 1)
        if device > 0:
            before.append(device * share - needed.start)
        if device < parts - 1:
            after.append(needed.stop - (device + 1) * share)
    return max(before), max(after)


@given(cut_windows())
@settings(max_examples=300)
def test_the_neediest_device_gets_what_its_windows_read(case):
    window, read, made, parts = case
    each = made // parts
    reads = []
    for device in range(parts):
        first = device * each * window.stride - window.padding_low
        last = (device + 1) * each * window.stride - window.stride - window.padding_low
        reads.append((first, last + (window.size - 1) * window.window_dilation))
    got = neighbours(halos([result_halo(window, read, made)]), np.array([parts]))
    assert tuple(int(n[0]) for n in got) == _around(reads, read, window.base_dilation, parts)


@given(cut_windows())
@settings(max_examples=300)
def test_a_window_that_is_cut_reads_as_far(case):
    window, read, made, parts = case
    taps = window.size * parts
    window = replace(window, size=taps)
    each = taps // parts
    reads = []
    for device in range(parts):
        first = device * each * window.window_dilation - window.padding_low
        last = ((device + 1) * each - 1) * window.window_dilation - window.padding_low
        reads.append((first, last + (made - 1) * window.stride))
    got = neighbours(halos([window_halo(window, read, made)]), np.array([parts]))
    assert tuple(int(n[0]) for n in got) == _around(reads, read, window.base_dilation, parts)


@pytest.mark.parametrize(
    ("size", "stride", "low", "read", "made", "want", "extra"),
    [
        (3, 1, 1, 32, 32, (1, 1), 2),
        (3, 2, 0, 32, 16, (0, 1), 1),
        (7, 2, 3, 32, 16, (3, 2), 5),
        (2, 2, 0, 32, 16, (0, 0), 0),
        (9, 1, 0, 72, 64, (7, 7), 7),
    ],
)
def test_known_windows_on_eight_devices(size, stride, low, read, made, want, extra):
    window = WindowDim(
        size=size,
        stride=stride,
        padding_low=low,
        padding_high=0,
        base_dilation=1,
        window_dilation=1,
        reversal=False,
    )
    around, parts = halos([result_halo(window, read, made)]), np.array([8])
    assert tuple(int(n[0]) for n in neighbours(around, parts)) == want
    assert overlap(around, parts)[0] == extra
