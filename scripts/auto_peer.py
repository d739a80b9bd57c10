"""Asking XLA's auto-sharder, an integer programme inside old versions of the TPU compiler, what it
makes of a step.

    step -> StableHLO -> FOLDER -> PYTHON scripts/auto_worker.py FOLDER -> shardings, program,
    memory, seconds

JAX has no way to it since 0.7, so it runs in an environment of its own (`RECIPE`), which reads our
programs by StableHLO's versioned format. How long the pass itself took is in the compiler's log ->
in: `pass_seconds`. How it split inputs and outputs it says as XLA writes shardings
(`scripts.auto_shardings`). Answers are kept in a folder by what they depend on, also that one was
not ready in time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
import hashlib
import json
import os
from pathlib import Path
import re
import subprocess
import tempfile
import time
from typing import Any, Final, Literal

from automap.atomic_file import write_atomically
from automap.errors import InputError, PlanError
from automap.plan.codec import decode, encode
from automap.plan.file import layout, read


STABLEHLO_VERSION: Final = "1.9.0"  # jaxlib 0.6.2 reads up to 1.11
PACKAGES: Final = {"jax": "0.6.2", "jaxlib": "0.6.2", "libtpu": "0.0.17"}
RECIPE: Final = "python -m venv auto; auto/bin/pip install " + " ".join(
    f"{name}=={version}" for name, version in PACKAGES.items()
)
WORKER: Final = Path(__file__).with_name("auto_worker.py")
DEFAULT_TIMEOUT_SECONDS: Final = 300.0
_ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1",
    # Its lock is for those who have a TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # The pass says in the log when it begins and ends.
    "TPU_STDERR_LOG_LEVEL": "0", "TPU_MIN_LOG_LEVEL": "0", "TPU_VMODULE": "auto_sharding=1",
}  # fmt: skip
_LAST_CHARACTERS: Final = 1500
_VERSIONS: Final = (
    "import importlib.metadata as m, json; "
    f"print(json.dumps({{n: m.version(n) for n in {list(PACKAGES)}}}))"
)
_STAMP: Final = r"^[IWE]\d{4} (\d\d):(\d\d):(\d\d\.\d+) .*"
_BEGUN: Final = re.compile(_STAMP + r"Starting the auto sharding pass", re.MULTILINE)
_ENDED: Final = re.compile(_STAMP + r"Auto Sharding took", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRequest:
    """What to compile for: a TPU slice by name, the mesh that the pass may use (None: no pass,
    shardings as in the program).

    `options` are the compiler's.
    """

    slice: str
    mesh: tuple[int, ...] | None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAnswer:
    """What came of it: XLA's text of each input's and output's sharding, bytes on a device, seconds
    of the whole compilation.

    `message` is the compiler's, of an outcome that is not "done".
    """

    outcome: Literal["done", "out-of-memory", "failed", "timeout", "died"]
    message: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    peak_bytes: int | None
    seconds: float
    process_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoResult:
    """An answer with the compiled program (a serialized HloModuleProto) in gzip, and seconds of the
    pass alone.
    """

    answer: AutoAnswer
    program: bytes | None
    pass_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoPeer:
    """An environment that can call the pass, and where its answers are kept."""

    python: Path
    folder: Path
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    def check(self) -> None:
        """Raise `InputError`, with the way to make one, if it is not the environment needed."""
        try:
            run = subprocess.run(
                [self.python, "-c", _VERSIONS],
                capture_output=True,
                text=True,
                check=False,
                env=_environment(),
            )
            installed = json.loads(run.stdout) if run.returncode == 0 else run.stderr.strip()[-200:]
        except (OSError, ValueError) as error:
            installed = str(error)
        if installed != PACKAGES:
            raise InputError(
                f"--auto-python {self.python}: got {installed}; allowed: an environment with "
                f"{PACKAGES}; make it with: {RECIPE}; then give --auto-python auto/bin/python"
            )

    def ask(self, artifact: bytes, sha256: str, request: AutoRequest) -> AutoResult:
        """The answer for a program, the one that was kept if there is any; `sha256` is of what the
        program says.

        A process that dies is an answer too, which is not kept.
        """
        # Of what the program says, not of its bytes, which hold the places of this machine's files.
        key = _key(sha256, request)
        kept = self._kept(key)
        if kept is not None:
            return kept
        with tempfile.TemporaryDirectory(prefix="automap-auto-") as name:
            folder = Path(name)
            (folder / "program.bin").write_bytes(artifact)
            (folder / "request.json").write_text(layout(encode(request)))
            answer = self._run(folder)
            program = folder / "program.pb.gz"
            result = AutoResult(
                answer=answer,
                program=program.read_bytes() if program.is_file() else None,
                pass_seconds=pass_seconds((folder / "log.txt").read_text(errors="replace")),
            )
        # A timeout is kept (it would come again), a death is not: the machine may have been short.
        if answer.outcome != "died":
            self._keep(key, result)
        return result

    def _run(self, folder: Path) -> AutoAnswer:
        begin = time.monotonic()
        log = folder / "log.txt"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [self.python, str(WORKER), str(folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                # So that Ctrl-C reaches this process first, which then ends the compiler.
                start_new_session=True,
            )
            try:
                process.wait(self.timeout_seconds)
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - begin
                return _nothing("timeout", f"not done after {seconds:.0f} s", seconds)
            finally:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        try:
            return decode(AutoAnswer, read(folder / "answer.json"), "")
        except PlanError:
            said = log.read_text(errors="replace").strip()[-_LAST_CHARACTERS:]
            message = f"ended without an answer: {said.rpartition(chr(10))[2]}"
            return _nothing("died", message, time.monotonic() - begin)

    def _kept(self, key: str) -> AutoResult | None:
        try:
            data: Any = read(self.folder / f"{key}.json")
            answer = decode(AutoAnswer, data["answer"], "")
            seconds = data["pass_seconds"]
        except (PlanError, KeyError, TypeError):
            return None
        # There was less time than now: it may be done this time.
        if answer.outcome == "timeout" and answer.seconds < self.timeout_seconds:
            return None
        program = self.folder / f"{key}.pb.gz"
        return AutoResult(
            answer=answer,
            program=program.read_bytes() if program.is_file() else None,
            pass_seconds=seconds,
        )

    def _keep(self, key: str, result: AutoResult) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # The program first: an answer without its program would be believed.
        if result.program is not None:
            write_atomically(self.folder / f"{key}.pb.gz", result.program)
        kept = {"answer": encode(result.answer), "pass_seconds": result.pass_seconds}
        write_atomically(self.folder / f"{key}.json", layout(kept))


def _environment() -> dict[str, str]:
    # Packages of ours that are found by PYTHONPATH are not of that environment, nor is the compiler
    # (libtpu) that JAX names here when it is imported.
    kept = {name: value for name, value in os.environ.items() if name != "TPU_LIBRARY_PATH"}
    return {**kept, **_ENVIRONMENT, "PYTHONPATH": ""}


def _nothing(outcome: Literal["timeout", "died"], message: str, seconds: float) -> AutoAnswer:
    return AutoAnswer(
        outcome=outcome,
        message=message,
        inputs=(),
        outputs=(),
        peak_bytes=None,
        seconds=seconds,
        process_seconds=0.0,
    )


def _key(sha256: str, request: AutoRequest) -> str:
    parts = {"program": sha256, "request": encode(request), "packages": PACKAGES}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pass_seconds(log: str) -> float | None:
    """Seconds between the begin and the end of the pass in a compiler's log, None if it does not
    say both.
    """
    begun, ended = _BEGUN.search(log), _ENDED.search(log)
    if begun is None or ended is None:
        return None
    # The log has times of day only; a pass may end after midnight.
    return (_seconds_of_day(ended) - _seconds_of_day(begun)) % 86_400


def _seconds_of_day(stamp: re.Match[str]) -> float:
    hours, minutes, seconds = stamp.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
