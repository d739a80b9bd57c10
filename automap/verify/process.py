"""Running a job in the compiler's process: waiting, time-outs, Ctrl-C, a compiler that is busy or
aborts.

    request -> folder -> python -m automap.verify.worker folder -> answer, or `CompilerError`

One process at a time may use libtpu on a machine: when another does, the job is started again every
few seconds until it gets it or the time is up, and a line on stderr says who holds it
                                                                          -> in: `_busy_text`
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time
from typing import IO, Final

from rich.console import Console

from automap.errors import CompilerError, CompilerTimeoutError, PlanError
from automap.plan.codec import decode, encode
from automap.plan.file import layout, read
from automap.terminal import say
from automap.verify.compilers import COMPILERS
from automap.verify.messages import ANSWER_FILE, REQUEST_FILE, Answer, Request
from hlo_tools.children import child_process, ending


# libtpu says where its lock is when it does not get it: `Run "$ sudo rm <path>".`
_LOCK_FILE: Final = re.compile(r"/[^\s\"]*lockfile")
# XLA's logs have a letter for severity and the time before the file and line of a message, and the
# stack after one that is fatal: `F1126 16:24:03.149172    6399 algebraic_simplifier.cc:586] ...`.
_FATAL: Final = re.compile(r"^F\d{4} [\d:.]+ +\d+ ([\w.]+:\d+\] .+?)(?=\n\*\*\*|\Z)", re.M | re.S)
_POLL_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 3.0
_LAST_CHARACTERS: Final = 1500
# Without these libtpu asks a metadata server of a cloud machine, and JAX looks for an accelerator
# here. What lies in the working folder, wherever a target went, is not imported.
_ENVIRONMENT: Final = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "PYTHONSAFEPATH": "1"}
_FAKE_DEVICES_FLAG: Final = "--xla_force_host_platform_device_count"


def run_job(
    request: Request,
    folder: Path,
    *,
    timeout_seconds: float,
    what: str = "compiling",
    retry_seconds: float = _RETRY_SECONDS,
) -> Answer:
    """The answer to a request whose other files are in `folder`; `what` is shown while it runs.

    While the compiler is busy it is asked again every `retry_seconds`.

    Raises `CompilerError` if the process dies or is not done in time; the process is gone by then.
    """
    title = COMPILERS[request.machine.compiler].title
    (folder / REQUEST_FILE).write_text(layout(encode(request)))
    deadline_seconds = time.monotonic() + timeout_seconds
    with _progress(f"{what} with {title}") as show:
        is_announced = False
        while True:
            answer = _run_once(folder, title, timeout_seconds, deadline_seconds, show)
            if answer.outcome != "busy":
                return answer
            lock = _lock_file(answer.message)
            # It would wait for itself until the time is up.
            if _holder_id(lock) == str(os.getpid()):
                raise CompilerError(
                    f"this process uses the TPU itself, so {title} is busy; verify in another one, "
                    "with `automap verify plan.json` or JAX_PLATFORMS=cpu"
                )
            if not is_announced:
                say(_busy_text(lock))
                is_announced = True
            if time.monotonic() + retry_seconds > deadline_seconds:
                raise CompilerTimeoutError(
                    f"{title} stayed busy for {timeout_seconds:g} s: {_busy_text(lock)}; end that "
                    "process, or give a larger --timeout"
                )
            show("waiting for the TPU compiler's lock")
            time.sleep(retry_seconds)


def _run_once(
    folder: Path,
    title: str,
    timeout_seconds: float,
    deadline_seconds: float,
    show: Callable[[str], None],
) -> Answer:
    # Of the try before: an answer that is there is that of this process.
    (folder / ANSWER_FILE).unlink(missing_ok=True)
    log = folder / "log.txt"
    with open(log, "wb") as output, _process(folder, output) as process:
        while process.poll() is None:
            if time.monotonic() > deadline_seconds:
                raise CompilerTimeoutError(
                    f"{title} was not done after {timeout_seconds:g} s and was ended; give a "
                    "larger --timeout, or a smaller program (scanned layers compile faster)"
                )
            show("")
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
    if process.returncode == -signal.SIGKILL:
        raise CompilerError(
            f"{title}'s process {ending(process.returncode)}, as a system does with what takes "
            "more memory than it has; give a smaller program, and --no-numerics where both steps "
            "were run"
        )
    if process.returncode != 0:
        raise CompilerError(f"{title}'s process {ending(process.returncode)}: {_last_words(log)}")
    try:
        return decode(Answer, read(folder / ANSWER_FILE), "")
    except PlanError as error:
        raise CompilerError(f"{title} gave no answer that can be read: {error}") from error


def _process(folder: Path, output: IO[bytes]) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """The worker; killed, with what it started, if it is left while it runs."""
    command = [sys.executable, "-m", "automap.verify.worker", str(folder)]
    return child_process(command, stdout=output, stderr=subprocess.STDOUT, env=_environment())


def _environment() -> dict[str, str]:
    """The caller's environment, with this package importable and without a number of fake devices,
    which is the request's.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    flags = os.environ.get("XLA_FLAGS", "").split()
    other_flags = [flag for flag in flags if not flag.startswith(_FAKE_DEVICES_FLAG)]
    return {
        **os.environ,
        **_ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(paths),
        # The current folder is the user's, and may have files with names of libraries.
        "PYTHONSAFEPATH": "1",
        "XLA_FLAGS": " ".join(other_flags),
    }


def compiler_flags() -> tuple[tuple[str, str], ...]:
    """Environment variables that change what a compiler answers, with their values."""
    environment = _environment()
    names = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
    return tuple((name, environment[name]) for name in names if environment.get(name))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    """Shows what runs and for how long on a terminal; silent in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    start = time.monotonic()
    with console.status(what) as status:
        yield lambda text: status.update(f"{text or what}: {time.monotonic() - start:.0f} s")


def _lock_file(message: str) -> Path | None:
    match = _LOCK_FILE.search(message)
    return Path(match[0]) if match else None


def _busy_text(lock: Path | None) -> str:
    holder = _holder(lock)
    by = f"process {holder}" if holder else "another process"
    where = f" {lock}" if lock else ""
    return f"automap: {by} holds the TPU compiler's lock{where}; waiting for it"


def _holder(path: Path | None) -> str | None:
    """`1234 (python train.py)`, the process that holds a lock on a file, where Linux tells."""
    holder = _holder_id(path)
    if holder is None:
        return None
    try:
        command = Path(f"/proc/{holder}/cmdline").read_bytes()
    except OSError:
        return holder
    shown = command.replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    return f"{holder} ({shown})"


def _holder_id(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        inode = path.stat().st_ino
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    # 1: POSIX ADVISORY WRITE <process> <device>:<inode> 0 EOF
    holders = [row[4] for row in rows if len(row) > 5 and row[5].endswith(f":{inode}")]
    return holders[0] if holders else None


def _last_words(log: Path) -> str:
    """What the compiler said when it gave up, without its stack, or else the end of its log."""
    text = log.read_text(errors="replace").strip()
    if match := _FATAL.search(text):
        return match[1].strip()[:_LAST_CHARACTERS]
    return text[-_LAST_CHARACTERS:] or "it said nothing"
