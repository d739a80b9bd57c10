"""How much longer a transpose takes than its bytes do in order, on a GPU.

Where a dimension of s numbers becomes the innermost one, or was it, the smaller one of both, a line
of memory is asked for s times at most. It comes from memory once, and from the cache afterwards,
`CACHE_SPEEDUP` times as fast (XLA's `kL2CacheSpeedup`; that a stride of s wastes no more is in
NVIDIA's CUDA C++ Best Practices Guide, "Strided accesses")             -> in: `strided_times`

    times = 1 + (s - 1) / speedup

Tiles that go through shared memory ask for a line once: of two innermost dimensions of `TILED` and
more (`kMinDimensionToTransposeTiled`, 16 in most versions of XLA, 4 in one)
                                                                        -> in: `transpose_times`
In a program of jax 0.10.2 four numbers of float32 are not transposed by tiles, and of bfloat16 some
are, which are predicted too slow here.
"""

from collections.abc import Sequence
from typing import Final


CACHE_SPEEDUP: Final = 2.5
TILED: Final = 16


def strided_times(n_asked: int) -> float:
    """How many times as long as in order, if each line is asked for `n_asked` times."""
    return 1 + (n_asked - 1) / CACHE_SPEEDUP


def transpose_times(before: Sequence[int], after: Sequence[int], dims: Sequence[int]) -> float:
    """How many times as long as a copy in order it takes to bring an array of `dims` from one order
    of its dimensions to another, the major ones first.
    """
    inner = [next((d for d in reversed(order) if dims[d] > 1), None) for order in (before, after)]
    if None in inner or inner[0] == inner[1]:
        return 1.0
    smaller = min(dims[d] for d in inner if d is not None)
    return 1.0 if smaller >= TILED else strided_times(smaller)
