"""Which outputs of a step are new versions of which inputs, read from the trees.

The largest output subtrees that equal an input subtree in structure, shapes and types; each input
is used once, and a lone scalar never matches. Where the step donates inputs, only those are state:
an output may look like the batch by chance, but nobody donates what is not replaced. Nor is an
array by itself state if nothing would be left as the batch and nothing as the answer: a network
that maps vectors to vectors.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import jax


def match_state(
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    outputs: Any,
    donated: frozenset[int] = frozenset(),
    known: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Flat output index -> flat input index of a call's (positional, keyword) arguments; `donated`
    are flat input indices.

    `known` is part of the answer.
    """
    sources: dict[object, list[int]] = {}
    for source, _, signature in _subtrees(inputs):
        sources.setdefault(signature, []).append(source)
    count = len(jax.tree.leaves(inputs))
    taken = set(known.values())
    # By flat input index, whether an output may still be its new version.
    free = [i not in taken and (not donated or i in donated) for i in range(count)]
    sources_by_output = dict(known)
    covered = set(known)
    # The largest subtrees first: a whole parameter tree says more than one array that fits.
    for start, length, signature in sorted(_subtrees(outputs), key=lambda s: (-s[1], s[0])):
        if covered & set(range(start, start + length)):
            continue
        for source in sources.get(signature, ()):
            if all(free[source : source + length]):
                sources_by_output.update((start + n, source + n) for n in range(length))
                covered.update(range(start, start + length))
                free[source : source + length] = [False] * length
                break
    # Everything would be state, and nothing the batch or the answer.
    is_all = len(covered) == len(jax.tree.leaves(outputs)) and not any(free)
    lone = (_lone_arguments(inputs) - taken) if is_all and not donated else set[int]()
    if len(lone) < len(sources_by_output):
        sources_by_output = {
            output: source for output, source in sources_by_output.items() if source not in lone
        }
    return {o: sources_by_output[o] for o in sorted(sources_by_output)}


def _lone_arguments(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> set[int]:
    """Flat indices of the arguments that are one array each."""
    positional, named = inputs
    counts = [len(jax.tree.leaves(a)) for a in (*positional, *(named[n] for n in sorted(named)))]
    return {start for start, n in zip(accumulate(counts, initial=0), counts) if n == 1}


def _subtrees(tree: Any) -> Iterator[tuple[int, int, object]]:
    """(first leaf, number of leaves, signature) of every subtree that holds arrays alone, itself
    first.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [
        (tuple(leaf.shape), str(leaf.dtype)) if hasattr(leaf, "shape") else None for leaf in leaves
    ]

    def within(structure: Any, start: int) -> Iterator[tuple[int, int, object]]:
        length = structure.num_leaves
        own = tuple(arrays[start : start + length])
        # A lone scalar equals every other scalar: a loss is no new version of a learning rate.
        is_scalar = length == 1 and own[0] is not None and not own[0][0]
        if own and None not in own and not is_scalar:
            yield start, length, (structure, own)
        for child in structure.children():
            yield from within(child, start)
            start += child.num_leaves

    return within(structure, 0)
