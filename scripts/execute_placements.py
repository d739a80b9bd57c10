"""Placements run beside their simulation: FlexFlow's figure 11, on two processors of this machine.

    python -m scripts.execute_placements --kept ROWS -o docs/reports/flexflow.md

Devices of one process share their processors, whatever XLA is told of threads. So each device is
that of a process of its own, which may run on one processor only:

    kernels    measured by `automap calibrate` in a process on one processor, with the steps' shapes
    links      what an array takes from one process to the other, and a sum over both, over sizes
               from SIZES_BYTES; latency and rate are fitted to both as a calibration does
    starts     what a program takes that does nothing, beside a kernel's launch
    steps      `measured_seconds`, the longer of the two processes'

The simulation is of the machine that the first three make, and knows no step's measured time. Where
other processes took more than MOST_OTHERS of the processors' time, what was measured is measured
again, TRIES times at most.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import json
import os
from pathlib import Path
import platform
import socket
from statistics import median
import subprocess
import sys
import time
from typing import Any, Final

import click
import jax
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

import automap
from automap.calibrate.calibration import calibrate
from automap.calibrate.hardware import fit_level
from automap.cost.collectives import CollectiveKind
from automap.cost.profile import Transfer, TransferTime
from automap.runtime.placement import measured_seconds
from automap.runtime.transfer import send
from automap.step.step import traced_call
from automap.topology import Level, Topology, get_topology
from models import inception, lenet, rnnlm
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.execute_placements"
SIZES_BYTES: Final = (4, 256, 4_096, 65_536, 2**20, 2**22, 2**24)
RUNS: Final = 15
MOST_OTHERS: Final = 0.03
TRIES: Final = 12
STRATEGIES: Final = ("single", "expert", "heft", "mincut", "data-parallel", "auto")
HEADER: Final = ["model", "strategy", "devices used", "simulated, ms", "measured, ms", "error, %"]


def lenet_512() -> Target:
    """LeNet with 512 images."""
    return lenet.lenet(batch=512)


def inception_64() -> Target:
    """The small Inception with 64 images."""
    return inception.inception_tiny(batch=64)


def rnnlm_6() -> Target:
    """Two layers of 256 over six unrolled steps, 64 sentences."""
    config = replace(rnnlm.TINY, hidden=256, vocab=2048)
    return rnnlm.rnnlm_step(config, batch=64, seq=6).target


MODELS: Final[Mapping[str, Callable[[], Target]]] = {
    "LeNet, 512 images": lenet_512,
    "Inception, tiny, 64 images": inception_64,
    "RNNLM, 256 wide, 6 steps": rnnlm_6,
}


def undisturbed(measure: Callable[[], float]) -> float:
    """The longer of what the two processes measure, while others leave the processors alone."""
    share = 1.0
    for _ in range(TRIES):
        begin, busy, own = time.monotonic(), _busy_seconds(), time.process_time()
        seconds = measure()
        wall = time.monotonic() - begin
        mine = [seconds, time.process_time() - own, _busy_seconds() - busy]
        both = np.asarray(multihost_utils.process_allgather(np.array(mine)))
        # Both processes go by what the first saw.
        share = float(both[0, 2] - both[:, 1].sum()) / wall
        share = float(np.asarray(multihost_utils.broadcast_one_to_all(np.array(share))))
        if share < MOST_OTHERS:
            return float(both[:, 0].max())
    raise click.ClickException(f"other processes took {share:.0%} of a processor; start again")


def _busy_seconds() -> float:
    """Of all processors since the machine started."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _median_seconds(run: Callable[[], object]) -> float:
    run()
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


def links() -> list[dict[str, Any]]:
    """Seconds that arrays take there and back, by half, and that sums take, over sizes."""
    devices, rows = jax.devices(), []
    ends = [NamedSharding(Mesh(np.array([d]), ("device",)), PartitionSpec()) for d in devices]
    line = Mesh(np.array(devices), ("device",))
    split, whole = (NamedSharding(line, PartitionSpec(*axes)) for axes in (("device",), ()))
    add = jax.jit(lambda x: x.sum(axis=0), out_shardings=whole)
    for n_bytes in SIZES_BYTES:
        count = n_bytes // 4
        array = send(jnp.ones(count), ends[0])

        def there_and_back(array: jax.Array = array) -> None:
            jax.block_until_ready(send(send(array, ends[1]), ends[0]))

        terms = jax.make_array_from_callback(
            (2, count), split, lambda index, n=count: np.ones((1, n), np.float32)
        )
        for kind, run, times in (
            (CollectiveKind.PERMUTE, there_and_back, 2),
            (CollectiveKind.ALL_REDUCE, lambda x=terms: jax.block_until_ready(add(x)), 1),
        ):
            seconds = undisturbed(lambda f=run: _median_seconds(f)) / times
            rows.append({"kind": kind.value, "bytes": n_bytes, "seconds": seconds})
    return rows


