"""Eight CPU devices for every test, set before JAX is imported; programs that run a few times only
are compiled without LLVM's optimizations, which take longer than such a run and are none of XLA's
passes.
"""

import os
import signal

from hypothesis import settings


os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"
settings.register_profile("automap", deadline=None, derandomize=True)
settings.load_profile("automap")


def pytest_configure():
    """Ctrl-C interrupts what is tested, also where a shell started the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
