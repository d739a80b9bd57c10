"""Operators on devices: `--space placement`.

workload, machine -> operators, tasks and tensors (`automap.placement`) -> a strategy -> the records
of a plan. A machine is any topology, or a graph of devices that may differ.
"""

from collections.abc import Iterator
import time

import numpy as np

from automap.backends import backend_for, version_warnings
from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError, InputError
from automap.placement import BASELINES, PLACEMENT_STRATEGIES, Placed, Search
from automap.placement.dataflow import NOBODY, step_dataflow
from automap.placement.operators import step_operators
from automap.placement.simulation import Outcome, Simulator, placed_machine
from automap.placement.tasks import PlacementProblem, placement_problem
from automap.plan.parts import CollectiveRecord, MemoryRecord, PredictedRecord, PresetRecord
from automap.plan.placement import (
    PlacedDeviceRecord,
    PlacedOperatorRecord,
    PlacedTaskRecord,
    PlacedTransferRecord,
    PlacementRecord,
    TaskPhase,
    task_ranges,
)
from automap.plan.record import MeshRecord, PlanRecord, SearchRecord
from automap.planner.pipeline_records import AXIS, bubble
from automap.planner.records import whole_leaves, workload_record
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.topology import Graph, Topology, topology_graph
from hlo_tools.analyses.roles import Role
from hlo_tools.collector import collector_paused


_PHASES: tuple[TaskPhase, ...] = ("forward", "backward", "update")
"""By `hlo_tools.analyses.phases.Phase`."""


def plan_placement(
    workload: Workload, machine: Topology | Graph, options: Options, deadline: Deadline
) -> PlanRecord:
    """The best placement found by the deadline.

    Raises `InfeasiblePlanError` if none fits, `InputError` for `exact` on a graph that is too
    large and for a step with shardings of its own, and `TopologyError` for a machine of too many
    devices.
    """
    start = time.monotonic()
    if workload.mesh is not None:
        raise InputError(
            f"the step's own shardings (first: {workload.mesh.where}) are on one mesh, operators "
            "of --space placement have a device each; plan with --space sharding, or take them out"
        )
    graph = machine if isinstance(machine, Graph) else topology_graph(machine)
    problem = _problem(workload, graph, options)
    simulator = Simulator(problem, placed_machine(graph, options.memory_limit_bytes))
    search = Search(simulator, options.seed, deadline)
    best = PLACEMENT_STRATEGIES[options.strategy](search)
    outcome = simulator.run(best.device)
    if outcome.too_full is not None:
        raise _too_full(problem, graph, simulator, best, outcome)
    predicted = _predicted(problem, best, outcome)
    return PlanRecord(
        workload=workload_record(workload),
        topology=machine.to_dict(),
        mesh=MeshRecord(axes=((AXIS, graph.device_count),)),
        inputs=whole_leaves(workload, "inputs"),
        outputs=whole_leaves(workload, "outputs"),
        placement=_record(problem, graph, best, outcome, has_sites=workload.reemitter is not None),
        predicted=predicted,
        presets=tuple(_baselines(search)),
        search=SearchRecord(
            strategy=options.strategy,
            seconds=time.monotonic() - start,
            evaluations=search.priced,
            seed=options.seed,
            gap=best.gap,
            memory_limit_bytes=_whole(options.memory_limit_bytes),
        ),
        warnings=(
            *((f"{deadline.why_over}; the search had not ended",) if deadline.is_over else ()),
            *workload.problem.warnings,
            *version_warnings(backend_for(graph.platform)),
        ),
    )


def _whole(n_bytes: float | None) -> int | None:
    return None if n_bytes is None else round(n_bytes)


@collector_paused()
def _problem(workload: Workload, graph: Graph, options: Options) -> PlacementProblem:
    operators = step_operators(step_dataflow(workload))
    return placement_problem(operators, graph.platform, graph.kinds, options.profile)


def _too_full(
    problem: PlacementProblem,
    graph: Graph,
    simulator: Simulator,
    best: Placed,
    outcome: Outcome,
) -> InfeasiblePlanError:
    """The device that holds too much, and the operator that has most of it."""
    device = outcome.too_full or 0
    held = [o for o, d in enumerate(best.device) if d == device]
    most = max(held, key=lambda o: problem.state_bytes[o] + problem.activation_bytes[o])
    n_bytes = problem.state_bytes[most] + problem.activation_bytes[most]
    needed, has = outcome.peak_bytes[device], simulator.machine.memory_bytes[device]
    return InfeasiblePlanError(
        f"no placement fits: in the best one {graph.devices[device].name} needs "
        f"{bytes_text(round(needed))} of {bytes_text(round(has))}, most of it for "
        f"{problem.operators.names[most]} ({bytes_text(round(n_bytes))}); use a smaller batch, or "
        "devices with more memory"
    )


