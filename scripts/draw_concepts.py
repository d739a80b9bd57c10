"""The pictures of the docs, drawn from what the planner and the simulator say.

    python -m scripts.draw_concepts -o docs/pictures

planning.svg    from a step to a plan, with the numbers of GPT-124M on v5e:4x4
split.svg       a perceptron's matrices under data parallelism and under Megatron, by their plans
schedules.svg   the schedules on four equal stages with eight microbatches, by the simulator
allreduce.svg   seconds of an all-reduce over its bytes on three machines, by the cost model

`tests/scripts/test_draw_concepts.py` draws them again and compares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import jax
import jax.numpy as jnp

import automap
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.pipeline.schedules import schedule_named
from automap.plan.pipeline import PipelineRecord, ScheduleName
from automap.program.problem_build import build_problem
from automap.quantities import seconds_text
from automap.space.space import Space
from hlo_tools.read.proto import decode_module
from models.gpt import gpt_124m


INK, GREY, PAPER = "#1b1f24", "#6e7781", "#ffffff"
SHADES = ("#cfe3ff", "#ffe1b8", "#d3f0d0", "#f3d1e6")
TOPOLOGY: Final = "v5e:4x4"
STAGES, MICROBATCHES = 4, 8


def rectangle(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A box with a thin border."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} fill="{fill}" stroke="{INK}" stroke-width="1"/>'


def text(x: float, y: float, words: str, *, size: int = 13, ink: str = INK) -> str:
    """Words whose middle is at a place."""
    place = f'x="{x:g}" y="{y:g}" text-anchor="middle" dominant-baseline="middle"'
    return f'<text {place} font-size="{size}" fill="{ink}">{words}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float, *, is_mutual: bool = False) -> str:
    """A line with a head at its end, and one at its start too if what it joins is mutual."""
    heads = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if is_mutual else "")
    place = f'x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"'
    return f'<line {place} stroke="{INK}" stroke-width="1.5" {heads}/>'


def picture(width: int, height: int, title: str, shapes: Sequence[str]) -> str:
    """A whole SVG file, on paper of its own so that it can be read on a dark page."""
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif">',
            f"<title>{title}</title>",
            head,
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *shapes,
            "</svg>\n",
        )
    )


@dataclass(frozen=True, kw_only=True)
class Planning:
    """What is counted on the way from GPT-124M to its plan on `TOPOLOGY`."""

    operations: int
    dimensions: int
    groups: int
    decisions: int
    evaluations: int
    plan: automap.Plan


def count_planning() -> Planning:
    """Plan GPT-124M and count."""
    step, args = gpt_124m(batch=128)
    lowered: Any = step
    proto = lowered.lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()
    problem = build_problem(decode_module(proto))
    space = Space(problem)
    # A budget that no machine reaches: the search ends by itself, with equal counts everywhere.
    plan = automap.plan(step, args, topology=TOPOLOGY, budget=300)
    return Planning(
        operations=len(problem.graph.ops),
        dimensions=int(problem.linkage.node_offset[-1]),
        groups=problem.linkage.n_groups,
        decisions=len(space.candidates) + len(space.leaves),
        evaluations=plan.search.evaluations,
        plan=plan,
    )


def draw_planning(counted: Planning) -> str:
    """Boxes from left to right, with what is counted below each."""
    plan = counted.plan
    mesh = " x ".join(f"{name}={size}" for name, size in plan.mesh.axes)
    step = seconds_text(plan.predicted.step_seconds)
    boxes = (
        ("step", "GPT-124M", "batch 128"),
        ("graph", f"{counted.operations:,} operations", f"{counted.dimensions:,} dimensions"),
        ("groups", f"{counted.groups} linkage groups", f"{counted.decisions} decisions"),
        ("search", f"{counted.evaluations:,} evaluations", "presets and strategies"),
        ("plan", mesh, f"{step} a step"),
    )
    labels = ("trace, HLO", "rules, folding", "points", "the best that fits")
    width, gap, top, height = 150, 62, 60, 84
    shapes = []
    for index, (name, *lines) in enumerate(boxes):
        x = 20 + index * (width + gap)
        shapes.append(rectangle(x, top, width, height, SHADES[index % len(SHADES)]))
        shapes.append(text(x + width / 2, top + 20, name, size=16))
        shapes += [
            text(x + width / 2, top + 46 + 20 * row, line, size=12)
            for row, line in enumerate(lines)
        ]
        if index:
            shapes.append(arrow(x - gap + 2, top + height / 2, x - 3, top + height / 2))
            shapes.append(text(x - gap / 2, top - 14, labels[index - 1], size=11, ink=GREY))
    x, below = 20 + 3 * (width + gap), 218
    shapes.append(rectangle(x, below, width, 64, SHADES[2]))
    shapes.append(text(x + width / 2, below + 20, "evaluator", size=16))
    shapes.append(text(x + width / 2, below + 44, "seconds and bytes", size=12))
    shapes.append(arrow(x + width / 2, top + height + 3, x + width / 2, below - 3, is_mutual=True))
    machine = x - width - gap
    shapes.append(rectangle(machine, below, width, 64, SHADES[3]))
    shapes.append(text(machine + width / 2, below + 20, "machine", size=16))
    shapes.append(text(machine + width / 2, below + 44, TOPOLOGY, size=12))
    shapes.append(arrow(machine + width + 3, below + 32, x - 3, below + 32))
    last = x + width + gap
    shapes.append(rectangle(last, below, width, 64, SHADES[1]))
    shapes.append(text(last + width / 2, below + 20, "run, verify", size=16))
    shapes.append(text(last + width / 2, below + 44, "explain, simulate", size=12))
    shapes.append(arrow(last + width / 2, top + height + 3, last + width / 2, below - 3))
    return picture(20 + 5 * width + 4 * gap + 20, 302, "From a step to a plan", shapes)


def perceptron(rows: int, sizes: Sequence[int]) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """A train step of a perceptron whose layers have these sizes, and its arguments' shapes."""

    def step(kernels: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(kernels: list[jax.Array]) -> jax.Array:
            hidden = x
            for kernel in kernels[:-1]:
                hidden = jax.nn.relu(hidden @ kernel)
            return jnp.mean((hidden @ kernels[-1]) ** 2)

        return jax.tree.map(lambda w, g: w - 1e-3 * g, kernels, jax.grad(loss)(kernels))

    kernels = [jax.ShapeDtypeStruct(shape, "float32") for shape in pairwise(sizes)]
    return step, (kernels, jax.ShapeDtypeStruct((rows, sizes[0]), "float32"))


def draw_split() -> str:
    """The matrices of a perceptron on four devices, each part in its device's colour."""
    step, args = perceptron(1024, (512, 2048, 256))
    shapes = []
    for row, preset in enumerate(("data-parallel", "megatron")):
        # One axis for both, so that the pictures differ in the plan alone.
        plan = automap.plan(step, args, topology="v5e:2x2", mesh={"model": 4}, preset=preset)
        top = 34 + row * 176
        shapes.append(text(80, top + 50, preset, size=15))
        up, down, x = plan.inputs
        for column, (name, leaf) in enumerate((("x", x), ("up", up), ("down", down))):
            shapes += _matrix(170 + 230 * column, top, name, leaf.shape, leaf.spec)
        sums = [c for c in plan.predicted.collectives if c.kind == "all-reduce"]
        moved = ", ".join(f"{c.count} all-reduce in the {c.phase} pass" for c in sums)
        shapes.append(text(475, top + 140, moved, size=12, ink=GREY))
    return picture(810, 370, "Two ways to split a perceptron over four devices", shapes)


def _matrix(
    x: float, top: float, name: str, shape: tuple[int, ...], spec: Sequence[Any]
) -> list[str]:
    """A matrix, in as many parts as its sharding has; one that is whole is whole on all devices."""
    width, height = 150, 100
    # Four devices on one axis: a dimension is split in four or whole.
    rows, columns = (4 if axes else 1 for axes in spec)
    parts = [
        rectangle(
            x + column * width / columns,
            top + row * height / rows,
            width / columns,
            height / rows,
            SHADES[max(row, column)] if rows * columns > 1 else PAPER,
        )
        for row in range(rows)
        for column in range(columns)
    ]
    size = "[" + ", ".join(map(str, shape)) + "]"
    where = f"{name} {size}" + ("" if rows * columns > 1 else ", whole on each")
    return [*parts, text(x + width / 2, top + height + 14, where, size=12)]


def pipeline_events(schedule: ScheduleName) -> list[dict[str, Any]]:
    """The passes of four equal stages, as the simulator's trace has them."""
    step, args = perceptron(64, (64,) * (STAGES + 1))
    planned = automap.plan(
        step,
        args,
        topology=f"cpu:{STAGES}",
        space="pipeline",
        stages=STAGES,
        microbatches=MICROBATCHES,
    )
    record = planned.pipeline
    assert record is not None  # noqa: S101 - a pipeline was asked for
    # Equal stages with round numbers: a real profile would blur what the schedules do. Interleaved
    # ones are half as long and come twice on each device.
    order, each = schedule_named(schedule).order, schedule_named(schedule).stages_per_group
    weights_seconds = 1e-3 if order is not None and order.weights_apart else 0.0
    stages = tuple(
        replace(
            record.stages[0],
            devices=(number % STAGES,),
            cut_after=str(number) if number < STAGES * each - 1 else None,
            forward_seconds=1e-3 / each,
            backward_seconds=2e-3 / each - weights_seconds,
            weights_seconds=weights_seconds,
            reduce_seconds=1e-3 / each,
            transfer_seconds=5e-5 if number < STAGES * each - 1 else 0.0,
        )
        for number in range(STAGES * each)
    )
    equal = PipelineRecord(
        schedule=schedule,
        microbatches=MICROBATCHES,
        stages=stages,
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        automap.simulate(replace(planned, pipeline=equal)).save_trace(path)
        return json.loads(path.read_text())["traceEvents"]


def draw_schedules() -> str:
    """One row for each device, one box for each pass with its microbatch's number."""
    shapes = []
    left, height, points_per_microsecond = 96, 24, 0.0185
    for number, (schedule, title) in enumerate(_TITLES.items()):
        top = 40 + number * 160
        shapes.append(text(48, top - 18, title, size=15))
        for stage in range(STAGES):
            y = top + stage * (height + 4)
            shapes.append(text(48, y + height / 2, f"device {stage}", size=12))
        for event in pipeline_events(schedule):
            kind = event.get("cat")
            if kind not in _SHADE_OF_KIND:
                continue
            details = event["args"]
            device = details["stage"] % STAGES
            x, y = left + event["ts"] * points_per_microsecond, top + device * (height + 4)
            shapes.append(
                rectangle(x, y, event["dur"] * points_per_microsecond, height, _SHADE_OF_KIND[kind])
            )
            if kind != "all-reduce":
                middle = x + event["dur"] * points_per_microsecond / 2
                shapes.append(text(middle, y + height / 2, str(details["microbatch"]), size=11))
    kinds = "blue: forward, orange: backward, pink: weights, green: all-reduce and update"
    shapes.append(text(380, 670, kinds))
    return picture(760, 690, "The passes of a pipeline under four schedules", shapes)


_TITLES: Final[Mapping[ScheduleName, str]] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "zero-bubble": "Zero-bubble",
    "interleaved": "Interleaved 1F1B, two stages on each device",
}
_SHADE_OF_KIND: Final = {
    "forward": SHADES[0],
    "backward": SHADES[1],
    "all-reduce": SHADES[2],
    "weights": SHADES[3],
}


LINE_INKS: Final = {"8xh100": "#0550ae", "2x8xh100": "#953800", "v5e:4x4": "#1a7f37"}
"""Machines of the picture of all-reduces, with the ink of each."""
LEAST_EXPONENT, MOST_EXPONENT = 3, 9
LEAST_MICROSECONDS_EXPONENT, MOST_MICROSECONDS_EXPONENT = 0, 5
POINTS_PER_DECADE: Final = 8


def draw_allreduce() -> str:
    """Both axes are logarithmic: straight and flat is latency, straight and rising is bandwidth."""
    left, top, width, height = 90, 24, 520, 300
    shapes = [rectangle(left, top, width, height, PAPER)]

    def across(exponent: float) -> float:
        return left + width * (exponent - LEAST_EXPONENT) / (MOST_EXPONENT - LEAST_EXPONENT)

    def down(exponent: float) -> float:
        decades = MOST_MICROSECONDS_EXPONENT - LEAST_MICROSECONDS_EXPONENT
        return top + height * (1 - (exponent - LEAST_MICROSECONDS_EXPONENT) / decades)

    for exponent in range(LEAST_EXPONENT, MOST_EXPONENT + 1):
        label = f"{10 ** (exponent % 3)} {_THOUSANDS_OF_BYTES[exponent // 3]}"
        shapes.append(text(across(exponent), top + height + 16, label, size=11))
    for exponent in range(LEAST_MICROSECONDS_EXPONENT, MOST_MICROSECONDS_EXPONENT + 1):
        label = seconds_text(10.0**exponent / 1e6)
        shapes.append(text(left - 32, down(exponent), label, size=11))
    for number, (machine, ink) in enumerate(LINE_INKS.items()):
        topology = automap.get_topology(machine)
        cost = collective_cost(
            CollectiveKind.ALL_REDUCE, topology, (topology.device_count,), axes=(0,)
        )
        steps = range((MOST_EXPONENT - LEAST_EXPONENT) * POINTS_PER_DECADE + 1)
        exponents = [LEAST_EXPONENT + step / POINTS_PER_DECADE for step in steps]
        # One digit of a pixel, so that the file does not depend on a processor's last digits.
        points = " ".join(
            f"{across(e):.1f},{down(math.log10(float(cost.seconds(10.0**e)) * 1e6)):.1f}"
            for e in exponents
        )
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="2"/>')
        shapes.append(text(left + 70, top + 20 + 20 * number, machine, ink=ink))
    return picture(640, 360, "Seconds of an all-reduce over all devices of a machine", shapes)


_THOUSANDS_OF_BYTES: Final = ("B", "kB", "MB", "GB")


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
def main(output: Path) -> None:
    """Draw all pictures into a folder."""
    jax.config.update("jax_platforms", "cpu")
    (output / "planning.svg").write_text(draw_planning(count_planning()))
    (output / "split.svg").write_text(draw_split())
    (output / "schedules.svg").write_text(draw_schedules())
    (output / "allreduce.svg").write_text(draw_allreduce())


if __name__ == "__main__":
    main()
