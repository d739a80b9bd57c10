"""The best plan with levers: microbatches, what is kept of the forward pass, and what state is in
the host's memory, together with the sharding.

Levers are looked for where memory decides: where no plan fits, or the fastest one does not and the
best that does is slower by more than the policy's `lever_gain`; and where a lever is asked for by
name, as computing again may be faster than storing. Everything is priced by the
evaluator, of the step as the levers make it, lowered anew:

    1  what people use: nothing of each layer (full), its products (MaxText's minimal)
    2  from the best of them, its step x under limit M: the exact choice of what to keep
       (`automap.planner.remat`) at the prices of its plan, in B = what it keeps + M - peak(x)
    3  the sharding search of that step; its plan has other prices, so 2 again until nothing
       changes; what does not fit gets so much less B

So sharding and kept values are found by turns, and the result is never slower than full, minimal or
no rematerialization with any preset                                            -> in: `_Trials`

    4  the same of the step in m microbatches (`automap.jaxpr.accumulate`), m the divisors of the
       batch that at least double, until memory decides no more, or m takes no more off the peak
                                                                               -> in: `_Search`
    5  the same of the best of these, and of the step as it is, with all state that only the update
       reads in the host's memory; where that fits, as much of it on the device as there is room for
                                                                     -> in: `_with_offload`

Searches are brief, and the best is searched on at the end   -> in: `_Search.searched_on`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
import time

from automap.choices import LeverName
from automap.config import Options
from automap.cost.hosted import movable_leaves
from automap.deadline import Deadline
from automap.errors import NotSeparableError
from automap.interrupts import note_interrupts
from automap.jaxpr.accumulate import microbatch_counts
from automap.jaxpr.blocks import BlockGroup, block_groups
from automap.plan.levers import Choice, LeversRecord
from automap.plan.record import PlanRecord
from automap.planner.rates import without_levers
from automap.planner.rebuild import levered_workload
from automap.planner.records import Outcome
from automap.planner.remat import (
    KeptValues,
    choice_key,
    keep_nothing,
    keep_products,
    keep_within,
    kept_bytes,
    remat_records,
    saved_seconds,
)
from automap.planner.remat_prices import BlockPrices, Prices
from automap.planner.sharding import find, fitting_plan, searched_on
from automap.policy import default_policy
from automap.program.trace import Workload
from automap.quantities import number_text, seconds_text
from automap.search import SearchContext
from automap.topology.model import Topology


OnProgress = Callable[[SearchContext], None]


def plan_sharding(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_progress: OnProgress,
    deadline: Deadline,
) -> PlanRecord:
    """The best plan of one program found by the deadline. Raises `InfeasiblePlanError` if none
    fits.
    """
    outcome = find_with_levers(
        workload, topology, options, on_progress=on_progress, deadline=deadline
    )
    return fitting_plan(outcome, options)


def find_with_levers(
    workload: Workload,
    topology: Topology,
    options: Options,
    *,
    on_progress: OnProgress = lambda context: None,
    deadline: Deadline | None = None,
) -> Outcome:
    """The search's outcome with the levers that the options allow, whether it fits or not.

    Raises `InputError` or `TopologyError` for bad options.
    """
    # A program file has no step that could be changed.
    if not options.levers or workload.call is None or workload.reemitter is None:
        return find(workload, topology, options, on_progress=on_progress, deadline=deadline)
    start = time.monotonic()
    with note_interrupts() as interrupts:
        until = deadline or Deadline.after(options.budget_seconds, interrupts=interrupts)
        plain = find(
            workload,
            topology,
            options,
            on_progress=on_progress,
            deadline=until,
            share_where_memory_decides=default_policy().lever_plain_share,
        )
        if options.levers == ("auto",) and not _memory_decides(plain):
            return searched_on(plain, options, until)
        search = _Search(plain, topology, options, on_progress, until)
        best = search.searched_on(search.best())
        if until.is_over and not until.interrupts.is_asked:
            best = replace(best, warnings=(*best.warnings, search.where_time_went()))
    return replace(best, seconds=time.monotonic() - start)


def _memory_decides(outcome: Outcome) -> bool:
    # Not the fastest of all that were priced: plans that another preset is, or that keep no pin,
    # may be faster and fit.
    context = outcome.context
    gain = 1 + default_policy().lever_gain
    return context.refused_seconds * gain < context.fitting_seconds


@dataclass(frozen=True)
class _Search:
    """What all choices of levers have in common: `plain` is what came of the step as it is."""

    plain: Outcome
    topology: Topology
    options: Options
    on_progress: OnProgress
    deadline: Deadline
    trial_seconds: list[float] = field(default_factory=list)  # on the clock, a choice each

    def where_time_went(self) -> str:
        """What a budget that is used up was spent on."""
        tried = number_text(len(self.trial_seconds), "choice of levers", "choices of levers")
        return (
            f"the budget of {self.options.budget_seconds:g} s was used up: on the clock "
            f"{seconds_text(self.plain.seconds)} for the step as it is, and "
            f"{seconds_text(sum(self.trial_seconds))} to plan {tried}; a larger one may find more"
        )

    @property
    def host_bytes_per_s(self) -> float:
        """Of the link to the host's memory, 0 where nothing may be kept there."""
        return self.topology.device.host_bytes_per_s if self.allows("offload") else 0.0

    def allows(self, name: LeverName) -> bool:
        """Whether a lever may be pulled."""
        return bool({"auto", name} & set(self.options.levers))

    def best(self) -> Outcome:
        """The best outcome of all, the plain step's among them."""
        policy = default_policy()
        share = policy.lever_device_share if self.allows("offload") else 1.0
        best, refused = self._on_the_device(self.deadline.share(share))
        if self.allows("offload") and not self._gains_nothing(best, "offload"):
            best = self._with_offload(best)
        return replace(best, warnings=(*best.warnings, *refused))

    def searched_on(self, best: Outcome) -> Outcome:
        """The best outcome with what brief searches left out of it, and of the step as it is if
        that fits and is near.
        """
        plain, policy = self.plain, default_policy()
        reach = best.best.estimate.step_seconds * (1 + policy.searched_on_reach)
        is_near = self.fits(plain) and plain.best.estimate.step_seconds <= reach
        others = [plain] if is_near and best.levers is not None else []
        done = [searched_on(each, self.options, self.deadline) for each in (best, *others)]
        for outcome in (each for each in done if each.levers is not None):
            outcome.context.bound_seconds = None
        return min(done, key=self.key)

    def _on_the_device(self, deadline: Deadline) -> tuple[Outcome, tuple[str, ...]]:
        """The best outcome with all state on the device, and why microbatches were refused."""
        both = self.allows("accumulate") and self.allows("remat")
        best = self._with_remat(
            self.plain, deadline.share(default_policy().lever_remat_share if both else 1.0)
        )
        before, refused = self.plain, ()
        for count in self._microbatch_counts():
            if deadline.is_over or self._gains_nothing(best, "accumulate"):
                break
            try:
                outcome = self.planned(Choice(microbatches=count), self.plain.workload)
            except NotSeparableError as error:
                if "accumulate" in self.options.levers and before is self.plain:
                    raise
                refused = (f"gradients are not accumulated over {count} microbatches: {error}",)
                break
            best = min(best, outcome, key=self.key)
            if deadline.is_over or not _memory_decides(outcome):
                break
            if self._may_beat(outcome, best):
                best = min(best, self._with_remat(outcome, deadline), key=self.key)
            if not self.fits(outcome) and _peak(outcome) > (
                1 - default_policy().lever_least_fall
            ) * _peak(before):
                break
            before = outcome
        return best, refused

    def _with_offload(self, best: Outcome) -> Outcome:
        """The best outcome with state in the host's memory, or the one that is given."""
        problem = self.plain.workload.problem
        device, how = self.topology.device, self.plain.context.evaluator.backend.host_state
        leaves = tuple(problem.paths[n] for n in movable_leaves(problem, how))
        if not leaves or not device.host_bytes_per_s:
            why = f"device {device.name!r} has no host_bytes_per_s" if leaves else "none can be"
            asked = "offload" in self.options.levers
            told = (f"no state is kept in the host's memory: {why}",) if asked else ()
            return replace(best, warnings=(*best.warnings, *told))
        # With what the other levers leave it is the more likely to fit.
        for base in (best, self.plain)[: 1 + (best.levers is not None)]:
            if self.deadline.is_over:
                break
            if "offload" not in self.options.levers and not self._may_beat(base, best):
                continue
            choice = replace(Choice.of(base.levers), offload=leaves)
            outcome = self.planned(choice, base.workload)
            trials = [outcome]
            can_gain = not choice.remat and self._may_beat(outcome, best)
            if can_gain and not self.fits(outcome):
                trials.append(self._with_remat(outcome, self.deadline))
            trials += [self._with_less_offload(each) for each in trials if self.fits(each)]
            best = min([best, *trials], key=self.key)
        return best

    def _with_less_offload(self, outcome: Outcome) -> Outcome:
        """The outcome with as much of the state on the device as it has room for."""
        kept = _prices(outcome).beyond(self.slack(outcome))
        choice = Choice.of(outcome.levers)
        if not kept or len(kept) == len(choice.offload):
            return outcome
        return self.planned(replace(choice, offload=kept), outcome.workload)

    def _gains_nothing(self, best: Outcome, lever: LeverName) -> bool:
        """Whether an outcome fits and is about as fast as what does not, unless a lever is asked
        for by name.
        """
        fastest = self.plain.context.refused_seconds * (1 + default_policy().lever_gain)
        is_fast = self.fits(best) and best.best.estimate.step_seconds <= fastest
        return is_fast and lever not in self.options.levers

    def _may_beat(self, outcome: Outcome, best: Outcome) -> bool:
        """Whether one lever more is tried with an outcome: it is taken to cost seconds."""
        fastest = min(outcome.context.refused_seconds, outcome.context.fitting_seconds)
        least = fastest * (1 + default_policy().lever_gain)
        return not self.fits(best) or least < best.best.estimate.step_seconds

    def _microbatch_counts(self) -> Iterable[int]:
        call = self.plain.workload.call
        return microbatch_counts(call) if call is not None and self.allows("accumulate") else ()

    def _with_remat(self, outcome: Outcome, deadline: Deadline) -> Outcome:
        """The best outcome with rematerialization of the step that an outcome is of, or itself."""
        reemitter = outcome.workload.reemitter
        if reemitter is None or not (self.allows("remat") or self.host_bytes_per_s):
            return outcome
        groups = block_groups(reemitter.flat)
        return _Trials(self, outcome, groups, deadline).best() if groups else outcome

    def planned(self, choice: Choice, workload: Workload) -> Outcome:
        """The outcome with these levers; `workload` is the step with some of them, or none.

        Raises `NotSeparableError` for a step that has no such microbatches.
        """
        without = without_levers(self.plain.context, self.plain.best)
        start = time.monotonic()
        # What they take is known when they are planned.
        levers = LeversRecord(
            remat=choice.remat,
            microbatches=choice.microbatches,
            offload=choice.offload,
            recompute_seconds=0.0,
            without=without,
        )
        outcome = find(
            levered_workload(workload, levers, self.topology.platform),
            self.topology,
            self.options,
            on_progress=self.on_progress,
            # Its time to begin is the lever's; once it is lowered a brief search is cheap to end.
            deadline=self.deadline.share(default_policy().lever_trial_share),
            is_brief=True,
        )
        self.trial_seconds.append(time.monotonic() - start)
        # It is proven of this choice of levers only.
        outcome.context.bound_seconds = None
        return replace(outcome, levers=levers)

    def fits(self, outcome: Outcome) -> bool:
        """Whether an outcome keeps to the memory that is allowed."""
        return outcome.context.objective.fits(outcome.best.estimate)

    def slack(self, outcome: Outcome) -> float:
        """Bytes of the memory that is allowed which an outcome leaves."""
        return outcome.context.objective.memory_limit_bytes - _peak(outcome)

    def key(self, outcome: Outcome) -> tuple[float, ...]:
        """What the best outcome has the least of."""
        return outcome.context.objective.key(outcome.best.estimate)


