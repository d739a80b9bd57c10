"""Operators of one device in stages, at once or merged: `--space streams`.

workload, topology, limits -> operators (`automap.streams.operators`) -> schedule
(`automap.streams.schedule`) -> the records of a plan. Memory and leaves are those of the program
that runs operators one after another, which `automap.planner.sharding` plans; stages keep no more
results at once than a schedule of its own kind, so the predicted peak is that program's.

On several devices sharding and stages are chosen together: of the best sharding and of the best
point of each preset, those that fit, the operators of one device are scheduled, and the least of

    seconds of the stages + seconds in which the device waits for collectives

is taken. A step of few rows has kernels that leave a device idle, and more so the more devices
share them, so that the best sharding may be another one with streams     -> in: `_scheduled`

With a profile that has stages of the device, these are priced as measured  -> in: `_as_measured`
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
import math
import time

from jax.extend import core

from automap.backends import backend_for
from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InputError
from automap.plan.program import ProgramRecord, TaskKind
from automap.plan.rates import LostRecord
from automap.plan.record import PlanRecord, SearchRecord
from automap.plan.streams import OperatorRecord, StreamsRecord, StreamStageRecord
from automap.planner.rates import rates_record
from automap.planner.records import Outcome, build_plan, sharded_graph
from automap.planner.sharding import find, fitting_plan
from automap.policy import default_policy
from automap.program.trace import Workload
from automap.search.context import Candidate
from automap.streams.arrays import PricedOperators, StagePrices, device_machine
from automap.streams.measured import find_measured
from automap.streams.operators import LocalSizes, Operator, step_operators
from automap.streams.schedule import Schedule, Stage, find_schedule
from automap.streams.stage_programs import StagePrograms
from automap.streams.strategies import Limits
from automap.topology.model import Topology


# Of the budget, for shardings on several devices.
_SHARDING_SHARE = 0.5


def plan_streams(
    workload: Workload, topology: Topology, options: Options, deadline: Deadline
) -> PlanRecord:
    """The best schedule found by the deadline.

    Raises `InfeasiblePlanError` if the step does not fit, and `TopologyError` for a device whose
    kernels do not run at once.
    """
    start = time.monotonic()
    # Before anything is searched: it may be refused.
    device_machine(topology)
    is_one = topology.device_count == 1
    alone = replace(
        options,
        space="sharding",
        strategy="greedy" if is_one else "auto",
        groups=None,
        group_size=None,
    )
    until = deadline if is_one else deadline.share(_SHARDING_SHARE)
    outcome = find(workload, topology, alone, deadline=until)
    fitting_plan(outcome, alone)
    limits = stage_limits(options)
    best = min(_scheduled(outcome, options, limits, deadline), key=lambda each: each.seconds)
    operators, schedule = best.priced.operators, best.schedule
    waiting = best.candidate.estimate.collective_seconds
    plan = build_plan(replace(outcome, best=best.candidate))
    bound_seconds = schedule.bound_seconds + waiting
    gap = best.seconds / bound_seconds - 1 if bound_seconds else None
    is_measured = bool(best.priced.measured.seconds)
    return replace(
        plan,
        # One device's program is not divided: nothing is to be said of it.
        constraints=() if is_one else plan.constraints,
        streams=_record(best.priced, schedule, limits),
        predicted=replace(
            plan.predicted,
            step_seconds=best.seconds,
            compute_seconds=schedule.seconds,
            # Operators that run at once share the device, so no second is of one of them.
            rates=rates_record(
                workload.problem,
                topology,
                best.seconds,
                LostRecord(collectives=waiting, bubbles=0.0),
            ),
        ),
        presets=(),
        decisions=(),
        conflicts=(),
        search=SearchRecord(
            strategy=options.strategy,
            seconds=time.monotonic() - start,
            evaluations=schedule.priced,
            seed=options.seed,
            # Of the stages, by the model; on several devices no bound of all shardings is known.
            gap=max(gap, 0.0) if gap is not None and is_one and not is_measured else None,
            memory_limit_bytes=plan.search.memory_limit_bytes,
        ),
        warnings=(*plan.warnings, *_warnings(schedule, options, deadline, is_one=is_one)),
        program=_program(operators, schedule, waiting),
    )


@dataclass(frozen=True)
class _Scheduled:
    """A sharding, and the best stages of one device's operators."""

    candidate: Candidate
    priced: PricedOperators
    schedule: Schedule

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.schedule.seconds + self.candidate.estimate.collective_seconds


def _scheduled(
    outcome: Outcome, options: Options, limits: Limits, deadline: Deadline
) -> Iterator[_Scheduled]:
    """The best sharding, and on several devices the best of each preset."""
    measured_stages = options.profile.stages if options.profile is not None else ()
    known = {each.signature: each.seconds for each in measured_stages}
    context, workload, topology = outcome.context, outcome.workload, outcome.topology
    candidates = {outcome.best.point: outcome.best}
    if topology.device_count > 1:
        for candidate in context.best_per_preset.values():
            if context.objective.fits(candidate.estimate):
                candidates.setdefault(candidate.point, candidate)
    for candidate in candidates.values():
        sharded = sharded_graph(replace(outcome, best=candidate))
        local = sharded if topology.device_count > 1 else None
        priced = priced_operators(workload, topology, local)
        # Stages were measured on one device, whose operators are whole.
        if local is None and known:
            schedule, measured = find_measured(
                priced, options.strategy, limits, deadline, _known_stages(workload, priced, known)
            )
            yield _Scheduled(candidate, replace(priced, measured=measured), schedule)
        else:
            schedule = find_schedule(priced, options.strategy, limits, deadline)
            yield _Scheduled(candidate, priced, schedule)


