"""What only some opcodes have: an instruction's message (`hlo_tools.read.schema`) -> `Attributes`.

A module has tens of thousands of instructions, few kinds of attributes, and each field costs time
to ask for: only those that belong to the opcode are, and equal attributes are one object.

Which devices a collective joins, a proto says in four ways; here they are lists of partition
numbers                                                                     -> in: `read_groups`

    explicit     groups = the lists                                  (fields 87 and, before it, 49)
    iota         arange(N) reshaped to r, transposed by p, cut into g groups
                                                                     (field 92, before it in 87)
    mesh axes    a mesh of devices (iota or listed) and the axes, or parts of axes (pre, size),
                 that are joined: one group for each position on the other axes      (field 93)
    pairs        source -> target, for collective-permute                            (field 52)

No groups at all means that all devices are one group; that is `None` here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import json
import math
from typing import Any

import numpy as np

from hlo_tools.errors import HloError
from hlo_tools.module import (
    NO_ATTRIBUTES,
    AttentionMask,
    Attributes,
    ConvDims,
    DotDims,
    GatherDims,
    Groups,
    PadDim,
    RaggedDims,
    ScatterDims,
    SliceDim,
    WindowDim,
)
from hlo_tools.opcodes import CUSTOM_CALL, JOINS_DEVICES, PLAIN
from hlo_tools.read import schema
from hlo_tools.read.messages import text


# The fields of the proto that those of an opcode are read from.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(PLAIN, ()),
    **dict.fromkeys(JOINS_DEVICES, ("channel_id",)),
    "compare": ("comparison_direction",),
    "convolution": ("window", "conv", "feature_group_count", "batch_group_count", "precision"),
    "dot": ("dot", "precision"),
    "fft": ("fft_length",),
    "gather": ("gather", "gather_slice_sizes"),
    "pad": ("padding",),
    "ragged-dot": ("ragged_dot", "precision"),
    "scatter": ("scatter",),
    "slice": ("slice_dims",),
    "while": ("backend_config",),
}
# Any other opcode may have some of these, and a custom call its target's configuration.
_OTHER_FIELDS = (
    "window",
    "conv",
    "slice_dims",
    "padding",
    "fft_length",
    "gather_slice_sizes",
    "channel_id",
    "custom_call_target",
    "comparison_direction",
    "feature_group_count",
    "batch_group_count",
)

_CALL_FIELDS = (*_OTHER_FIELDS, "backend_config", "frontend_attributes")

_Spans = list[tuple[int, int]]
# A damaged size must not become an array that fills the memory.
_MAX_DEVICES = 1 << 20
_MAX_RANK = 64  # numpy's


class AttributeReader:
    """Attributes of the instructions of one module."""

    def __init__(self):
        self._known: dict[tuple[object, ...], Attributes] = {}

    def read(self, opcode: str, message: Any) -> Attributes:
        """Attributes of one instruction; `NO_ATTRIBUTES` itself if it has none."""
        names = _CALL_FIELDS if opcode == CUSTOM_CALL else _FIELDS.get(opcode, _OTHER_FIELDS)
        is_sharded = message.HasField("sharding")
        fields = [getattr(message, name) for name in names]
        values = [f if isinstance(f, (int, bytes)) else tuple(f) for f in fields]
        groups = read_groups(message) if opcode in JOINS_DEVICES else None
        # Comparing the raw fields is much cheaper than parsing them again.
        key = (opcode, is_sharded, groups, *values)
        known = self._known.get(key)
        if known is None:
            made = Attributes(is_sharded_by_user=is_sharded, groups=groups)
            for name, value in zip(names, values, strict=True):
                made = replace(made, **_READERS[name](value))
            known = self._known[key] = NO_ATTRIBUTES if made == NO_ATTRIBUTES else made
        return known


def _window(raw: bytes) -> tuple[WindowDim, ...]:
    return tuple(
        WindowDim(
            d.size,
            d.stride or 1,
            d.padding_low,
            d.padding_high,
            d.window_dilation or 1,
            d.base_dilation or 1,
            bool(d.reversal),
        )
        for d in schema.WINDOW.parse(raw).dimensions
    )


def _slices(raw: tuple[bytes, ...]) -> tuple[SliceDim, ...]:
    dims = map(schema.SLICE_DIM.parse, raw)
    return tuple(SliceDim(d.start, d.limit, d.stride or 1) for d in dims)


def _padding(raw: bytes) -> tuple[PadDim, ...]:
    dims = schema.PADDING.parse(raw).dimensions
    return tuple(PadDim(d.low, d.high, d.interior) for d in dims)


def _record(cls: type, message: Any) -> Any:
    """Dimension numbers, which the message calls by the same names."""
    values = [getattr(message, name) for name in cls.__annotations__]
    return cls(*(value if isinstance(value, int) else tuple(value) for value in values))


def _ragged(raw: bytes) -> dict[str, Any]:
    message = schema.RAGGED_DOT.parse(raw)
    return {"dot": _record(DotDims, message.dot), "ragged": _record(RaggedDims, message)}


def _known_trip_count(backend_config: bytes) -> int | None:
    # JSON on CPU and GPU; other backends keep their own binary format here.
    try:
        count = json.loads(backend_config)["known_trip_count"]["n"]
        return max(int(count), 0)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _attention_mask(backend_config: bytes) -> AttentionMask | None:
    """What JAX writes for cuDNN, None for any other call."""
    try:
        config = json.loads(backend_config)["cudnn_fmha_backend_config"]
        window = int(config.get("sliding_window_length", 0))
        return AttentionMask("CAUSAL" in str(config["mask_type"]), max(window, 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _memory(frontend_attributes: bytes) -> str:
    """The memory that a call puts its result in, as "pinned_host"; "" if it names none."""
    pairs = schema.FRONTEND_ATTRIBUTES.parse(frontend_attributes).map if frontend_attributes else ()
    return next((text(p.value) for p in pairs if p.key == b"_xla_buffer_placement"), "")


# A field of the proto -> the attributes it makes.
_READERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "backend_config": lambda raw: {
        "trip_count": _known_trip_count(raw),
        "attention": _attention_mask(raw) if b"cudnn_fmha" in raw else None,
    },
    "batch_group_count": lambda count: {"batch_group_count": count or 1},
    "channel_id": lambda number: {"channel_id": number},
    "comparison_direction": lambda raw: {"comparison_direction": text(raw)},
    "conv": lambda raw: {"conv": _record(ConvDims, schema.CONV.parse(raw)) if raw else None},
    "custom_call_target": lambda raw: {"custom_call_target": text(raw)},
    "dot": lambda raw: {"dot": _record(DotDims, schema.DOT.parse(raw))},
    "feature_group_count": lambda count: {"feature_group_count": count or 1},
    "fft_length": lambda dims: {"fft_length": dims},
    "frontend_attributes": lambda raw: {"memory": _memory(raw)},
    "gather": lambda raw: {"gather": _record(GatherDims, schema.GATHER.parse(raw))},
    "gather_slice_sizes": lambda sizes: {"gather_slice_sizes": sizes},
    "padding": lambda raw: {"padding": _padding(raw)},
    "precision": lambda raw: {"precision": max(schema.PRECISION.parse(raw).operands, default=0)},
    "ragged_dot": _ragged,
    "scatter": lambda raw: {"scatter": _record(ScatterDims, schema.SCATTER.parse(raw))},
    "slice_dims": lambda raw: {"slices": _slices(raw)},
    "window": lambda raw: {"window": _window(raw)},
}


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
    # Each axis is cut where the joined parts of it begin and end: joining part (2)2 of an axis of 8
    # makes dimensions 2, 2, 2, of which the middle one is joined.
    parts = _joined_parts(groups.axes, sizes)
    for size, spans in zip(sizes, parts, strict=True):
        done = 1
        for pre, part in sorted(spans):
            dims += [pre // done, part]
            joined.append(len(dims) - 1)
            done = pre * part
        dims.append(size // done)
    # A row for each position on what is not joined; in a row, the devices along what is.
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
