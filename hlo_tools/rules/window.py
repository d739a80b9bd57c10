"""Windows: which elements of its neighbours a device needs, and the ops that slide a window.

Position o of the result reads positions o s - p + k d (k = 0 .. w - 1) of the input, whose n elements lie b
apart (s stride, p low padding, w window, d and b its dilation and the input's).  When both are cut into parts of
equal share, device i of P makes results from i m / P and holds input from i n / P, so it reads beyond its part by

    low   p + i (n b - m s) / P                  at most  p + max(0, n b - m s)
    high  (w - 1) d + 1 - s - p - (i + 1) (n b - m s) / P
                                                 at most  (w - 1) d + 1 - s - p + max(0, m s - n b)

dilated positions each way                                                          -> in: `halo`
"""

from hlo_tools.module import Instruction, WindowDim
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def halo(window: WindowDim, read: int, made: int) -> tuple[int, int]:
    """Elements read before and after a part, when `read` elements and `made` results are split alike."""
    drift = read * window.base_dilation - made * window.stride
    reach = (window.size - 1) * window.window_dilation + 1 - window.stride
    low = max(window.padding_low + max(0, drift), 0)
    high = max(reach - window.padding_low + max(0, -drift), 0)
    return -(-low // window.base_dilation), -(-high // window.base_dilation)


def reduce_window(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Pools pass with a halo; a window as long as its dimension (a cumulative sum) needs all before it."""
    builder = RuleBuilder(operands, results)
    arrays = range(len(operands) // 2)
    for dim, window in enumerate(instruction.attributes.window):
        places = [(n, dim) for n in arrays]
        places += [(builder.result(n), dim) for n in range(len(results))]
        _slide(builder, places, window, operands[0][dim], results[0][dim])
    return builder.build()


def select_and_scatter(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """The gradient of a pool: (input, gradient of the output, initial) -> gradient of the input."""
    builder = RuleBuilder(operands, results)
    for dim, window in enumerate(instruction.attributes.window):
        places = [(0, dim), (1, dim), (builder.result(), dim)]
        _slide(builder, places, window, operands[0][dim], operands[1][dim])
    return builder.build()


def _slide(
    builder: RuleBuilder, places: list[tuple[int, int]], window: WindowDim, read: int, made: int
) -> None:
    size = max(read, made)
    needed = halo(window, read, made)
    if not any(needed):
        builder.add(*places, size=size)
    elif window.size < read:
        builder.add(*places, size=size, kind=FactorKind.PERMUTATION, halo=needed)
    else:
        builder.add(*places, size=size, kind=FactorKind.PERMUTATION)
