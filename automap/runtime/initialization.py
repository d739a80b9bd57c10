"""State that is created sharded: the initializer runs as one program whose outputs are split.

With a plan, every leaf is created where the plan stores it -> in: `planned_shardings`. Leaves on
different devices, those of a pipeline's stages, are made by a program for each set, which computes
nothing else -> in: `init_sharded`. Before there is a plan, every leaf is split over all devices as
evenly as its dimensions allow (the first step moves it):

    devices n = p_1 p_2 ... (primes, largest first); p_k goes to the dimension with the most
    elements per part that it divides                                    -> in: `even_shardings`
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path
import numpy as np

from automap.errors import InputError
from automap.plan.parts import LeafRecord
from automap.plan.record import PlanRecord
from automap.runtime.processes import where_held
from automap.step.step import Step
from automap.step.traced_form import STATIC


def init_arguments(
    step: Step,
    init: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    choose: Callable[[Any], Any],
) -> Any:
    """What `init(*args, **kwargs)` returns, for a call of the step, with every array sharded as
    `choose` says for the shapes of all. Raises `InputError` for what is no function.
    """
    if not callable(init):
        raise InputError(
            f"init: got a value of type {type(init).__name__}; allowed: the function that "
            "makes it, with its arguments behind it: step.init(init_params, key) rather than "
            "step.init(init_params(key))"
        )
    form = step.argument_form(init)
    positional, named, rest, objects = form.enter(args, kwargs, frozenset(), frozenset())
    make = partial(form.traced_result, positional, {**named, STATIC: rest})
    # Where an array is to be made has to be known before it is made.
    shardings = choose(jax.eval_shape(make))
    return form.leave(rest, objects, init_sharded(make, shardings))


def init_sharded(init: Callable[[], Any], shardings: Any) -> Any:
    """What `init` returns, every leaf with its sharding of the tree `shardings`."""
    wanted, tree = jax.tree.flatten(shardings)
    groups: dict[frozenset[Any], list[int]] = defaultdict(list)
    for number, sharding in enumerate(wanted):
        groups[frozenset(sharding.device_set)].append(number)
    leaves: dict[int, Any] = {}
    for numbers in groups.values():
        # XLA drops what computes the leaves of other devices, as nothing returns them.
        def some(numbers: Sequence[int] = tuple(numbers)) -> list[Any]:
            made = jax.tree.leaves(init())
            return [made[n] for n in numbers]

        make = jax.jit(some, out_shardings=[wanted[n] for n in numbers])
        made = where_held(make, wanted[numbers[0]].device_set)()
        leaves.update(zip(numbers, made, strict=True))
    return jax.tree.unflatten(tree, [leaves[n] for n in range(len(wanted))])


def planned_shardings(
    plan: PlanRecord, shardings: Sequence[NamedSharding], state: Any
) -> Any | None:
    """Shardings of a tree that is one argument of the planned step, or a tuple of several, else
    None.

    `shardings` are those of the plan's inputs.
    """
    arguments: dict[str, list[tuple[LeafRecord, NamedSharding]]] = defaultdict(list)
    for leaf, sharding in zip(plan.inputs, shardings, strict=True):
        arguments[leaf.path.partition("]")[0] + "]"].append((leaf, sharding))
    # The whole tree as one argument first: a tuple may be one argument or several.
    whole = _taken(arguments, state)
    if whole is not None or type(state) is not tuple:
        return whole
    elements = tuple(_taken(arguments, element) for element in state)
    pairs = zip(elements, state, strict=True)
    return None if any(own is None and given is not None for own, given in pairs) else elements


def _taken(arguments: dict[str, list[tuple[LeafRecord, NamedSharding]]], state: Any) -> Any | None:
    """Shardings of the first argument with a tree's paths, shapes and types, which is taken out.

    None if there is none.
    """
    leaves_with_paths, tree = tree_flatten_with_path(state)
    wanted = [(keystr(path), tuple(x.shape), str(x.dtype)) for path, x in leaves_with_paths]
    for argument, leaves in arguments.items():
        if [(x.path.removeprefix(argument), x.shape, x.dtype) for x, _ in leaves] == wanted:
            del arguments[argument]
            return jax.tree.unflatten(tree, [sharding for _, sharding in leaves])
    # What has no arrays lies nowhere.
    return None if wanted else state


def even_shardings(state: Any, devices: Sequence[Any]) -> Any:
    """Shardings that split every leaf of a tree of shapes over as many devices as they can."""
    # Prime axes split a dimension by any divisor of the number of devices.
    sizes = _primes(len(devices))
    names = tuple(f"part{i}" for i in range(len(sizes)))
    mesh = Mesh(np.array(devices).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))

    def one(leaf: Any) -> NamedSharding:
        sizes_left, axes = list(leaf.shape), [[] for _ in leaf.shape]
        for name, size in zip(names, sizes, strict=True):
            # A size that no dimension is a multiple of is left out: the leaf is whole along it.
            fitting = [d for d, n in enumerate(sizes_left) if n % size == 0]
            if fitting:
                dim = max(fitting, key=lambda d: sizes_left[d])
                sizes_left[dim] //= size
                axes[dim].append(name)
        return NamedSharding(mesh, PartitionSpec(*(tuple(a) or None for a in axes)))

    return jax.tree.map(one, state)


def _primes(number: int) -> tuple[int, ...]:
    """Prime factors, largest first; (1,) for 1."""
    primes = []
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor == 0:
            primes.append(factor)
            number //= factor
    return tuple(sorted([*primes, *([number] if number > 1 or not primes else [])], reverse=True))
