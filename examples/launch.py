"""One command that starts a training in several processes of this machine and waits for all.

    python -m examples.launch examples.jax_optax.planned --processes 2 --devices 4 --steps 60

Each process has `--devices` devices of the processor, and all together train one model; on a
cluster a scheduler starts the same lines, one for each host. If one process fails, the others are
ended.
"""

import argparse
import socket
import subprocess
import sys
import time


_LOOK_SECONDS = 0.2


def main() -> int:
    """Start them; the exit status is the first that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="as python -m takes it")
    parser.add_argument("--processes", type=int, default=2)
    given, rest = parser.parse_known_args()
    command = [sys.executable, "-m", given.module, *rest]
    command += ["--processes", str(given.processes), "--coordinator", f"localhost:{_free_port()}"]
    processes = [
        subprocess.Popen([*command, "--process", str(number)]) for number in range(given.processes)
    ]
    try:
        return _wait(processes)
    finally:
        for process in processes:
            process.kill()


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    while True:
        statuses = [process.poll() for process in processes]
        failed = [status for status in statuses if status]
        if failed or None not in statuses:
            return failed[0] if failed else 0
        time.sleep(_LOOK_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
