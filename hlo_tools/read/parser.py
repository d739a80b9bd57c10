"""XLA's and MLIR's parsers, in a process of their own with a limit of time and of memory.

    text or bytecode -> the child (`parser_child.py`) -> a serialized HloModuleProto, or `HloError`

A parser that aborts, hangs or needs too much ends its process, and the error says which of these it
was. The limit of time grows with the program                                 -> in: `seconds_for`
"""

from contextlib import ExitStack
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import Final, Literal

from hlo_tools.children import child_process, end, ending
from hlo_tools.errors import HloError
from hlo_tools.files import MOST_PROGRAM_BYTES
from hlo_tools.read import parser_child


Format = Literal["HLO text", "StableHLO text", "StableHLO bytecode"]
_KINDS: Final[dict[Format, bytes]] = {
    "HLO text": parser_child.HLO_TEXT,
    "StableHLO text": parser_child.STABLEHLO_TEXT,
    "StableHLO bytecode": parser_child.STABLEHLO_BYTECODE,
}
# T5-11B unrolled, 2.1 MB of HLO text or 3.1 MB of StableHLO, takes under 2 s on one core.
_SECONDS: Final = 10
_SECONDS_PER_MIB: Final = 10
_MOST_MEMORY_BYTES: Final = 4 * 2**30
# What libraries write, one way or the other, when an allocation fails.
_OUT_OF_MEMORY: Final = (
    "bad_alloc",
    "out of memory",
    "Out of memory",
    "MemoryError",
    "RESOURCE_EXHAUSTED",
)
# F1124 11:26:01.234567 1234 hlo_instruction.cc:123] Check failed: ...
_CHECK: Final = re.compile(r"^F[0-9][^\]\n]*\] (.*)$", re.MULTILINE)
_LOG_BYTES: Final = 2**16
_MOST_CHARACTERS: Final = 200
_REMEDY: Final = (
    "if XLA itself reads it, pass it as an HLO proto (--xla_dump_hlo_as_proto), which needs no "
    "parser"
)


class Parser:
    """Parses one program after the other; used in a `with` block, which leaves no process behind.

    The process is started when there is something to parse, and anew after it has ended. It may
    have `most_memory_bytes`.
    """

    def __init__(self, most_memory_bytes: int = _MOST_MEMORY_BYTES):
        self._most_memory_bytes = most_memory_bytes

    def __enter__(self) -> "Parser":
        """Nothing is started yet."""
        self._resources = ExitStack()
        self._child: subprocess.Popen[bytes] | None = None
        self._log = self._resources.enter_context(tempfile.TemporaryFile())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The process is gone, whatever it was doing."""
        self._resources.close()

    def proto(self, content: bytes, form: Format) -> bytes:
        """A program as a serialized HloModuleProto.

        Raises `HloError` with the parser's message, or that says how the parser ended.
        """
        if self._child is None or self._child.poll() is not None:
            self._child = self._start()
        child, seconds = self._child, seconds_for(len(content))
        overdue = threading.Event()

        def end_it() -> None:
            overdue.set()
            child.kill()

        # The child's own alarm comes first, unless it has not even read the request by then.
        timer = threading.Timer(seconds + 1, end_it)
        try:
            # Inside: after Ctrl-C a timer that nothing cancels would hold up the process's end.
            timer.start()
            kind, answer = _exchange(child, _KINDS[form], content, seconds)
        except (OSError, EOFError):
            status = child.wait()
            is_overdue = overdue.is_set() or status == -signal.SIGALRM
            raise HloError(self._ending(form, status, seconds if is_overdue else None)) from None
        finally:
            timer.cancel()
        if kind == parser_child.PROTO:
            return answer
        message = answer.decode(errors="replace")
        if any(sign in message for sign in _OUT_OF_MEMORY):
            end(child)  # nothing is sure of a parser that went on after that
            raise HloError(self._too_much_memory(form))
        raise HloError(message)

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.seek(0)
        self._log.truncate()
        child = Path(parser_child.__file__)
        # This package may have been found in another way than by `sys.path`, as an editable
        # installation's is; in a wheel it is a part of another package.
        folders = [str(child.parents[parser_child.__name__.count(".")]), *sys.path]
        # Flags are for compilers; one that this jaxlib does not know would end the parser.
        environment = {name: v for name, v in os.environ.items() if name != "XLA_FLAGS"}
        most = str(self._most_memory_bytes)
        try:
            return self._resources.enter_context(
                child_process(
                    [sys.executable, "-I", "-S", str(child), most, *folders],
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    env=environment,
                )
            )
        except OSError as error:
            raise HloError(f"cannot start {sys.executable} for its parser: {error}") from error

    def _ending(self, form: Format, status: int, overdue_seconds: int | None) -> str:
        """What a parser's end means; it has written to its log until then."""
        if overdue_seconds is not None:
            late = f"was not done after {overdue_seconds} s and was ended"
            return f"the parser of {form} {late}; {_REMEDY}"
        self._log.seek(0)
        log = self._log.read(_LOG_BYTES).decode(errors="replace")
        if any(sign in log for sign in _OUT_OF_MEMORY):
            return self._too_much_memory(form)
        said = _CHECK.search(log)
        reason = said[1] if said else (log.strip().splitlines() or ["it said nothing"])[-1]
        return (
            f"not valid {form}: its parser {ending(status)}: {reason[:_MOST_CHARACTERS]}; {_REMEDY}"
        )

    def _too_much_memory(self, form: Format) -> str:
        most = f"{self._most_memory_bytes / 2**30:g} GiB"
        return f"the parser of {form} needed more than {most} of memory; {_REMEDY}"


def seconds_for(n_bytes: int) -> int:
    """How long the parser of a program may take."""
    return _SECONDS + _SECONDS_PER_MIB * n_bytes // 2**20


def _exchange(
    child: subprocess.Popen[bytes], kind: bytes, content: bytes, seconds: int
) -> tuple[bytes, bytes]:
    """A request and its answer. Raises `OSError` or `EOFError` if the child ends before."""
    requests, answers = child.stdin, child.stdout
    assert requests is not None and answers is not None  # noqa: S101 - both are pipes
    requests.write(parser_child.REQUEST.pack(kind, seconds, len(content)))
    requests.write(content)
    requests.flush()
    header = answers.read(parser_child.ANSWER.size)
    if len(header) < parser_child.ANSWER.size:
        raise EOFError
    answered, length = parser_child.ANSWER.unpack(header)
    if length > MOST_PROGRAM_BYTES:
        raise HloError(
            f"the program takes {length} bytes as a proto; allowed: {MOST_PROGRAM_BYTES} bytes; "
            "constants that large are better made inputs"
        )
    answer = answers.read(length)
    if len(answer) < length:
        raise EOFError
    return answered, answer