def _known_stages(
    workload: Workload, priced: PricedOperators, known: Mapping[str, float]
) -> Callable[[Stage], float | None]:
    """What a profile says of a stage."""
    programs = stage_programs(workload, priced)

    def ask(stage: Stage) -> float | None:
        signature = programs.signature(stage) if programs is not None else None
        return None if signature is None else known.get(signature)

    return ask


def stage_programs(workload: Workload, priced: PricedOperators) -> StagePrograms | None:
    """The stages of a step as programs; None for a program without equations."""
    if workload.reemitter is None:
        return None
    return StagePrograms(workload.reemitter.flat, priced.operators)


def priced_operators(
    workload: Workload, topology: Topology, local: LocalSizes | None = None
) -> PricedOperators:
    """The operators of a step, each priced alone; `local` says what of them one of several devices
    has.
    """
    operators = step_operators(
        workload.problem, backend_for(topology.platform), _operand_of_site(workload), local
    )
    if not operators:
        raise InputError("--space streams: the step has no operators; give one that computes")
    return PricedOperators(operators, topology)


def stage_limits(options: Options) -> Limits:
    """What stages keep to: what was asked for, else IOS's limits with `auto`, none otherwise."""
    policy = default_policy()
    is_auto = options.strategy == "auto"
    return Limits(
        groups=options.groups or (policy.stream_groups if is_auto else None),
        group_size=options.group_size or (policy.stream_group_size if is_auto else 1),
    )


def _operand_of_site(workload: Workload) -> Mapping[str, object]:
    """The first operand of each equation of the step itself."""
    equations = workload.reemitter.flat.equations if workload.reemitter else ()
    return {
        equation.path: equation.eqn.invars[0]
        for equation in equations
        if equation.eqn.invars and not isinstance(equation.eqn.invars[0], core.Literal)
    }


def _record(priced: PricedOperators, schedule: Schedule, limits: Limits) -> StreamsRecord:
    operators = priced.operators
    names, model = _names(operators), replace(priced, measured=StagePrices())
    alone = [priced.stage_seconds((number,))[0] for number in range(len(operators))]

    def model_seconds(stage: Stage) -> float | None:
        """What the model says of a stage that was measured."""
        column = 1 if stage.together == "merged" else 0
        both = priced.measured.seconds.get(stage.members)
        if both is None or math.isnan(both[column]):
            return None
        return model.stage_seconds(stage.members)[column]

    return StreamsRecord(
        most_groups=limits.groups,
        most_in_group=limits.group_size,
        sequential_seconds=schedule.sequential_seconds,
        greedy_seconds=schedule.greedy_seconds,
        stages=tuple(
            StreamStageRecord(
                together=stage.together,
                groups=tuple(
                    tuple(
                        OperatorRecord(at=names[n], label=operators[n].label, seconds=alone[n])
                        for n in group
                    )
                    for group in stage.groups
                ),
                seconds=stage.seconds,
                model_seconds=model_seconds(stage),
            )
            for stage in schedule.stages
        ),
    )


def _names(operators: tuple[Operator, ...]) -> list[str]:
    """The sites; one equation may be several operators, of which the later ones are numbered."""
    seen: dict[str, int] = {}
    names = []
    for operator in operators:
        count = seen[operator.site] = seen.get(operator.site, 0) + 1
        names.append(operator.site if count == 1 else f"{operator.site}/{count}")
    return names


def _warnings(
    schedule: Schedule, options: Options, deadline: Deadline, *, is_one: bool
) -> list[str]:
    warnings = []
    if not is_one:
        warnings.append(
            "stages on several devices are predicted only: `plan.jit` runs the sharding, and XLA "
            "orders its kernels"
        )
    if deadline.is_over:
        warnings.append(f"{deadline.why_over}; blocks after that run as the better simple schedule")
    if schedule.cut:
        sizes = ", ".join(map(str, schedule.cut))
        warnings.append(
            f"blocks of {sizes} operators are too wide for {options.strategy} and were cut: a "
            "schedule across the cuts may be faster, by no more than the gap to the bound"
        )
    if any(stage.together == "merged" for stage in schedule.stages):
        warnings.append(
            "merged operators are priced with their weights beside each other in memory, but for "
            "stages that were measured; `plan.jit` puts them there in each call, as they are "
            "arguments, which may be others each time"
        )
    return warnings


def _program(
    operators: tuple[Operator, ...], schedule: Schedule, waiting_seconds: float
) -> ProgramRecord:
    """What the device does: one stage after another, and on several what it waits for in all."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def label(stage: Stage) -> str:
        joint = " + " if stage.together == "merged" else " | "
        return joint.join(" > ".join(operators[n].label for n in g) for g in stage.groups)

    stages = schedule.stages
    ops = [number(f"{stage.together} stage") for stage in stages]
    names = [number(label(stage)) for stage in stages]
    seconds = [stage.seconds for stage in stages]
    kinds: list[TaskKind] = ["kernel"] * len(stages)
    empty, phase = number(""), number("forward")
    if waiting_seconds:
        ops.append(number("all collectives"))
        names.append(empty)
        seconds.append(waiting_seconds)
        kinds.append("collective")
    count = len(ops)
    return ProgramRecord(
        op=tuple(ops),
        op_name=tuple(names),
        tensor=(empty,) * count,
        source=(empty,) * count,
        phase=(phase,) * count,
        axes=(empty,) * count,
        texts=tuple(texts),
        kind=tuple(kinds),
        within=(-1,) * count,
        after=((), *((index,) for index in range(count - 1))),
        seconds=tuple(seconds),
        trips=(1,) * count,
        slot=tuple(range(count)),
        bytes=(0.0,) * count,
    )
