"""Witnesses cached on disk: compiling takes minutes, and its answer does not change.

    key = SHA-256 of (StableHLO of the planned step, mesh, specs, donation, machine, device memory,
                      compiler's and this package's versions, the compiler's flags and options)
                                                                              -> in: `cache_key`

A folder holds <key>.json and, beside it, <key>.pb.gz, the partitioned program; of a pipeline what
the compiler answered, and <key>-<i>.pb.gz of each program that it compiled. All are written
whole or not at all, the witness last; a file that cannot be read is a miss, and a link in its place
is replaced.
"""

from collections.abc import Mapping
import hashlib
import json
from pathlib import Path
from typing import Any, Final
import warnings

import platformdirs

from automap.atomic_file import reason, write_atomically
from automap.errors import CacheWarning, PlanError
from automap.plan.codec import decode, encode
from automap.plan.file import layout, read
from automap.verify.compilers import COMPILERS, CompilerMachine, compile_options
from automap.verify.messages import Answer, PlanShardings
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
        # Nor what its compiler does not ask for.
        "machine": {key: value for key, value in encode(machine).items() if value != 0},
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
    programs = {} if program is None else {program_name(key): program}
    _save(folder, key, programs, witness.to_json())


def load_answer(folder: Path, key: str) -> tuple[Answer, Mapping[int, bytes]] | None:
    """What a compiler answered of a pipeline, with its compiled programs by number; None if there
    is none to be used.
    """
    path = folder / f"{key}.json"
    if not path.is_file():
        return None
    try:
        answer: Answer = decode(Answer, read(path), "")
        return answer, {
            number: read_file(folder / _stage_program_name(key, number), MOST_PROGRAM_BYTES)
            for number, each in enumerate(answer.programs)
            if each.outcome == "done" and each.same_as is None
        }
    except (PlanError, FileError):
        return None


def save_answer(folder: Path, key: str, answer: Answer, programs: Mapping[int, bytes]) -> None:
    """Cache what `load_answer` reads; a `CacheWarning` if that cannot be done."""
    files = {_stage_program_name(key, number): data for number, data in programs.items()}
    _save(folder, key, files, encode(answer))


def _stage_program_name(key: str, number: int) -> str:
    return f"{key}-{number}.pb.gz"


def _save(folder: Path, key: str, programs: Mapping[str, bytes], said: Any) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Programs first: a witness that names a program is there after it.
        for name, program in programs.items():
            write_atomically(folder / name, program, links="replace")
        write_atomically(folder / f"{key}.json", layout(said), links="replace")
    except (PlanError, OSError) as error:
        warnings.warn(
            f"what the compiler says is not kept in the cache {str(folder)!r}: {reason(error)}; "
            "give another --cache-dir, or --no-cache",
            CacheWarning,
            stacklevel=3,
        )
