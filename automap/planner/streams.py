"""Operators of one device in stages, at once or merged: `--space streams`.

workload, topology, limits -> operators (`automap.streams.operators`) -> schedule
(`automap.streams.schedule`) -> the records of a plan. Memory and leaves are those of the program
that runs operators one after another, which `automap.planner.sharding` plans; stages keep no more
results at once than a schedule of its own kind, so the predicted peak is that program's.
"""

from collections.abc import Mapping
from dataclasses import replace
import time

from jax.extend import core

from automap.backends import backend_for
from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InputError
from automap.plan.program import ProgramRecord
from automap.plan.rates import LostRecord
from automap.plan.record import PlanRecord, SearchRecord
from automap.plan.streams import OperatorRecord, StreamsRecord, StreamStageRecord
from automap.planner.rates import rates_record
from automap.planner.sharding import plan_sharding
from automap.policy import default_policy
from automap.program.trace import Workload
from automap.streams.arrays import PricedOperators
from automap.streams.operators import Operator, step_operators
from automap.streams.schedule import Schedule, Stage, find_schedule
from automap.streams.strategies import Limits
from automap.topology.model import Topology


def plan_streams(
    workload: Workload, topology: Topology, options: Options, deadline: Deadline
) -> PlanRecord:
    """The best schedule found by the deadline.

    Raises `InfeasiblePlanError` if the step does not fit, `InputError` for several devices, and
    `TopologyError` for a device whose kernels do not run at once.
    """
    if topology.device_count != 1:
        raise InputError(
            f"--space streams is of the operators of one device, {topology.name} has "
            f"{topology.device_count}; allowed: one GPU, as 1xv100"
        )
    start = time.monotonic()
    priced = priced_operators(workload, topology)
    limits = stage_limits(options)
    schedule = find_schedule(priced, options.strategy, limits, deadline)
    alone = replace(options, space="sharding", strategy="greedy", groups=None, group_size=None)
    plan = plan_sharding(workload, topology, alone, lambda context: None, deadline)
    gap = schedule.seconds / schedule.bound_seconds - 1 if schedule.bound_seconds else None
    return replace(
        plan,
        constraints=(),
        streams=_record(priced.operators, schedule, limits),
        predicted=replace(
            plan.predicted,
            step_seconds=schedule.seconds,
            compute_seconds=schedule.seconds,
            collective_seconds=0.0,
            hidden_seconds=0.0,
            collectives=(),
            # Operators that run at once share the device, so no second is of one of them.
            rates=rates_record(
                workload.problem,
                topology,
                schedule.seconds,
                LostRecord(collectives=0.0, bubbles=0.0),
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
            gap=max(gap, 0.0) if gap is not None else None,
            memory_limit_bytes=plan.search.memory_limit_bytes,
        ),
        warnings=(*plan.warnings, *_warnings(schedule, options, deadline)),
        program=_program(priced.operators, schedule),
    )


def priced_operators(workload: Workload, topology: Topology) -> PricedOperators:
    """The operators of a step, each priced alone."""
    operators = step_operators(
        workload.problem, backend_for(topology.platform), _operand_of_site(workload)
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


def _record(operators: tuple[Operator, ...], schedule: Schedule, limits: Limits) -> StreamsRecord:
    names = _names(operators)
    return StreamsRecord(
        most_groups=limits.groups,
        most_in_group=limits.group_size,
        sequential_seconds=schedule.sequential_seconds,
        greedy_seconds=schedule.greedy_seconds,
        stages=tuple(
            StreamStageRecord(
                together=stage.together,
                groups=tuple(
                    tuple(OperatorRecord(at=names[n], label=operators[n].label) for n in group)
                    for group in stage.groups
                ),
                seconds=stage.seconds,
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


def _warnings(schedule: Schedule, options: Options, deadline: Deadline) -> list[str]:
    warnings = []
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
            "merged operators are priced with their weights beside each other in memory; "
            "`plan.jit` puts them there in each call, which costs what reading and writing them "
            "takes"
        )
    return warnings


def _program(operators: tuple[Operator, ...], schedule: Schedule) -> ProgramRecord:
    """What the device does: one stage after another."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def label(stage: Stage) -> str:
        joint = " + " if stage.together == "merged" else " | "
        return joint.join(" > ".join(operators[n].label for n in g) for g in stage.groups)

    stages = schedule.stages
    count = len(stages)
    empty, phase = number(""), number("forward")
    return ProgramRecord(
        op=tuple(number(f"{stage.together} stage") for stage in stages),
        op_name=tuple(number(label(stage)) for stage in stages),
        tensor=(empty,) * count,
        source=(empty,) * count,
        phase=(phase,) * count,
        axes=(empty,) * count,
        texts=tuple(texts),
        kind=("kernel",) * count,
        within=(-1,) * count,
        after=((), *((index,) for index in range(count - 1))),
        seconds=tuple(stage.seconds for stage in stages),
        trips=(1,) * count,
        slot=tuple(range(count)),
        bytes=(0.0,) * count,
    )
