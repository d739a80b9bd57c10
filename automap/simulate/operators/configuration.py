"""How an operator runs: FlexFlow's parallelisation configuration (section 4), and ways to choose
one.

A configuration splits each factor f of an operator into degrees[f] equal parts and puts each of the
prod(degrees) parts on a device of its own. Part k stands at place i_f along factor f,

    k = i_0 + degrees[0] (i_1 + degrees[1] (i_2 + ...))

and `devices[k]` is where it runs. Operators of a layer may be split together, along the classes of
factors that are linked: `Split`, and `spread` for what it is for each of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
import math

import numpy as np

from automap.errors import InputError
from automap.simulate.operators.graph import Operator, OperatorGraph
from hlo_tools.rules import FactorKind


@dataclass(frozen=True, slots=True)
class Configuration:
    """Degree of each factor of an operator, and the device of each part."""

    degrees: tuple[int, ...]
    devices: tuple[int, ...]


def check(operator: Operator, configuration: Configuration, n_devices: int) -> None:
    """Raise `InputError` for a configuration that is none of this operator on this machine."""
    degrees, devices = configuration.degrees, configuration.devices
    where = f"configuration of {operator.name}"
    sizes = [factor.size for factor in operator.factors]
    is_split = len(degrees) == len(sizes) and all(
        degree >= 1 and (size % degree == 0 or factor.kind is FactorKind.REPLICATION)
        for degree, size, factor in zip(degrees, sizes, operator.factors)
    )
    if not is_split:
        raise InputError(
            f"{where}: got degrees {degrees}; allowed: one for each factor, dividing its size, "
            f"which are {sizes[:-1]}, and one for copies"
        )
    wanted = math.prod(degrees)
    if len(devices) != wanted or len(set(devices)) != wanted:
        raise InputError(
            f"{where}: got devices {devices}; allowed: {wanted} different ones for degrees "
            f"{degrees}"
        )
    if not all(0 <= device < n_devices for device in devices):
        raise InputError(f"{where}: got devices {devices}; allowed: 0 to {n_devices - 1}")


def single(operator: Operator, device: int) -> Configuration:
    """All of an operator on one device."""
    return Configuration((1,) * len(operator.factors), (device,))


def data_parallel(graph: OperatorGraph, n_devices: int) -> list[Configuration]:
    """The batch split over all devices; what has none, or too little, each does for itself."""
    everyone = tuple(range(n_devices))
    result = []
    for operator in graph.operators:
        # The last factor, copies, unless there is a batch that divides evenly.
        split = len(operator.factors) - 1
        for f, factor in enumerate(operator.factors):
            if factor.is_batch and factor.size % n_devices == 0:
                split = f
                break
        degrees = tuple(n_devices if f == split else 1 for f in range(len(operator.factors)))
        result.append(Configuration(degrees, everyone))
    return result


@dataclass(frozen=True, slots=True)
class Split:
    """How the operators of a layer run together: the degree of each class, and the device of each
    part.

    Part k stands at place i_c along class c, k = i_0 + degree_0 (i_1 + degree_1 (i_2 + ...)).
    """

    degrees: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]


def spread(operator: Operator, split: Split) -> Configuration:
    """A layer's split as one operator has it.

    Parts of the layer along a class that the operator has not, or that does not divide it, are
    copies. So what the operators of a layer have of one tensor they have on the same devices.
    """
    degrees, taken = [1] * len(operator.factors), list[int]()
    for f, factor in enumerate(operator.factors[:-1]):
        for c, (group_class, degree) in enumerate(split.degrees):
            is_same = factor.group_class == group_class and c not in taken
            if is_same and factor.size % degree == 0:
                degrees[f] = degree
                taken.append(c)
    copied = [c for c in range(len(split.degrees)) if c not in taken]
    degrees[-1] = math.prod(split.degrees[c][1] for c in copied)
    # The first class varies fastest, so it is the last dimension of the array, and as last of the
    # transposed.
    count = len(split.degrees)
    parts = np.array(split.devices).reshape([degree for _, degree in reversed(split.degrees)])
    order = [count - 1 - c for c in reversed([*taken, *copied])]
    return Configuration(tuple(degrees), tuple(parts.transpose(order).ravel().tolist()))


def splits(classes: Mapping[int, int], n_devices: int) -> Iterator[Split]:
    """The splits that a descent looks at: of one class or two, in either order, into any number of
    parts that divides the devices, on each of `regular_devices`.
    """
    for n_parts in _divisors(n_devices):
        for degrees in _degrees(classes, n_parts):
            for devices in regular_devices(n_parts, n_devices):
                yield Split(degrees, devices)


def _degrees(classes: Mapping[int, int], n_parts: int) -> Iterator[tuple[tuple[int, int], ...]]:
    if n_parts == 1:
        yield ()
    for c, size in classes.items():
        if n_parts > 1 and size % n_parts == 0:
            yield ((c, n_parts),)
    for c, other in permutations(classes, 2):
        for degree in _divisors(n_parts)[1:-1]:
            if classes[c] % degree == 0 and classes[other] % (n_parts // degree) == 0:
                yield ((c, degree), (other, n_parts // degree))


def regular_devices(count: int, n_devices: int) -> Iterator[tuple[int, ...]]:
    """The groups along an axis of a mesh: equally far apart, without overlap."""
    # One device is near to none.
    for apart in _divisors(n_devices // count) if count > 1 else [1]:
        for block in range(0, n_devices - apart * count + 1, apart * count):
            for first in range(block, block + apart):
                yield tuple(range(first, first + apart * count, apart))


def random_split(classes: Mapping[int, int], n_devices: int, rng: np.random.Generator) -> Split:
    """Any number of parts, divided over classes (with their sizes) anyhow, on devices as
    `random_devices` has them.
    """
    degrees = _random_degrees(classes, n_devices, rng)
    # Which class varies fastest decides which parts are neighbours.
    order = rng.permutation(list(degrees)).tolist()
    n_parts = math.prod(degrees.values())
    return Split(tuple((c, degrees[c]) for c in order), random_devices(n_parts, n_devices, rng))


def _random_degrees(
    sizes: Mapping[int, int], n_devices: int, rng: np.random.Generator
) -> dict[int, int]:
    """Degrees over 1: each prime of a number of parts goes to a random size that it divides."""
    degrees: dict[int, int] = {}
    # As often a number that divides the devices: all of them, or a half, work without rest.
    is_even = rng.random() < 0.5
    n_parts = int(rng.choice(_divisors(n_devices)) if is_even else rng.integers(1, n_devices + 1))
    for prime in _primes(n_parts):
        able = [c for c, size in sizes.items() if size % (prime * degrees.get(c, 1)) == 0]
        if able:
            chosen = int(rng.choice(able))
            degrees[chosen] = prime * degrees.get(chosen, 1)
    return degrees


def random_devices(count: int, n_devices: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Devices in any order as FlexFlow's search draws them, or as often equally far from each
    other.
    """
    if rng.random() < 0.5:
        return tuple(rng.choice(n_devices, count, replace=False).tolist())
    # Equally far apart, as the axis of a mesh: random devices would hit that hardly ever.
    apart = int(rng.choice(_divisors(n_devices // count)))
    first = int(rng.integers(n_devices - apart * (count - 1)))
    return tuple(range(first, first + apart * count, apart))


def random_configuration(
    operator: Operator, n_devices: int, rng: np.random.Generator
) -> Configuration:
    """As FlexFlow's search proposes: any number of parts, divided over the factors anyhow,
    anywhere.
    """
    sizes = {f: factor.size for f, factor in enumerate(operator.factors[:-1])}
    chosen = _random_degrees(sizes, n_devices, rng)
    degrees = tuple(chosen.get(f, 1) for f in range(len(operator.factors)))
    devices = rng.choice(n_devices, math.prod(degrees), replace=False)
    return Configuration(degrees, tuple(devices.tolist()))


def _divisors(number: int) -> Sequence[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _primes(number: int) -> Iterator[int]:
    for factor in range(2, number + 1):
        while number % factor == 0:
            yield factor
            number //= factor
