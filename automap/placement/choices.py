"""Choices: what a placement decides for one operator, as FlexFlow's configurations do (Jia et al.
2019, section 4).

    choice   degrees of up to two classes of dimensions, and a device for each of the parts; choice
             d < P is all of the operator on device d
    part     part k stands at place i_0 along the first class and i_1 along the second,
             k = i_0 + degree_0 i_1
    devices  of one kind, equally far apart: the axis of a mesh       -> in: `machine_choices`

What an operator does not have of a class it copies. A tensor's pieces are its arrays by the classes
of their dimensions; a part has a share of each                       -> in: `part_share`
and takes of a part of another choice what both have, along each class, and of copies of one only
                                                                      -> in: `sent_share`
"""

from collections.abc import Iterator, Sequence
import math
from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array, inner
from automap.simulate.operators.configuration import regular_devices


Degrees = tuple[tuple[int, int], ...]
"""(class, degree) of up to two classes, every degree above 1; none is the whole."""


class Choices(NamedTuple):
    """What may be decided for an operator, G choices of up to K parts: `n_parts`, `form` (degrees
    as a row of `Step.seconds`) [G]; `device` [G, K], `part_on` [G, P] the part on a device, -1 for
    none; `split_class` (-1 for none) and `degree` [G, 2]; `ring_latency` seconds and `ring_rate`
    bytes per second [G] of the slowest link from each part to the next.
    """

    n_parts: Array
    form: Array
    device: Array
    part_on: Array
    split_class: Array
    degree: Array
    ring_latency: Array
    ring_rate: Array


def machine_choices(
    kind: np.ndarray, rate: np.ndarray, latency: np.ndarray, forms: Sequence[Degrees]
) -> Choices:
    """All choices of a machine: each device alone, then each form on all groups of devices.

    `kind` [P], `rate` bytes per second and `latency` seconds [P, P]; the first form is the whole.
    """
    count = len(kind)
    rows = [(0, (device,)) for device in range(count)]
    for form, degrees in enumerate(forms[1:], 1):
        n_parts = math.prod(degree for _, degree in degrees)
        rows += [(form, devices) for devices in device_groups(kind, n_parts)]
    most = max(len(devices) for _, devices in rows)
    device, part_on = np.zeros((len(rows), most), np.int64), np.full((len(rows), count), -1)
    split_class, degree = np.full((len(rows), 2), -1), np.ones((len(rows), 2), np.int64)
    ring = np.zeros(len(rows)), np.ones(len(rows))
    for number, (form, devices) in enumerate(rows):
        parts = np.array(devices)
        device[number, : len(parts)], part_on[number, parts] = parts, np.arange(len(parts))
        for place, (c, d) in enumerate(forms[form]):
            split_class[number, place], degree[number, place] = c, d
        if len(parts) > 1:
            after = np.roll(parts, -1)
            ring[0][number] = latency[parts, after].max()
            ring[1][number] = rate[parts, after].min()
    return Choices(
        n_parts=np.array([len(devices) for _, devices in rows], np.int64),
        form=np.array([form for form, _ in rows], np.int64),
        device=device,
        part_on=part_on,
        split_class=split_class,
        degree=degree,
        ring_latency=ring[0],
        ring_rate=ring[1],
    )


def device_groups(kind: np.ndarray, n_parts: int) -> Iterator[tuple[int, ...]]:
    """The groups of so many devices of one kind."""
    for number in sorted(set(kind.tolist())):
        devices = np.flatnonzero(kind == number)
        if len(devices) % n_parts == 0:
            for group in regular_devices(n_parts, len(devices)):
                yield tuple(devices[list(group)].tolist())


@inner
def place_along(choices: Choices, choice: int, part: int, number: int) -> int:
    """Where a part stands along the first or second class of its choice."""
    first = choices.degree[choice, 0]
    return part % first if number == 0 else part // first


@inner
def part_share(choices: Choices, has_class: Array, choice: int) -> float:
    """What one part has of a piece."""
    share = 1.0
    for number in range(2):
        split = choices.split_class[choice, number]
        if split >= 0 and has_class[split]:
            share /= choices.degree[choice, number]
    return share


@inner
def sent_share(
    choices: Choices, has_class: Array, source: int, a: int, target: int, b: int
) -> float:
    """What part b of a choice takes of a piece from part a of another, of all of it."""
    share, here = 1.0, choices.device[target, b]
    # Of copies its own device's, else they take turns.
    own = choices.part_on[source, here]
    for number in range(2):
        split, degree = choices.split_class[source, number], choices.degree[source, number]
        if split < 0:
            continue
        place = place_along(choices, source, a, number)
        if not has_class[split]:
            copy = b % degree if own < 0 else place_along(choices, source, own, number)
            share *= 1.0 if place == copy else 0.0
            continue
        low, high, parts = 0, 1, 1
        for other in range(2):
            if choices.split_class[target, other] == split:
                low, parts = place_along(choices, target, b, other), choices.degree[target, other]
                high = low + 1
        common = min((place + 1) * parts, high * degree) - max(place * parts, low * degree)
        share *= max(common, 0) / (degree * parts)
    for other in range(2):
        split = choices.split_class[target, other]
        is_alike = split == choices.split_class[source, 0]
        is_alike = is_alike or split == choices.split_class[source, 1]
        if split >= 0 and not is_alike and has_class[split]:
            share /= choices.degree[target, other]
    return share
