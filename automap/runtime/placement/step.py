"""A placement plan's step: operators' tasks as jitted programs on their devices.

layout    the devices of an operator's parts, and what is split over them
                                                       -> in: `automap.runtime.placement.layouts`
program   tasks of one layout that follow each other. A task joins the program before it if nothing
          of that program is awaited in another layout, nothing that the task reads is made in
          another one after the program has begun, and no program of another layout has begun on
          its devices since; so no array waits for a task that does not make it, programs can run in
          the order of their first tasks, and each device runs tasks in the plan's order
                                                                             -> in: `_groups`
          The program of a split layout is partitioned by JAX (GSPMD), which adds what its sums need
transfer  an array goes to every other layout with a program that reads it as soon as the program
          that makes it is given to its devices; all is asynchronous, so transfers and programs run
          when what they read is there
again     an equation in no task, which depends on no input, is made in every program that reads it

Equal programs, as of unrolled steps, are compiled once for each layout. State is stored where the
plan says, and an array that the step donates is donated to the program that makes its new version.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core
from jax.sharding import NamedSharding

from automap.errors import PlanError
from automap.jax_compat import new_jaxpr
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.flatten import FlatJaxpr
from automap.jaxpr.reemit import Reemitter
from automap.plan.checks import shown
from automap.plan.placement import PlacementRecord
from automap.plan.record import PlanRecord
from automap.runtime.meshes import device_mesh
from automap.runtime.placement.layouts import (
    Layout,
    Shardings,
    input_layouts,
    operator_layout,
)
from automap.runtime.planned_calls import StepUnderPlan
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import Step
from automap.step.user_constraints import drop_constraint, is_constraint


@dataclass(frozen=True)
class _Part:
    """Tasks of one layout, by number: their equations with those that are made again, and the
    variables of the step that these read and make for others.
    """

    layout: Layout
    tasks: tuple[int, ...]
    equations: tuple[int, ...]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]


@dataclass(frozen=True)
class _Program:
    """A part that is compiled; `sends` has the other layouts that read each variable of `writes`,
    `frees` are variables that nothing reads after it.
    """

    part: _Part
    writes: tuple[Any, ...]
    sends: tuple[tuple[Layout, ...], ...]
    frees: tuple[Any, ...]
    run: Callable[..., Sequence[Any]]


@dataclass(frozen=True, eq=False)
class _Programs:
    """The programs of one kind of call, in order; `places` has the layouts in which each input and
    constant has to be, the one that it is stored in first.
    """

    call: TracedCall
    flat: FlatJaxpr
    programs: tuple[_Program, ...]
    places: Mapping[Any, tuple[Layout, ...]]
    shardings: Shardings


class PlacedStep(StepUnderPlan[_Programs]):
    """A step as a placement plan says; made by `Plan.jit`.

    After a call `order` has the numbers of the plan's tasks in the order in which they were given
    to their devices.
    """

    def __init__(
        self, plan: PlanRecord, step: Step, devices: Sequence[Any] | None, *, is_own: bool
    ) -> None:
        """Raises `MeshMismatchError` for other devices, `PlanError` with several processes."""
        super().__init__(plan, step, is_own=is_own)
        assert plan.placement is not None  # noqa: S101 - this class is for plans that have one
        if jax.process_count() > 1:
            raise PlanError(
                f"the plan is a placement, which one process runs, and here are "
                f"{jax.process_count()}; plan with --space pipeline or sharding"
            )
        self._record = plan.placement
        self.order: Sequence[int] = ()
        self._devices = list(device_mesh(plan, devices).devices.flat)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Always `PlanError`: the step is several programs."""
        raise PlanError(
            "a placement is several programs, which cannot be lowered as one; call the step, or "
            "plan with --space sharding"
        )

    @property
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """Where the plan's inputs are stored; what is on every device that reads it, as a batch,
        is said to be on the first.
        """
        classes = {a.number: a.classes for a in self._record.arrays if a.equation is None}
        shardings = Shardings(self._devices, classes)
        layouts = input_layouts(self._record)
        first = Layout((0,), ())
        return tuple(shardings.on(layout or first, n) for n, layout in enumerate(layouts))

    def _make_program(self, call: TracedCall) -> _Programs:
        plan = self.plan_for(call)
        # The plan is this one, with other names of places at most.
        assert plan.placement is not None  # noqa: S101
        flat = Reemitter(call.jaxpr, user_rules(plan.workload.rules)).flat
        return _Division(flat, plan.placement, call, self._devices).programs()

    def _run(self, program: _Programs, leaves: Sequence[Any]) -> Any:
        held: dict[Any, dict[Layout, Any]] = {}
        shardings = program.shardings
        for var, value in zip(
            (*program.flat.invars, *program.flat.constvars),
            (*leaves, *program.flat.consts),
            strict=True,
        ):
            held[var] = {
                layout: jax.device_put(value, shardings.on(layout, var))
                for layout in program.places.get(var, ())
            }
        order: list[int] = []
        for each in program.programs:
            here = each.part.layout
            made = each.run(*(held[var][here] for var in each.part.reads))
            order += each.part.tasks
            for var in each.frees:
                held.pop(var, None)
            for var, array, targets in zip(each.writes, made, each.sends, strict=True):
                held[var] = {here: array}
                for layout in targets:
                    held[var][layout] = jax.device_put(array, shardings.on(layout, var))
        self.order = order
        results = [
            jnp.asarray(atom.val, getattr(atom.aval, "dtype", None))
            if isinstance(atom, core.Literal)
            else next(iter(held[atom].values()))
            for atom in program.flat.outvars
        ]
        return jax.tree.unflatten(jax.tree.structure(program.call.result), results)


