"""The program of one device as a plan keeps it (`automap.plan.program`), and back.

priced point -> region (`automap.simulate.spmd_program`) -> record, with what each task is and
                where in the user's code it comes from          -> in: `recorded_program`
record -> region, whose nodes are numbered as the record's tasks -> in: `recorded_region`
record, timeline of that region -> events of a trace             -> in: `spmd_events`
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
import re
from typing import Any, Final

from automap.cost.evaluate import Evaluator, Priced
from automap.cost.traffic.flows import KINDS
from automap.jaxpr.names import TAG, readable
from automap.plan.program import OUTSIDE, ProgramRecord, TaskKind, TaskText
from automap.program.problem import Problem
from automap.simulate.region import Node, NodeKind, Region
from automap.simulate.spmd import LINK, Run, SpmdTimeline
from automap.simulate.spmd_program import HOST_MEMORY, NEW_MEMORY, device_program
from automap.simulate.trace import Event, Lane
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Op


# What JAX puts before everything of a step: its own name.
_STEP: Final = re.compile(r"^jit\([^)]*\)/")
_KINDS: Final[Mapping[tuple[NodeKind, bool], TaskKind]] = {
    (NodeKind.KERNEL, False): "kernel",
    (NodeKind.SPARE, False): "spare",
    (NodeKind.COLLECTIVE, False): "collective",
    (NodeKind.COLLECTIVE, True): "urgent",
    (NodeKind.LOOP, False): "loop",
}
_NO_OPS: Final = {
    NEW_MEMORY: ("new memory", Phase.FORWARD),
    HOST_MEMORY: ("host memory", Phase.UPDATE),
}
_WHAT: Final = {kind: key for key, kind in _KINDS.items()}


def recorded_program(
    evaluator: Evaluator,
    priced: Priced,
    mesh_names: Sequence[str],
    source_of_site: Mapping[str, str],
) -> ProgramRecord:
    """What one device does in a step of a priced point; `source_of_site` has the lines of code by
    equation.
    """
    # The lines of code are asked for by the equation that an op was made from, which JAX keeps as a
    # tag in the op's name.
    names = _Names(evaluator.tables.program.problem, priced, mesh_names, source_of_site)
    rows = _Rows(names)
    fresh, host = evaluator.fresh_seconds(priced), evaluator.estimate(priced).host_seconds
    rows.add(device_program(evaluator.tables, priced, fresh, host), OUTSIDE)
    return rows.record()


def recorded_region(record: ProgramRecord) -> Region:
    """The program of a record; `Node.number` is the task's."""
    members: dict[int, list[int]] = {OUTSIDE: []}
    for task, loop in enumerate(record.within):
        members.setdefault(loop, []).append(task)
    return _region(record, members, OUTSIDE)


def _region(record: ProgramRecord, members: Mapping[int, Sequence[int]], loop: int) -> Region:
    # `after` of a record counts tasks of the whole program, that of a node those of its region.
    tasks = members.get(loop, ())
    place = dict(zip(tasks, count()))
    nodes = []
    for task in tasks:
        what, is_urgent = _WHAT[record.kind[task]]
        nodes.append(
            Node(
                kind=what,
                number=task,
                slot=record.slot[task],
                after=tuple(sorted(place[before] for before in record.after[task])),
                seconds=record.seconds[task],
                is_urgent=is_urgent,
                trips=record.trips[task],
                body=_region(record, members, task) if what is NodeKind.LOOP else None,
            )
        )
    return Region(tuple(nodes))


@dataclass(frozen=True, slots=True)
class _Names:
    """What the nodes of a program are called."""

    problem: Problem
    priced: Priced
    mesh_names: Sequence[str]
    source_of_site: Mapping[str, str]

    def of(self, node: Node) -> tuple[TaskText, float]:
        """The texts of a node, and the bytes of a collective."""
        graph, collectives = self.problem.graph, self.priced.collectives
        # Neither is an op of the program: memory is taken before the forward pass, and what comes
        # from the host's is waited for in the update.
        if node.kind is NodeKind.KERNEL and node.number in _NO_OPS:
            what, phase = _NO_OPS[node.number]
            return TaskText(
                op=what, tensor="", op_name="", source="", phase=_name(phase), axes=""
            ), 0.0
        if node.kind is not NodeKind.COLLECTIVE:
            op = graph.ops[node.number]
            value = graph.values[op.outputs[0]] if op.outputs else None
            text = TaskText(
                op=op.opcode,
                tensor=f"{value.dtype}{list(value.dims)}" if value else "",
                **self._origin(op),
                phase=_name(self.problem.phases[node.number]),
                axes="",
            )
            return text, 0.0
        # The mask has a bit for each axis of the mesh, the first axis the lowest.
        mask, value = int(collectives.mask[node.number]), graph.values[node.edge_value]
        text = TaskText(
            op=KINDS[int(collectives.kind[node.number])].value,
            tensor=f"{value.dtype}{list(value.dims)}",
            **self._origin(graph.ops[node.edge_op]),
            phase=_name(Phase(int(collectives.phase[node.number]))),
            axes="+".join(n for a, n in enumerate(self.mesh_names) if mask >> a & 1),
        )
        return text, float(collectives.n_bytes[node.number])

    def _origin(self, op: Op) -> dict[str, str]:
        sites = TAG.findall(op.op_name)
        return {
            "op_name": _STEP.sub("", readable(op.op_name)) or op.instruction.name,
            "source": self.source_of_site.get(sites[-1], "") if sites else "",
        }


