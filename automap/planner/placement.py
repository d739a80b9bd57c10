"""Operators on devices: `--space placement`.

workload, machine -> operators, tasks and tensors (`automap.placement`) -> a strategy -> the records
of a plan. A machine is any topology, or a graph of devices that may differ.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
import math
from pathlib import Path
import time

import jax
import numpy as np

from automap.backends import backend_for
from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError, InputError
from automap.placement import BASELINES, PLACEMENT_STRATEGIES, Placed, Search
from automap.placement.dataflow import NOBODY, step_dataflow
from automap.placement.operators import step_operators
from automap.placement.simulation import Outcome, Simulator, placed_machine
from automap.placement.splits import problem_splits, whole
from automap.placement.tasks import PlacementProblem, placement_problem
from automap.plan.memory_curve import MemoryRecord
from automap.plan.parts import CollectiveRecord, PredictedRecord, PresetRecord
from automap.plan.placement import (
    PlacedArrayRecord,
    PlacedDeviceRecord,
    PlacedOperatorRecord,
    PlacedTaskRecord,
    PlacedTransferRecord,
    PlacementRecord,
    TaskPhase,
    task_ranges,
)
from automap.plan.record import MeshRecord, PlanRecord, SearchRecord
from automap.planner.known_limits import backend_warnings
from automap.planner.pipeline_records import AXIS, bubble
from automap.planner.records import whole_leaves, workload_record
from automap.program.contained import contained
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.runtime.placement import measured_seconds
from automap.search.progress import ChoiceProgress
from automap.topology import Graph, Topology, topology_graph
from hlo_tools.analyses.roles import Role
from hlo_tools.collector import collector_paused


_PHASES: tuple[TaskPhase, ...] = ("forward", "backward", "update")
"""By `hlo_tools.analyses.phases.Phase`."""


def plan_placement(
    workload: Workload,
    machine: Topology | Graph,
    options: Options,
    deadline: Deadline,
    on_stages: Callable[[ChoiceProgress], None] = lambda progress: None,
    folder: Path | None = None,
) -> PlanRecord:
    """The best placement found by the deadline; what a strategy learns is kept in the folder.

    Raises `InfeasiblePlanError` if none fits, `InputError` for a step with shardings of its own and
    where a strategy has not what it needs, and `TopologyError` for a machine of too many devices.
    """
    start = time.monotonic()
    if workload.mesh is not None:
        raise InputError(
            f"the step's own shardings (first: {workload.mesh.where}) are on one mesh, operators "
            "of --space placement have a device each; plan with --space sharding, or take them out"
        )
    graph = machine if isinstance(machine, Graph) else topology_graph(machine)
    problem = _problem(workload, graph, options)
    splits = problem_splits(problem, graph.platform, graph.device_count, options.profile)
    machine_arrays = placed_machine(graph, options.memory_limit_bytes, splits.forms)
    simulator = Simulator(problem, machine_arrays, splits)
    search = Search(simulator, options.seed, deadline, on_progress=on_stages, folder=folder)
    if workload.call is not None:
        search.measure = lambda placed: _measured(workload, machine, simulator, placed)
    best = PLACEMENT_STRATEGIES[options.strategy](search)
    outcome = simulator.run(best.device)
    if outcome.too_full is not None:
        raise _too_full(problem, graph, simulator, best, outcome)
    return replace(
        _placed_plan(workload, machine, simulator, best, outcome),
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
            *search.notes,
            *workload.problem.warnings,
            *backend_warnings(backend_for(graph.platform), workload),
        ),
    )


def _placed_plan(
    workload: Workload,
    machine: Topology | Graph,
    simulator: Simulator,
    placed: Placed,
    outcome: Outcome,
) -> PlanRecord:
    """The plan of one placement, which says nothing of how it was found."""
    graph = machine if isinstance(machine, Graph) else topology_graph(machine)
    has_sites = workload.reemitter is not None
    return PlanRecord(
        workload=workload_record(workload),
        topology=machine.to_dict(),
        mesh=MeshRecord(axes=((AXIS, graph.device_count),)),
        inputs=whole_leaves(workload, "inputs"),
        outputs=whole_leaves(workload, "outputs"),
        placement=_record(simulator, graph, placed, outcome, has_sites=has_sites),
        predicted=_predicted(simulator, placed, outcome),
        search=SearchRecord(strategy="single", seconds=0.0, evaluations=0, seed=0, gap=None),
    )


def _measured(
    workload: Workload, machine: Topology | Graph, simulator: Simulator, placed: Placed
) -> float:
    """Seconds of a step on devices that are there. Raises `InputError` where there are too few."""
    count, platform = len(simulator.machine.kind), machine.platform
    try:
        devices = jax.devices(platform)
    except RuntimeError:
        devices = []
    if len(devices) < count:
        raise InputError(
            f"strategy colocrl-measured runs the step on this machine's devices: got "
            f"{len(devices)} of {platform}, the topology has {count}; give --topology local, or "
            "strategy colocrl, whose rewards are simulated"
        )
    assert workload.call is not None  # noqa: S101 - `plan_placement` has looked
    plan = _placed_plan(workload, machine, simulator, placed, simulator.run(placed.device))
    with contained():
        return measured_seconds(plan, workload.call, devices[:count])


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
    held = np.flatnonzero(_on_device(simulator, best, device)).tolist()
    most = max(held, key=lambda o: problem.state_bytes[o] + problem.activation_bytes[o])
    n_bytes = problem.state_bytes[most] + problem.activation_bytes[most]
    needed, has = outcome.peak_bytes[device], simulator.machine.memory_bytes[device]
    return InfeasiblePlanError(
        f"no placement fits: in the best one {graph.devices[device].name} needs "
        f"{bytes_text(round(needed))} of {bytes_text(round(has))}, most of it for "
        f"{problem.operators.names[most]} ({bytes_text(round(n_bytes))}); use a smaller batch, or "
        "devices with more memory"
    )


def _on_device(simulator: Simulator, best: Placed, device: int) -> np.ndarray:
    """Whether each operator has a part on a device."""
    return simulator.machine.choices.part_on[list(best.device), device] >= 0


def _record(
    simulator: Simulator, graph: Graph, best: Placed, outcome: Outcome, *, has_sites: bool
) -> PlacementRecord:
    problem = simulator.problem
    # Zero seconds make equal starts, of which a task's number says which comes first.
    order = np.lexsort((np.arange(len(problem.tasks)), outcome.start_seconds)).tolist()
    place = {task: number for number, task in enumerate(order)}
    seconds = outcome.end_seconds - outcome.start_seconds
    sent = np.lexsort((outcome.transfers[:, 0], outcome.transfer_seconds[:, 0]))
    operators = tuple(_operators(simulator, best, seconds))
    homes = tuple(problem.homes.get(array) for array in problem.operators.dataflow.inputs)
    used = {each for operator in operators for each, _ in operator.degrees}
    return PlacementRecord(
        devices=tuple(
            PlacedDeviceRecord(name=node.name, busy_seconds=float(busy), peak_bytes=round(peak))
            for node, busy, peak in zip(
                graph.devices, outcome.busy_seconds, outcome.peak_bytes.tolist(), strict=True
            )
        ),
        operators=operators,
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
        input_devices=tuple(None if o is None else operators[o].device for o in homes),
        input_operators=homes if used else (),
        arrays=tuple(_arrays(problem, used)) if has_sites else (),
    )


def _operators(
    simulator: Simulator, best: Placed, seconds: np.ndarray
) -> Iterator[PlacedOperatorRecord]:
    problem, choices = simulator.problem, simulator.machine.choices
    splits = simulator.splits or whole(problem)
    its = np.bincount([t.operator for t in problem.tasks], seconds, problem.n_operators)
    for number, choice in enumerate(best.device):
        devices = choices.device[choice, : choices.n_parts[choice]].tolist()
        yield PlacedOperatorRecord(
            name=problem.operators.names[number],
            device=devices[0],
            seconds=float(its[number]),
            state_bytes=round(float(problem.state_bytes[number])),
            degrees=splits.forms[choices.form[choice]],
            parts=tuple(devices) if len(devices) > 1 else (),
        )


def _arrays(problem: PlacementProblem, used: set[int]) -> Iterator[PlacedArrayRecord]:
    """Those with a class that is split somewhere which are stored, or that another task reads."""
    flow, tasks = problem.operators.dataflow, problem.task_of_node
    for array, maker in enumerate(flow.maker):
        classes = flow.classes[array]
        leaves = maker == NOBODY or array in flow.outputs
        leaves = leaves or any(tasks[reader] != tasks[maker] for reader in flow.readers[array])
        if leaves and not used.isdisjoint(classes):
            is_input = maker == NOBODY
            yield PlacedArrayRecord(
                equation=None if is_input else maker,
                number=(flow.inputs if is_input else flow.writes[maker]).index(array),
                classes=tuple(each if each in used else None for each in classes),
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
        bytes=round(float(outcome.transfer_bytes[number])),
        start_seconds=start,
        seconds=end - start,
    )


def _predicted(simulator: Simulator, best: Placed, outcome: Outcome) -> PredictedRecord:
    """Seconds of computation and of sums are the mean over devices, bytes those of the fullest."""
    fullest, problem = int(outcome.peak_bytes.argmax()), simulator.problem
    flow, choices = problem.operators.dataflow, simulator.machine.choices
    is_there = _on_device(simulator, best, fullest)
    by_role: dict[Role, int] = {}
    for array, role in zip(flow.inputs, flow.problem.roles, strict=True):
        home = problem.homes.get(array)
        if home is not None and is_there[home]:
            choice = best.device[home]
            split = zip(choices.split_class[choice], choices.degree[choice], strict=True)
            parts = math.prod(int(d) for c, d in split if c >= 0 and c in flow.classes[array])
            by_role[role] = by_role.get(role, 0) + flow.n_bytes[array] // parts
    peak = round(float(outcome.peak_bytes[fullest]))
    owner = [best.device[task.operator] for task in problem.tasks]
    sums = float((outcome.sum_seconds * choices.n_parts[owner]).sum() / len(outcome.busy_seconds))
    compute = float(outcome.busy_seconds.mean()) - sums
    return PredictedRecord(
        step_seconds=outcome.step_seconds,
        compute_seconds=compute,
        collective_seconds=sums,
        bubble_seconds=bubble(outcome.step_seconds, compute + sums),
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
            round(n_bytes)
            for tensor, n_bytes in zip(
                outcome.transfers[:, 0].tolist(), outcome.transfer_bytes.tolist(), strict=True
            )
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
