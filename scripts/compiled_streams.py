"""What XLA compiles for a GPU of a plan of streams, ahead of time: merged products, groups on
streams of their own, and kernels.

    python -m scripts.compiled_streams -o docs/reports/streams.md     (extra `gpu-compiler`)

For each network, sequential and with IOS's limits:

    products     convolutions and matrix products, of the step's equations less those merged away,
                 and calls of cuDNN and cuBLAS in the compiled program. XLA itself merges products
                 of one operand that stand together, so it may have fewer
    groups       of stages at once, and those that are calls on a stream of their own, all of a
                 stage started before the first is waited for         -> in: `started_groups`
    kernels      all that the device is given to run: fusions, calls of libraries, copies, as
                 counted before of the equations in their stages, a transposition for each
                 convolution's weights besides, and as compiled
                                             -> in: `counted_kernels`, `kernel_counts`

The command fails if a plan's program has more products than planned.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
import os
from pathlib import Path
import platform
import re
from typing import Any, Final

import click
import jax

import automap
from automap.jax_compat import call_attributes
from automap.jaxpr.flatten import flatten
from automap.jaxpr.fused import Fusions, as_compiled
from automap.jaxpr.staged import StageSites, staged
from automap.plan.streams import StreamStageRecord
from automap.program import load_target, trace_step
from automap.topology import get_topology
from automap.verify.compilers import machine_for
from automap.verify.worker import compiler_devices
from scripts.reproduce_dos import NETWORKS
from scripts.stream_networks import NETWORKS as OTHERS, Target
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compiled_streams"
HEADER: Final = [
    "network",
    "GPU",
    "products of the step",
    "planned",
    "compiled",
    "groups at once, planned",
    "on their own streams",
    "kernels one after another, counted",
    "compiled",
    "in stages, counted",
    "compiled",
]
# Instructions that give a device nothing to run.
_NO_KERNELS: Final = frozenset(
    {
        "bitcast",
        "call-done",
        "call-start",
        "constant",
        "get-tuple-element",
        "iota",
        "optimization-barrier",
        "parameter",
        "tuple",
    }
)
_INSTRUCTION: Final = re.compile(r"\s+(?:ROOT )?%\S+ = (?:\(.*?\) |\S+ )([\w-]+)\(")
_LIBRARY: Final = re.compile(r'custom_call_target="(__cudnn\$conv|__cublas)')
_CALL: Final = re.compile(
    r"call-(start|done)\(.*_scheduling_group_id=\"(\d+)\",_xla_stream_annotation=\"(\d+)\""
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program: the lines of each of its computations, and the name of the first."""

    lines: Mapping[str, list[str]]
    entry: str


def read_program(text: str) -> Compiled:
    """A program as XLA prints it."""
    lines: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line)
        if head is not None:
            name = head[2]
            entry = name if head[1] else entry
            lines[name] = []
        elif name:
            lines[name].append(line)
    return Compiled(lines, entry)


def kernel_counts(program: Compiled) -> Counter[str]:
    """How many of the program's kernels are products, and how many there are in all."""
    counts = Counter[str]()
    todo = [program.entry]
    while todo:
        for line in program.lines[todo.pop()]:
            found = _INSTRUCTION.match(line)
            opcode = "" if found is None else found[1]
            if opcode in ("call", "call-start"):
                todo += re.findall(r"to_apply=%([\w.-]+)", line)
            elif opcode and opcode not in _NO_KERNELS:
                counts["kernels"] += 1
                # A product that no library is called for is a fusion that has one.
                own = program.lines.get(_called(line), [])
                is_dot = any(" dot(" in each or " convolution(" in each for each in own)
                counts["products"] += bool(_LIBRARY.search(line)) or is_dot
    return counts


def _called(line: str) -> str:
    found = re.search(r"calls=%([\w.-]+)", line)
    return "" if found is None else found[1]


def started_groups(program: Compiled) -> int:
    """Groups that are calls on streams. Raises `ClickException` for a stage whose groups share a
    stream, or of which one is waited for before all are started.
    """
    calls = [
        (int(call[2]), call[1], call[3])
        for line in program.lines[program.entry]
        if (call := _CALL.search(line)) is not None
    ]
    count = 0
    for stage, own in groupby(sorted(calls, key=lambda call: call[0]), key=lambda call: call[0]):
        each = list(own)
        started = [stream for _, what, stream in each if what == "start"]
        in_order = ["start"] * len(started) + ["done"] * len(started)
        if [what for _, what, _ in each] != in_order or len(set(started)) < len(started):
            raise click.ClickException(f"stage {stage}: groups are not at once")
        count += len(started)
    return count


