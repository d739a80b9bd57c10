"""DOS's figures 4 and 8, tables 1, 2, 4 and 5 and section 5.7 on simulated GPUs: stages of
operators that run at once or merged, beside the paper's and IOS's measurements.

    python -m scripts.reproduce_dos -o docs/reports/streams.md

With --quick the networks of wide blocks (RandWire, NASNet-A) are left out. Nothing is measured:
seconds of operators and stages are those of `automap.streams.costs`. Search seconds are processor
seconds of one thread, after the compilation of the solvers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
import os
from pathlib import Path
import platform
from string import ascii_uppercase
import time
from typing import get_args

import click
import numpy as np
from rich.progress import track

from automap.deadline import Deadline
from automap.planner.streams import priced_operators
from automap.program import Workload, load_target, trace_step
from automap.streams.arrays import PricedOperators
from automap.streams.blocks import cut_blocks
from automap.streams.schedule import Schedule, Stage, find_schedule
from automap.streams.strategies import Limits
from automap.topology import get_topology
from scripts.dos_checks import (
    Drawn,
    Waiting,
    operator_numbers,
    order_accuracy,
    random_stages,
    totals,
    whole_seconds,
)
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_dos"
WIDE = ("RandWire", "NASNet-A")
DOS, IOS, FREE = Limits(), Limits(groups=8, group_size=3), Limits(group_size=64)
"""The algorithm that DOS prints, IOS's limits, and none."""
INCEPTION = "inception:inception_v3_forward"
# Device -> its name in the catalogue.
DEVICES = {"TITAN Xp": "1xtitan-xp", "V100": "1xv100", "RTX 2080 Ti": "1x2080ti"}
BATCHES = (1, 8, 16)
MATRIX_BATCHES = (1, 8, 16, 128)
# Of section 5.7.
RANDOM_SCHEDULES = 100


@dataclass(frozen=True)
class Published:
    """Figures of a network on a V100 at batch 1: DOS's gain (figure 4) and search (table 4), IOS's
    measured milliseconds (sequential, greedy, its own) and search seconds, and table 5's kernels,
    MB and milliseconds of TensorRT and of DOS.
    """

    target: str
    gain: float | None
    search: str
    ios_ms: tuple[float, float, float] | None
    ios_search: str
    table_5: tuple[str, str, str] | None


NETWORKS = {
    "Inception-v3": Published(
        INCEPTION, 1.40, "10 s", (6.51, 4.62, 4.03), "48 s",
        ("119 -> 103", "82 -> 68", "5.11 -> 4.61"),
    ),
    "RandWire": Published(
        "randwire:randwire", 1.20, "8 min", (8.49, 6.27, 6.02), "4,407 s",
        ("406 -> 406", "576 -> 576", "8.91 -> 7.15"),
    ),
    "NASNet-A": Published(
        "nasnet:nasnet_large", 1.21, "3 min", (22.95, 16.78, 16.04), "3,653 s",
        ("965 -> 965", "1,187 -> 1,187", "23.58 -> 18.99"),
    ),
    "SqueezeNet": Published(
        "squeezenet:squeezenet", 1.20, "4 s", (0.86, 0.98, 0.73), "1 s",
        ("50 -> 38", "57 -> 48", "0.84 -> 0.74"),
    ),
    "Branches": Published("branches:branches", None, "", None, "", None),
}  # fmt: skip


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


@dataclass(frozen=True)
class Searched:
    """The schedules of a network with three kinds of limits, and processor seconds of each."""

    priced: PricedOperators
    dos: tuple[Schedule, float]
    ios: tuple[Schedule, float]
    free: tuple[Schedule, float]


def all_searched(priced: PricedOperators) -> Searched:
    """Searched with each of the limits."""
    return Searched(priced, *(searched(priced, limits) for limits in (DOS, IOS, FREE)))


