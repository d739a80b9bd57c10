"""Seconds of a step by kind of kernel: as a plan predicts them, and as its compiler's are replayed.

A kernel is of the first kind of `KINDS` that its opcodes belong to, which are those of all that is
fused into it. What sums is of one kind with what is computed element by element: compilers make
both in one kernel, and which of them is named by a sum is theirs to say. What a step takes beside
its kernels is `WAITING`. How much of all error a kind has                    -> in: `error_shares`

    share(kind) = sum over plans |predicted - replayed| / step  over the same sum of all kinds
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from automap.planner.records import Outcome
from automap.verify.cache import default_folder
from automap.verify.replayed import kernel_runs
from automap.verify.witness import Witness
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.files import MOST_PROGRAM_BYTES, read_file
from hlo_tools.graph import Graph
from hlo_tools.opcodes import (
    CONTRACTIONS,
    DYNAMIC_UPDATE_SLICE,
    LOOP_ENTER,
    OWN_KERNEL,
    STRUCTURAL,
)
from scripts.tables import markdown


WAITING: Final = "waiting for collectives"
OTHERS: Final = "element by element, and sums"
Seconds: TypeAlias = Mapping[str, float]
"""Seconds of a step by the name of the kind."""

_NO_WORK: Final = frozenset(
    {"bitcast", "constant", "fusion", "get-tuple-element", "parameter", "subtract", "tuple"}
)
_MOVES: Final = _NO_WORK | {
    "bitcast-convert", "concatenate", "convert", "copy", "dynamic-slice", "pad", "reshape",
    "reverse", "slice", "transpose",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kernels that have an opcode of `some`, or none but those of `only`."""

    name: str
    some: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()

    def has(self, opcodes: frozenset[str]) -> bool:
        """Whether a kernel of these opcodes is of this kind."""
        return bool(opcodes & self.some) or (bool(self.only) and opcodes <= self.only)


KINDS: Final = (
    Kind(name="products", some=CONTRACTIONS | {"custom-call"}),
    Kind(name="look-ups and scatters", some=frozenset({"gather", "scatter"})),
    Kind(name="stacks of loops, filled", some=frozenset({"dynamic-update-slice"})),
    Kind(name="copies and transposes", only=_MOVES),
    Kind(name="zeros", some=frozenset({LOOP_ENTER}), only=_MOVES | {"broadcast", "iota"}),
)
"""In the order in which a kernel is looked up; what is left are `OTHERS`."""


def kind_of(opcodes: Iterable[str]) -> str:
    """The name of the kind of a kernel."""
    known = frozenset(opcodes)
    return next((kind.name for kind in KINDS if kind.has(known)), OTHERS)


def predicted_seconds(outcome: Outcome) -> Seconds:
    """Of the outcome's best plan."""
    context, best = outcome.context, outcome.best
    priced = context.evaluator.price_point(context.space.split_classes(best.point))
    program = context.evaluator.tables.program
    seconds: dict[str, float] = defaultdict(float)
    for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True):
        trips = program.problem.graph.ops[kernel.op].trip_count
        kind = kind_of(_fused(program.problem.graph, kernel))
        seconds[kind] += float(priced.kernel_seconds[row]) * trips
    # What collectives send is turned, or copied into one array with others, and out of it.
    copying = float(priced.copying_seconds @ priced.collectives.count)
    seconds[kind_of(["copy"])] += copying
    seconds[WAITING] = best.estimate.collective_seconds
    return seconds


def _fused(graph: Graph, kernel: Kernel) -> Iterator[str]:
    """The opcodes of a predicted kernel: of its op, and of what it makes again of what it reads."""
    op, read = kernel.work(graph), {access.value for access in kernel.reads}
    yield op.opcode
    # Loops are entered with what is there; the part that a slice is put into is not computed.
    is_update = op.opcode == DYNAMIC_UPDATE_SLICE
    todo = [] if op.opcode in STRUCTURAL or kernel.copied is not None else [*op.inputs[is_update:]]
    seen = set[int]()
    while todo:
        value = todo.pop()
        producer = graph.values[value].producer
        if value in read or value in seen or producer < 0:
            continue
        seen.add(value)
        if graph.ops[producer].opcode not in OWN_KERNEL | STRUCTURAL:
            yield graph.ops[producer].opcode
            todo.extend(graph.ops[producer].inputs)


def replayed_seconds(outcome: Outcome, witness: Witness) -> Seconds | None:
    """Of the program beside a cached witness; None where it has none, or no seconds."""
    if witness.program is None or witness.step is None:
        return None
    data = read_file(default_folder() / witness.program, MOST_PROGRAM_BYTES)
    seconds: dict[str, float] = defaultdict(float)
    for run in kernel_runs(data, outcome.topology, outcome.best.point.mesh):
        seconds[kind_of(run.opcodes)] += run.seconds
    seconds[WAITING] = witness.step.seconds - witness.step.kernel_seconds
    return seconds


def error_shares(plans: Sequence[tuple[Seconds, Seconds]]) -> Seconds:
    """The share of each kind in all error of (predicted, replayed) plans, largest first."""
    errors: dict[str, float] = defaultdict(float)
    for predicted, replayed in plans:
        step = sum(replayed.values())
        for kind in {**predicted, **replayed}:
            errors[kind] += abs(predicted.get(kind, 0.0) - replayed.get(kind, 0.0)) / step
    total = sum(errors.values())
    return {k: errors[k] / total for k in sorted(errors, key=errors.__getitem__, reverse=True)}


def kinds_table(plans: Sequence[tuple[Seconds, Seconds]]) -> str:
    """Mean seconds of a step by kind, (predicted, replayed), and the share in all error."""
    header = ["kind of kernel", "predicted ms", "replayed ms", "share of error"]
    rows = [
        [kind, *(f"{_mean(side, kind) * 1e3:.2f}" for side in zip(*plans)), f"{share:.0%}"]
        for kind, share in error_shares(plans).items()
    ]
    return markdown(header, rows)


def _mean(plans: Sequence[Seconds], kind: str) -> float:
    return sum(plan.get(kind, 0.0) for plan in plans) / len(plans)
