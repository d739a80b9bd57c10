"""The tasks of a plan's step as events of a trace: what each is, and where in the user's code it comes from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import re
from typing import Any

from automap.cost.flows import KINDS
from automap.plan_rebuild import Rebuilt
from automap.simulate.region import Node, What
from automap.simulate.spmd import LINK, Run, SpmdTimeline
from automap.simulate.spmd_program import NEW_MEMORY
from automap.simulate.trace import Event, Lane
from automap.space.names import TAG, readable
from hlo_tools.graph import Op
from hlo_tools.phases import Phase


# What JAX puts before everything of a step: its own name.
_STEP = re.compile(r"^jit\([^)]*\)/")
_LANES = {LINK: Lane(device=0, name="link: collectives")}
_COMPUTE = Lane(device=0, name="compute")


@dataclass(frozen=True, slots=True)
class _Names:
    rebuilt: Rebuilt
    source_of_site: Mapping[str, str]

    def of(self, node: Node) -> tuple[str, str, dict[str, Any]]:
        """Name, phase and details of a node."""
        graph = self.rebuilt.workload.problem.graph
        if node.number == NEW_MEMORY:
            details = {"opcode": "new memory", "result": "", "op_name": "", "source": ""}
            return "new memory", _name(Phase.FORWARD), details
        if node.what is not What.COLLECTIVE:
            op, phase = graph.ops[node.number], self.rebuilt.workload.problem.phases[node.number]
            value = graph.values[op.outputs[0]] if op.outputs else None
            written = f"{value.dtype}{list(value.dims)}" if value else ""
            details = {"opcode": op.opcode, "result": written, **self._origin(op)}
            return f"{op.opcode} {details['op_name']}".strip(), _name(phase), details
        found, op, value = (
            self.rebuilt.priced.found,
            graph.ops[node.edge_op],
            graph.values[node.edge_value],
        )
        mask, kind = int(found.mask[node.number]), KINDS[int(found.kind[node.number])].value
        axes = [n for a, n in enumerate(self.rebuilt.lanes.mesh.names) if mask >> a & 1]
        details = {
            "kind": kind, "axes": axes, "bytes": float(found.n_bytes[node.number]),
            "tensor": f"{value.dtype}{list(value.dims)}", **self._origin(op),
        }  # fmt: skip
        return f"{kind} over {'+'.join(axes)}", _name(Phase(int(found.phase[node.number]))), details

    def _origin(self, op: Op) -> dict[str, str]:
        sites = TAG.findall(op.op_name)
        return {
            "op_name": _STEP.sub("", readable(op.op_name)) or op.instruction.name,
            "source": self.source_of_site.get(sites[-1], "") if sites else "",
        }


def spmd_events(rebuilt: Rebuilt, found: SpmdTimeline) -> Iterator[Event]:
    """One event per task, in the order of tasks; `trips` says for how many runs one stands."""
    reemitter = rebuilt.workload.reemitter
    names = _Names(rebuilt, {} if reemitter is None else reemitter.source_of_path)
    named: dict[int, tuple[str, str, dict[str, Any]]] = {}
    times = zip(found.timeline.start_seconds.tolist(), found.tasks.seconds.tolist(), strict=True)
    lanes = found.tasks.resource.tolist()
    for run, lane, (start, seconds) in zip(found.runs, lanes, times, strict=True):
        if id(run.node) not in named:
            named[id(run.node)] = names.of(run.node)
        name, phase, details = named[id(run.node)]
        yield Event(
            lane=_LANES.get(lane, _COMPUTE), name=name, category=phase, start_seconds=start,
            seconds=seconds, details={**details, "phase": phase, **_trips(run)},
        )  # fmt: skip


def _trips(run: Run) -> dict[str, Any]:
    return {"trip": list(run.trip), "trips": run.trips} if run.trip else {"trips": run.trips}


def _name(phase: Phase) -> str:
    return phase.name.lower()