def gains(networks: dict[str, Searched]) -> Iterator[list[str]]:
    """Figure 4: what schedules take."""
    for name, own in networks.items():
        published = NETWORKS[name]
        (dos, _), (ios, _), (free, _) = own.dos, own.ios, own.free
        measured = published.ios_ms
        yield [
            name,
            str(len(own.priced.operators)),
            *map(_ms, (dos.sequential_seconds, dos.greedy_seconds)),
            *map(_ms, (dos.seconds, ios.seconds, free.seconds)),
            f"{dos.sequential_seconds / dos.seconds:.2f}",
            "" if published.gain is None else f"{published.gain:.2f}",
            f"{dos.sequential_seconds / ios.seconds:.2f}",
            "" if measured is None else f"{measured[0] / measured[2]:.2f}",
        ]


def searches(networks: dict[str, Searched]) -> Iterator[list[str]]:
    """Table 4: seconds of search, and what is proven."""
    for name, own in networks.items():
        published = NETWORKS[name]
        blocks = [len(b.members) for b in cut_blocks([op.before for op in own.priced.operators])]
        yield [
            name,
            str(max(blocks)),
            f"{own.dos[1]:.2f}",
            published.search,
            f"{own.ios[1]:.2f}",
            published.ios_search,
            f"{own.free[1]:.2f}",
            f"{own.free[0].priced:,}",
            *(
                f"{max(schedule.seconds / schedule.bound_seconds - 1, 0.0):.1%}"
                for schedule, _ in (own.dos, own.ios, own.free)
            ),
        ]


def kernels(networks: dict[str, Searched]) -> Iterator[list[str]]:
    """Table 5: kernels, bytes and flops of the sequential schedule and of the searched one."""
    for name, own in networks.items():
        published = NETWORKS[name].table_5 or ("", "", "")
        schedule = own.ios[0]
        before = totals(own.priced.operators, ())
        after = totals(own.priced.operators, schedule.stages)
        milliseconds = (_ms(schedule.sequential_seconds), _ms(schedule.seconds))
        yield [
            name,
            f"{before.kernels} -> {after.kernels}",
            published[0],
            f"{before.n_bytes / 1e6:.0f} -> {after.n_bytes / 1e6:.0f}",
            published[1],
            f"{before.flops / 1e9:.2f} -> {after.flops / 1e9:.2f}",
            " -> ".join(milliseconds),
            published[2],
        ]


def inception_blocks(own: Searched) -> Iterator[list[str]]:
    """Figure 8: the blocks of several operators."""
    by_block: dict[int, list[Stage]] = {}
    for stage in own.ios[0].stages:
        by_block.setdefault(stage.block, []).append(stage)
    several = [stages for stages in by_block.values() if len(operator_numbers(stages)) > 1]
    alone = own.priced.columns["alone"]
    for letter, stages in zip(ascii_uppercase, several, strict=False):
        sequential = sum(float(alone[number]) for number in operator_numbers(stages))
        taken = sum(stage.seconds for stage in stages)
        yield [
            letter,
            str(len(operator_numbers(stages))),
            str(len(stages)),
            _ms(sequential),
            _ms(taken),
            f"{sequential / taken:.2f}",
        ]


def sums(networks: dict[str, Searched]) -> Iterator[list[str]]:
    """Section 5.7: sums of stages beside the whole graph simulated, over random schedules."""
    kinds = [(drawn, waiting) for drawn in get_args(Drawn) for waiting in get_args(Waiting)]
    for name, own in networks.items():
        cells = [name]
        for drawn, waiting in kinds:
            rng = np.random.default_rng(0)
            schedules = [
                random_stages(own.priced, IOS, rng, drawn) for _ in range(RANDOM_SCHEDULES)
            ]
            added = [sum(own.priced.stage_seconds(s)[0] for s in stages) for stages in schedules]
            whole = [whole_seconds(own.priced, stages, waiting) for stages in schedules]
            ratios = np.array(added) / np.array(whole)
            if waiting == "operands":
                cells.append(f"{min(added) * 1e3:.2f} to {max(added) * 1e3:.2f}")
            cells.append(f"{ratios.min():.2f} to {ratios.max():.2f}")
            cells.append(f"{order_accuracy(added, whole):.3f}")
        yield cells


