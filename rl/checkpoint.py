"""Checkpoints: one safetensors file, arrays by name and a JSON text of scalars in its header.

Loading runs no code. A file is written beside its place and then moved there: it is whole or not there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rl.errors import CheckpointError


FORMAT = "automap-rl 1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Arrays by name, and what JSON can hold."""

    arrays: Mapping[str, np.ndarray]
    scalars: Mapping[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint over whatever is at `path`. Raises `CheckpointError` if that cannot be written."""
    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    header = {"format": FORMAT, "scalars": json.dumps(checkpoint.scalars)}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(arrays, beside, metadata=header)
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises `CheckpointError` for one that is absent, malformed or of another format."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(
                    f"{path}: its format is {header.get('format')!r}, not {FORMAT!r}; save it anew"
                )
            scalars = json.loads(header.get("scalars", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: no checkpoint: {error}") from error
    return Checkpoint(arrays, scalars)


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of one part of a run under its name."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(checkpoint: Checkpoint, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of one part of a run."""
    start = f"{prefix}/"
    named = checkpoint.arrays.items()
    return {name.removeprefix(start): array for name, array in named if name.startswith(start)}
