"""What a machine is: devices of one kind, and the nested levels of links between them.

A topology numbers its devices 0 .. P-1 in mixed radix, innermost level first: device
d = i_0 + n_0 (i_1 + n_1 (i_2 + ...)) sits at place i_l of level l, whose size is n_l, and
P = n_0 n_1 ... . Devices that differ in i_l alone reach each other over level l.

This is the planner's own numbering. `jax.devices()` lists a TPU slice in another order (host by
host, x fastest), so whoever builds a `jax.sharding.Mesh` places devices by their coordinates.

Units are in the names. Instances are frozen, hashable and checked when made.
"""

import dataclasses
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal, TypeVar, get_args

from automap.errors import TopologyError
from automap.topology import checks
from automap.topology.dtypes import DTYPE_FALLBACK
from automap.topology.measured.collectives import link_table
from automap.topology.measured.products import PRODUCT_TABLES


Platform = Literal["tpu", "cuda", "cpu"]
LevelKind = Literal["ring", "line", "switch"]
Reach = Literal["host", "network"]
OpClass = Literal["product", "reduce", "copy", "turn", "elementwise"]
"""Classes of ops that a device may have an efficiency of its own for.

A copy is written before a loop: zeros, or what the loop reads in another type. A turn is a copy of
a table into another order of its dimensions.
"""
OP_CLASSES: Final[tuple[OpClass, ...]] = get_args(OpClass)
# More than the largest slice of the catalogue has: 18,432, of tpu7x.
MAX_DEVICES: Final = 65536
_MAX_BYTES: Final = 2**60
PAIRS: Final = {"flops_per_s": "element type", "class_efficiency": "class of op"}
"""Fields of a device that hold a number for each of several names, and what the names are."""
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a number comes from.

    `field` is the field (or fields) it speaks of, `document` a title or URL, or the word
    "assumption", and `note` what is said there.
    """

    field: str
    document: str
    note: str

    def __post_init__(self) -> None:
        """Raise `TopologyError` for a field out of range."""
        for field in dataclasses.fields(self):
            checks.check_text(field.name, getattr(self, field.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One JAX device: its memory and its speeds.

    `flops_per_s` holds (HLO element type, peak of dense multiply-adds, two operations each); the
    efficiencies are the fractions of those peaks that a large op reaches, and `launch_seconds` is
    what an op costs at least. `on_chip_bytes` is memory beside the arithmetic in which a compiler
    keeps what is read soon; 0 where only caches do. `class_efficiency` holds (class of op, fraction
    of the memory's peak) where it is not `memory_efficiency`, `matmul_tile` the side of the matrix
    unit that products are rounded up to, `cores` how many cores share an op.
    `fresh_seconds_per_byte` is what memory costs that a runtime takes from its operating system
    anew in every step; 0 where it keeps a pool. `measured` names the GPU whose measured products
    (`automap.topology.measured.products`) stand in place of the roofline's; "" is none.
    `host_bytes_per_s` goes between the device and its host's memory, in each direction at the same
    time; 0 where that is not known, and nothing is kept there.
    """

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    flops_per_s: tuple[tuple[str, float], ...]
    matmul_efficiency: float
    memory_efficiency: float
    launch_seconds: float
    on_chip_bytes: int = 0
    class_efficiency: tuple[tuple[str, float], ...] = ()
    matmul_tile: int = 1
    cores: int = 1
    fresh_seconds_per_byte: float = 0.0
    measured: str = ""
    host_bytes_per_s: float = 0.0
    source: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        """Raise `TopologyError` for a field out of range."""
        checks.check_text("name", self.name)
        checks.check_integer("memory_bytes", self.memory_bytes, low=1, high=_MAX_BYTES)
        checks.check_positive("hbm_bytes_per_s", self.hbm_bytes_per_s)
        for dtype, value in self.flops_per_s:
            if dtype not in DTYPE_FALLBACK:
                raise checks.refuse(f"flops_per_s.{dtype}", dtype, _dtype_names())
            checks.check_positive(f"flops_per_s.{dtype}", value)
        # Without f32 the chain of fallbacks would have no end (`automap.topology.dtypes`).
        names = [dtype for dtype, _ in self.flops_per_s]
        if "f32" not in names or len(set(names)) != len(names):
            raise checks.refuse("flops_per_s", names, "element types, each once, with f32")
        checks.check_fraction("matmul_efficiency", self.matmul_efficiency)
        checks.check_fraction("memory_efficiency", self.memory_efficiency)
        checks.check_not_negative("launch_seconds", self.launch_seconds)
        checks.check_integer("on_chip_bytes", self.on_chip_bytes, low=0, high=_MAX_BYTES)
        for name, value in self.class_efficiency:
            checks.check_choice("class_efficiency", name, OP_CLASSES)
            checks.check_fraction(f"class_efficiency.{name}", value)
        checks.check_integer("matmul_tile", self.matmul_tile, low=1, high=4096)
        checks.check_integer("cores", self.cores, low=1, high=4096)
        checks.check_not_negative("fresh_seconds_per_byte", self.fresh_seconds_per_byte)
        checks.check_not_negative("host_bytes_per_s", self.host_bytes_per_s)
        if self.measured != "":
            checks.check_text("measured", self.measured)
            checks.check_choice("measured", self.measured, PRODUCT_TABLES)

    def memory_bytes_per_s(self, name: OpClass) -> float:
        """Bytes that a class of ops moves in a second."""
        share = dict(self.class_efficiency).get(name, self.memory_efficiency)
        return self.hbm_bytes_per_s * share

    def peak_flops_per_s(self, dtype: str) -> float:
        """The peak for an HLO element type, by the fallback rule of `automap.topology.dtypes`.

        Raises `TopologyError` for a name that is no array element type.
        """
        rates = dict(self.flops_per_s)
        # From a type to the one whose arithmetic stands in for it, until the device has it.
        link: str | None = dtype
        while link is not None:
            if link in rates:
                return rates[link]
            if link not in DTYPE_FALLBACK:
                raise TopologyError(
                    f"dtype: got {dtype!r}; allowed: {_dtype_names()} (HLO names of element types)"
                )
            link = DTYPE_FALLBACK[link]
        raise AssertionError("every device lists f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of links: `size` groups of the level below, joined as `kind`.

    `bytes_per_s` is what leaves through this level in one direction, summed over links: both
    neighbours' links for a ring and for the inside of a line, the port for a switch.
    `shared_by` devices share it (the GPUs of a host one network card, the dies of a chip its
    links). `latency_seconds` is paid per hop. Adjacent ring and line levels are the dimensions
    of one torus: collectives use them at the same time. `reach` says whether the links join
    devices without leaving the host (NVLink, PCIe, a TPU slice's own links) or hosts through
    their network cards. `measured` names the switch whose collectives were measured
    (`automap.topology.measured.collectives`) and stand in place of what `bytes_per_s` and
    `latency_seconds` say; "" is none.
    """

    name: str
    size: int
    kind: LevelKind
    bytes_per_s: float
    latency_seconds: float
    shared_by: int = 1
    reach: Reach = "host"
    measured: str = ""
    source: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        """Raise `TopologyError` for a field out of range."""
        checks.check_text("name", self.name)
        checks.check_integer("size", self.size, low=2, high=MAX_DEVICES)
        checks.check_choice("kind", self.kind, get_args(LevelKind))
        checks.check_positive("bytes_per_s", self.bytes_per_s)
        checks.check_not_negative("latency_seconds", self.latency_seconds)
        checks.check_integer("shared_by", self.shared_by, low=1, high=MAX_DEVICES)
        checks.check_choice("reach", self.reach, get_args(Reach))
        # An empty table or list is no text either.
        if self.measured != "":
            checks.check_text("measured", self.measured)
            link_table(self.measured)
            if self.kind != "switch":
                raise checks.refuse("measured", self.measured, "none for a level that is no switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Devices of one kind and the levels that join them, innermost first; none for one device."""

    name: str
    platform: Platform
    device: Device
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        """Raise `TopologyError` for a field out of range."""
        checks.check_text("name", self.name)
        checks.check_choice("platform", self.platform, get_args(Platform))
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise checks.refuse("levels", names, "levels with different names")
        if self.device_count > MAX_DEVICES:
            raise checks.refuse("levels", self.device_count, f"at most {MAX_DEVICES} devices")

    @property
    def device_count(self) -> int:
        """P, the number of JAX devices."""
        return prod(level.size for level in self.levels)

    def to_dict(self) -> dict[str, Any]:
        """The plan file's form: JSON values only, read back by `from_dict`."""
        data = dataclasses.asdict(self)
        data["device"] = device_to_dict(self.device)
        # JSON has lists only; a tuple would not be equal to what is read back.
        data["levels"] = [_row_to_dict(level) for level in data["levels"]]
        return data

    @classmethod
    def from_dict(cls, data: object) -> "Topology":
        """Rebuild from `to_dict`'s form; what is missing, unknown or out of range is refused.

        Raises `TopologyError` that starts with the field's path, as `levels[0].bytes_per_s`.
        """
        table = checks.check_keys(data, required=("name", "platform", "device", "levels"))
        with checks.within("device"):
            device = device_from(table["device"])
        levels = []
        for index, row in enumerate(checks.check_list("levels", table["levels"])):
            with checks.within(f"levels[{index}]"):
                levels.append(row_from(Level, row))
        return cls(
            name=table["name"],
            platform=table["platform"],
            device=device,
            levels=tuple(levels),
        )


def _row_to_dict(row: dict[str, Any]) -> dict[str, Any]:
    """Without what was added later where there is none, as files from before."""
    data = row | {"source": list(row["source"])}
    return {k: v for k, v in data.items() if v or k not in ("measured", "host_bytes_per_s")}


def device_to_dict(device: Device) -> dict[str, Any]:
    """JSON values only, read back by `device_from`."""
    data = dataclasses.asdict(device)
    pairs = {name: dict(data[name]) for name in PAIRS}
    return _row_to_dict(data | pairs)


def device_from(table: object) -> Device:
    """A device from a table of its fields; raises `TopologyError` that names the field."""
    # Tables in files, tuples of pairs in the frozen, hashable device.
    for name, key in PAIRS.items():
        if isinstance(table, dict) and name in table:
            pairs = table[name]
            if not isinstance(pairs, dict):
                raise checks.refuse(name, pairs, f"a table of {key} = number")
            table = table | {name: tuple(pairs.items())}
    return row_from(Device, table)


def row_from(cls: type[Row], table: object) -> Row:
    """A dataclass with sources from a table of its fields; raises `TopologyError` as above."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    # What has no default is required of a file as it is of a caller.
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    optional = [field.name for field in fields if field.name not in required]
    values = dict(checks.check_keys(table, required=required, optional=optional))
    sources = []
    for index, row in enumerate(checks.check_list("source", values.get("source", ()))):
        with checks.within(f"source[{index}]"):
            row = checks.check_keys(row, required=("field", "document", "note"))
            sources.append(Source(**row))
    return cls(**values | {"source": tuple(sources)})


def _dtype_names() -> str:
    return ", ".join(sorted(DTYPE_FALLBACK))
