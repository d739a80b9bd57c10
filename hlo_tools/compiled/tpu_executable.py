"""The program in a serialized TPU executable, where the runtime cannot read back what its own
compiler made.

XLA refuses to load an `async-update` of several operands, which libtpu writes for gathers that
SparseCores make (v5p and later). The executable has the program as it is, though. libtpu's format
is private; as found in 0.0.51 (2026-11):

    ... | a Riegeli file: blocks of `_BLOCK_BYTES`, the first `_HEADER_BYTES` of each a header
                                                                              -> in: `_records`
    in a record, HloProto messages, field 1 of which is an HloModuleProto: name, entry name, ...
                                                                              -> in: `_modules`

The module is the one with the compiler's estimates of cycles, so that none is taken for it that was
not compiled.
"""

from collections.abc import Iterator
import re

from hlo_tools.errors import HloError
from hlo_tools.read.proto import module_message


_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_BLOCK_BYTES, _HEADER_BYTES = 1 << 16, 24
# Field 1 of a module is its name, field 2 its entry's.
_MODULE = re.compile(rb"\n([\x05-\x7f])(jit_[\w.]+)\x12")
_FIELD_1 = 0x0A
_MOST_LENGTH_BYTES = 5


def optimized_module(executable: bytes) -> bytes | None:
    """The serialized HloModuleProto of a serialized executable; None if it has none that is
    found.
    """
    for module in _modules(_records(executable)):
        if b"estimated_cycles" in module:
            try:
                module_message(module)
            except HloError:
                continue
            return module
    return None


def _records(executable: bytes) -> bytes:
    start = executable.find(_SIGNATURE)
    blocks = range(start, len(executable), _BLOCK_BYTES) if start >= 0 else ()
    return b"".join(executable[b + _HEADER_BYTES : b + _BLOCK_BYTES] for b in blocks)


def _modules(records: bytes) -> Iterator[bytes]:
    """What stands as field 1 of a message and begins as a module does."""
    for match in _MODULE.finditer(records):
        start, name = match.start(), match[2]
        if match[1][0] != len(name):
            continue
        # Before the module stand the tag of field 1 and the module's length, of as many bytes as it
        # takes.
        for n_bytes in range(1, _MOST_LENGTH_BYTES + 1):
            length = _varint(records[max(start - n_bytes, 0) : start])
            if length is not None and start > n_bytes and records[start - n_bytes - 1] == _FIELD_1:
                yield records[start : start + length]


def _varint(data: bytes) -> int | None:
    """The number that the bytes are, seven bits each, least first; None if they are not one."""
    if not data or data[-1] >= 0x80 or any(byte < 0x80 for byte in data[:-1]):
        return None
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))
