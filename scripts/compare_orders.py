"""What the order of a plan's devices is worth, by the compiler's own schedule.

    python -m scripts.compare_orders -o docs/reports/schedules.md

Needs the extra `tpu`. Each plan is compiled ahead of time, and its schedule is replayed twice
(`automap.verify.replayed`): with the devices in the plan's order and in that of their numbers. The
compiled program is the same for both orders, which decide on whose links its permutes go. What the
compiler said is kept: a second run takes seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import jax
from rich.progress import track

from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS
from automap.config import Options
from automap.errors import AutomapError, CompilerError
from automap.plan.record import PlanRecord
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.cache import default_folder
from automap.verify.compiling import compile_planned
from automap.verify.program import planned_program
from automap.verify.replayed import replayed_step
from hlo_tools.compiled.replay import ReplayedStep
from scripts.halves import is_held_out
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_orders{flags} -o {output}"
AXES = ("data", "model")
_SCANNED, _HALF = {"layers": "scanned"}, {"dtype": "bfloat16"}


@dataclass(frozen=True)
class Case:
    """A preset of a model on a slice, on a mesh of these sizes."""

    target: str
    topology: str
    preset: str
    sizes: tuple[int, ...]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model with its options."""
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.target.partition(':')[2]} ({options})"


_GPT = {"batch": "32", **_SCANNED, **_HALF}
CASES = (
    # Twelve layers of encoder and twelve of decoder.
    Case("models.t5:t5_base", "v5e:2x4", "zero-3", (8,), {"batch": "32", **_SCANNED}),
    Case("models.gpt:gpt_124m", "v5e:2x4", "zero-3", (8,), _GPT),
    Case("models.gpt:gpt_124m", "v5p:2x2x4", "zero-3", (16,), _GPT),
    Case("models.mlp:mlp", "v5e:2x4", "zero-3", (8,), {"batch": "4096"}),
    Case("models.mlp:mlp", "v5p:2x2x2", "zero-3", (8,), {"batch": "4096"}),
    Case("models.bert:bert_48", "v5e:2x4", "zero-3", (8,), {"batch": "8", **_SCANNED}),
)


@dataclass(frozen=True)
class Result:
    """The predicted step of a case, and its replayed schedule in the plan's order and in the order
    of the devices' numbers.
    """

    case: Case
    predicted_seconds: float
    ordered: ReplayedStep
    numbered: ReplayedStep


def results(cases: tuple[Case, ...]) -> Iterator[Result]:
    """All cases that the compiler compiles."""
    for case in track(cases, "compiling"):
        step, args = load_target(case.target, case.options)
        topology = get_topology(case.topology)
        mesh = Mesh(AXES[: len(case.sizes)], case.sizes)
        workload = trace_step(step, args, platform=topology.platform)
        plan = build_plan(find(workload, topology, Options(mesh=mesh, preset=case.preset)))
        try:
            program = _compiled(plan, traced_call(step, tuple(args)))
        except CompilerError as error:
            click.echo(f"{case.name} {case.preset} {case.topology}: {error}", err=True)
            continue
        ordered, numbered = (
            replayed_step(program, topology, mesh, order) for order in (plan.mesh.devices, None)
        )
        yield Result(case, plan.predicted.step_seconds, ordered, numbered)


def _compiled(plan: PlanRecord, call: TracedCall) -> bytes:
    compiled = compile_planned(
        planned_program(plan, call),
        "tpu",
        timeout_seconds=DEFAULT_COMPILE_TIMEOUT_SECONDS,
        cache_folder=default_folder(),
    )
    if compiled.program is None:
        raise CompilerError("the TPU compiler made no program")
    return compiled.program


def report(compared: list[Result]) -> str:
    """The table of seconds."""
    header = ["model", "half", "slice", "plan", "predicted ms", "by number ms", "in order ms"]
    rows = [
        [
            r.case.name,
            "judged" if is_held_out(r.case.target) else "fitted",
            r.case.topology,
            f"{r.case.preset} {'x'.join(map(str, r.case.sizes))}",
            *(
                f"{seconds * 1e3:.2f}"
                for seconds in (r.predicted_seconds, r.numbered.seconds, r.ordered.seconds)
            ),
            f"{r.ordered.seconds / r.numbered.seconds:.3f}",
        ]
        for r in compared
    ]
    return markdown([*header, "ratio"], rows)


def _is_chosen(case: Case, only: tuple[str, ...], topology: str) -> bool:
    is_named = not only or any(part in case.target for part in only)
    return is_named and topology in case.topology


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--only", multiple=True, help="cases whose target contains this, or another of them")
@click.option("--topology", default="", help="cases on this slice")
def main(output: Path | None, only: tuple[str, ...], topology: str) -> None:
    """Run the comparison."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    chosen = tuple(c for c in CASES if _is_chosen(c, only, topology))
    try:
        table = report(list(results(chosen)))
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    if output is None:
        click.echo(table)
        return
    given = [*(("only", part) for part in only), *([("topology", topology)] if topology else [])]
    flags = "".join(f" --{name} {value}" for name, value in given)
    machine = f"jax {jax.__version__}, compiled ahead of time on a CPU host"
    command = COMMAND.format(flags=flags, output=output)
    replace_table(output, made_by(command, machine) + table, "orders")


if __name__ == "__main__":
    main()
