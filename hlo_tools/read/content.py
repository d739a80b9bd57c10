"""Files -> Module: HLO text or proto, StableHLO text or bytecode, gzipped or not, or XLA's dumps.

The kind is told from the content. In a folder of dumps the step is the `before_optimizations`
module with the most instructions; a proto is preferred to the text of the same module, which holds
no less.
"""

from collections.abc import Sequence
import os
from pathlib import Path
from typing import Final

from hlo_tools.errors import FileError, HloError
from hlo_tools.files import MOST_PROGRAM_BYTES, is_gzip, read_file, unzipped
from hlo_tools.module import Module
from hlo_tools.read.module_checks import check_module
from hlo_tools.read.parser import Parser
from hlo_tools.read.proto import decode_module


_MLIR_BYTECODE: Final = b"ML\xefR"
_DUMP_PATTERNS: Final = (
    "*before_optimizations*.pb",
    "*before_optimizations*.pb.gz",
    "*before_optimizations*.txt",
)
# A dump of a long run has some hundreds of modules.
_MOST_DUMPS: Final = 10_000
_CONTROL: Final = {chr(c) for c in range(32)} - set("\t\n\r\f")


def read_module(path: str | Path) -> Module:
    """Read a module from a file or an XLA dump folder.

    Raises `HloError` that says what was looked for, or which limit was passed.
    """
    path = Path(path)
    with Parser() as parser:
        # `Path.is_dir` raises for a name that no system takes.
        files = _dumps(path) if os.path.isdir(path) else (path,)
        modules = (_module_of_file(file, parser) for file in files)
        # One after the other: of hundreds of dumps only the largest so far is held.
        return max(modules, key=_size)


def read_bytes(content: bytes, name: str, parser: Parser | None = None) -> Module:
    """Read a module from the content of a file called `name`.

    `parser` serves several programs with one process; without it there is one for this program.
    Raises `HloError` as `read_module` does.
    """
    if parser is None:
        with Parser() as parser:
            return read_bytes(content, name, parser)
    try:
        module = _module(content, parser)
        check_module(module)
        return module
    except (HloError, FileError) as error:
        raise HloError(f"{name}: {error}") from error


def _module_of_file(path: Path, parser: Parser) -> Module:
    try:
        content = read_file(path, MOST_PROGRAM_BYTES)
    except FileError as error:
        raise HloError(f"cannot read {path}: {error}") from error
    return read_bytes(content, str(path), parser)


def _module(content: bytes, parser: Parser) -> Module:
    if is_gzip(content):
        content = unzipped(content, MOST_PROGRAM_BYTES)
    if not content:
        raise HloError("is empty; expected HLO text, an HLO proto or StableHLO")
    if content.startswith(_MLIR_BYTECODE):
        return decode_module(parser.proto(content, "StableHLO bytecode"))
    text = _as_text(content)
    if text is None:
        return decode_module(content)
    if text.lstrip().startswith("HloModule"):
        return decode_module(parser.proto(content, "HLO text"))
    if "stablehlo." in text or "func.func" in text:
        return decode_module(parser.proto(content, "StableHLO text"))
    raise HloError(
        "is text, but neither HLO (starts with 'HloModule') nor StableHLO (has 'func.func')"
    )


def _as_text(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    # A small proto may be valid UTF-8, but its tags and lengths are control characters.
    return text if text.isprintable() or not set(text) & _CONTROL else None


def _dumps(folder: Path) -> Sequence[Path]:
    """The modules of a dump folder: protos if there are any, else texts."""
    files = [f for pattern in _DUMP_PATTERNS for f in sorted(folder.glob(pattern))]
    if not files:
        raise HloError(
            f"no {' or '.join(_DUMP_PATTERNS)} in {folder}; dump with XLA_FLAGS='--xla_dump_to=DIR "
            "--xla_dump_hlo_as_proto'"
        )
    if len(files) > _MOST_DUMPS:
        raise HloError(
            f"{len(files)} modules in {folder}; allowed: {_MOST_DUMPS}; pass the file of the step"
        )
    protos = [f for f in files if not f.name.endswith(".txt")]
    return protos or files


def _size(module: Module) -> int:
    return sum(len(c.instructions) for c in module.computations.values())
