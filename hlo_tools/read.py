"""Files -> Module: HLO text, HLO proto, StableHLO text or bytecode, or a folder of XLA dumps.

The kind is told from the content.  In a dump folder the step is the `before_optimizations` module with
the most instructions; a proto is preferred to the text of the same module, which holds no less.
"""

from pathlib import Path

from hlo_tools.errors import HloError
from hlo_tools.jax_compat import stablehlo_to_proto, text_to_proto
from hlo_tools.module import Module
from hlo_tools.proto import decode_module


_MLIR_BYTECODE = b"ML\xefR"
_DUMP_PATTERNS = (
    "*before_optimizations*.pb",
    "*before_optimizations*.pb.gz",
    "*before_optimizations*.txt",
)


def read_module(path: str | Path) -> Module:
    """Read a module from a file or an XLA dump folder.

    Raises `HloError` that says what was looked for.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HloError(f"cannot read {path}: {error.strerror or error}") from error
    return read_bytes(data, str(path))


def read_bytes(data: bytes, name: str) -> Module:
    """Read a module from the content of a file called `name`."""
    if not data:
        raise HloError(f"{name} is empty; expected HLO text, an HLO proto or StableHLO")
    try:
        if data.startswith(_MLIR_BYTECODE):
            return decode_module(stablehlo_to_proto(data))
        text = _as_text(data)
        if text is None:
            return decode_module(data)
        if text.lstrip().startswith("HloModule"):
            return decode_module(text_to_proto(text))
        if "stablehlo." in text or "func.func" in text:
            return decode_module(stablehlo_to_proto(text))
    except HloError as error:
        raise HloError(f"{name}: {error}") from error
    raise HloError(
        f"{name} is text, but neither HLO (starts with 'HloModule') nor StableHLO (has 'func.func')"
    )


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or not set(text) & _CONTROL else None


_CONTROL = {chr(c) for c in range(32)} - set("\t\n\r\f")


def _read_folder(folder: Path) -> Module:
    files = [f for pattern in _DUMP_PATTERNS for f in sorted(folder.glob(pattern))]
    if not files:
        raise HloError(
            f"no {' or '.join(_DUMP_PATTERNS)} in {folder}; dump with XLA_FLAGS='--xla_dump_to=DIR "
            "--xla_dump_hlo_as_proto'"
        )
    protos = [f for f in files if not f.name.endswith(".txt")]
    modules = [read_module(f) for f in (protos or files)]
    return max(modules, key=lambda m: sum(len(c.instructions) for c in m.computations.values()))
