"""Parsers in a process of their own: what crashes, hangs or eats memory there is one `HloError`
here.
"""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from hlo_tools.errors import HloError
from hlo_tools.read import parser as parser_module, parser_child, read_bytes
from hlo_tools.read.parser import Parser
from hlo_tools.read.proto import decode_module


TEXT = b"HloModule m\nENTRY e {\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] negate(p)\n}\n"
# XLA checks the number of a parameter with a CHECK, which aborts the process.
ABORTS = b"HloModule m\nENTRY e { ROOT p = f32[2] parameter(7) }"
SLEEPS = "import time\ntime.sleep(60)\n"


@pytest.fixture
def a_child_that(monkeypatch, tmp_path):
    """Puts another program in the place of the parsers' process."""

    def put(code: str) -> None:
        script = tmp_path / "child.py"
        script.write_text(code)
        monkeypatch.setattr(parser_child, "__file__", str(script))

    return put


def test_text_that_aborts_the_parser_is_refused():
    with pytest.raises(HloError, match=r"by hand: not valid HLO text: .*SIGABRT.*Check failed"):
        read_bytes(ABORTS, "by hand")


def test_text_that_aborts_some_versions_of_the_parser_is_refused():
    """It aborts jaxlib 0.10; 0.12 has an error for it."""
    text = b"HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT r = f32[3] reshape(p) }"
    with pytest.raises(HloError, match=r"by hand: not valid HLO text: "):
        read_bytes(text, "by hand")


def test_a_parser_goes_on_after_a_crash_and_is_one_process_otherwise():
    with Parser() as parser:
        first = repr(decode_module(parser.proto(TEXT, "HLO text")))
        child = parser._child
        assert repr(decode_module(parser.proto(TEXT, "HLO text"))) == first
        assert parser._child is child
        with pytest.raises(HloError, match="SIGABRT"):
            parser.proto(ABORTS, "HLO text")
        with pytest.raises(HloError, match="Syntax error"):
            parser.proto(b"HloModule m\nENTRY", "HLO text")
        assert repr(decode_module(parser.proto(TEXT, "HLO text"))) == first


def test_stablehlo_that_makes_the_parser_take_too_much_memory_is_refused():
    image, kernel = jnp.zeros((1, 8, 8, 2)), jnp.zeros((3, 3, 2, 2))

    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers)

    text = str(jax.jit(convolve).lower(image, kernel).compiler_ir("stablehlo"))
    assert read_bytes(text.encode(), "by hand").computations
    # MLIR makes room for as many dimensions as the highest number says.
    endless = text.replace("->[b, 0, 1, f]", "->[b, 0, 2147483648, f]")
    assert endless != text
    with pytest.raises(HloError, match="by hand: the parser of StableHLO text needed more than"):
        read_bytes(endless.encode(), "by hand")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\nos.kill(os.getpid(), 11)\n", "SIGSEGV"),
        ("raise SystemExit('no luck')\n", "ended with status 1: no luck"),
        (
            "import os\nos.write(2, b'std::bad_alloc')\nos.abort()\n",
            "needed more than 4 GiB of memory",
        ),
        ("import signal, os\nos.kill(os.getpid(), signal.SIGALRM)\n", "not done after 10 s"),
    ],
)
def test_every_end_has_its_message(a_child_that, code, message):
    a_child_that(code)
    with pytest.raises(HloError, match=f"by hand: .*{message}"):
        read_bytes(TEXT, "by hand")


def test_a_parser_that_hangs_is_ended(a_child_that, monkeypatch):
    a_child_that(SLEEPS)
    monkeypatch.setattr(parser_module, "seconds_for", lambda n_bytes: 0)
    with pytest.raises(HloError, match="was not done after 0 s and was ended; if XLA itself"):
        read_bytes(TEXT, "by hand")


def test_memory_of_a_parser_is_limited():
    elements = 2**27
    text = f"HloModule m\nENTRY e {{ ROOT r = f32[{elements}] constant({{{'1,' * 100}1}}) }}"
    with Parser(most_memory_bytes=2**29) as parser:
        with pytest.raises(HloError, match="by hand: .*needed more than 0.5 GiB of memory"):
            read_bytes(text.encode(), "by hand", parser)


def test_the_limit_of_time_grows_with_the_program():
    assert parser_module.seconds_for(0) == 10
    assert parser_module.seconds_for(100 * 2**20) == 1010


def test_no_process_is_left_when_the_block_is(a_child_that):
    with Parser() as parser:
        parser.proto(TEXT, "HLO text")
        child = parser._child
        assert child is not None and child.poll() is None
    assert child.poll() is not None


_INTERRUPTED = """
import sys
from hlo_tools.read import parser_child, read_bytes
parser_child.__file__ = sys.argv[1]
print("ready", flush=True)
read_bytes(b"HloModule m", "by hand")
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_child_ends_with_its_parent(tmp_path, sent):
    """On Ctrl-C the parent ends it; without a parent its own alarm or its closed input does."""
    script = tmp_path / "child.py"
    pid_file = tmp_path / "pid"
    is_alone = sent == signal.SIGKILL
    # As the real one: it reads requests, with an alarm for each.
    waits = "import signal\nsignal.alarm(1)\nwhile True: pass\n" if is_alone else SLEEPS
    script.write_text(
        f"import os, pathlib\npathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n{waits}"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(script)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    child = _waited(
        lambda: int(pid_file.read_text()) if pid_file.is_file() and pid_file.read_text() else None
    )
    parent.send_signal(sent)
    parent.communicate(timeout=20)
    assert _waited(lambda: not _runs(child))


def _waited(question):
    for _ in range(1000):
        if answer := question():
            return answer
        time.sleep(0.02)
    raise AssertionError("nothing came in 20 s")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (OSError, ProcessLookupError):
        return False
    return state != "Z"
