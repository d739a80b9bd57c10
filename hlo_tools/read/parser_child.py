"""The parsers' own process: `python -I -S parser_child.py BYTES FOLDER...`, started by `parser.py`.

XLA's and MLIR's parsers abort, hang or overrun memory on malformed programs; here that ends one
process that nobody needs. It imports jaxlib's parser and nothing of JAX. FOLDERs are the parent's
`sys.path`: -I and -S leave out everything else, which is also what makes the start fast.

    standard input    requests: kind (1 byte), seconds (4 bytes), length (8 bytes), content
    standard output   answers: kind (1 byte), length (8 bytes), a serialized HloModuleProto or the
                      text of an error

Memory is limited once, to BYTES; time for each request by an alarm, which ends the process whatever
it is doing, also when nobody is left that would end it.
"""

import os
import resource
import signal
import struct
import sys
from typing import BinaryIO, Final


HLO_TEXT: Final = b"H"
STABLEHLO_TEXT: Final = b"S"
STABLEHLO_BYTECODE: Final = b"B"
PROTO: Final = b"P"
REFUSED: Final = b"R"
REQUEST: Final = struct.Struct("!cIQ")
ANSWER: Final = struct.Struct("!cQ")


def main(most_bytes: int, folders: list[str]) -> None:
    """Answer requests until standard input ends."""
    sys.path[:] = folders
    # What is imported must come from the parent's folders, which are known from here on.
    from hlo_tools.errors import HloError
    from hlo_tools.jax_compat import stablehlo_to_proto, text_to_proto

    _limit(resource.RLIMIT_AS, most_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a parser prints is no answer
    while header := requests.read(REQUEST.size):
        kind, seconds, length = REQUEST.unpack(header)
        # From here on: also the content may never come.
        signal.alarm(seconds)
        content = requests.read(length)
        try:
            if kind == HLO_TEXT:
                proto = text_to_proto(content.decode())
            else:
                is_text = kind == STABLEHLO_TEXT
                proto = stablehlo_to_proto(content.decode() if is_text else content)
            _answer(answers, PROTO, proto)
        except HloError as error:
            _answer(answers, REFUSED, str(error).encode(errors="replace"))
        signal.alarm(0)


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    # A lower limit that the user has set stays.
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(what, (most, most))


def _answer(answers: BinaryIO, kind: bytes, content: bytes) -> None:
    answers.write(ANSWER.pack(kind, len(content)))
    answers.write(content)
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
