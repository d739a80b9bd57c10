"""A placement plan's step divided: operators' tasks as jitted programs on their devices.

layout    the devices of an operator's parts, and what is split over them
                                                       -> in: `automap.runtime.placement.layouts`
program   tasks of one layout that follow each other. A task joins the program before it if nothing
          of that program is awaited in another layout, nothing that the task reads is made in
          another one after the program has begun, and no program of another layout has begun on
          its devices since; so no array waits for a task that does not make it, programs can run in
          the order of their first tasks, and each device runs tasks in the plan's order
                                                                             -> in: `_groups`
          The program of a split layout is partitioned by JAX (GSPMD), which adds what its sums need
again     an equation in no task, which depends on no input, is made in every program that reads it

Equal programs, as of unrolled steps, are compiled once for each layout, and only in processes that
hold devices of it. An array that the step donates is donated to the program that makes its new
version.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax.extend import core

from automap.errors import PlanError
from automap.jax_compat import new_jaxpr
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.flatten import FlatJaxpr
from automap.plan.checks import shown
from automap.plan.placement import PlacementRecord
from automap.runtime.placement.layouts import (
    Layout,
    Shardings,
    input_layouts,
    operator_layout,
)
from automap.runtime.processes import process_numbers, where_held
from automap.step.call import TracedCall
from automap.step.user_constraints import hold_constrained, is_constraint


@dataclass(frozen=True)
class Part:
    """Tasks of one layout, by number: their equations with those that are made again, and the
    variables of the step that these read and make for others.
    """

    layout: Layout
    tasks: tuple[int, ...]
    equations: tuple[int, ...]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]


@dataclass(frozen=True)
class PlacedProgram:
    """A part that is compiled; `sends` has the other layouts that read each variable of `writes`,
    `frees` are variables that nothing reads after it.
    """

    part: Part
    writes: tuple[Any, ...]
    sends: tuple[tuple[Layout, ...], ...]
    frees: tuple[Any, ...]
    run: Callable[..., Sequence[Any]]


@dataclass(frozen=True, eq=False)
class PlacedPrograms:
    """The programs of one kind of call, in order; `places` has the layouts in which each input and
    constant has to be, the one that it is stored in first.
    """

    call: TracedCall
    flat: FlatJaxpr
    programs: tuple[PlacedProgram, ...]
    places: Mapping[Any, tuple[Layout, ...]]
    shardings: Shardings

    def structure(self) -> str:
        """Layouts and tasks of all programs, as text that is the same in all processes."""
        return str([(each.part.layout, each.part.tasks) for each in self.programs])


@dataclass
class Division:
    """The equations of a step divided among tasks and programs."""

    flat: FlatJaxpr
    record: PlacementRecord
    call: TracedCall
    devices: Sequence[Any]
    task_by_equation: dict[int, int] = field(default_factory=dict)
    maker: dict[Any, int] = field(default_factory=dict)

    def programs(self) -> PlacedPrograms:
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
        return PlacedPrograms(
            self.call, self.flat, programs, self._places(layouts), self._shardings
        )

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

    def _constants(self, parts: Sequence[Part]) -> list[Part]:
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

    def _part(self, layout: Layout, tasks: Sequence[int]) -> Part:
        numbers = [n for task in tasks for n in self.record.tasks[task].numbers]
        return self._equations_as_part(layout, tuple(tasks), numbers)

    def _equations_as_part(
        self, layout: Layout, tasks: tuple[int, ...], numbers: Sequence[int]
    ) -> Part:
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
        return Part(layout, tasks, tuple(equations), tuple(reads), writes)

    def _program(
        self,
        number: int,
        parts: Sequence[Part],
        readers: Mapping[Any, Sequence[int]],
        compiled: dict[str, Callable[..., Any]],
    ) -> PlacedProgram:
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
        eqns = [hold_constrained(e.eqn) if is_constraint(e.eqn) else e.eqn for e in equations]
        run = new_jaxpr("placed", part.reads, writes, eqns)
        shardings, where = None, ""
        if part.layout.degrees or len(process_numbers(self.devices)) > 1:
            shardings = [self._shardings.on(part.layout, v) for v in writes]
            # A program with shardings is of these devices, unlike one without. Of several processes
            # those without devices of it have only its shardings to say where its results are.
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
            jitted = jax.jit(
                core.jaxpr_as_fun(run), donate_argnums=donated, out_shardings=shardings
            )
            its = self._shardings.mesh(part.layout).devices.flat
            compiled[key] = where_held(jitted, its if shardings is not None else self.devices)
        return PlacedProgram(part, writes, sends, tuple(last), compiled[key])

    def _donated(
        self, part: Part, writes: Sequence[Any], readers: Mapping[Any, Sequence[int]]
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