def _record(
    problem: PlacementProblem, graph: Graph, best: Placed, outcome: Outcome, *, has_sites: bool
) -> PlacementRecord:
    # Zero seconds make equal starts, of which a task's number says which comes first.
    order = np.lexsort((np.arange(len(problem.tasks)), outcome.start_seconds)).tolist()
    place = {task: number for number, task in enumerate(order)}
    seconds = outcome.end_seconds - outcome.start_seconds
    kind = [graph.kinds.index(node.device) for node in graph.devices]
    sent = np.lexsort((outcome.transfers[:, 0], outcome.transfer_seconds[:, 0]))
    return PlacementRecord(
        devices=tuple(
            PlacedDeviceRecord(name=node.name, busy_seconds=float(busy), peak_bytes=round(peak))
            for node, busy, peak in zip(
                graph.devices, outcome.busy_seconds, outcome.peak_bytes.tolist(), strict=True
            )
        ),
        operators=tuple(
            PlacedOperatorRecord(
                name=name,
                device=device,
                seconds=float(problem.operator_seconds[kind[device], number]),
                state_bytes=round(float(problem.state_bytes[number])),
            )
            for number, (name, device) in enumerate(
                zip(problem.operators.names, best.device, strict=True)
            )
        ),
        tasks=tuple(
            PlacedTaskRecord(
                operator=problem.tasks[task].operator,
                phase=_PHASES[problem.tasks[task].phase],
                equations=task_ranges(problem.tasks[task].nodes) if has_sites else (),
                start_seconds=float(outcome.start_seconds[task]),
                seconds=float(seconds[task]),
            )
            for task in order
        ),
        transfers=tuple(_transfer(problem, outcome, number, place) for number in sent.tolist()),
        input_devices=tuple(_input_devices(problem, best)),
    )


def _transfer(
    problem: PlacementProblem, outcome: Outcome, number: int, place: dict[int, int]
) -> PlacedTransferRecord:
    tensor, source, target = outcome.transfers[number].tolist()
    start, end = outcome.transfer_seconds[number].tolist()
    maker = problem.tensors[tensor].maker
    return PlacedTransferRecord(
        maker=None if maker == NOBODY else place[maker],
        source=source,
        target=target,
        bytes=problem.tensors[tensor].moved_bytes,
        start_seconds=start,
        seconds=end - start,
    )


def _input_devices(problem: PlacementProblem, best: Placed) -> Iterator[int | None]:
    for array in problem.operators.dataflow.inputs:
        home = problem.homes.get(array)
        yield None if home is None else best.device[home]


def _predicted(problem: PlacementProblem, best: Placed, outcome: Outcome) -> PredictedRecord:
    """Seconds of computation are the mean over devices, bytes those of the fullest."""
    fullest = int(outcome.peak_bytes.argmax())
    flow = problem.operators.dataflow
    by_role: dict[Role, int] = {}
    for array, role in zip(flow.inputs, flow.problem.roles, strict=True):
        home = problem.homes.get(array)
        if home is not None and best.device[home] == fullest:
            by_role[role] = by_role.get(role, 0) + flow.n_bytes[array]
    peak = round(float(outcome.peak_bytes[fullest]))
    compute = float(outcome.busy_seconds.mean())
    return PredictedRecord(
        step_seconds=outcome.step_seconds,
        compute_seconds=compute,
        collective_seconds=0.0,
        bubble_seconds=bubble(outcome.step_seconds, compute),
        peak_bytes=peak,
        fits=True,
        memory=MemoryRecord(
            parameters=by_role.get(Role.PARAMETER, 0),
            optimizer=by_role.get(Role.OPTIMIZER, 0),
            other_state=by_role.get(Role.STATE, 0),
            inputs=0,
            activations=peak - sum(by_role.values()),
            temporaries=0,
        ),
        collectives=tuple(_collectives(problem, outcome)),
    )


def _collectives(problem: PlacementProblem, outcome: Outcome) -> Iterator[CollectiveRecord]:
    """The transfers of each phase; state that is stored elsewhere is sent for the forward pass."""
    for number, phase in enumerate(_PHASES):
        moved = [
            problem.tensors[tensor].moved_bytes
            for tensor in outcome.transfers[:, 0].tolist()
            if _phase(problem, tensor) == number
        ]
        if moved:
            yield CollectiveRecord(
                kind="collective-permute",
                axes=(AXIS,),
                phase=phase,
                count=len(moved),
                bytes=sum(moved),
            )


def _phase(problem: PlacementProblem, tensor: int) -> int:
    maker = problem.tensors[tensor].maker
    return 0 if maker == NOBODY else int(problem.tasks[maker].phase)


def _baselines(search: Search) -> Iterator[PresetRecord]:
    for name, baseline in BASELINES.items():
        placed = baseline(search)
        yield PresetRecord(
            name=name,
            step_seconds=placed.seconds,
            peak_bytes=round(float(search.simulator.run(placed.device).peak_bytes.max())),
            fits=placed.fits,
        )