def _prices(outcome: Outcome) -> Prices:
    context = outcome.context
    split_classes = context.space.split_classes(outcome.best.point)
    return Prices(outcome.workload, context.evaluator, split_classes)


def _peak(outcome: Outcome) -> float:
    return outcome.best.estimate.peak_bytes


@dataclass
class _Trials:
    """Choices of what is kept that were tried of one step, with what came of each; `base` is what
    came of that step as it is.
    """

    search: _Search
    base: Outcome
    groups: Sequence[BlockGroup]
    deadline: Deadline
    _outcomes: dict[tuple[object, ...], tuple[KeptValues, Outcome]] = field(default_factory=dict)

    def best(self) -> Outcome:
        """The best outcome of all, the step's own among them."""
        may_compute_again, fits = self.search.allows("remat"), self.search.fits
        for choose in (keep_nothing, keep_products) if may_compute_again else ():
            self._try(choose(self.groups), is_common=True)
        fitting = [entry for entry in self._outcomes.values() if fits(entry[1])]
        if not fitting:
            # As little as a step can keep, of what does not repeat too.
            least = self._within(self._prices(self.base), 0.0)
            outcome = self._try(least)
            fitting = [(least, outcome)] if outcome is not None and fits(outcome) else []
        for kept, outcome in sorted(fitting, key=lambda entry: self.search.key(entry[1])):
            self._improve(kept, outcome)
        return min([self.base, *(o for _, o in self._outcomes.values())], key=self.search.key)

    def _improve(self, kept: KeptValues, outcome: Outcome) -> None:
        """Keep by turns as much as fits beside a plan, and plan what keeps so much."""
        priced = self._prices(outcome)
        budget = kept_bytes(priced, kept) + self.search.slack(outcome)
        least = default_policy().least_improvement
        for _ in range(default_policy().lever_turns):
            choice = self._within(priced, budget)
            if choice_key(self.groups, choice) in self._outcomes:
                return
            # Then it is not lowered: that takes seconds for nothing.
            if saved_seconds(priced, kept, choice) < least * outcome.best.estimate.step_seconds:
                return
            trial = self._try(choice)
            if trial is None:
                return
            if not self.search.fits(trial):
                budget = kept_bytes(priced, choice) + self.search.slack(trial)
                continue
            if self.search.key(trial) >= self.search.key(outcome):
                return
            kept, outcome, priced = choice, trial, self._prices(trial)
            budget = kept_bytes(priced, kept) + self.search.slack(outcome)

    def _within(self, priced: Sequence[BlockPrices], budget: float) -> KeptValues:
        return keep_within(
            priced,
            budget,
            self.search.host_bytes_per_s,
            may_compute_again=self.search.allows("remat"),
            copies_in_line=self.base.context.evaluator.backend.host_copies == "in line",
        )

    def _try(self, kept: KeptValues, *, is_common: bool = False) -> Outcome | None:
        """The best sharding of the step that keeps so much; None if it is the step itself, or time
        is up. Only Ctrl-C ends what people use of the step in one batch, `is_common`.
        """
        records = remat_records(self.groups, kept)
        key = choice_key(self.groups, kept)
        is_asked_for = is_common and self.base.levers is None
        is_over = self.deadline.interrupts.is_asked if is_asked_for else self.deadline.is_over
        if not records or (is_over and self._outcomes):
            return None
        if key not in self._outcomes:
            choice = replace(Choice.of(self.base.levers), remat=records)
            outcome = self.search.planned(choice, self.base.workload)
            self._outcomes[key] = kept, outcome
        return self._outcomes[key][1]

    def _prices(self, outcome: Outcome) -> list[BlockPrices]:
        """The blocks at the prices of an outcome's plan: their equations are still in the step."""
        prices = _prices(outcome)
        return [BlockPrices.priced(group, prices) for group in self.groups]
