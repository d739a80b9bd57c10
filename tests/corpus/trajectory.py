"""Three steps, each taking what the one before left, and all arrays they made.

With noise, every float of the arguments is rounded otherwise before each step, as each step rounds
its own results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path
import numpy as np

from automap.verify.run_both import rounded_otherwise
from tests.corpus.entry import Call


STEPS = 3


@dataclass(frozen=True)
class Made:
    """An array that a step made, and the one of the first call in whose place it is, if any."""

    value: np.ndarray
    before: np.ndarray | None

    @property
    def change(self) -> np.ndarray:
        """What the steps did to it."""
        return self.value if self.before is None else self.value - self.before


Trajectory = Mapping[str, Made]


def run(step: Callable[..., Any], call: Call, carried: Sequence[int]) -> Trajectory:
    """Arrays by step and path: "step 1 [0]['w']"."""
    return _run(step, call, carried, lambda args: args)


def run_with_noise(call: Call, carried: Sequence[int], relative: float, seed: int) -> Trajectory:
    """The same of a single device whose arguments move by `relative` of themselves, up or down."""
    random = np.random.default_rng(seed)

    def moved(leaf: Any) -> Any:
        if not _is_array(leaf) or _is_key(leaf):
            return leaf
        array = rounded_otherwise(np.asarray(leaf), relative, random)
        return array if isinstance(leaf, np.ndarray) else jax.numpy.asarray(array)

    return _run(call.step, call, carried, lambda args: jax.tree.map(moved, args))


def _run(
    step: Callable[..., Any], call: Call, carried: Sequence[int], prepared: Callable[[Any], Any]
) -> Trajectory:
    args, kwargs, made = call.args, dict(call.kwargs), dict[str, Made]()
    at_first = None
    for number in range(1, STEPS + 1):
        args, kwargs = prepared((args, kwargs))
        at_first = dict(_arrays_of(args)) if at_first is None else at_first
        results = step(*args, **kwargs)
        # A named tuple may be one argument of the next call, or several.
        is_several = type(results) is tuple or (len(carried) > 1 and isinstance(results, tuple))
        results = results if is_several else (results,)
        replaced = dict(zip(carried, results))
        args = tuple(replaced.get(i, arg) for i, arg in enumerate(args))
        for i, result in enumerate(results):
            for path, array in _arrays(result):
                before = at_first.get((carried[i], path)) if i < len(carried) else None
                made[f"step {number} [{i}]{path}"] = Made(array, before)
        if not carried:
            for (i, path), array in _arrays_of(args):
                made[f"step {number} argument [{i}]{path}"] = Made(array, at_first[i, path])
    return made


def _arrays_of(args: Sequence[Any]) -> Iterator[tuple[tuple[int, str], np.ndarray]]:
    for i, arg in enumerate(args):
        yield from (((i, path), array) for path, array in _arrays(arg))


def _arrays(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in tree_flatten_with_path(tree)[0]:
        if _is_array(leaf):
            whole = jax.random.key_data(leaf) if _is_key(leaf) else leaf
            yield keystr(path), np.array(whole)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
