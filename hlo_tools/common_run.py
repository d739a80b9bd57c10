"""The longest run that two sequences have in common, in n log n.

A run of length L that both have contains one of length L - 1, so the greatest L is found by
bisection. The runs of one length are compared by their polynomial hashes modulo 2**64, and a match
is checked in full.
"""

from collections.abc import Sequence

import numpy as np


_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def longest_common_run(first: Sequence[int], second: Sequence[int]) -> tuple[int, int, int]:
    """(length, start in `first`, start in `second`) of the longest run; of equals the earliest in
    `first`, then in `second`; (0, 0, 0) if there is none."""
    hashes = _prefix_hashes(first), _prefix_hashes(second)
    low, high = 0, min(len(first), len(second))
    found = (0, 0, 0)
    while low < high:
        length = (low + high + 1) // 2
        match = _match(first, second, hashes, length)
        if match is None:
            high = length - 1
        else:
            low, found = length, (length, *match)
    return found


def _prefix_hashes(items: Sequence[int]) -> np.ndarray:
    total, result = 0, [0]
    for item in items:
        total = (total * _BASE + item + 1) & _MASK
        result.append(total)
    return np.array(result, np.uint64)


def _match(
    first: Sequence[int], second: Sequence[int], hashes: tuple[np.ndarray, np.ndarray], length: int
) -> tuple[int, int] | None:
    power = np.uint64(pow(_BASE, length, 1 << 64))
    runs = [h[length:] - h[:-length] * power for h in hashes]
    known, earliest = np.unique(runs[1], return_index=True)
    place = np.minimum(np.searchsorted(known, runs[0]), len(known) - 1)
    for a in np.flatnonzero(known[place] == runs[0]).tolist():
        b = int(earliest[place[a]])
        if first[a : a + length] == second[b : b + length]:
            return a, b
    return None
