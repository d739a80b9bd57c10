"""DOS's figure 4 and tables 1, 2 and 4 on simulated GPUs: stages of operators that run at once or
merged, beside the paper's and IOS's measurements.

    python -m scripts.reproduce_dos --quick -o docs/reports/streams.md

With --quick the networks of wide blocks (RandWire, NASNet-A) are left out, whose search takes
minutes. Nothing is measured: seconds of operators and stages are those of `automap.streams.costs`.
Search seconds are processor seconds of one thread, after the compilation of the solvers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import os
from pathlib import Path
import platform
import time

import click
import numpy as np
from rich.progress import track

from automap.deadline import Deadline
from automap.planner.streams import priced_operators
from automap.program import Workload, load_target, trace_step
from automap.streams.arrays import PricedOperators
from automap.streams.blocks import cut_blocks, make_block
from automap.streams.costs import price_stages
from automap.streams.schedule import Schedule, find_schedule
from automap.streams.strategies import Limits
from automap.topology import get_topology
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_dos"
WIDE = ("RandWire", "NASNet-A")
DOS, IOS = Limits(), Limits(groups=8, group_size=3)
INCEPTION = "inception:inception_v3_forward"
# Device -> its name in the catalogue.
DEVICES = {"TITAN Xp": "1xtitan-xp", "V100": "1xv100", "RTX 2080 Ti": "1x2080ti"}
BATCHES = (1, 8, 16)


@dataclass(frozen=True)
class Published:
    """Figures of a network on a V100 at batch 1: DOS's gain (figure 4) and search (table 4), IOS's
    measured milliseconds (sequential, greedy, its own) and search seconds.
    """

    target: str
    gain: float | None
    search: str
    ios_ms: tuple[float, float, float] | None
    ios_search: str


NETWORKS = {
    "Inception-v3": Published(INCEPTION, 1.40, "10 s", (6.51, 4.62, 4.03), "48 s"),
    "RandWire": Published("randwire:randwire", 1.20, "8 min", (8.49, 6.27, 6.02), "4,407 s"),
    "NASNet-A": Published("nasnet:nasnet_large", 1.21, "3 min", (22.95, 16.78, 16.04), "3,653 s"),
    "SqueezeNet": Published("squeezenet:squeezenet", 1.20, "4 s", (0.86, 0.98, 0.73), "1 s"),
    "Branches": Published("branches:branches", None, "", None, ""),
}


def traced(target: str, batch: int) -> Workload:
    """A network's inference step for a GPU."""
    step, args = load_target(f"models.{target}", {"batch": str(batch)})
    return trace_step(step, args, platform="cuda")


def searched(priced: PricedOperators, limits: Limits) -> tuple[Schedule, float]:
    """A schedule of DOS, and processor seconds."""
    start = time.process_time()
    schedule = find_schedule(priced, "dos", limits, Deadline.never())
    return schedule, time.process_time() - start


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def gains(priced: dict[str, PricedOperators]) -> Iterator[list[str]]:
    """Figure 4 and table 4: what schedules take, and their search."""
    for name, own in priced.items():
        published = NETWORKS[name]
        blocks = [len(b.members) for b in cut_blocks([op.before for op in own.operators])]
        dos, seconds = searched(own, DOS)
        ios, ios_seconds = searched(own, IOS)
        measured = published.ios_ms
        yield [
            name,
            str(len(own.operators)),
            str(max(blocks)),
            _ms(dos.sequential_seconds),
            _ms(dos.greedy_seconds),
            _ms(dos.seconds),
            _ms(ios.seconds),
            f"{dos.sequential_seconds / dos.seconds:.2f}",
            "" if published.gain is None else f"{published.gain:.2f}",
            f"{dos.sequential_seconds / ios.seconds:.2f}",
            "" if measured is None else f"{measured[0] / measured[2]:.2f}",
            f"{ios.seconds / ios.bound_seconds - 1:.1%}",
            f"{seconds:.2f}",
            published.search,
            f"{ios_seconds:.2f}",
            published.ios_search,
        ]


GAINS_HEADER = [
    "network",
    "operators",
    "largest block",
    "sequential ms",
    "greedy ms",
    "DOS ms",
    "with groups ms",
    "sequential / DOS",
    "the paper's",
    "sequential / with groups",
    "IOS's measured",
    "gap to the bound",
    "search s",
    "the paper's search",
    "search with groups s",
    "IOS's search",
]


def repriced(schedule: Schedule, priced: PricedOperators) -> float:
    """Seconds of a schedule's stages elsewhere, as they are: at once or merged."""
    before = [op.before for op in priced.operators]
    total = 0.0
    for stage in schedule.stages:
        members = sorted(n for group in stage.groups for n in group)
        ops = priced.block(make_block(members, before))
        mask = np.array([(1 << len(members)) - 1], np.uint64)
        column = 1 if stage.together == "merged" else 0
        total += float(price_stages(ops, mask, priced.machine)[0, column])
    return total


def specialised(settings: dict[str, PricedOperators]) -> list[list[str]]:
    """Each setting's own schedule run in each other: rows run on, columns made for."""
    schedules = {name: searched(priced, IOS)[0] for name, priced in settings.items()}
    return [
        [name, *(_ms(repriced(schedule, priced)) for schedule in schedules.values())]
        for name, priced in settings.items()
    ]


@click.command(help=__doc__)
@click.option("--quick", "is_quick", is_flag=True, help="leave networks of wide blocks out")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(*, is_quick: bool, output: Path) -> None:
    """Write the tables."""
    networks = {n: p for n, p in NETWORKS.items() if not (is_quick and n in WIDE)}
    where = f"{platform.machine()} with {os.cpu_count()} processors; no GPU, all seconds simulated"
    command = f"{COMMAND}{' --quick' if is_quick else ''} -o {output}"
    above = made_by(command, where)
    v100 = get_topology("1xv100")
    priced = {
        name: priced_operators(traced(published.target, 1), v100)
        for name, published in track(networks.items(), description="tracing")
    }
    # The first search compiles the solvers.
    searched(priced["SqueezeNet"], DOS)
    replace_table(output, above + markdown(GAINS_HEADER, list(gains(priced))), "gains")
    one = traced(INCEPTION, 1)
    devices = {
        name: priced_operators(one, get_topology(topology)) for name, topology in DEVICES.items()
    }
    table = markdown(["run on", *(f"made for {n}, ms" for n in devices)], specialised(devices))
    replace_table(output, above + table, "devices")
    batches = {
        f"batch {n}": priced_operators(traced(INCEPTION, n) if n > 1 else one, v100)
        for n in BATCHES
    }
    table = markdown(["run with", *(f"made for {n}, ms" for n in batches)], specialised(batches))
    replace_table(output, above + table, "batches")


if __name__ == "__main__":
    main()
