"""Checkpoints: one safetensors file, arrays by name and a JSON text of scalars in its header.

Loading runs no code. A file is written beside its place and then moved there: it is whole or not
there. What Adam has to keep is the same for every agent        -> in: `adam_arrays`, `restore_adam`
"""

from collections.abc import Mapping
from dataclasses import dataclass
import json
import os
from pathlib import Path
import stat
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
import torch

from rl.errors import CheckpointError


FORMAT = "automap-rl 1"
# A replay of a million transitions takes some GB.
_MOST_BYTES = 2**36
# What Adam keeps of each parameter; torch's own names, so that files outlive the order of a dict.
_ADAM = ("step", "exp_avg", "exp_avg_sq")
_NUMPY_TYPES = frozenset(
    "F64 F32 F16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL".split()
)  # of those that such a file may have


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Arrays by name, and what JSON can hold."""

    arrays: Mapping[str, np.ndarray]
    scalars: Mapping[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint over whatever is at `path`. Raises `CheckpointError` if that cannot be
    written.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    header = {"format": FORMAT, "scalars": json.dumps(checkpoint.scalars)}
    # In the same folder, so that the move is within one file system and cannot be seen half done.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(arrays, beside, metadata=header)
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises `CheckpointError` for one that is absent, malformed or of another
    format.
    """
    _check_is_regular(path)
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(
                    f"{path}: its format is {header.get('format')!r}, not {FORMAT!r}; save it anew"
                )
            scalars = json.loads(header.get("scalars", "{}"))
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            for name, kind in types.items():
                if kind not in _NUMPY_TYPES:
                    raise CheckpointError(
                        f"{path}: {name[:80]} is {kind}; allowed: {', '.join(sorted(_NUMPY_TYPES))}"
                    )
            arrays = {name: file.get_tensor(name) for name in types}
    except RecursionError:
        raise CheckpointError(f"{path}: no checkpoint: its scalars are nested too deeply") from None
    # Of JSON, a `ValueError` is also an integer of more digits than Python reads.
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: no checkpoint: {error}") from error
    if not isinstance(scalars, dict):
        raise CheckpointError(f"{path}: no checkpoint: its scalars are no object")
    return Checkpoint(arrays, scalars)


def _check_is_regular(path: Path) -> None:
    """Refuse what is no file of a size that a checkpoint may have; a pipe would not be opened at
    all.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: no checkpoint: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: is no regular file; allowed: a file that `save` wrote")
    if status.st_size > _MOST_BYTES:
        raise CheckpointError(f"{path}: has {status.st_size} bytes; allowed: {_MOST_BYTES}")


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of one part of a run under its name."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(checkpoint: Checkpoint, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of one part of a run."""
    start = f"{prefix}/"
    named = checkpoint.arrays.items()
    return {name.removeprefix(start): array for name, array in named if name.startswith(start)}


def adam_arrays(adam: torch.optim.Adam) -> dict[str, np.ndarray]:
    """Copies of Adam's moments and counts of steps, by the number of the parameter."""
    return {
        f"adam.{index}.{name}": state[name].cpu().numpy().copy()
        for index, state in adam.state_dict()["state"].items()
        for name in _ADAM
    }


def restore_adam(adam: torch.optim.Adam, arrays: Mapping[str, np.ndarray]) -> None:
    """Give Adam back what `adam_arrays` gave; other arrays are left alone."""
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, array in arrays.items():
        if key.startswith("adam."):
            _, index, name = key.split(".")
            # A copy: torch would go on to write into the arrays of the checkpoint.
            moments.setdefault(int(index), {})[name] = torch.from_numpy(array.copy())
    # Learning rate and betas are the configuration's, which the caller has made it with.
    adam.load_state_dict({**adam.state_dict(), "state": moments})
