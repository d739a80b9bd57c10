"""Eight CPU devices for every test, set before JAX is imported; programs that run a few times only
are compiled without LLVM's optimizations, which take longer than such a run and are none of XLA's
passes, and by the older of XLA's two generators of code, which takes half as long.
"""

import gc
from importlib.metadata import version
import os
from pathlib import Path
import signal
import subprocess
import sys

from hypothesis import settings
import pytest


# XLA ends the process at a flag that it does not know, as a later version may not, nor libtpu's.
_KNOWN_TO_ALL = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
_OLDER_CODE = "--xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""
# Tests of the mark "gpu" are run with JAX_PLATFORMS=cuda,cpu, and compile as users do.
_ON_GPU = os.environ.setdefault("JAX_PLATFORMS", "cpu").startswith("cuda")
_FLAGS = "" if _ON_GPU else f"{_KNOWN_TO_ALL} {_OLDER_CODE}".strip()
os.environ["XLA_FLAGS"] = _FLAGS
settings.register_profile("automap", deadline=None, derandomize=True)
settings.load_profile("automap")


def pytest_configure():
    """Ctrl-C interrupts what is tested, also where a shell started the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item):
    """The processes that a test starts have this one's flags, those with libtpu what it knows."""
    of_tpus = item.get_closest_marker("tpu_compiler") is not None
    os.environ["XLA_FLAGS"] = _KNOWN_TO_ALL if of_tpus else _FLAGS


def pytest_collection_finish():
    """What was imported stays: the collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages that a wheel has, built where an earlier layout was built."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "lib" / "rl").mkdir(parents=True)
    (folder / "lib" / "rl" / "env.py").touch()
    places = ["egg_info", "--egg-base", str(folder), "build_py", "--build-lib", str(folder / "lib")]
    run = subprocess.run(
        [sys.executable, "setup.py", "-q", *places],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder / "lib"
