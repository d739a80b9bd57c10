"""Witnesses kept on disk: compiling takes minutes, and its answer does not change.

    key = SHA-256 of (StableHLO of the planned step, mesh, specs, donation, machine, device memory, compiler's and
                      this package's versions, the compiler's flags)                    -> in: `cache_key`

A folder holds <key>.json and, beside it, <key>.pb.gz, the partitioned program.  Both are written whole or
not at all, the witness last; a file that cannot be read is a miss.
"""

import hashlib
import json
from pathlib import Path
from typing import Final

import platformdirs

from automap.errors import PlanError
from automap.plan_file import layout, read, write_atomically
from automap.plan_json import encode
from automap.verify.compilers import COMPILERS, Machine
from automap.verify.messages import Layout
from automap.verify.process import compiler_flags
from automap.verify.witness import Witness


_FOLDER: Final = "witnesses"


def default_folder() -> Path:
    """Where witnesses are kept unless the user says otherwise."""
    return platformdirs.user_cache_path("automap") / _FOLDER


def cache_key(program_sha256: str, plan: Layout, machine: Machine, memory_limit_bytes: int) -> str:
    """The name under which a witness is kept, without ending."""
    parts = {
        "program": program_sha256,
        "layout": encode(plan),
        "machine": encode(machine),
        "memory": memory_limit_bytes,
        "versions": encode(COMPILERS[machine.compiler].versions()),
        "flags": encode(compiler_flags()),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load_cached(folder: Path, key: str) -> Witness | None:
    """The witness kept under `key`, None if there is none that can be used."""
    path = folder / f"{key}.json"
    if not path.is_file():
        return None
    try:
        witness = Witness.from_json(read(path))
    except PlanError:
        return None
    is_whole = witness.program is None or (folder / witness.program).is_file()
    return witness if is_whole else None


def save_cached(folder: Path, key: str, witness: Witness, program: bytes | None) -> None:
    """Keep a witness; `program` is what `witness.program` names. Raises `PlanError` if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(
            f"witness cache {str(folder)!r}: {error.strerror}; choose another --cache-dir, or --no-cache"
        ) from error
    if program is not None:
        write_atomically(folder / f"{key}.pb.gz", program)
    write_atomically(folder / f"{key}.json", layout(witness.to_json()))
