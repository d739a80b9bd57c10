"""How an operator runs: FlexFlow's parallelisation configuration (section 4), and ways to choose one.

A configuration splits each factor f of an operator into degrees[f] equal parts and puts each of the
prod(degrees) parts on a device of its own. Part k stands at place i_f along factor f,

    k = i_0 + degrees[0] (i_1 + degrees[1] (i_2 + ...))

and `devices[k]` is where it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

import numpy as np

from automap.errors import InputError
from automap.simulate.operators import Operator, OperatorGraph
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
            f"{where}: got degrees {degrees}; allowed: one for each factor, dividing its size, which are "
            f"{sizes[:-1]}, and one for copies"
        )
    wanted = math.prod(degrees)
    if len(devices) != wanted or len(set(devices)) != wanted:
        raise InputError(
            f"{where}: got devices {devices}; allowed: {wanted} different ones for degrees {degrees}"
        )
    if not all(0 <= device < n_devices for device in devices):
        raise InputError(f"{where}: got devices {devices}; allowed: 0 to {n_devices - 1}")


def single(operator: Operator, device: int) -> Configuration:
    """All of an operator on one device."""
    return Configuration((1,) * len(operator.factors), (device,))


def data_parallel(graph: OperatorGraph, n_devices: int) -> list[Configuration]:
    """The batch split over all devices; each of them does for itself what has none, or too little."""
    everyone = tuple(range(n_devices))
    result = []
    for operator in graph.operators:
        split = len(operator.factors) - 1
        for f, factor in enumerate(operator.factors):
            if factor.is_batch and factor.size % n_devices == 0:
                split = f
                break
        degrees = tuple(n_devices if f == split else 1 for f in range(len(operator.factors)))
        result.append(Configuration(degrees, everyone))
    return result


def random_configuration(
    operator: Operator, n_devices: int, rng: np.random.Generator
) -> Configuration:
    """As FlexFlow's search proposes: any number of parts, divided over the factors anyhow, anywhere."""
    degrees = [1] * len(operator.factors)
    n_parts = int(rng.choice(_powers_of_two(n_devices)))
    while math.prod(degrees) < n_parts:
        able = [
            f
            for f, factor in enumerate(operator.factors[:-1])
            if factor.size % (2 * degrees[f]) == 0
        ]
        if not able:
            break
        degrees[int(rng.choice(able))] *= 2
    devices = rng.choice(n_devices, math.prod(degrees), replace=False)
    return Configuration(tuple(degrees), tuple(devices.tolist()))


def _powers_of_two(most: int) -> Sequence[int]:
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]
