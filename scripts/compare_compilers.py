"""Predictions beside XLA's compilers for TPU and GPU, for the zoo, without the hardware.

    python -m scripts.compare_compilers --table memory --platform cuda -o docs/reports/memory.md
    python -m scripts.compare_compilers --table schedules --platform tpu \\
        -o docs/reports/schedules.md

Each platform has a table of its own. Needs the extra `tpu` or `gpu-compiler`. Every case is
planned, exported and compiled ahead of time; what the compilers said is kept (`automap.verify`),
so a second run with another cost model takes seconds.

memory      the peak that a plan predicts beside the bytes the compiler needs; what is quoted first
            is of the models that nothing is fitted on (`scripts.halves`)
schedules   the predicted step beside the compiler's schedule, replayed with its own estimates of
            kernels (`automap.verify.replayed`); how well both order the plans of a model, presets
            and what the search finds on two meshes, is Kendall's tau. What the text quotes, and
            what it says by kind of kernel (`scripts.kernel_kinds`), is of the models that nothing
            is fitted on (`scripts.halves`)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
import statistics

import click
import jax
from rich.progress import track
from scipy.stats import kendalltau

from automap.config import Options
from automap.cost.evaluate import Estimate
from automap.errors import AutomapError, CompilerError, InputError
from automap.planner.records import Outcome
from automap.planner.sharding import find
from automap.program import Workload, load_target, trace_step
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.verify.witness import Witness
from scripts.halves import is_held_out
from scripts.kernel_kinds import kinds_table, predicted_seconds, replayed_seconds
from scripts.tables import made_by, markdown, replace_table
from scripts.witnesses import compile_witness


COMMAND = (
    "python -m scripts.compare_compilers --table {table} --platform {platform}{half} -o {output}"
)
GIB = 2**30
AXES = ("replica", "data", "model")
# Instead of a preset's name: what the search finds on the mesh.
SEARCHED = "search"


@dataclass(frozen=True)
class Model:
    """A model of the zoo, the options of its function, and the machines it is compiled for."""

    target: str
    options: dict[str, str] = field(default_factory=dict)
    tpu: str = "v5e:2x4"
    gpu: str = "8xh100"


_SCANNED, _HALF = {"layers": "scanned"}, {"dtype": "bfloat16"}
MODELS = (
    Model("models.gpt:gpt_124m", {"batch": "32", **_SCANNED, **_HALF}),
    Model("models.t5:t5_base", {"batch": "32", **_SCANNED}),
    Model("models.bert:bert_48", {"batch": "8", **_SCANNED}),
    Model("models.vit:vit_b16", {"batch": "256", **_SCANNED}),
    Model("models.mlp:mlp", {"batch": "4096"}),
    Model("models.alexnet:alexnet", {"batch": "1024"}),
    Model("models.nmt:nmt", {"batch": "256", "steps": "scanned"}),
    Model("models.rnnlm:rnnlm", {"batch": "256", "steps": "scanned"}),
    Model("models.rnntc:rnntc", {"batch": "256", "steps": "scanned"}),
    Model("models.moe:moe_8x", {"batch": "8", **_SCANNED, **_HALF}),
    Model("models.llama:llama_1b", {"batch": "8", "seq": "1024", **_SCANNED, **_HALF}),
    Model("models.gpt:gpt_124m", {"batch": "32"}),
    Model("models.gpt:gpt_124m", {"batch": "64", "remat": "layer", **_SCANNED, **_HALF}),
    Model(
        "models.llama:llama_1b",
        {"batch": "16", "seq": "2048", **_SCANNED, **_HALF},
        tpu="v5p:2x2x2",
    ),
    Model("models.vgg:vgg_19", {"batch": "256"}),
    Model("models.resnet:resnet_50", {"batch": "256"}),
)
PLANS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("data-parallel", (8,)),
    ("zero-3", (8,)),
    ("megatron", (2, 4)),
    ("zero-1", (8,)),
    ("sequence-parallel", (2, 4)),
    ("megatron", (4, 2)),
    ("megatron", (8,)),
    ("one-weird-trick", (8,)),
)
SEARCHES = ((SEARCHED, (8,)), (SEARCHED, (2, 4)))


@dataclass(frozen=True)
class Table:
    """Which cases a table has: for each platform the first so many models, and plans of each."""

    models: dict[str, int]
    plans: tuple[tuple[str, tuple[int, ...]], ...]


# The last models take the TPU compiler minutes for each plan.
TABLES = {
    "memory": Table({"tpu": 15, "cuda": len(MODELS)}, PLANS[:3]),
    "schedules": Table({"tpu": 11, "cuda": 11}, PLANS + SEARCHES),
}


@dataclass(frozen=True)
class Case:
    """One plan of one model on one machine."""

    model: Model
    platform: str
    preset: str
    sizes: tuple[int, ...]

    @property
    def topology(self) -> Topology:
        """The machine."""
        return get_topology(self.model.tpu if self.platform == "tpu" else self.model.gpu)

    @property
    def name(self) -> str:
        """The model with its options."""
        options = ", ".join(f"{k}={v}" for k, v in self.model.options.items())
        return f"{self.model.target.partition(':')[2]} ({options})"


@dataclass(frozen=True)
class Result:
    """A prediction and a witness."""

    case: Case
    outcome: Outcome
    witness: Witness

    @property
    def predicted_bytes(self) -> float:
        """The predicted peak."""
        return self.outcome.best.estimate.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the plan is predicted to fit."""
        return self.predicted_bytes <= self.case.topology.device.memory_bytes


