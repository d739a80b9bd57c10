"""A placement plan's step: called like the step, its state where the plan stores it.

Per kind of call the step is traced once, held against the plan and divided in programs
(`automap.runtime.placement.programs`), which every call hands to their devices in the plan's order.

transfer  an array goes to every other layout with a program that reads it as soon as the program
          that makes it is given to its devices; all is asynchronous, so transfers and programs run
          when what they read is there

Of several processes, each goes through all programs and transfers and leaves out those that none of
its devices has a part in (`automap.runtime.transfer`). State is there only where it is stored; what
else the step returns is sent to one device of each process.
"""

from collections.abc import Sequence
from contextlib import suppress
from statistics import mean
from typing import Any, Final

import jax
from jax import numpy as jnp
from jax.extend import core
from jax.sharding import NamedSharding

from automap.errors import AutomapError, PlanError
from automap.jaxpr.reemit import Reemitter
from automap.plan.record import PlanRecord
from automap.runtime.meshes import device_mesh
from automap.runtime.placement.layouts import Layout, Shardings, input_layouts
from automap.runtime.placement.programs import Division, PlacedPrograms
from automap.runtime.planned_calls import StepUnderPlan, on_leaves, timed_steps
from automap.runtime.processes import (
    argument_places,
    check_agreement,
    check_state_types,
    check_takes_part,
    one_device_each,
    process_numbers,
)
from automap.runtime.transfer import send
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import Step, as_step


MEASURED_STEPS: Final = 10
"""Of a placement, of which the first compiles and is left out, as ColocRL has it."""


class PlacedStep(StepUnderPlan[PlacedPrograms]):
    """A step as a placement plan says; made by `Plan.jit`.

    After a call `order` has the numbers of the plan's tasks in the order in which they were given
    to their devices. The first call of a kind raises `PlanError` in all processes if they do not
    run the same.
    """

    def __init__(
        self, plan: PlanRecord, step: Step, devices: Sequence[Any] | None, *, is_own: bool
    ) -> None:
        """Raises `MeshMismatchError` for other devices."""
        super().__init__(plan, step, is_own=is_own)
        assert plan.placement is not None  # noqa: S101 - this class is for plans that have one
        self._record = plan.placement
        self.order: Sequence[int] = ()
        self._devices = list(device_mesh(plan, devices).devices.flat)
        check_takes_part(self._devices)
        self._is_shared = len(process_numbers(self._devices)) > 1
        self._agreed: list[PlacedPrograms] = []

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

    def _make_program(self, call: TracedCall) -> PlacedPrograms:
        if not self._is_shared:
            return self._divide(call)
        try:
            programs = self._divide(call)
            check_state_types(call)
        except AutomapError as error:
            # The others would wait for this process: they get its error too.
            with suppress(PlanError):
                self._agree(str(error))
            raise
        self._agree(programs.structure())
        return programs

    def _agree(self, structure: str) -> None:
        record = self._record
        operators = [(each.devices, each.degrees) for each in record.operators]
        tasks = [(each.operator, each.equations) for each in record.tasks]
        stored = record.input_devices, record.input_operators, record.arrays
        facts = {
            "the devices": str([device.id for device in self._devices]),
            "the plan": str((operators, tasks, stored)),
            "the planned step": str(self.plan.workload.jaxpr_sha256),
            "the programs of the operators": structure,
        }
        check_agreement(self._devices, facts)

    def _divide(self, call: TracedCall) -> PlacedPrograms:
        plan = self.plan_for(call)
        # The plan is this one, with other names of places at most.
        assert plan.placement is not None  # noqa: S101
        flat = Reemitter(call.jaxpr, user_rules(plan.workload.rules)).flat
        return Division(flat, plan.placement, call, self._devices).programs()

    def _run(self, program: PlacedPrograms, leaves: Sequence[Any]) -> Any:
        # Once for each kind of call: it costs messages between all processes.
        if self._is_shared and program not in self._agreed:
            places = argument_places(leaves)
            check_agreement(self._devices, {"where the arguments lie": places})
            self._agreed.append(program)
        held: dict[Any, dict[Layout, Any]] = {}
        shardings = program.shardings
        for var, value in zip(
            (*program.flat.invars, *program.flat.constvars),
            (*leaves, *program.flat.consts),
            strict=True,
        ):
            held[var] = {
                layout: send(value, shardings.on(layout, var))
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
                    held[var][layout] = send(array, shardings.on(layout, var))
        self.order = order
        results = [
            jnp.asarray(atom.val, getattr(atom.aval, "dtype", None))
            if isinstance(atom, core.Literal)
            else next(iter(held[atom].values()))
            for atom in program.flat.outvars
        ]
        if self._is_shared:
            everywhere, state = one_device_each(self._devices), program.call.state
            results = [x if n in state else send(x, everywhere) for n, x in enumerate(results)]
        return jax.tree.unflatten(jax.tree.structure(program.call.result), results)


def measured_seconds(plan: PlanRecord, call: TracedCall, devices: Sequence[Any]) -> float:
    """The mean seconds of a planned step on real devices, each from the state of the one before.

    Leaves of the call that are shapes get numbers of no meaning: time alone is looked at.
    """
    run = PlacedStep(plan, as_step(call.function), devices, is_own=True)
    leaves = [_value(x) for x in jax.tree.leaves(call.args)]
    _, seconds = timed_steps(on_leaves(run, call), call, leaves, MEASURED_STEPS)
    return mean(seconds[1:])


def _value(leaf: Any) -> Any:
    """An array that the step may have and donate."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf
    # Small, so that nothing overflows; zeros for keys and for integers, which are indices of any
    # table.
    is_number = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return (
        jnp.full(leaf.shape, 0.01, leaf.dtype) if is_number else jnp.zeros(leaf.shape, leaf.dtype)
    )
