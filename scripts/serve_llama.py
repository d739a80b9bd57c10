"""Serving steps of Llama 3 8B on H100s: prefill and decode for one and for many requests, with
sharding and streams chosen together.

    python -m scripts.serve_llama -o docs/reports/serving.md

Nothing is measured: seconds are those of the cost models. Without streams means the same sharding
with one operator after another.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import platform

import click

import automap
from automap.program import load_target
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.serve_llama"
TOPOLOGIES = ("1xh100", "8xh100")
BUDGET_SECONDS = 20.0
# What is served -> its target, its arguments, tokens that a request gets of a step.
STEPS = {
    "decode, 1 request": ("llama_8b_decode", {"requests": "1"}, 1),
    "decode, 64 requests": ("llama_8b_decode", {"requests": "64", "context": "2048"}, 64),
    "prefill, 1 request of 2048": ("llama_8b_prefill", {"requests": "1"}, 2048),
    "prefill, 8 requests of 2048": ("llama_8b_prefill", {"requests": "8"}, 8 * 2048),
}
HEADER = [
    "step",
    "topology",
    "mesh",
    "GiB of a device",
    "one after another ms",
    "latency ms",
    "of it collectives ms",
    "tokens a second",
    "stages",
]


def rows() -> Iterator[list[str]]:
    """A row for each step and topology."""
    for name, (target, arguments, tokens) in STEPS.items():
        step, args = load_target(f"models.llama_serving:{target}", arguments)
        for topology in TOPOLOGIES:
            click.echo(f"{name} on {topology}", err=True)
            plan = automap.plan(
                step, args, topology=topology, space="streams", budget=BUDGET_SECONDS
            )
            predicted, streams = plan.predicted, plan.streams
            if streams is None:
                raise click.ClickException("a plan of streams without stages")
            waiting = predicted.collective_seconds
            yield [
                name,
                topology,
                ", ".join(f"{axis}={size}" for axis, size in plan.mesh.axes),
                f"{predicted.peak_bytes / 2**30:.1f}",
                f"{(streams.sequential_seconds + waiting) * 1e3:.2f}",
                f"{predicted.step_seconds * 1e3:.2f}",
                f"{waiting * 1e3:.2f}",
                f"{tokens / predicted.step_seconds:,.0f}",
                str(len(streams.stages)),
            ]


@click.command(help=__doc__)
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(*, output: Path) -> None:
    """Write the table."""
    where = f"{platform.machine()} with {os.cpu_count()} processors; no GPU, all seconds simulated"
    above = made_by(f"{COMMAND} -o {output}", where)
    replace_table(output, above + markdown(HEADER, list(rows())))


if __name__ == "__main__":
    main()