def results(table: Table, only: str, half: str) -> Iterator[Result]:
    """All cases of a table whose model's name contains `only`, of the `half` that is asked for."""
    chosen = {
        platform: [
            m
            for m in MODELS[:count]
            if only in m.target and (half == "both" or is_held_out(m.target))
        ]
        for platform, count in table.models.items()
    }
    total = sum(map(len, chosen.values())) * len(table.plans)
    seen: set[tuple[str, str, Estimate]] = set()
    for case, workload, call in track(_cases(chosen, table), "compiling", total=total):
        try:
            outcome = _outcome(case, workload)
            # Equal in every respect: the search found a preset, or two meshes are one plan.
            key = case.name, case.platform, outcome.best.estimate
            if key not in seen:
                seen.add(key)
                yield _result(case, outcome, call)
        except InputError:
            continue  # the preset does not suit the model
        except CompilerError as error:
            click.echo(f"{case.name} {case.preset} {case.platform}: {error}", err=True)


def _cases(
    chosen: dict[str, list[Model]], table: Table
) -> Iterator[tuple[Case, Workload, TracedCall]]:
    for platform, models in chosen.items():
        for model in models:
            step, args = load_target(model.target, model.options)
            call = traced_call(step, tuple(args))
            workload = trace_step(step, args, platform=platform)
            for preset, sizes in table.plans:
                yield Case(model, platform, preset, sizes), workload, call


def _outcome(case: Case, workload: Workload) -> Outcome:
    mesh = Mesh(AXES[-len(case.sizes) :], case.sizes)
    preset = None if case.preset == SEARCHED else case.preset
    return find(workload, case.topology, Options(mesh=mesh, preset=preset))


def _result(case: Case, outcome: Outcome, call: TracedCall) -> Result:
    return Result(case, outcome, compile_witness(outcome, call))


def memory_report(compiled: list[Result]) -> str:
    """The table of bytes."""
    header = ["model", "plan", "machine", "GiB predicted", "GiB compiled", "ratio"]
    rows, text = [], ""
    for platform, group in groupby(compiled, key=lambda r: r.case.platform):
        of_platform = list(group)
        judged = [r for r in of_platform if is_held_out(r.case.model.target)]
        halves = [(f"{platform}, of the half that nothing is fitted on", judged)]
        if len(judged) < len(of_platform):
            halves.append(("All", of_platform))
        text += "".join(f"{half}: {_bytes_summary(rs)}\n\n" for half, rs in halves if rs)
    for r in compiled:
        # The compiler says no bytes of what it refuses.
        is_known = r.witness.memory is not None and r.witness.peak_bytes
        peak = f"{r.witness.peak_bytes / GIB:.2f}" if is_known else "refused"
        ratio = f"{r.predicted_bytes / r.witness.peak_bytes:.2f}" if is_known else ""
        case, predicted = r.case, f"{r.predicted_bytes / GIB:.2f}"
        rows.append([case.name, _plan_name(case), case.topology.name, predicted, peak, ratio])
    return text + markdown(header, rows)


def _bytes_summary(compiled: list[Result]) -> str:
    # Of what the compiler has refused no bytes are known.
    errors = [
        abs(r.predicted_bytes / r.witness.peak_bytes - 1)
        for r in compiled
        if r.witness.memory is not None and r.witness.peak_bytes
    ]
    return (
        f"{len(errors)} programs of {len({r.case.name for r in compiled})} models; median error "
        f"{statistics.median(errors):.1%}, {sum(e <= 0.1 for e in errors)} within 10 %, largest "
        f"{max(errors):.1%}. {_verdicts(compiled)}"
    )


