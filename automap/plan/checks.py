"""Checks of the values in a plan; types are checked while reading (`automap.plan.codec`).

Every check raises `PlanError` whose message starts with the field's path, as
"inputs[3].spec[0][1]: unknown axis 'modle'; mesh has ['data', 'model']".
A dimension of size s split over axes of sizes p_1 .. p_k needs s mod (p_1 ... p_k) = 0
                                                                    -> in: `check_spec`
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import dataclasses
import math
import re
import reprlib
from typing import Final

from automap.errors import PlanError


Spec = tuple[tuple[str, ...] | None, ...]
"""Per dimension: None when whole, else the mesh axes that split it, major first."""

MAX_INTEGER: Final = 2**63 - 1
# Many of these add up to a finite number.
MAX_FLOAT: Final = 1e100

DTYPES: Final = frozenset(
    "bool int1 int2 int4 int8 int16 int32 int64 uint1 uint2 uint4 uint8 uint16 uint32 uint64 "
    "float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu bfloat16 float16 "
    "float32 float64 complex64 complex128 float0".split()
)
"""JAX's names of array element types; typed random keys are `key<...>` besides."""

_KEY_DTYPE: Final = re.compile(r"key<\w+>")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: object) -> str:
    """A value as error messages print it: cut where it is long."""
    return _short.repr(value)


def refuse(path: str, got: object, allowed: str) -> PlanError:
    """The error for one field: what was got and what is allowed."""
    return PlanError(f"{path or 'plan'}: got {shown(got)}; allowed: {allowed}")


@contextmanager
def within(path: str) -> Iterator[None]:
    """Put `path` before the field named by a `PlanError` raised inside the block."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"{path}.{error}" if path else str(error)) from None


def check_version(got: object, version: int, remedy: str) -> None:
    """Refuse another version of a file than the one that is read; 1.0 and true are none."""
    # `True == 1 == 1.0` in Python, and JSON has all three.
    if type(got) is not int or got != version:
        raise refuse("version", got, f"{version}; {remedy}")


def check_numbers(record: object) -> None:
    """Refuse a number among the fields of a dataclass that is negative, NaN, infinite or so large
    that sums of such are.
    """
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        # NaN compares false with everything, so this asks for what is allowed.
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise refuse(field.name, value, "a finite number >= 0")
        if isinstance(value, float) and value > MAX_FLOAT:
            raise refuse(field.name, value, f"a number from 0 to {MAX_FLOAT:g}")
        if isinstance(value, int) and not 0 <= value <= MAX_INTEGER:
            raise refuse(field.name, value, f"an integer from 0 to {MAX_INTEGER}")


def check_dtype(path: str, dtype: str) -> None:
    """Refuse what is neither one of `DTYPES` nor the type of a random key."""
    if dtype not in DTYPES and not _KEY_DTYPE.fullmatch(dtype):
        raise PlanError(
            f"{path}: unknown dtype {shown(dtype)}; allowed: {', '.join(sorted(DTYPES))}, key<...>"
        )


def check_sha256(path: str, digest: str) -> None:
    """Refuse what is not the lower-case hexadecimal form of a SHA-256."""
    if not _SHA256.fullmatch(digest):
        raise refuse(path, digest, "64 digits of 0-9a-f")


def check_axes(path: str, axes: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Refuse an axis that the mesh lacks, or that is listed twice."""
    for index, axis in enumerate(axes):
        if axis not in sizes:
            raise PlanError(f"{path}[{index}]: unknown axis {shown(axis)}; mesh has {list(sizes)}")
        if axis in axes[:index]:
            raise PlanError(f"{path}[{index}]: axis {axis!r} is used twice; an axis splits once")


def check_spec(
    path: str, spec: Spec, shape: tuple[int, ...] | None, sizes: Mapping[str, int]
) -> None:
    """Refuse a spec that the mesh cannot give to an array of this shape (None: shape unknown).

    `sizes` are the mesh axes. Refused: another length than the shape's, an empty list of axes,
    an unknown axis, an axis used twice, a dimension that its axes do not divide.
    """
    # Inside of a step shapes are not in the plan: there the runtime finds out.
    if shape is not None and len(spec) != len(shape):
        raise refuse(path, spec, f"{len(shape)} entries, one per dimension of {list(shape)}")
    used: dict[str, int] = {}
    for dim, axes in enumerate(spec):
        if axes is None:
            continue
        if not axes:
            raise refuse(f"{path}[{dim}]", [], "null, or a list of at least one axis")
        check_axes(f"{path}[{dim}]", axes, sizes)
        for index, axis in enumerate(axes):
            if axis in used:
                raise PlanError(
                    f"{path}[{dim}][{index}]: axis {axis!r} is used twice; it splits dimension "
                    f"{used[axis]} already, and an axis splits one dimension"
                )
        # Remembered with its dimension, so that the message can say where the axis is used.
        used |= dict.fromkeys(axes, dim)
        # Padding a dimension would change what the step computes, so the axes have to divide it.
        parts = math.prod(sizes[axis] for axis in axes)
        if shape is not None and shape[dim] % parts:
            raise PlanError(
                f"{path}[{dim}]: {list(axes)} has {parts} devices, which do not divide the "
                f"dimension's size {shape[dim]}; allowed: axes whose product divides it"
            )


def check_constraints(
    path: str, constraints: Sequence[tuple[str, Spec]], sizes: Mapping[str, int]
) -> None:
    """Refuse a spec that the mesh cannot give, and two of them for one place; constraints are
    (place, spec).
    """
    spec_at: dict[str, Spec] = {}
    for index, (at, spec) in enumerate(constraints):
        check_spec(f"{path}[{index}].spec", spec, None, sizes)
        if spec_at.setdefault(at, spec) != spec:
            allowed = f"one sharding for {shown(at)}, which is given {shown(spec_at[at])} before"
            raise refuse(f"{path}[{index}].spec", spec, allowed)


def repeated(names: Iterable[str]) -> tuple[int, str] | None:
    """(index, name) of the first name that was there before."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            return index, name
        seen.add(name)
    return None