def counted_kernels(jaxpr: Any) -> int:
    """The kernels of a step whose groups are calls, by what is fused and written
    (`automap.jaxpr.fused`).
    """
    flat = as_compiled(flatten(jaxpr, {}), (), ())
    fusions = Fusions(flat, frozenset())
    taken = {path for chain in fusions.taken_in.values() for path in chain}
    count = len(fusions.sources)
    for path in fusions.bit.keys() - taken:
        eqn = fusions.equations[path].eqn
        if "_xla_stream_annotation" in call_attributes(eqn.params):
            count += counted_kernels(eqn.params["jaxpr"])
        elif eqn.primitive.name != "optimization_barrier":
            # Weights as a step has them are not as cuDNN reads them.
            is_convolution = eqn.primitive.name == "conv_general_dilated"
            count += 1 + (is_convolution and eqn.invars[1] not in fusions.maker)
    return count


def row(name: str, target: Target, topology: str) -> list[str]:
    """A network on a GPU."""
    step, args = target
    devices = compiler_devices(machine_for("gpu", get_topology(topology)))

    reemitter = trace_step(step, args, platform="cuda").reemitter
    if reemitter is None:
        raise click.ClickException(f"{name}: no equations")

    def compiled(strategy: Any) -> tuple[Sequence[StreamStageRecord], Compiled, int]:
        plan = automap.plan(step, args, topology=topology, space="streams", strategy=strategy)
        text = plan.jit(step, devices=devices).lower(*args).compile().as_text()
        stages = plan.streams.stages if plan.streams is not None else ()
        sites = [
            StageSites(
                groups=tuple(tuple(op.at for op in group) for group in stage.groups),
                is_merged=stage.together == "merged",
            )
            for stage in stages
        ]
        run = staged(reemitter.flat, sites, on_streams=True)
        counted = counted_kernels(jax.make_jaxpr(run)(*jax.tree.leaves(args)))
        return stages, read_program(text or ""), counted

    _, alone, alone_counted = compiled("sequential")
    stages, in_stages, counted = compiled("auto")
    equations = str(jax.make_jaxpr(step)(*args))
    products = sum(equations.count(f"{each}[") for each in ("conv_general_dilated", "dot_general"))
    planned = products - sum(len(s.groups) - 1 for s in stages if s.together == "merged")
    counts = kernel_counts(in_stages)
    if counts["products"] > planned:
        raise click.ClickException(f"{name}: {counts['products']} products for {planned} planned")
    at_once = [s for s in stages if s.together == "concurrent" and len(s.groups) > 1]
    return [
        name,
        topology.removeprefix("1x"),
        str(products),
        str(planned),
        str(counts["products"]),
        str(sum(len(s.groups) for s in at_once)),
        str(started_groups(in_stages)),
        str(alone_counted),
        str(kernel_counts(alone)["kernels"]),
        str(counted),
        str(counts["kernels"]),
    ]


def _target(name: str) -> Target:
    if name in OTHERS:
        return OTHERS[name](1)
    return load_target(f"models.{NETWORKS[name].target}", {})


@click.command(help=__doc__)
@click.option("--topology", "topologies", multiple=True, default=["1xv100"], show_default=True)
@click.option(
    "--network", "names", multiple=True, type=click.Choice([*NETWORKS, *OTHERS]), help="some alone"
)
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(*, topologies: tuple[str, ...], names: tuple[str, ...], output: Path) -> None:
    """Write the table."""
    rows = []
    for name in names or (*NETWORKS, *OTHERS):
        for topology in topologies:
            click.echo(f"{name} for {topology}", err=True)
            rows.append(row(name, _target(name), topology))
            click.echo(" | ".join(rows[-1]), err=True)
    options = "".join(f" --topology {each}" for each in topologies)
    options += "".join(f' --network "{each}"' for each in names)
    where = f"{platform.machine()} with {os.cpu_count()} processors, jax {jax.__version__}; no GPU"
    replace_table(
        output,
        made_by(f"{COMMAND}{options} -o {output}", where) + markdown(HEADER, rows),
        "compiled",
    )


if __name__ == "__main__":
    main()