def _verdicts(compiled: list[Result]) -> str:
    wrong = [r for r in compiled if r.fits and not r.witness.fits]
    # Only if there was a quarter to spare: near the limit both may be right.
    spare = [
        r
        for r in compiled
        if not r.fits
        and r.witness.fits
        and (r.witness.peak_bytes or 0) <= 0.75 * r.case.topology.device.memory_bytes
    ]
    return (
        f"Called fitting but refused: {len(wrong)}; refused but fitting with 25 % to spare: "
        f"{len(spare)}."
    )


def schedules_report(compiled: list[Result]) -> str:
    """How steps agree on each machine, tau of each model, and the table of seconds."""
    replayed = [r for r in compiled if r.witness.step is not None]
    summary, kinds, taus, rows = "", "", [], []
    for platform, group in groupby(replayed, key=lambda r: r.case.platform):
        judged: list[Result] = []
        values: list[float] = []
        for name, of_model in groupby(group, key=lambda r: r.case.name):
            plans = list(of_model)
            half = "judged" if is_held_out(plans[0].case.model.target) else "fitted"
            rows += [_seconds_row(r) for r in plans]
            if half == "judged":
                judged += plans
            if len(plans) > 2:
                tau = float(kendalltau(*zip(*map(_step_seconds, plans), strict=True)).statistic)
                taus.append([name, platform, half, str(len(plans)), f"{tau:.2f}"])
                values += [tau] if half == "judged" else []
        errors = [abs(predicted / step - 1) for predicted, step in map(_step_seconds, judged)]
        if errors:
            summary += (
                f"{platform}, of the half that nothing is fitted on: {len(errors)} plans; the "
                f"predicted step is off by {statistics.median(errors):.1%} in the median and "
                f"{max(errors):.1%} at worst; Kendall's tau is at least 0.9 for "
                f"{sum(v >= 0.9 for v in values)} and at least 0.85 for "
                f"{sum(v >= 0.85 for v in values)} of {len(values)} models.\n\n"
            )
            kinds += f"Of a step of these plans in the mean:\n\n{_kinds(judged)}\n"
    header = ["model", "plan", "machine", "kernels predicted ms", "replayed ms"]
    return (
        summary
        + markdown(["model", "machine", "half", "plans", "tau"], taus)
        + f"\n{kinds}"
        + markdown([*header, "step predicted ms", "replayed ms"], rows)
    )


def _kinds(judged: list[Result]) -> str:
    """The table of kinds of kernels, of plans whose programs are at hand."""
    sides = [
        (predicted_seconds(r.outcome), replayed)
        for r in judged
        if (replayed := replayed_seconds(r.outcome, r.witness)) is not None
    ]
    return kinds_table(sides) if sides else ""


def _step_seconds(result: Result) -> tuple[float, float]:
    """Predicted and replayed."""
    assert result.witness.step is not None  # noqa: S101 - the caller has looked
    return result.outcome.best.estimate.step_seconds, result.witness.step.seconds


def _seconds_row(result: Result) -> list[str]:
    estimate, step = result.outcome.best.estimate, result.witness.step
    assert step is not None  # noqa: S101 - the caller has looked
    seconds = (
        estimate.compute_seconds,
        step.kernel_seconds,
        estimate.step_seconds,
        step.seconds,
    )
    case = result.case
    return [case.name, _plan_name(case), case.topology.name, *(f"{s * 1e3:.2f}" for s in seconds)]


def _plan_name(case: Case) -> str:
    return f"{case.preset} {'x'.join(map(str, case.sizes))}"


REPORTS = {"memory": memory_report, "schedules": schedules_report}


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--table", type=click.Choice(list(TABLES)), required=True)
@click.option("--platform", type=click.Choice(["tpu", "cuda"]), required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--only", default="", help="models whose target contains this")
@click.option("--half", type=click.Choice(["both", "judged"]), default="both")
def main(table: str, platform: str, output: Path | None, only: str, half: str) -> None:
    """Run the comparison."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    whole = TABLES[table]
    try:
        of_platform = replace(whole, models={platform: whole.models[platform]})
        compiled = list(results(of_platform, only, half))
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    report = REPORTS[table](compiled)
    if output is None:
        click.echo(report)
        return
    machine = f"jax {jax.__version__}, compiled ahead of time on a CPU host"
    of_half = "" if half == "both" else f" --half {half}"
    command = COMMAND.format(table=table, platform=platform, half=of_half, output=output)
    replace_table(output, made_by(command, machine) + report, platform)


if __name__ == "__main__":
    main()