def steps(folder: Path) -> None:
    """Measured seconds of all plans of the folder that have none."""
    calls = {name: traced_call(*make()) for name, make in MODELS.items()}
    for path in sorted(folder.glob("plan *.json")):
        output = path.with_name(path.name.replace("plan", "seconds", 1))
        # Both processes look before either writes.
        if bool(multihost_utils.broadcast_one_to_all(np.array(output.exists()))):
            continue
        plan = automap.Plan.load(path)
        call = calls[path.stem.removeprefix("plan ").rpartition(" ")[0]]
        seconds = undisturbed(lambda p=plan, c=call: measured_seconds(p, c, jax.devices()))
        if jax.process_index() == 0:
            output.write_text(json.dumps(seconds))


def work(number: int, port: int, task: str, folder: Path) -> None:
    """One of the two processes."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, number)
    if task == "links":
        made = links()
        if number == 0:
            (folder / "links.json").write_text(json.dumps(made))
    else:
        steps(folder)


def run_pair(task: str, folder: Path) -> None:
    """Both processes, until they are done."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "scripts.execute_placements", "--kept", str(folder)]
    pair = [
        subprocess.Popen([*command, "--task", task, "--number", str(n), "--port", str(port)])
        for n in range(2)
    ]
    if any([process.wait() for process in pair]):
        raise click.ClickException(f"a process of {task} failed")


def machine(folder: Path) -> Topology:
    """Two such processors as they were measured."""
    alone = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {alone[0]})
    made = calibrate(
        device_count=1,
        depth="quick",
        targets=[f"scripts.execute_placements:{m.__name__}" for m in MODELS.values()],
        profile_path=folder / "profile.json",
    )
    os.sched_setaffinity(0, set(alone))
    if not (folder / "links.json").exists():
        run_pair("links", folder)
    level = link(json.loads((folder / "links.json").read_text()))
    return replace(get_topology("cpu:2"), device=made.topology.device, levels=(level,))


def link(rows: Sequence[Mapping[str, Any]]) -> Level:
    """The link of two processors whose transfers and sums take what `links` measured."""
    times = [
        TransferTime(
            signature=Transfer(kind=row["kind"], sizes=(2,), axis=0, n_bytes=row["bytes"]),
            seconds=row["seconds"],
        )
        for row in rows
    ]
    return fit_level(get_topology("cpu:2"), 0, times)


def table(folder: Path) -> list[list[str]]:
    """Figure 11."""
    topology, plans = machine(folder), {}
    for name, make in MODELS.items():
        step, args = make()
        for strategy in STRATEGIES:
            path = folder / f"plan {name} {strategy}.json"
            if not path.exists():
                automap.plan(
                    step,
                    args,
                    topology=topology,
                    profile=folder / "profile.json",
                    space="placement",
                    strategy=strategy,
                ).save(path)
            plans[name, strategy] = path
    run_pair("steps", folder)
    rows = []
    for (name, strategy), path in plans.items():
        plan = automap.Plan.load(path)
        seconds = json.loads((folder / path.name.replace("plan", "seconds", 1)).read_text())
        used = len(plan.placement.used) if plan.placement else 0
        rows.append([name, strategy, str(used), *compared(plan.predicted.step_seconds, seconds)])
    return rows


def compared(simulated: float, measured: float) -> list[str]:
    """Both in milliseconds, and by how much the simulation is above what was measured."""
    return [f"{simulated * 1e3:.1f}", f"{measured * 1e3:.1f}", f"{simulated / measured - 1:+.0%}"]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--kept", "folder", required=True, type=click.Path(path_type=Path))
@click.option("-o", "output", type=click.Path(path_type=Path))
@click.option("--task", type=click.Choice(["links", "steps"]), hidden=True)
@click.option("--number", type=int, hidden=True)
@click.option("--port", type=int, hidden=True)
def main(
    *, folder: Path, output: Path | None, task: str | None, number: int | None, port: int | None
) -> None:
    """Put the table into OUTPUT; what is kept in the folder is not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    if task and number is not None and port is not None:
        work(number, port, task, folder)
        return
    rows = table(folder)
    if output is not None:
        where = f"{platform.machine()} with {os.cpu_count()} processors"
        above = made_by(f"{COMMAND} --kept ROWS -o {output}", where)
        replace_table(output, above + markdown(HEADER, rows), "executed")


if __name__ == "__main__":
    main()