@dataclass
class _Division:
    """The equations of a step divided among tasks and programs."""

    flat: FlatJaxpr
    record: PlacementRecord
    call: TracedCall
    devices: Sequence[Any]
    task_by_equation: dict[int, int] = field(default_factory=dict)
    maker: dict[Any, int] = field(default_factory=dict)

    def programs(self) -> _Programs:
        """Raises `PlanError` for equations that the step has not, and tasks that wait for each
        other in a circle.
        """
        for task, row in enumerate(self.record.tasks):
            for number in row.numbers:
                if number >= len(self.flat.equations):
                    raise PlanError(
                        f"placement.tasks[{task}].equations: got {number}, of "
                        f"{shown(self._name(task))}; the step has {len(self.flat.equations)}"
                    )
                self.task_by_equation[number] = task
        for number, equation in enumerate(self.flat.equations):
            self.maker.update(dict.fromkeys(equation.eqn.outvars, number))
        reads = [self._reads(row.numbers, task) for task, row in enumerate(self.record.tasks)]
        parts = [self._part(layout, tasks) for layout, tasks in self._groups(reads)]
        parts += self._constants(parts)
        readers: dict[Any, list[int]] = {}
        for number, part in enumerate(parts):
            for var in part.reads:
                readers.setdefault(var, []).append(number)
        compiled: dict[str, Callable[..., Any]] = {}
        programs = tuple(
            self._program(number, parts, readers, compiled) for number in range(len(parts))
        )
        layouts = {
            var: tuple(dict.fromkeys(parts[n].layout for n in numbers))
            for var, numbers in readers.items()
        }
        return _Programs(self.call, self.flat, programs, self._places(layouts), self._shardings)

    @cached_property
    def _shardings(self) -> Shardings:
        """Raises `PlanError` for arrays that the step has not."""
        classes: dict[Any, tuple[int | None, ...]] = {}
        for index, row in enumerate(self.record.arrays):
            equations = self.flat.equations
            known, what = self.flat.invars, "inputs"
            if row.equation is not None:
                what = f"results of equation {row.equation}"
                is_there = row.equation < len(equations)
                known = equations[row.equation].eqn.outvars if is_there else []
            shape = known[row.number].aval.shape if row.number < len(known) else None
            if shape is None or len(shape) != len(row.classes):
                got = f"number {row.number} with {len(row.classes)} dimensions"
                raise PlanError(
                    f"placement.arrays[{index}]: got {got} of the {what}; the step has "
                    f"{[v.aval.ndim for v in known]} dimensions there; plan again"
                )
            classes[known[row.number]] = row.classes
        return Shardings(self.devices, classes)

    def _name(self, task: int) -> str:
        return self.record.operators[self.record.tasks[task].operator].name

    def _layout(self, task: int) -> Layout:
        return operator_layout(self.record.operators[self.record.tasks[task].operator])

    def _closure(self, numbers: Iterable[int]) -> list[int]:
        """The equations with those that they make again, in order."""
        todo = list(numbers)
        known = set(todo)
        while todo:
            for atom in self.flat.equations[todo.pop()].eqn.invars:
                before = None if isinstance(atom, core.Literal) else self.maker.get(atom)
                if (
                    before is not None
                    and before not in known
                    and before not in self.task_by_equation
                ):
                    known.add(before)
                    todo.append(before)
        return sorted(known)

    def _reads(self, numbers: Iterable[int], task: int) -> set[int]:
        """The other tasks whose results a task reads; all of them have to be before it."""
        result = set[int]()
        for number in self._closure(numbers):
            for atom in self.flat.equations[number].eqn.invars:
                made = None if isinstance(atom, core.Literal) else self.maker.get(atom)
                if made is None or self.task_by_equation.get(made, task) == task:
                    continue
                other = self.task_by_equation[made]
                if other > task:
                    raise PlanError(
                        f"placement.tasks[{task}]: {shown(self._name(task))} reads what "
                        f"{shown(self._name(other))} makes in task {other}, after it: the "
                        "programs would wait for each other in a circle; allowed: tasks in an "
                        "order in which they can run"
                    )
                result.add(other)
        return result

    def _groups(self, reads: Sequence[set[int]]) -> Iterator[tuple[Layout, list[int]]]:
        """(layout, tasks) of each program, in the order of their first tasks."""
        layouts = [self._layout(task) for task in range(len(self.record.tasks))]
        awaited = {
            other
            for task, others in enumerate(reads)
            for other in others
            if layouts[other] != layouts[task]
        }
        open_in: dict[Layout, list[int]] = {}
        groups: list[tuple[Layout, list[int]]] = []
        for task, layout in enumerate(layouts):
            for other in [o for o in open_in if o != layout]:
                if not set(other.devices).isdisjoint(layout.devices):
                    del open_in[other]
            current = open_in.get(layout)
            from_others = [o for o in reads[task] if layouts[o] != layout]
            if current is None or any(o > current[0] for o in from_others):
                current = open_in[layout] = []
                groups.append((layout, current))
            current.append(task)
            if task in awaited:
                del open_in[layout]
        yield from groups

    def _constants(self, parts: Sequence[_Part]) -> list[_Part]:
        """What makes the results that no task makes: they depend on no input."""
        made = {
            self.maker[atom]
            for atom in self._results
            if atom in self.maker and self.maker[atom] not in self.task_by_equation
        }
        first = Layout((0,), ())
        return (
            [self._equations_as_part(parts[0].layout if parts else first, (), sorted(made))]
            if made
            else []
        )

    @cached_property
    def _results(self) -> frozenset[Any]:
        return frozenset(v for v in self.flat.outvars if not isinstance(v, core.Literal))

    def _part(self, layout: Layout, tasks: Sequence[int]) -> _Part:
        numbers = [n for task in tasks for n in self.record.tasks[task].numbers]
        return self._equations_as_part(layout, tuple(tasks), numbers)

    def _equations_as_part(
        self, layout: Layout, tasks: tuple[int, ...], numbers: Sequence[int]
    ) -> _Part:
        """The part of equations, with all that they read and make."""
        equations = self._closure(numbers)
        made, reads = dict[Any, None](), dict[Any, None]()
        for number in equations:
            eqn = self.flat.equations[number].eqn
            for atom in eqn.invars:
                if not isinstance(atom, core.Literal) and atom not in made:
                    reads.setdefault(atom)
            made.update(dict.fromkeys(eqn.outvars))
        own = {v for n in numbers for v in self.flat.equations[n].eqn.outvars}
        writes = tuple(var for var in made if var in own and not isinstance(var, core.DropVar))
        return _Part(layout, tasks, tuple(equations), tuple(reads), writes)

    def _program(
        self,
        number: int,
        parts: Sequence[_Part],
        readers: Mapping[Any, Sequence[int]],
        compiled: dict[str, Callable[..., Any]],
    ) -> _Program:
        """A part with what others read of it alone, compiled unless an equal one is."""
        part = parts[number]
        writes = tuple(v for v in part.writes if v in readers or v in self._results)
        sends = tuple(
            tuple(sorted({parts[n].layout for n in readers.get(v, ())} - {part.layout}))
            for v in writes
        )
        last = [v for v in part.reads if readers[v][-1] == number and v not in self._results]
        donated = tuple(self._donated(part, writes, readers))
        equations = [self.flat.equations[n] for n in part.equations]
        eqns = [drop_constraint(e.eqn) if is_constraint(e.eqn) else e.eqn for e in equations]
        run = new_jaxpr("placed", part.reads, writes, eqns)
        shardings, where = None, ""
        if part.layout.degrees:
            shardings = [self._shardings.on(part.layout, v) for v in writes]
            # A program with shardings is of these devices, unlike one without.
            where = f"{part.layout} {[each.spec for each in shardings]}"
        flat = FlatJaxpr(
            name=f"placed {donated} {where}",
            original=run,
            constvars=(),
            consts=(),
            equations=tuple(equations),
            outvars=writes,
            trip_count=1,
        )
        key = jaxpr_sha256(flat)
        if key not in compiled:
            compiled[key] = jax.jit(
                core.jaxpr_as_fun(run), donate_argnums=donated, out_shardings=shardings
            )
        return _Program(part, writes, sends, tuple(last), compiled[key])

    def _donated(
        self, part: _Part, writes: Sequence[Any], readers: Mapping[Any, Sequence[int]]
    ) -> Iterator[int]:
        """Places of the state that only this part reads, and of which it makes the new version."""
        place = {var: number for number, var in enumerate(part.reads)}
        for output, position in self.call.state.items():
            old, new = self.flat.invars[position], self.flat.outvars[output]
            is_donated = position in self.call.donated and len(readers.get(old, ())) == 1
            if is_donated and old in place and old not in self._results:
                if not isinstance(new, core.Literal) and new in writes:
                    yield place[old]

    def _places(self, layouts: Mapping[Any, tuple[Layout, ...]]) -> dict[Any, tuple[Layout, ...]]:
        """The layouts that each input and constant has to be in, the one it is stored in first."""
        places = {var: layouts.get(var, ()) for var in self.flat.constvars}
        for var, home in zip(self.flat.invars, input_layouts(self.record), strict=True):
            needed = layouts.get(var, ())
            if var in self._results:
                first = home or (*needed, Layout((0,), ()))[0]
                needed = (first, *(d for d in needed if d != first))
            places[var] = needed
        return places