@dataclass
class _Rows:
    """Collects tasks; `numbers` are those of the texts."""

    names: _Names
    tasks: list[tuple[Node, int, tuple[int, ...]]] = field(default_factory=list)

    def add(self, region: Region, loop: int) -> None:
        """Add the nodes of a region, which is the body of a loop, or of none."""
        task_by_node: dict[int, int] = {}
        for index, node in enumerate(region.nodes):
            # A loop is numbered before its body, and all before what waits for them.
            task_by_node[index] = task = len(self.tasks)
            self.tasks.append((node, loop, tuple(task_by_node[before] for before in node.after)))
            if node.body is not None:
                self.add(node.body, task)

    def record(self) -> ProgramRecord:
        """The record of all tasks."""
        nodes = [node for node, _, _ in self.tasks]
        named = [self.names.of(node) for node in nodes]
        # Each text is kept once: thousands of tasks have the same few layers' names.
        number: dict[str, int] = {}

        def column(name: str) -> tuple[int, ...]:
            return tuple(number.setdefault(getattr(t, name), len(number)) for t, _ in named)

        columns = {
            name: column(name) for name in ("op", "tensor", "op_name", "source", "phase", "axes")
        }
        return ProgramRecord(
            texts=tuple(number),
            kind=tuple(_KINDS[node.kind, node.is_urgent] for node in nodes),
            within=tuple(loop for _, loop, _ in self.tasks),
            after=tuple(after for _, _, after in self.tasks),
            seconds=tuple(node.seconds for node in nodes),
            trips=tuple(node.trips for node in nodes),
            slot=tuple(node.slot for node in nodes),
            bytes=tuple(n_bytes for _, n_bytes in named),
            **columns,
        )


def _name(phase: Phase) -> str:
    return phase.name.lower()


_LANES = {LINK: Lane(device=0, name="link: collectives")}
_COMPUTE = Lane(device=0, name="compute")


def spmd_events(record: ProgramRecord, simulated: SpmdTimeline) -> Iterator[Event]:
    """One event per task run, in their order; `trips` says for how many runs one stands."""
    # A task is named once, however many trips of a loop run it.
    named: dict[int, tuple[str, dict[str, Any]]] = {}
    times = zip(
        simulated.timeline.start_seconds.tolist(), simulated.tasks.seconds.tolist(), strict=True
    )
    lanes = simulated.tasks.resource.tolist()
    for run, lane, (start, seconds) in zip(simulated.runs, lanes, times, strict=True):
        task = run.node.number
        if task not in named:
            named[task] = _named(record, task)
        name, details = named[task]
        yield Event(
            lane=_LANES.get(lane, _COMPUTE),
            name=name,
            category=details["phase"],
            start_seconds=start,
            seconds=seconds,
            details={**details, **_trips(run)},
        )


def _named(record: ProgramRecord, task: int) -> tuple[str, dict[str, Any]]:
    """Name and details of a task."""
    text = record.text(task)
    origin = {"op_name": text.op_name, "source": text.source, "phase": text.phase}
    if record.kind[task] in ("collective", "urgent"):
        details = {
            "kind": text.op,
            "axes": text.axes.split("+"),
            "bytes": record.bytes[task],
            "tensor": text.tensor,
        }
        return f"{text.op} over {text.axes}", details | origin
    details = {"opcode": text.op, "result": text.tensor}
    return f"{text.op} {text.op_name}".strip(), details | origin


def _trips(run: Run) -> dict[str, Any]:
    return {"trip": list(run.trip), "trips": run.trips} if run.trip else {"trips": run.trips}
