"""Which devices a collective joins: the four ways a proto says it, as lists of partition numbers.

    explicit     groups = the lists                                            (fields 87 and, before it, 49)
    iota         arange(N) reshaped to r, transposed by p, cut into g groups    (field 92, before it in 87)
    mesh axes    a mesh of devices (iota or listed) and the axes, or parts of axes (pre, size), that are
                 joined: one group for each position on the other axes         (field 93)
    pairs        source -> target, for collective-permute                      (field 52)

No groups at all means that all devices are one group; that is `None` here.
"""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from hlo_tools.errors import HloError


COLLECTIVE_OPCODES: frozenset[str] = frozenset(
    f"{name}{part}"
    for name in (
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
        "ragged-all-to-all", "collective-broadcast",
    )
    for part in ("", "-start")
)  # fmt: skip
Groups = tuple[tuple[int, ...], ...]
_Spans = list[tuple[int, int]]
_MAX_DEVICES = 1 << 20


def read_groups(raw: dict[str, Any]) -> Groups | None:
    """Groups of one instruction's fields (`hlo_tools.schema`), None if it names none.

    Raises `HloError` where sizes contradict each other.
    """
    try:
        if "mesh_axes_groups" in raw:
            return _of_mesh_axes(raw["mesh_axes_groups"])
        listed = raw.get("device_list", {})
        iota = raw.get("iota_groups") or listed.get("iota")
        if iota:
            return _of_iota(iota)
    except ValueError as error:
        raise HloError(f"replica groups that contradict themselves: {error}") from error
    explicit = listed.get("groups") or raw.get("replica_groups") or []
    return tuple(tuple(group.get("ids", ())) for group in explicit) or None


def _of_iota(raw: dict[str, Any]) -> Groups:
    count, size = raw.get("groups", 0), raw.get("size", 0)
    devices = _iota(raw.get("reshape", [count * size]), raw.get("transpose"))
    return _rows(devices.reshape(count, size))


def _iota(dims: Sequence[int], permutation: Sequence[int] | None) -> np.ndarray:
    count = math.prod(dims)
    if any(d < 1 for d in dims) or count > _MAX_DEVICES:
        raise HloError(f"replica groups over an impossible mesh {tuple(dims)}")
    devices = np.arange(count).reshape(dims)
    return devices if permutation is None else devices.transpose(permutation)


def _of_mesh_axes(raw: dict[str, Any]) -> Groups:
    mesh = raw.get("mesh", {})
    sizes = [axis.get("size", 0) for axis in mesh.get("axes", ())]
    iota = mesh.get("iota")
    if iota:
        devices = _iota(iota.get("reshape", ()), iota.get("transpose"))
    else:
        devices = np.array(mesh.get("devices") or _iota(sizes, None))
    dims: list[int] = []
    joined: list[int] = []
    parts = _joined_parts(raw.get("axes", ()), sizes)
    for size, spans in zip(sizes, parts, strict=True):
        done = 1
        for pre, part in sorted(spans):
            dims += [pre // done, part]
            joined.append(len(dims) - 1)
            done = pre * part
        dims.append(size // done)
    kept = [d for d in range(len(dims)) if d not in joined]
    grouped = devices.reshape(dims).transpose(kept + joined)
    return _rows(grouped.reshape(-1, math.prod(dims[d] for d in joined)))


def _joined_parts(axes: Sequence[dict[str, Any]], sizes: Sequence[int]) -> list[_Spans]:
    """For each mesh axis the (pre, size) parts of it that are joined; a whole axis is (1, its size)."""
    parts: list[_Spans] = [[] for _ in sizes]
    for axis in axes:
        number = axis.get("axis", 0)
        if number >= len(sizes):
            raise HloError(f"replica groups name axis {number} of a mesh {tuple(sizes)}")
        part = axis.get("part", {"pre_size": 1, "size": sizes[number]})
        pre, size = part.get("pre_size", 0), part.get("size", 0)
        if pre < 1 or size < 1 or sizes[number] % (pre * size):
            raise HloError(f"replica groups join part ({pre}){size} of an axis of {sizes[number]}")
        parts[number].append((pre, size))
    return parts


def _rows(devices: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in devices.tolist())
