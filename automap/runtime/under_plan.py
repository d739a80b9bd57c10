"""A step under a plan: per kind of call traced once, held against the plan and made a program,
which later calls run.

What a kind of call is, says its signature (`automap.step.signature`); a plan serves all kinds that
differ from the planned one in types only (`automap.runtime.planned_calls`).
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar
import warnings

from automap.errors import PlanWarning
from automap.plan.record import PlanRecord
from automap.runtime.planned_calls import PlannedCalls
from automap.step.call import TracedCall
from automap.step.kept import Kept
from automap.step.lost_state import lost_state
from automap.step.signature import Signature
from automap.step.step import Entered, Step


Program = TypeVar("Program")


class StepUnderPlan(ABC, Generic[Program]):
    """What `Plan.jit` makes; called like the step."""

    def __init__(self, plan: PlanRecord, step: Step, *, is_own: bool) -> None:
        """`is_own` says that this process has made the plan of this step, or has checked its
        program.
        """
        self.plan = plan
        self.step = step
        self._calls = PlannedCalls(plan, is_own)
        self._programs: Kept[Program] = Kept()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step. Raises `PlanError` if it is not the plan's, or its arguments are not."""
        return self.run(self.step.enter(args, kwargs))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Trace the step for arguments that may be shapes, and check that it is the plan's, as the
        first call does.
        """
        self.program(self.step.enter(args, kwargs))

    def run(self, entered: Entered) -> Any:
        """Run one step for a call of it."""
        program = self.program(entered)
        return entered.left(self._run(program, entered.leaves))

    def program(self, entered: Entered) -> Program:
        """The program of a call. Raises `PlanError` if the plan is not for it."""
        program = self._programs.get(entered.signature)
        return self.take(entered.signature, entered.traced()) if program is None else program

    def take(self, signature: Signature, call: TracedCall) -> Program:
        """Make the program of a traced call. Raises `PlanError` if the plan is not for it."""
        program = self._made(call)
        lost = lost_state(call) if not self._programs else None
        if lost is not None:
            warnings.warn(f"{self.step.name}: {lost}", PlanWarning, stacklevel=2)
        self._programs.add(signature, program)
        return program

    def plan_of(self, call: TracedCall) -> PlanRecord:
        """The plan with places of the call's equations. Raises `PlanError` if it is not for the
        call.
        """
        return self._calls.plan_of(call)

    @abstractmethod
    def _made(self, call: TracedCall) -> Program:
        """The program of a call, under `plan_of` it."""

    @abstractmethod
    def _run(self, program: Program, leaves: Any) -> Any:
        """What the traced function returns for the arrays among its arguments."""
