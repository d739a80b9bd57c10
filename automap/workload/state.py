"""Which outputs of a step are new versions of which inputs, read from the trees.

The largest output subtrees that equal an input subtree in structure, shapes and types; each input is
used once, and a lone scalar never matches. Where the step donates inputs, only those are state: an
output may look like the batch by chance, but nobody donates what is not replaced.
"""

from typing import Any

import jax


def match_state(inputs: Any, outputs: Any, donated: frozenset[int] = frozenset()) -> dict[int, int]:
    """Flat output index -> flat input index; `donated` are flat input indices."""
    sources: dict[object, list[int]] = {}
    for source, _, signature in _subtrees(inputs, 0):
        sources.setdefault(signature, []).append(source)
    free = [not donated or i in donated for i in range(len(jax.tree.leaves(inputs)))]
    found: dict[int, int] = {}
    covered: set[int] = set()
    for start, length, signature in sorted(_subtrees(outputs, 0), key=lambda s: (-s[1], s[0])):
        if covered & set(range(start, start + length)):
            continue
        for source in sources.get(signature, ()):
            if all(free[source : source + length]):
                found.update((start + n, source + n) for n in range(length))
                covered.update(range(start, start + length))
                free[source : source + length] = [False] * length
                break
    return {o: found[o] for o in sorted(found)}


def _subtrees(tree: Any, start: int) -> list[tuple[int, int, object]]:
    """(first leaf, number of leaves, signature) of every subtree that holds an array, itself first."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = tuple(
        (tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves if hasattr(leaf, "shape")
    )
    result: list[tuple[int, int, object]] = []
    # A lone scalar equals every other scalar: a loss is no new version of a learning rate.
    is_scalar = len(arrays) == 1 and not arrays[0][0]
    if arrays and len(arrays) == len(leaves) and not is_scalar:
        result.append((start, len(leaves), (structure, arrays)))
    children = structure.children()
    at = start
    for child in children:
        inner = jax.tree.unflatten(child, leaves[at - start : at - start + child.num_leaves])
        result += _subtrees(inner, at)
        at += child.num_leaves
    return result
