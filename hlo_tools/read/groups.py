"""Which devices a collective joins: the four ways a proto says it, as lists of partition numbers.

    explicit     groups = the lists                                  (fields 87 and, before it, 49)
    iota         arange(N) reshaped to r, transposed by p, cut into g groups
                                                                     (field 92, before it in 87)
    mesh axes    a mesh of devices (iota or listed) and the axes, or parts of axes (pre, size),
                 that are joined: one group for each position on the other axes      (field 93)
    pairs        source -> target, for collective-permute                            (field 52)

No groups at all means that all devices are one group; that is `None` here.
"""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from hlo_tools.errors import HloError
from hlo_tools.module import Groups


_Spans = list[tuple[int, int]]
_MAX_DEVICES = 1 << 20
_MAX_RANK = 64  # numpy's


def read_groups(instruction: Any) -> Groups | None:
    """Groups of one instruction's message (`hlo_tools.read.schema`), None if it names none.

    Raises `HloError` where sizes contradict each other.
    """
    pairs = instruction.source_target_pairs
    if pairs:
        return tuple((pair.source, pair.target) for pair in pairs)
    listed = instruction.device_list
    try:
        if instruction.HasField("mesh_axes_groups"):
            return _mesh_axes_groups(instruction.mesh_axes_groups)
        for iota in (instruction.iota_groups, listed.iota):
            if iota.ListFields():
                return _iota_groups(iota)
    except ValueError as error:
        raise HloError(f"replica groups that contradict themselves: {error}") from error
    return tuple(tuple(g.ids) for g in listed.groups or instruction.replica_groups) or None


def _iota_groups(iota: Any) -> Groups:
    devices = _iota(iota.reshape or [iota.groups * iota.size], iota.transpose)
    return _rows(devices.reshape(iota.groups, iota.size))


def _iota(dims: Sequence[int], permutation: Sequence[int]) -> np.ndarray:
    dims = tuple(dims[: _MAX_RANK + 1])
    if len(dims) > _MAX_RANK or any(d < 1 for d in dims) or math.prod(dims) > _MAX_DEVICES:
        raise HloError(f"replica groups over an impossible mesh {dims}")
    devices = np.arange(math.prod(dims)).reshape(dims)
    return devices.transpose(permutation) if permutation else devices


def _mesh_axes_groups(groups: Any) -> Groups:
    mesh = groups.mesh
    sizes = [axis.size for axis in mesh.axes]
    if mesh.iota.ListFields():
        devices = _iota(mesh.iota.reshape, mesh.iota.transpose)
    else:
        devices = np.array(mesh.devices or _iota(sizes, ()))
    dims: list[int] = []
    joined: list[int] = []
    parts = _joined_parts(groups.axes, sizes)
    for size, spans in zip(sizes, parts, strict=True):
        done = 1
        for pre, part in sorted(spans):
            dims += [pre // done, part]
            joined.append(len(dims) - 1)
            done = pre * part
        dims.append(size // done)
    kept = sorted(set(range(len(dims))) - set(joined))
    grouped = devices.reshape(dims).transpose(kept + joined)
    return _rows(grouped.reshape(-1, math.prod(dims[d] for d in joined)))


def _joined_parts(axes: Sequence[Any], sizes: Sequence[int]) -> list[_Spans]:
    """For each mesh axis the (pre, size) parts of it that are joined; a whole axis is (1, its
    size).
    """
    parts: list[_Spans] = [[] for _ in sizes]
    for axis in axes:
        number = axis.axis
        if not 0 <= number < len(sizes):
            raise HloError(f"replica groups name axis {number} of a mesh {tuple(sizes)}")
        pre, size = (
            (axis.part.pre_size, axis.part.size) if axis.HasField("part") else (1, sizes[number])
        )
        if pre < 1 or size < 1 or sizes[number] % (pre * size):
            raise HloError(f"replica groups join part ({pre}){size} of an axis of {sizes[number]}")
        parts[number].append((pre, size))
    return parts


def _rows(devices: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in devices.tolist())