def matrix(name: str, batch: int, step: Workload) -> list[str]:
    """A network and batch on each device: sequential, greedy and searched milliseconds."""
    cells = [name, str(batch)]
    for topology in DEVICES.values():
        schedule, _ = searched(priced_operators(step, get_topology(topology)), IOS)
        simple = schedule.sequential_seconds, schedule.greedy_seconds
        if schedule.seconds > min(simple) * (1 + 1e-9):
            raise click.ClickException(f"{name}, batch {batch}, {topology}: slower than simple")
        cells.append(" / ".join(map(_ms, (*simple, schedule.seconds))))
    return cells


GAINS_HEADER = [
    "network",
    "operators",
    "sequential ms",
    "greedy ms",
    "DOS ms",
    "IOS's limits ms",
    "no limits ms",
    "sequential / DOS",
    "the paper's",
    "sequential / IOS's limits",
    "IOS's measured",
]
SEARCH_HEADER = [
    "network",
    "largest block",
    "DOS s",
    "the paper's",
    "IOS's limits s",
    "IOS's",
    "no limits s",
    "stages priced without",
    "DOS gap",
    "IOS's limits gap",
    "no limits gap",
]
KERNELS_HEADER = [
    "network",
    "kernels",
    "the paper's",
    "MB",
    "the paper's",
    "GFLOP",
    "ms",
    "the paper's",
]
BLOCKS_HEADER = ["block", "operators", "stages", "sequential ms", "ours ms", "gain"]
_SUM, _SUM_WHOLE = "sum of stages ms", "sum / whole"
SUMS_HEADER = [
    "network",
    f"drawn by stage: {_SUM}",
    _SUM_WHOLE,
    "order accuracy",
    f"behind barriers: {_SUM_WHOLE}",
    "order accuracy",
    f"drawn by schedule: {_SUM}",
    _SUM_WHOLE,
    "order accuracy",
    f"behind barriers: {_SUM_WHOLE}",
    "order accuracy",
]


def repriced(schedule: Schedule, priced: PricedOperators) -> float:
    """Seconds of a schedule's stages elsewhere, as they are: at once or merged."""
    total = 0.0
    for stage in schedule.stages:
        members = sorted(n for group in stage.groups for n in group)
        total += priced.stage_seconds(members)[stage.together == "merged"]
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
    above = made_by(f"{COMMAND}{' --quick' if is_quick else ''} -o {output}", where)
    v100 = get_topology("1xv100")

    def write(name: str, header: list[str], rows: Iterable[list[str]]) -> None:
        replace_table(output, above + markdown(header, list(rows)), name)

    steps = {
        name: traced(published.target, 1)
        for name, published in track(networks.items(), description="tracing")
    }
    priced = {name: priced_operators(step, v100) for name, step in steps.items()}
    # The first search compiles the solvers.
    searched(priced["SqueezeNet"], DOS)
    own = {name: all_searched(each) for name, each in priced.items()}
    write("gains", GAINS_HEADER, gains(own))
    write("searches", SEARCH_HEADER, searches(own))
    write("kernels", KERNELS_HEADER, kernels(own))
    write("blocks", BLOCKS_HEADER, inception_blocks(own["Inception-v3"]))
    write("sums", SUMS_HEADER, sums(own))
    one = steps["Inception-v3"]
    devices = {
        name: priced_operators(one, get_topology(topology)) for name, topology in DEVICES.items()
    }
    write("devices", ["run on", *(f"made for {n}, ms" for n in devices)], specialised(devices))
    batches = {
        f"batch {n}": priced_operators(traced(INCEPTION, n) if n > 1 else one, v100)
        for n in BATCHES
    }
    write("batches", ["run with", *(f"made for {n}, ms" for n in batches)], specialised(batches))
    rows = [
        matrix(name, batch, steps[name] if batch == 1 else traced(published.target, batch))
        for name, published in track(networks.items(), description="all batches and devices")
        for batch in MATRIX_BATCHES
    ]
    write("matrix", ["network", "batch", *(f"{name} ms" for name in DEVICES)], rows)


if __name__ == "__main__":
    main()
