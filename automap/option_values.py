"""Values of options as users write them, made those that the planners read (`automap.config`).

Nothing here loads numpy or JAX before a value is read: help has to answer at once.
"""

from collections.abc import Iterable, Mapping, Sequence
import difflib
import math
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from automap.choices import LEVERS, UnknownOps, check_known
from automap.errors import InputError
from automap.plan.checks import MAX_INTEGER


if TYPE_CHECKING:
    from automap.cost.profile import KernelProfile
    from automap.topology.mesh import Mesh


def unknown_keyword(name: str, options: Iterable[str], more: str = "") -> TypeError:
    """The error for a keyword that is no option: the nearest one, then all; `more` is allowed
    too.
    """
    known = tuple(options)
    near = difflib.get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]}?" if near else ";"
    return TypeError(
        f"unexpected keyword argument {name!r}{meant} allowed: {', '.join(known)}{more}"
    )


def read_mesh(given: "str | Mapping[str, int]") -> "Mesh | None":
    """A mesh's names and sizes; None for auto."""
    if given == "auto":
        return None
    # What a user gives may be of any type: sizes alone, a mesh of JAX's.
    if isinstance(given, str):
        pairs = [tuple(part.partition("=")[::2]) for part in given.split(",")]
    elif isinstance(given, Mapping):
        pairs = [(str(name), str(size)) for name, size in given.items()]
    else:
        pairs = []
    names = [name for name, _ in pairs]
    is_read = all(n.isidentifier() and is_size(v) for n, v in pairs)
    if not is_read or not pairs or len(set(names)) != len(names):
        raise InputError(
            f"mesh {given!r}: expected auto, or different names with sizes: data=4,model=2 as a "
            'text, or {"data": 4, "model": 2} in Python'
        )
    from automap.topology.mesh import Mesh  # loads numpy

    return Mesh(tuple(names), tuple(int(size) for _, size in pairs))


def read_count(name: str, given: int | str) -> int | None:
    """A count; None for auto."""
    if given == "auto":
        return None
    if not is_size(str(given)):
        raise InputError(f"--{name} {given}: allowed: auto, or an integer from 1")
    return int(given)


def is_size(text: str) -> bool:
    """Whether a text is an integer from 1 with at most as many digits as the largest that a file
    can hold.
    """
    return text.isdecimal() and len(text) <= len(str(MAX_INTEGER)) and int(text) > 0


def read_memory_limit(gib: float | None) -> float | None:
    """Bytes of GiB."""
    if gib is None:
        return None
    check_positive("memory limit", gib, "GiB")
    return gib * 2**30


def check_positive(name: str, value: object, unit: str) -> None:
    """Refuse what is no positive number: in Python a value may be of any type."""
    if not (isinstance(value, Real) and math.isfinite(value) and float(value) > 0):
        raise InputError(f"{name} {value!r}: must be a positive number of {unit}")


def read_pins(given: str | Sequence[str]) -> tuple[str, ...]:
    """Each pin."""
    return (given,) if isinstance(given, str) else tuple(given)


def read_levers(given: str | Sequence[str]) -> tuple[str, ...]:
    """The levers that are asked for, names or one text with commas: `auto` alone, none of none."""
    names = tuple(dict.fromkeys(given.split(",") if isinstance(given, str) else given))
    for name in names:
        check_known("lever", name, ("auto", "none", *LEVERS))
    if len(names) > 1 and not set(names) <= set(LEVERS):
        raise InputError(f"levers {given!r}: allowed: auto, none, or {', '.join(LEVERS)}")
    return () if names == ("none",) else names


def read_rules(given: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """(name, rule) of each."""
    return tuple((given or {}).items())


def read_strict(is_strict: bool) -> UnknownOps:  # noqa: FBT001 - the value of one option
    """What becomes of ops without a rule."""
    return "refuse" if is_strict else "replicate"


def read_profile(path: str | Path | None) -> "KernelProfile | None":
    """The profile in a file."""
    if path is None:
        return None
    from automap.cost.profile import KernelProfile  # loads numpy

    return KernelProfile.load(path)
