"""Plans of steps that were compiled once, as data, and a refinement that is told what was compiled.

    python -m scripts.compiled_plans models.bert:bert_48@8xh100 ...     (extra `gpu-compiler`)

searches each step, compiles some of its candidates, and adds what the compiler says to
`scripts/data/compiled_plans.jsonl`. Candidates are the `_BEST` best predicted plans, the best on
each other mesh, and presets, `_POOL` in all, none predicted to take `_NEAR` times as long as the
best                                                                     -> in: `pool`, `recorded`

Rules of what to compile next are judged on them without a compiler: the step is traced, its plans
are priced, and after each choice the rule is told what was compiled            -> in: `Replay`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import json
import math
from pathlib import Path
from typing import Final

import click
import jax

from automap.config import Options
from automap.cost.profile import KernelPrices
from automap.errors import AutomapError
from automap.plan import codec
from automap.plan.point import PointRecord
from automap.plan.refined import CompiledPlanRecord
from automap.planner.records import Outcome
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.refine.attribution import (
    CompiledSeconds,
    LearnedPrices,
    compiled_seconds,
    learned_prices,
    mean_prices,
)
from automap.refine.candidates import Candidates
from automap.refine.trials import Trial
from automap.search.context import Candidate, SearchContext
from automap.space.point_record import restore_point
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.confirm import Confirmation, compile_candidate
from scripts.compare_presets import MODELS


RECORDED: Final = Path(__file__).parent / "data" / "compiled_plans.jsonl"
_BEST, _POOL, _NEAR = 8, 14, 2.0
_TIMEOUT_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlan:
    """A plan of a step and what the compiler says of it; seconds and bytes are None where it says
    nothing. `by_site` are the compiled seconds of contractions, by the sites of their equations.
    """

    origin: str
    axes: tuple[tuple[str, int], ...]
    point: PointRecord
    compiled_seconds: float | None
    compiled_bytes: int | None
    fits: bool
    kernel_seconds: float
    by_site: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step on a machine with the plans of it that were compiled; the first is the search's."""

    target: str
    topology: str
    plans: tuple[CompiledPlan, ...]


def pool(outcome: Outcome) -> list[Candidate]:
    """The candidates of a search that are compiled, the best predicted first."""
    context = outcome.context
    key = context.objective.key
    unique: dict[tuple[float, ...], Candidate] = {}
    built = Candidates.build(context, [], [outcome.best.point]).candidates
    # Of equal plans the preset.
    for candidate in sorted(built, key=lambda c: (key(c.estimate), c.origin == "search")):
        unique.setdefault(key(candidate.estimate), candidate)
    least = min(c.estimate.step_seconds for c in unique.values())
    near = [c for c in unique.values() if c.estimate.step_seconds <= _NEAR * least]
    by_mesh: dict[Mesh, Candidate] = {}
    for candidate in near:
        by_mesh.setdefault(candidate.point.mesh, candidate)
    presets = [c for c in near if c.origin in context.presets]
    chosen = dict.fromkeys([*near[:_BEST], *by_mesh.values(), *presets, *near])
    return list(chosen)[:_POOL]


def recorded(target: str, topology_name: str) -> Step:
    """A step whose pool is compiled now; what fails to compile is left out.

    Raises `AutomapError` for a step that cannot be planned.
    """
    topology = get_topology(topology_name)
    step, args = load_target(target, MODELS.get(target, {}))
    call = traced_call(step, tuple(args))
    outcome = find(trace_step(step, args, platform=topology.platform), topology, Options())
    confirmation = Confirmation(timeout_seconds=_TIMEOUT_SECONDS)
    plans: list[CompiledPlan] = []
    for candidate in pool(outcome):
        try:
            plan, compiled = compile_candidate(outcome, candidate, call, confirmation)
        except AutomapError as error:
            click.echo(f"{candidate.origin}: {error}", err=True)
            continue
        witness, point = compiled.witness, plan.search.point
        if compiled.program is None or point is None:
            continue
        seconds = compiled_seconds(compiled.program, topology)
        plans.append(
            CompiledPlan(
                origin=candidate.origin,
                axes=candidate.point.mesh.axes,
                point=point,
                compiled_seconds=None if witness.step is None else witness.step.seconds,
                compiled_bytes=witness.peak_bytes,
                fits=witness.fits,
                kernel_seconds=seconds.total,
                by_site=dict(seconds.by_site),
            )
        )
    return Step(target=target, topology=topology_name, plans=tuple(plans))


