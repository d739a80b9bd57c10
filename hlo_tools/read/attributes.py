"""What only some opcodes have: an instruction's message (`hlo_tools.read.schema`) -> `Attributes`.

A module has tens of thousands of instructions, few kinds of attributes, and each field costs time
to ask for: only those that belong to the opcode are, and equal attributes are one object.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
import json
from typing import Any

from hlo_tools.module import (
    NO_ATTRIBUTES,
    Attributes,
    ConvDims,
    DotDims,
    GatherDims,
    PadDim,
    RaggedDims,
    ScatterDims,
    SliceDim,
    WindowDim,
)
from hlo_tools.opcodes import JOINS_DEVICES, PLAIN
from hlo_tools.read import schema
from hlo_tools.read.groups import read_groups
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
# Any other opcode may have some of these.
_OTHER_FIELDS = (
    "window",
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


class AttributeReader:
    """Attributes of the instructions of one module."""

    def __init__(self):
        self._known: dict[tuple[object, ...], Attributes] = {}

    def read(self, opcode: str, message: Any) -> Attributes:
        """Attributes of one instruction; `NO_ATTRIBUTES` itself if it has none."""
        names = _FIELDS.get(opcode, _OTHER_FIELDS)
        is_sharded = message.HasField("sharding")
        fields = [getattr(message, name) for name in names]
        values = [f if isinstance(f, (int, bytes)) else tuple(f) for f in fields]
        groups = read_groups(message) if opcode in JOINS_DEVICES else None
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


# A field of the proto -> the attributes it makes.
_READERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "backend_config": lambda raw: {"trip_count": _known_trip_count(raw)},
    "batch_group_count": lambda count: {"batch_group_count": count or 1},
    "channel_id": lambda number: {"channel_id": number},
    "comparison_direction": lambda raw: {"comparison_direction": text(raw)},
    "conv": lambda raw: {"conv": _record(ConvDims, schema.CONV.parse(raw)) if raw else None},
    "custom_call_target": lambda raw: {"custom_call_target": text(raw)},
    "dot": lambda raw: {"dot": _record(DotDims, schema.DOT.parse(raw))},
    "feature_group_count": lambda count: {"feature_group_count": count or 1},
    "fft_length": lambda dims: {"fft_length": dims},
    "gather": lambda raw: {"gather": _record(GatherDims, schema.GATHER.parse(raw))},
    "gather_slice_sizes": lambda sizes: {"gather_slice_sizes": sizes},
    "padding": lambda raw: {"padding": _padding(raw)},
    "precision": lambda raw: {"precision": max(schema.PRECISION.parse(raw).operands, default=0)},
    "ragged_dot": _ragged,
    "scatter": lambda raw: {"scatter": _record(ScatterDims, schema.SCATTER.parse(raw))},
    "slice_dims": lambda raw: {"slices": _slices(raw)},
    "window": lambda raw: {"window": _window(raw)},
}
