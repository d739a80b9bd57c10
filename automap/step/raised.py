"""What a user's code raised, as one text: the type, the line of that code, and what it says."""

import os
from pathlib import Path
import sysconfig
import traceback
from traceback import FrameSummary
from typing import Final

import jax


# Frames of Python, JAX and automap are no help to whoever wrote the code.
_NOBODYS: Final = tuple(
    f"{folder}{os.sep}"
    for folder in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        Path(jax.__file__).parent,
        Path(__file__).parents[1],
    )
)
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

# What to do about errors of JAX that say it for another place: (a part of the text, what to do).
_ADVICE: Final = (
    (
        "must be >= the product of mesh_shape",
        "a mesh of devices that are not here is a jax.sharding.AbstractMesh, of the same sizes and "
        "names",
    ),
)


def raised_text(error: BaseException) -> str:
    """`ValueError at train.py:12: what it says`, without what there is not."""
    text = str(error).strip()
    said = f": {text}" if text else ""
    advice = "".join(f"; {advice}" for part, advice in _ADVICE if part in text)
    return f"{type(error).__name__}{_where(error)}{said}{advice}"


def _where(error: BaseException) -> str:
    """The last line of the user's own code that an exception came through, else of a library."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[:1] != "<"]
    own = [frame for frame in frames if not _is_installed(frame)]
    libraries = [frame for frame in frames if not frame.filename.startswith(_NOBODYS)]
    return "".join(f" at {f.filename}:{f.lineno}" for f in own[-1:] or libraries[-1:])


def _is_installed(frame: FrameSummary) -> bool:
    parts = Path(frame.filename).parts
    return frame.filename.startswith(_NOBODYS) or not _INSTALLED.isdisjoint(parts)
