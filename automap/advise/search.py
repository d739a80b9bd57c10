"""Rows of `automap advise`: for each batch and machine the best plan, where a search may matter.

A program is traced and folded once for each batch and platform; all machines of the platform share
its tables and its space.

1. No plan is below state_bytes / devices. A machine that has less is done      -> in: `_bound_row`
2. Every other machine gets the best preset of every batch                      -> in: `_Cells.row`
3. A search may make a row better, by no more than to

       seconds >= sum over kernels of what they take at least, all split over all devices
                                                          -> in: `Roofline.least_seconds`

   A row that even then is slower than one that fits and costs no more changes no answer, and is
   left as the presets have it. The others are searched, the answers as they stand first, then those
   that may gain most.

Rows are kept in a folder, by everything that they depend on, and are there when the same is asked
again; Ctrl-C and the end of the budget keep what is there, and a note says what is not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
import hashlib
import json
import math
from pathlib import Path
from typing import Final

from automap.advise.request import Machine, Prices, Wanted
from automap.advise.rows import Advice, AdviceRow, How, make_advice, pareto_front
from automap.atomic_file import write_atomically
from automap.backends import backend_for
from automap.cost.evaluate import Evaluator
from automap.cost.tables import Tables, build_tables
from automap.deadline import Deadline
from automap.errors import PlanError
from automap.interrupts import note_interrupts
from automap.option_values import check_positive
from automap.plan.codec import decode, encode
from automap.plan.file import layout, read
from automap.plan.rates import LostRecord
from automap.planner.rates import rates_record
from automap.planner.sharding import candidate_meshes
from automap.program.trace import Workload
from automap.search import Candidate, Objective, OutOfBudget, SearchContext, get_strategy
from automap.search.presets import price_presets
from automap.space.space import Space
from automap.topology.model import Platform
from hlo_tools.analyses.roles import Role
from hlo_tools.collector import collector_paused


_KEPT_PROGRAMS: Final = 8
_STATE: Final = {Role.PARAMETER, Role.OPTIMIZER}

Programs = Callable[[int | None, Platform], Workload]
"""A step of a batch, None for the target's own, lowered for a platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRequest:
    """What is asked: `batches` may be none, for the target's own; `versions` are those of all that
    rows depend on besides.
    """

    target: str
    machines: tuple[Machine, ...]
    batches: tuple[int, ...]
    wanted: Wanted
    prices: Prices | None
    strategy: str
    budget_seconds: float
    seed: int = 0
    cache_folder: Path | None = None
    versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a budget that is no positive number."""
        check_positive("budget", self.budget_seconds, "seconds")


@dataclass(frozen=True, slots=True)
class AdviceProgress:
    """How many cells of `total` are done in this pass, and what is looked at."""

    what: str
    done: int
    total: int


def find_advice(
    request: AdviceRequest,
    programs: Programs,
    on_progress: Callable[[AdviceProgress], None] = lambda progress: None,
) -> Advice:
    """Rows for all machines and batches, and what they answer."""
    with note_interrupts() as interrupts:
        deadline = Deadline.after(request.budget_seconds, interrupts=interrupts)
        cells = _Cells(request, programs, deadline)
        rows = _by_presets(request, cells, on_progress)
        left_out = len(rows) - sum(row is not None for row in rows.values())
        notes = []
        if left_out:
            notes.append(f"{deadline.why_over}: {left_out} of {len(rows)} cells were not looked at")
        notes += _search(request, cells, rows, on_progress)
    notes += _unused_prices(request)
    done = [row for row in rows.values() if row is not None]
    currency = request.prices.currency if request.prices else ""
    return make_advice(request.target, done, request.wanted, currency, notes)


def _unused_prices(request: AdviceRequest) -> list[str]:
    """A note where the prices are of none of the machines."""
    prices = request.prices
    if prices is None or any(prices.per_hour(m) is not None for m in request.machines):
        return []
    known = ", ".join(prices.per_device_hour)
    return [
        f"the file of prices has none of these machines, only {known[:200]}: answers are by "
        "numbers of devices, and money is left out"
    ]


_Rows = dict[tuple[int | None, Machine], AdviceRow | None]


def _by_presets(
    request: AdviceRequest, cells: "_Cells", on_progress: Callable[[AdviceProgress], None]
) -> _Rows:
    """A row for each batch and machine, None where time was up before."""
    keys = [(batch, m) for batch in request.batches or (None,) for m in request.machines]
    rows: _Rows = dict.fromkeys(keys)
    # Machines of one platform one after the other, as they share a program.
    for n, (batch, machine) in enumerate(
        sorted(keys, key=lambda key: (key[0] or 0, key[1].topology.platform))
    ):
        if cells.deadline.is_over:
            break
        on_progress(AdviceProgress(f"presets on {machine.name}", n, len(keys)))
        rows[batch, machine] = cells.row(batch, machine, "presets")
    cells.save()
    return rows


def _search(
    request: AdviceRequest,
    cells: "_Cells",
    rows: _Rows,
    on_progress: Callable[[AdviceProgress], None],
) -> list[str]:
    """Search the rows that may change an answer; notes of those that were not."""
    open_keys = [key for key, row in rows.items() if row is not None and row.how == "presets"]
    most = {key: cells.most_rate(*key) for key in open_keys}
    total, skipped = len(open_keys), 0
    front = pareto_front(row for row in rows.values() if row is not None)
    # The answers as they stand first, then those whose best is furthest above what is known at
    # their cost.
    open_keys.sort(
        key=lambda key: (rows[key] not in front, -most[key] / (_known_rate(rows, key) or 1.0))
    )
    for n, key in enumerate(open_keys):
        if cells.deadline.is_over:
            why = cells.deadline.why_over
            return [
                f"{why}: {total - n} rows are those of presets, which a search might better; what "
                "is found is kept, and the same command goes on from there"
            ]
        # Asked again each time: what was found in between may have settled it.
        if most[key] <= _known_rate(rows, key) and not _may_be_smallest(rows, key):
            skipped += 1
            continue
        on_progress(AdviceProgress(f"searching {key[1].name}, batch {key[0] or ''}", n, total))
        rows[key] = cells.row(*key, "search")
        cells.save()
    if not skipped:
        return []
    return [
        f"{skipped} of {total} rows were not searched: even with every kernel split over all "
        "devices they would be slower than another row that costs no more"
    ]


def _known_rate(rows: _Rows, key: tuple[int | None, Machine]) -> float:
    """The most that any other row, or this one, does for no more cost; 0 where none fits."""
    own = rows[key]
    if own is None:
        return 0.0
    comparable = (
        row
        for row in rows.values()
        if row is not None
        and row.fits
        and (row.price_per_hour is None) == (own.price_per_hour is None)
        and row.cost <= own.cost
    )
    return max((row.rate for row in comparable), default=0.0)


def _may_be_smallest(rows: _Rows, key: tuple[int | None, Machine]) -> bool:
    """Whether a row that does not fit as it is has fewer devices than all that do."""
    own = rows[key]
    fitting = (row.devices for row in rows.values() if row is not None and row.fits)
    return own is not None and not own.fits and own.devices < min(fitting, default=math.inf)


@dataclass(frozen=True)
class _Program:
    """What all machines of a platform share."""

    workload: Workload
    tables: Tables
    space: Space
    state_bytes: int


@dataclass
class _Cells:
    """Prices one batch on one machine at a time; `_known` are the rows of the folder by program.

    Mutable on purpose: it is one run, and what it has found so far.
    """

    request: AdviceRequest
    programs: Programs
    deadline: Deadline
    _known: dict[Path, dict[str, AdviceRow]] = field(default_factory=dict)
    _changed: set[Path] = field(default_factory=set)
    _made: dict[tuple[int | None, Platform], _Program] = field(default_factory=dict)

    @collector_paused()
    def row(self, batch: int | None, machine: Machine, how: How) -> AdviceRow:
        """The row of a cell, from the folder if it is there, with its price."""
        program = self._program(batch, machine.topology.platform)
        path, key = self._path(program.workload), self._key(machine)
        known = self._rows_in(path) if path else {}
        # A row that was searched is one of presets too.
        for earlier in ("search", "presets") if how == "presets" else ("search",):
            kept = known.get(f"{key}-{earlier}")
            if kept is not None and kept.can_be_on(machine):
                return kept.priced(machine, self.request.prices)
        row = self._bound_row(program, machine) or self._priced_row(program, machine, how)
        # A search that was cut short is no answer to the same question next time.
        if path is not None and not (how == "search" and self.deadline.is_over):
            known[f"{key}-{how}"] = row
            self._changed.add(path)
        return row.priced(machine, self.request.prices)

    def most_rate(self, batch: int | None, machine: Machine) -> float:
        """Tokens a second, or samples, that no plan of a cell is above."""
        program, topology = self._program(batch, machine.topology.platform), machine.topology
        roofline = self._evaluator(program, machine).roofline
        seconds = float(
            roofline.least_seconds(topology.device_count) @ program.tables.kernels.count
        )
        lost = LostRecord(collectives=0.0, bubbles=0.0)
        rates = rates_record(program.workload.problem, topology, seconds, lost)
        return rates.tokens_per_second or rates.samples_per_second

    def _program(self, batch: int | None, platform: Platform) -> _Program:
        if (batch, platform) not in self._made:
            # The earliest is made again if it is asked for: large programs fill memory.
            while len(self._made) >= _KEPT_PROGRAMS:
                self._made.pop(next(iter(self._made)))
            workload = self.programs(batch, platform)
            problem = workload.problem
            inputs = zip(problem.graph.inputs, problem.roles, strict=True)
            self._made[batch, platform] = _Program(
                workload,
                build_tables(problem, platform),
                Space(problem, backend_for(platform).stored_multiple),
                sum(problem.graph.values[v].n_bytes for v, role in inputs if role in _STATE),
            )
        return self._made[batch, platform]

    def _evaluator(self, program: _Program, machine: Machine) -> Evaluator:
        return Evaluator(program.tables, program.workload.problem.n_classes, machine.topology)

    def _bound_row(self, program: _Program, machine: Machine) -> AdviceRow | None:
        topology = machine.topology
        least = program.state_bytes // topology.device_count
        if least <= topology.device.memory_bytes:
            return None
        return self._make_row(program, machine, "bound", None, peak_bytes=least)

    def _priced_row(self, program: _Program, machine: Machine, how: How) -> AdviceRow:
        evaluator = self._evaluator(program, machine)
        topology, workload = machine.topology, program.workload
        context = SearchContext(
            space=program.space,
            evaluator=evaluator,
            meshes=candidate_meshes(topology, None, workload.mesh, self.deadline),
            objective=Objective(topology.device.memory_bytes, evaluator.backend.memory_margin),
            pins=(),
            seed=self.request.seed,
            # Presets are few: each cell has all of them, or rows could not be compared.
            deadline=self.deadline if how == "search" else Deadline.never(),
            on_progress=lambda context: None,
        )
        try:
            price_presets(context)
            for preset in context.best_per_preset.values():
                context.consider(preset.point, preset.origin)
            if how == "search":
                get_strategy(self.request.strategy)(context)
        except OutOfBudget:
            pass
        return self._make_row(program, machine, how, context.best)

    def _make_row(
        self,
        program: _Program,
        machine: Machine,
        how: How,
        best: Candidate | None,
        peak_bytes: int = 0,
    ) -> AdviceRow:
        topology, problem = machine.topology, program.workload.problem
        lost = LostRecord(collectives=0.0, bubbles=0.0)
        seconds = best.estimate.step_seconds if best else 0.0
        rates = rates_record(problem, topology, seconds, lost)
        peak_bytes = round(best.estimate.peak_bytes) if best else peak_bytes
        return AdviceRow(
            machine=machine.name,
            kind=machine.kind,
            devices=topology.device_count,
            batch=rates.samples,
            how=how,
            plan=best.origin if best else "",
            mesh=best.point.mesh.axes if best else (),
            fits=best is not None and peak_bytes <= topology.device.memory_bytes,
            step_seconds=seconds,
            peak_bytes=peak_bytes,
            memory_bytes=topology.device.memory_bytes,
            mfu=rates.mfu,
            samples_per_second=rates.samples_per_second,
            tokens_per_second=rates.tokens_per_second,
        )

    def _path(self, workload: Workload) -> Path | None:
        folder = self.request.cache_folder
        if folder is None:
            return None
        # The graph's digest has no operations' names, which say what is computed again.
        mesh = workload.mesh
        parts: list[object] = [
            workload.hlo_sha256,
            workload.problem.model_work.flops,
            workload.problem.layers,
            # Shardings in the user's code say which meshes are looked at.
            mesh and (mesh.names, mesh.sizes, bool(mesh.manual)),
        ]
        parts += [self.request.strategy, str(self.request.seed), *self.request.versions]
        return folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.json"

    @staticmethod
    def _key(machine: Machine) -> str:
        text = json.dumps(machine.topology.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _rows_in(self, path: Path) -> dict[str, AdviceRow]:
        if path not in self._known:
            self._known[path] = dict(_stored_rows(path))
        return self._known[path]

    def save(self) -> None:
        """Write the rows that are new; a folder that cannot be written to keeps none."""
        for path in self._changed:
            rows = {key: encode(_without_money(row)) for key, row in self._known[path].items()}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, layout(rows), links="replace")
            except (PlanError, OSError):
                continue
        self._changed.clear()


def _without_money(row: AdviceRow) -> AdviceRow:
    """The row without money: prices are asked anew each time."""
    return replace(row, price_per_hour=None, price_per_million=None)


def _stored_rows(path: Path) -> Iterator[tuple[str, AdviceRow]]:
    """The rows of a file; none of one that is not there or not ours."""
    try:
        stored = read(path) if path.is_file() else {}
        for key, row in stored.items() if isinstance(stored, dict) else ():
            yield key, decode(AdviceRow, row, key)
    except PlanError:
        return
