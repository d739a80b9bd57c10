"""The profile: measured seconds of kernels on one kind of device, kept in a file.

    dots, convolutions, streams   (signature, seconds); each signature once
                                  (`automap.cost.profile.signatures`)
    transfers                     (collective, mesh, axis, bytes, seconds): of the links, not of the
                                  device
    stages                        (fingerprint, seconds): operators of one device that run at once
                                  or merged (`automap.streams.stage_programs`)

One file per (device, version of JAX): another version compiles other kernels. `device` is the
catalogue's name of a known device, else made of JAX's device_kind; N fake CPU devices share a
processor, so that their kernels are measured while all N work, and the device is called cpu-N
                                                                          -> in: `device_name`

The file is JSON, {"format": "automap-profile", "version": 1, ...fields}; reading runs no code,
writing is atomic.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
import re
from typing import Any, Final, Protocol, TypeVar

import platformdirs

from automap.atomic_file import write_atomically
from automap.cost.collectives import CollectiveKind
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    Signature,
    StreamSignature,
)
from automap.errors import InputError, PlanError, ProfileError
from automap.plan import file as plan_file
from automap.plan.checks import check_numbers, check_version, refuse, repeated
from automap.plan.codec import ADDED_LATER, decode, encode
from automap.topology.gpu_devices import GPU_KINDS
from automap.topology.model import Topology
from automap.topology.tpu import TPU_KINDS


FORMAT: Final = "automap-profile"
VERSION: Final = 1
_REMEDY: Final = "allowed: a profile written by `automap calibrate`; delete it to measure again"


def _check_seconds(record: Any) -> None:
    check_numbers(record)
    if not record.seconds > 0:
        raise refuse("seconds", record.seconds, "a finite number > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DotTime:
    """Seconds of one dot."""

    signature: DotSignature
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check_seconds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionTime:
    """Seconds of one convolution."""

    signature: ConvolutionSignature
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check_seconds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTime:
    """Seconds of one kernel bound by memory."""

    signature: StreamSignature
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check_seconds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A collective over one axis of a mesh of `sizes`; `n_bytes` as in
    `automap.cost.collectives`.
    """

    kind: str
    sizes: tuple[int, ...]
    axis: int
    n_bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        check_numbers(self)
        if self.kind not in list(CollectiveKind):
            raise refuse("kind", self.kind, " | ".join(CollectiveKind))
        if not self.sizes or min(self.sizes) < 1 or self.axis >= len(self.sizes):
            raise refuse("axis", (self.sizes, self.axis), "an axis of a mesh with sizes above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """Seconds of one collective."""

    signature: Transfer
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check_seconds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of a stage of operators, by the fingerprint of its program."""

    signature: str
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a field out of range."""
        _check_seconds(self)


class _Timed(Protocol):
    @property
    def signature(self) -> Any: ...

    @property
    def seconds(self) -> float: ...


_Row = TypeVar("_Row", bound=_Timed)


@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """What was measured on one kind of device with one version of JAX."""

    device: str
    device_kind: str
    jax_version: str
    dots: tuple[DotTime, ...] = ()
    convolutions: tuple[ConvolutionTime, ...] = ()
    streams: tuple[StreamTime, ...] = ()
    transfers: tuple[TransferTime, ...] = ()
    stages: tuple[StageTime, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a signature that stands in a list twice."""
        for name in (*_ROWS, "stages"):
            again = repeated(str(row.signature) for row in getattr(self, name))
            if again:
                raise PlanError(f"{name}[{again[0]}].signature: is there twice; each once")

    def with_times(self, times: Iterable[tuple[Signature | Transfer, float]]) -> "KernelProfile":
        """This profile and newer times, which win over its own."""
        rows: dict[str, list[Any]] = {name: [] for name in _ROWS}
        for signature, seconds in times:
            name, row = _ROWS_BY_SIGNATURE[type(signature)]
            rows[name].append(row(signature=signature, seconds=seconds))
        return replace(self, **{n: _merged(getattr(self, n), new) for n, new in rows.items()})

    def merged(self, newer: "KernelProfile") -> "KernelProfile":
        """Both profiles; of a signature in both, the newer time. Raises `ProfileError` for two
        devices.
        """
        # Another JAX may compile other kernels, so its times are no newer times of these.
        mine, other = ((p.device, p.jax_version) for p in (self, newer))
        if mine != other:
            raise ProfileError(f"profiles of {mine} and {other}: allowed: one device, one JAX")
        return self.with_times(newer.times().items()).with_stages(newer.stages)

    def with_stages(self, stages: Iterable[StageTime]) -> "KernelProfile":
        """This profile and newer times of stages."""
        return replace(self, stages=_merged(self.stages, tuple(stages)))

    def times(self) -> dict[Signature | Transfer, float]:
        """Seconds of kernels and collectives by signature."""
        return {row.signature: row.seconds for name in _ROWS for row in getattr(self, name)}

    def check_suits(self, topology: Topology) -> None:
        """Raise `InputError` if a topology's devices are others than the measured ones."""
        device = topology.device.name
        # N CPU devices are measured together, as "cpu-N": they share one processor.
        if self.device not in (device, f"{device}-{topology.device_count}"):
            raise InputError(
                f"profile of {self.device!r}, topology {topology.name} of {device!r}: allowed: a "
                "profile of the topology's device; run `automap calibrate` there"
            )

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all. Raises `ProfileError` when it cannot be written."""
        table = {"format": FORMAT, "version": VERSION, **encode(self)}
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, plan_file.layout(table))
        except (PlanError, OSError) as error:
            raise ProfileError(f"profile {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> "KernelProfile":
        """Read a file. Raises `ProfileError` with the file and the field's path."""
        try:
            return cls.parse(plan_file.read(path, remedy=_REMEDY))
        except PlanError as error:
            raise ProfileError(f"profile {str(path)!r}: {error}") from error

    @classmethod
    def parse(cls, node: object) -> "KernelProfile":
        """The profile that JSON values stand for. Raises `PlanError` with the field's path."""
        if not isinstance(node, dict) or node.get("format") != FORMAT:
            raise PlanError(f"format: is not {FORMAT}; {_REMEDY}")
        check_version(node.get("version"), VERSION, _REMEDY)
        return decode(cls, {k: v for k, v in node.items() if k not in ("format", "version")}, "")


# The list of a profile that a signature stands in, and the type of its rows.
_ROWS_BY_SIGNATURE: Final[dict[type, tuple[str, type]]] = {
    DotSignature: ("dots", DotTime),
    ConvolutionSignature: ("convolutions", ConvolutionTime),
    StreamSignature: ("streams", StreamTime),
    Transfer: ("transfers", TransferTime),
}
_ROWS: Final = tuple(name for name, _ in _ROWS_BY_SIGNATURE.values())


def _merged(old: Sequence[_Row], new: Sequence[_Row]) -> tuple[_Row, ...]:
    # Of equal signatures the later one stays, at the place of the first: files change little.
    return tuple({row.signature: row for row in (*old, *new)}.values())


def device_name(platform: str, device_kind: str, count: int) -> str:
    """The name of a device in profiles and hardware files."""
    if platform == "cpu":
        return f"cpu-{count}"
    if device_kind in TPU_KINDS:
        return TPU_KINDS[device_kind]
    known = (name for part, name in GPU_KINDS if part in device_kind)
    return next(known, re.sub(r"[^a-z0-9]+", "-", device_kind.lower()).strip("-") or platform)


def default_path(device: str, jax_version: str) -> Path:
    """Where `automap calibrate` keeps the profile of a device, in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("automap")) / f"profile-{device}-jax-{jax_version}.json"
