"""`automap plan --refine`: search, compile, correct the prices, search again.

    search -> the fastest plan as predicted, the one that the search returns, which may be a preset
              that is about as fast, and the best preset are compiled
    then, until nothing faster is expected, the seconds are over, or Ctrl-C:
        what the compiler said of kernels corrects their prices (`automap.cost.profile.prices`)
        -> what people do in place of the levers that a search chose, with the best preset, where
           it is expected to be near (`automap.refine.trials.policy_outcomes`)
        -> the search goes on with them, for half as long as a compilation takes
        -> the candidate that is expected to gain most is compiled; every second time the preset
           that is (`automap.refine.candidates`); last, the presets that are expected to be near,
           one of them where the seconds are for one compilation only

What is returned is the fastest plan of those compiled that the compiler says to fit, with its
prediction as any plan has it, by the evaluator without corrections. So it is no slower, by the
compiler's schedule, than any preset that was compiled, nor than what the search alone returns; with
levers, nor than a preset with one of people's policies, if the seconds last.

Memory: a plan that the compiler refuses is never returned. What it says of peaks corrects those of
other plans as it does steps, and the search goes on with the limit that the prediction has to keep
for the compiled plan to keep the device's                          -> in: `_Refining._search_again`
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
import math
from pathlib import Path

from automap.config import Options
from automap.cost.profile import KernelPrices
from automap.deadline import WALL_SECONDS_OF_A_BUDGET_SECOND, Deadline
from automap.errors import CompilerError, CompilerTimeoutError, InfeasiblePlanError
from automap.interrupts import Interrupts, Terminated, note_interrupts
from automap.plan.record import PlanRecord
from automap.plan.refined import CompiledPlanRecord, RefinedRecord, RefinementEnd
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.refine.attribution import (
    LearnedPrices,
    compiled_seconds,
    learned_prices,
    load_prices,
    mean_prices,
    prices_path,
    save_prices,
)
from automap.refine.candidates import Candidates
from automap.refine.refinement import Refinement
from automap.refine.trials import (
    Trial,
    compiled_trial,
    failed_trial,
    fastest,
    policy_outcomes,
)
from automap.search.context import Candidate, SearchContext
from automap.step.call import TracedCall
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS
from automap.verify.confirm import Confirmation
from hlo_tools.errors import HloError


_OVER: RefinementEnd = "the seconds were over"
_ASKED: RefinementEnd = "interrupted"
_DONE: RefinementEnd = "nothing faster is expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinementProgress:
    """A plan that was compiled; `best_seconds` is the fastest that fits, None if none does yet."""

    compiled: CompiledPlanRecord
    best_seconds: float | None
    seconds_left: float


def refined_plan(
    workload: Workload,
    outcome: Outcome,
    call: TracedCall,
    options: Options,
    refinement: Refinement,
    *,
    on_compiled: Callable[[RefinementProgress], None] = lambda progress: None,
) -> PlanRecord:
    """The fastest plan by the compiler's own schedule of those that are compiled in the time given,
    with `verified` and `refined` set; the search's own if none was compiled in time.

    `outcome` is that of a search of `workload` with `options`. Ctrl-C returns the best so far.

    Raises `InfeasiblePlanError` if the compiler refuses every plan that it was given,
    `CompilerError` if it fails at every one.
    """
    with note_interrupts() as interrupts:
        # Levers that the search chose stay: it goes on with the step that they make.
        changed = workload if outcome.levers is None else outcome.workload
        policies = policy_outcomes(workload, outcome, options)
        run = _Refining(changed, outcome, call, options, refinement, interrupts, policies)
        return run.plan(on_compiled)


@dataclass(frozen=True)
class _Chosen:
    """A candidate to compile, of an outcome with the search's levers or, if it has its name, of one
    with a `policy` in their place.
    """

    outcome: Outcome
    candidate: Candidate
    expected_seconds: float
    policy: str = ""


@dataclass
class _Refining:
    """One refinement in progress."""

    workload: Workload
    outcome: Outcome
    call: TracedCall
    options: Options
    refinement: Refinement
    interrupts: Interrupts
    # By name, with the best preset.
    policies: Iterator[tuple[str, Outcome]]
    all_trials: list[Trial] = field(default_factory=list)
    learned: list[LearnedPrices] = field(default_factory=list)
    known: KernelPrices = field(default_factory=KernelPrices)
    # Searched with the newest prices.
    context: SearchContext = field(init=False)
    deadline_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        """The time begins."""
        self.context = self.outcome.context
        self.deadline_seconds = self.refinement.clock() + self.refinement.seconds
        if self.refinement.cache_folder is not None:
            self.known = load_prices(self._prices_path(self.refinement.cache_folder))

    @property
    def trials(self) -> list[Trial]:
        """Those of the search's own levers."""
        return [trial for trial in self.all_trials if not trial.policy]

    @property
    def seconds_left(self) -> float:
        """Seconds on the clock."""
        return max(self.deadline_seconds - self.refinement.clock(), 0.0)

    def plan(self, on_compiled: Callable[[RefinementProgress], None]) -> PlanRecord:
        """The best plan, when there is no time, nothing faster, or the user wants no more."""
        ended = self._compile_all(on_compiled)
        self._keep_prices()
        chosen = fastest(self.all_trials)
        if chosen is None:
            return self._without_compiled(ended)
        plan = self.all_trials[chosen].plan
        assert plan is not None  # noqa: S101 - what fits was compiled
        return replace(plan, refined=self._record(ended, chosen))

    def _compile_all(self, on_compiled: Callable[[RefinementProgress], None]) -> RefinementEnd:
        has_new_prices = self.known != KernelPrices()
        while True:
            if has_new_prices:
                self._search_again()
            if self.interrupts.is_asked:
                return _ASKED
            chosen = self._next_policy() or self._next()
            if chosen is None:
                return _DONE
            try:
                with self.interrupts.raising():
                    trial = self._compile(chosen)
            except Terminated:
                raise
            except KeyboardInterrupt:
                return _ASKED
            if trial is None:
                return _OVER
            self.all_trials.append(trial.under(chosen.policy) if chosen.policy else trial)
            # Kernels of another step say little of those of this one.
            has_new_prices = not chosen.policy and self._learn(trial)
            on_compiled(self._progress(trial))

    def _next_policy(self) -> "_Chosen | None":
        """What people do in place of the levers, where it is expected to be near: as far off as the
        best plan that was compiled is. Where none of the first that were compiled fits, all of it.
        """
        # Pricing them takes time too.
        if len(self.trials) < len(self._first()) or not self.seconds_left:
            return None
        ratio, most, best = 1.0, math.inf, fastest(self.trials)
        if best is not None:
            record = self.trials[best].record
            if not record.compiled_seconds:
                return None
            ratio = record.compiled_seconds / record.predicted_seconds
            most = (1 + self.context.policy.near_preset) * record.compiled_seconds
        for policy, outcome in self.policies:
            expected = ratio * outcome.best.estimate.step_seconds
            if expected <= most:
                return _Chosen(outcome, outcome.best, expected, policy)
        return None

    def _next(self) -> "_Chosen | None":
        """The candidate to compile, and its step as it is expected to be; None if none promises
        enough.
        """
        first = self._first()
        candidates = Candidates.build(self.context, self.trials, [c.point for c in first])
        index = candidates.next_index([c.point for c in first], is_last=self._is_last())
        if index is None:
            return None
        chosen = candidates.candidates[index]
        # By the name that the search has for it.
        named = next((c for c in first if c.point == chosen.point), chosen)
        return _Chosen(self.outcome, named, float(candidates.expected_seconds()[index]))

    def _is_last(self) -> bool:
        """Whether the seconds that are left are for one compilation, by those that were made."""
        took = [trial.record.compile_seconds for trial in self.trials]
        return bool(took) and self.seconds_left < 2 * math.fsum(took) / len(took)

    def _first(self) -> list[Candidate]:
        """What is compiled before anything is learnt: the fastest plan as predicted, the one that
        the search returns, which may be a preset that is about as fast, and the fastest preset.
        """
        context, own = self.outcome.context, self.outcome.best

        def key(candidate: Candidate) -> tuple[float, ...]:
            return context.objective.key(candidate.estimate)

        preset = sorted(context.best_per_preset.values(), key=key)[:1]
        # A plan that costs the same in every respect is the same with other names of axes.
        fastest = [c for c in context.best_candidates(1) if key(c) != key(own)]
        first = {c.point: c for c in (*fastest, own, *preset)}
        # By the name that the search has for it.
        return [own if c.point == own.point else c for c in first.values()]

    def _compile(self, chosen: "_Chosen") -> Trial | None:
        """Give a candidate to the compiler; None if the seconds were over before it was done."""
        outcome, candidate = chosen.outcome, chosen.candidate
        estimate = outcome.context.estimate(candidate.point)
        assert estimate is not None  # noqa: S101 - the space is the same whatever the prices
        # The plan has the prediction that any plan has, without corrections.
        alone = replace(candidate, estimate=estimate)
        start, left = self.refinement.clock(), self.seconds_left
        if not left:
            return None
        confirmation = Confirmation(
            top=1,
            timeout_seconds=min(self.refinement.timeout_seconds, left),
            cache_folder=self.refinement.cache_folder,
        )
        try:
            return compiled_trial(
                outcome,
                alone,
                self.call,
                self.options,
                confirmation,
                expected_seconds=chosen.expected_seconds,
                number=len(self.all_trials) + 1,
            )
        except CompilerError as error:
            # That the seconds were over, or the compiler busy until then, is no fault of this plan.
            is_over = (
                isinstance(error, CompilerTimeoutError) and confirmation.timeout_seconds == left
            )
            if is_over or not self.seconds_left:
                return None
            spent = self.refinement.clock() - start
            return failed_trial(
                alone, error, expected_seconds=chosen.expected_seconds, spent_seconds=spent
            )

    def _learn(self, trial: Trial) -> bool:
        """Whether anything was learnt of kernels' prices."""
        if trial.program is None:
            return False
        context = self.outcome.context
        try:
            compiled = compiled_seconds(trial.program, self.outcome.topology)
        except (HloError, CompilerError):
            return False
        split_classes = context.space.split_classes(trial.point)
        self.learned.append(learned_prices(compiled, context.evaluator, split_classes))
        return True

    def _search_again(self) -> None:
        """Search with the newest prices and the memory that predictions have to keep."""
        took = [t.record.compile_seconds for t in self.trials] or [self.options.budget_seconds]
        mean = math.fsum(took) / len(took)
        wall_seconds = min(mean, self.options.budget_seconds, self.seconds_left) / 2
        # Of processor time; on a busy machine it may take so many times as long.
        budget = wall_seconds / WALL_SECONDS_OF_A_BUDGET_SECOND
        if not budget:
            return
        again = find(
            self.workload,
            self.outcome.topology,
            replace(self.options, memory_limit_bytes=self._predicted_limit()),
            deadline=Deadline.after(budget, interrupts=self.interrupts),
            prices=mean_prices(self.known, self.learned),
        ).context
        # What is allowed is what the user allows, and what was found before stays a candidate.
        again.objective = self.outcome.context.objective
        for candidate in self.context.best_candidates(again.policy.refined_candidates):
            again.estimate(candidate.point)
        self.context = again

    def _predicted_limit(self) -> float | None:
        """The peak that a prediction may have: the limit, less by what compiled peaks are above
        predicted ones, in the geometric mean.
        """
        records = [t.record for t in self.trials]
        logs = [
            math.log(r.compiled_bytes / r.predicted_bytes)
            for r in records
            if r.compiled_bytes and r.predicted_bytes
        ]
        if not logs:
            return self.options.memory_limit_bytes
        limit = self.outcome.context.objective.memory_limit_bytes
        return max(limit / math.exp(math.fsum(logs) / len(logs)), 1.0)

    def _progress(self, trial: Trial) -> RefinementProgress:
        best = fastest(self.all_trials)
        return RefinementProgress(
            compiled=trial.record,
            best_seconds=None if best is None else self.all_trials[best].record.compiled_seconds,
            seconds_left=self.seconds_left,
        )

    def _prices_path(self, folder: Path) -> Path:
        return prices_path(folder, self.outcome.topology)

    def _keep_prices(self) -> None:
        if self.refinement.cache_folder is not None and self.learned:
            path = self._prices_path(self.refinement.cache_folder)
            # Other searches may have kept theirs meanwhile.
            save_prices(path, mean_prices(load_prices(path), self.learned))

    def _record(self, ended: RefinementEnd, chosen: int | None) -> RefinedRecord:
        compiler = COMPILER_BY_PLATFORM[self.outcome.topology.platform]
        assert compiler != "cpu"  # noqa: S101 - it has no seconds, which is checked before
        return RefinedRecord(
            compiler=compiler,
            seconds=self.refinement.seconds,
            ended=ended,
            compiled=tuple(t.record for t in self.all_trials),
            chosen=chosen,
        )

    def _without_compiled(self, ended: RefinementEnd) -> PlanRecord:
        """What is returned if no plan was confirmed: the search's own, if none was compiled."""
        title = COMPILERS[COMPILER_BY_PLATFORM[self.outcome.topology.platform]].title
        refused = [t for t in self.all_trials if t.plan is not None]
        if refused:
            peaks = [t.record.compiled_bytes for t in refused if t.record.compiled_bytes]
            needs = f", the smallest with {bytes_text(min(peaks))} on each device" if peaks else ""
            raise InfeasiblePlanError(
                f"{title} confirms none of the {len(refused)} plans that it was given{needs}; give "
                "--refine more seconds, use more devices, a smaller batch, or bfloat16"
            )
        if self.all_trials:
            raise CompilerError(f"{title} failed: {self.all_trials[0].record.note}")
        note = (
            f"{title} had compiled no plan when {ended}: this is the search's own; give --refine "
            f"more than {self.refinement.seconds:g} s"
        )
        plan = build_plan(self.outcome)
        if not plan.predicted.fits:
            raise InfeasiblePlanError(f"no plan is predicted to fit, and {note}")
        return replace(plan, refined=self._record(ended, None), warnings=(*plan.warnings, note))
