"""Witnesses cached on disk: compiling takes minutes, and its answer does not change.

    key = SHA-256 of (StableHLO of the planned step, mesh, specs, donation, machine, device memory,
                      compiler's and this package's versions, the compiler's flags and options)
                                                                              -> in: `cache_key`

A folder holds <key>.json and, beside it, <key>.pb.gz, the partitioned program. Both are written
whole or not at all, the witness last; a file that cannot be read is a miss, and a link in its place
is replaced.
"""

import hashlib
import json
from pathlib import Path
from typing import Final
import warnings

import platformdirs

from automap.atomic_file import reason, write_atomically
from automap.errors import CacheWarning, PlanError
from automap.plan.codec import encode
from automap.plan.file import layout, read
from automap.verify.compilers import COMPILERS, CompilerMachine, compile_options
from automap.verify.messages import PlanShardings
from automap.verify.process import compiler_flags
from automap.verify.witness import Witness
from hlo_tools.errors import FileError
from hlo_tools.files import MOST_PROGRAM_BYTES, read_file


_FOLDER: Final = "witnesses"


def default_folder() -> Path:
    """Where witnesses are cached unless the user says otherwise."""
    return platformdirs.user_cache_path("automap") / _FOLDER


def cache_key(
    program_sha256: str, plan: PlanShardings, machine: CompilerMachine, memory_limit_bytes: int
) -> str:
    """The name of a witness in the cache, without ending."""
    parts = {
        "program": program_sha256,
        # Without the order of the devices where there is none, as witnesses of before it have it.
        "layout": {key: value for key, value in encode(plan).items() if value is not None},
        "machine": encode(machine),
        # The witness says whether the program fits, which a user's own topology may change.
        "memory": memory_limit_bytes,
        "versions": encode(COMPILERS[machine.compiler].versions()),
        "flags": encode(compiler_flags()),
        "options": compile_options(machine),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def program_name(key: str) -> str:
    """The name of the file with the partitioned program of a cached witness."""
    return f"{key}.pb.gz"


def load_cached(folder: Path, key: str) -> tuple[Witness, bytes | None] | None:
    """The witness of `key`, with the program that it names; None if there is none to be used."""
    path = folder / f"{key}.json"
    if not path.is_file():
        return None
    try:
        witness = Witness.from_json(read(path))
    except PlanError:
        return None
    if witness.program is None:
        return witness, None
    # The folder may be shared: a witness does not say which file of the machine is opened.
    if witness.program != program_name(key):
        return None
    try:
        return witness, read_file(folder / program_name(key), MOST_PROGRAM_BYTES)
    except FileError:
        return None


def save_cached(folder: Path, key: str, witness: Witness, program: bytes | None) -> None:
    """Cache a witness, with the program that it names; a `CacheWarning` if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The program first: a witness that names a program is there after it.
        if program is not None:
            write_atomically(folder / program_name(key), program, links="replace")
        write_atomically(folder / f"{key}.json", layout(witness.to_json()), links="replace")
    except (PlanError, OSError) as error:
        warnings.warn(
            f"what the compiler says is not kept in the cache {str(folder)!r}: {reason(error)}; "
            "give another --cache-dir, or --no-cache",
            CacheWarning,
            stacklevel=2,
        )
