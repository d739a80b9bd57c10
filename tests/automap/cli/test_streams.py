"""The standard streams as a process on its own writes them: no notices of compilers on stderr."""

from importlib.util import find_spec
import os
from pathlib import Path
import subprocess
import sys

import pytest

from automap.cli.streams import is_notice


ROOT = Path(__file__).resolve().parents[3]
# As libraries of jaxlib 0.10.2, the CUDA plugin and libtpu 0.0.51 wrote them on a machine without
# either device.
NOTICES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795523481.801936   20645 cudart_stub.cc:31] Could not find cuda drivers on your \
machine, GPU will not be used.
Failed to find host bounds for accelerator type: WARNING: could not determine TPU \
accelerator type, please set env var
WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1795523484.082080   20645 common_lib.cc:860] INVALID_ARGUMENT: Error: unexpected \
worker hostname 'WARNING'
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370
W0326 10:11:12.131415   99 hlo_pass.cc:1] slow
2026-11-24 10:00:00.1: E external/xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to \
register cuDNN factory
"""
WORDS = """\
F0000 00:00:1795523484.082080   20645 shape.cc:7] Check failed: it is fatal
automap: warning: a word of ours
Traceback (most recent call last):
  a target's own words in net.cc:12 and more
Infinity and E000
"""


@pytest.mark.parametrize("line", NOTICES.splitlines())
def test_a_notice_is_one(line):
    assert is_notice(line.encode())


@pytest.mark.parametrize("line", WORDS.splitlines())
def test_other_words_are_none(line):
    assert not is_notice(line.encode())


def _run(body: str, **options) -> subprocess.CompletedProcess[str]:
    """A process whose standard error is guarded while `body` runs."""
    code = f"import os, sys\nfrom automap.cli.streams import without_notices\n{body}"
    return subprocess.run(
        [sys.executable, "-c", code, NOTICES, WORDS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        **options,
    )


NATIVE = "os.write(2, sys.argv[{}].encode())"


def test_notices_are_left_out_and_all_else_is_handed_on_in_order():
    done = _run(
        f"with without_notices():\n    {NATIVE.format(1)}\n    {NATIVE.format(2)}\n"
        f"    os.write(2, b'no end of line')\n{NATIVE.format(2)}"
    )
    assert done.returncode == 0
    assert done.stderr == WORDS + "no end of line" + WORDS


def test_what_python_says_is_not_looked_at():
    done = _run("with without_notices():\n    print(sys.argv[1], end='', file=sys.stderr)")
    assert done.stderr == NOTICES


def test_the_last_words_of_one_that_aborts_are_handed_on():
    done = _run(
        f"with without_notices():\n    {NATIVE.format(1)}\n    {NATIVE.format(2)}\n    os.abort()"
    )
    assert done.returncode < 0
    assert done.stderr == WORDS


def test_a_process_that_lives_on_is_not_waited_for():
    body = "import subprocess\nwith without_notices():\n"
    body += "    child = subprocess.Popen(['sleep', '60'])\n"
    done = _run(body + "child.kill()\nprint('done')")
    assert done.stdout == "done\n"


def test_a_standard_input_that_is_closed_changes_nothing():
    code = f"with without_notices():\n    {NATIVE.format(1)}\n    {NATIVE.format(2)}"
    done = _run(f"os.close(0)\n{code}")
    assert done.stderr == WORDS


def test_the_command_says_nothing_but_its_own(tmp_path):
    target = "import os, sys\nos.write(2, {notices!r})\nfrom tests.steps import mlp\n"
    (tmp_path / "noisy.py").write_text(target.format(notices=NOTICES.encode()))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "automap",
            "plan",
            "noisy:mlp",
            "--topology",
            "v5e:2x2",
            "--preset",
            "zero-3",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    # On a busy machine it may say that it is still at work.
    assert all(line.startswith("automap: ") for line in done.stderr.splitlines()), done.stderr
    assert "predicted step" in done.stdout


@pytest.mark.gpu_compiler
@pytest.mark.skipif(find_spec("jax_cuda12_plugin") is None, reason="the CUDA plugin is missing")
@pytest.mark.parametrize("topology", ["local", "8xh100"])
def test_the_cuda_plugin_without_a_gpu_says_at_most_a_line(topology):
    environment = {name: v for name, v in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-m", "automap", "plan", "tests.steps:mlp", "--topology", topology],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "cudart" not in done.stderr
    # On a busy machine it may say that it is still at work.
    said = [line for line in done.stderr.splitlines() if not line.startswith("automap: ")]
    assert all(line.startswith("JAX: ") for line in said), done.stderr