@dataclass
class Replay:
    """A refinement that is told what was compiled once. `indices` are the plans that were asked
    about, in order; `context` has the prices that were learnt from them.
    """

    step: Step
    context: SearchContext
    candidates: Sequence[Candidate]
    trials: list[Trial]
    learned: list[LearnedPrices]
    indices: list[int]
    first_context: SearchContext

    @classmethod
    def begin(cls, step: Step) -> "Replay":
        """Nothing is compiled. Raises `AutomapError` for plans that are none of the step's any
        more, which are to be recorded anew.
        """
        topology = get_topology(step.topology)
        function, args = load_target(step.target, MODELS.get(step.target, {}))
        workload = trace_step(function, args, platform=topology.platform)
        # For its space and its evaluator; it finds nothing in so short a time that is used.
        context = find(workload, topology, Options(budget_seconds=1e-3)).context
        candidates = []
        for plan in step.plans:
            names, sizes = zip(*plan.axes, strict=True) if plan.axes else ((), ())
            point = restore_point(plan.point, context.space, Mesh(names, sizes))
            estimate = context.estimate(point)
            assert estimate is not None  # noqa: S101 - it was priced when it was recorded
            candidates.append(Candidate(point, estimate, plan.origin))
        return cls(step, context, candidates, [], [], [], context)

    def told(self, index: int) -> None:
        """Hear what the compiler says of a plan, and learn from it."""
        plan, candidate = self.step.plans[index], self.candidates[index]
        record = CompiledPlanRecord(
            plan=plan.origin,
            predicted_seconds=candidate.estimate.step_seconds,
            predicted_bytes=round(candidate.estimate.peak_bytes),
            expected_seconds=candidate.estimate.step_seconds,
            compiled_seconds=plan.compiled_seconds,
            compiled_bytes=plan.compiled_bytes,
            fits=plan.fits,
            compile_seconds=0.0,
            note="",
        )
        self.trials.append(Trial(point=candidate.point, record=record, plan=None, program=None))
        self.indices.append(index)
        spent = CompiledSeconds(total=plan.kernel_seconds, by_site=plan.by_site)
        context = self.first_context
        split_classes = context.space.split_classes(candidate.point)
        self.learned.append(learned_prices(spent, context.evaluator, split_classes))
        prices = mean_prices(KernelPrices(), self.learned)
        self.context = replace(
            context,
            evaluator=replace(context.evaluator, prices=prices),
            _seen={},
            _priced={},
        )

    def priced(self) -> Candidates:
        """The pool, by the prices that were learnt."""
        estimates = [self.context.estimate(c.point) for c in self.candidates]
        pairs = zip(self.candidates, estimates, strict=True)
        pool = tuple(replace(c, estimate=e) for c, e in pairs if e is not None)
        return Candidates(self.context, pool, tuple(self.trials))

    def by_prediction(self, chosen: Sequence[int]) -> list[int]:
        """Plans, the best predicted first, by prices as they were before."""
        key = self.first_context.objective.key
        return sorted(chosen, key=lambda i: key(self.candidates[i].estimate))

    @property
    def presets(self) -> list[int]:
        """The plans of the pool that are presets."""
        names = self.context.presets
        return [i for i, c in enumerate(self.candidates) if c.origin in names]


def step_seconds(plan: CompiledPlan) -> float:
    """What a plan is worth: inf if the compiler refuses it."""
    return plan.compiled_seconds if plan.fits and plan.compiled_seconds else math.inf


def steps(path: Path) -> list[Step]:
    """The steps of a file of recorded plans."""
    return [codec.decode(Step, json.loads(line), "") for line in path.read_text().splitlines()]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1, metavar="TARGET@TOPOLOGY...")
@click.option("--data", type=click.Path(path_type=Path, dir_okay=False), default=RECORDED)
def main(names: tuple[str, ...], data: Path) -> None:
    """Compile plans of steps, and add them to the file."""
    jax.config.update("jax_platforms", "cpu")
    for name in names:
        target, _, topology = name.partition("@")
        try:
            step = recorded(target, topology)
        except AutomapError as error:
            raise click.ClickException(f"{name}: {error}") from error
        with data.open("a") as file:
            file.write(json.dumps(codec.encode(step), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
