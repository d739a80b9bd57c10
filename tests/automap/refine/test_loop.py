"""The loop with a compiler whose kernels' seconds are known: what it finds, and how it ends."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
import math
import signal

import pytest

from automap.config import Options
from automap.cost.evaluate import Evaluator
from automap.cost.profile import KernelPrices
from automap.cost.profile.prices import CompiledDot
from automap.cost.shardings import shardings
from automap.errors import (
    CompilerError,
    CompilerTimeoutError,
    InfeasiblePlanError,
)
from automap.interrupts import Terminated
from automap.plan.explain import overview
from automap.plan.record import PlanRecord
from automap.planner.sharding import find
from automap.program.trace import lower_call
from automap.refine import loop
from automap.refine.attribution import (
    CompiledSeconds,
    _sites_by_row,
    learned_prices,
    load_prices,
    prices_path,
)
from automap.refine.candidates import step_parts
from automap.refine.loop import refined_plan
from automap.refine.refinement import Refinement
from automap.space.point_record import restore_point
from automap.space.presets import PRESETS
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify import confirm
from automap.verify.compiling import Compiled
from automap.verify.witness import StepRecord
from tests.automap.verify.test_witness import WITNESS
from tests.steps import mlp


GPUS = get_topology("8xh100")
# Every point of this mesh is priced, so that the best one is known.
OPTIONS = Options(budget_seconds=60, mesh=Mesh(("data",), (8,)), strategy="exhaustive", seed=0)
COMPILE_SECONDS = 1.0


@dataclass
class FakeClock:
    """Seconds that pass when somebody compiles."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class FakeCompiler:
    """A compiler that takes `evaluator` for the truth, and peaks `peak_ratio` as large as
    predicted; `before` is called with the number of each compilation.
    """

    searched: tuple
    evaluator: Evaluator
    clock: FakeClock
    peak_ratio: float = 1.0
    before: Callable[[int], None] = lambda number: None
    compiled: list[PlanRecord] = field(default_factory=list)
    programs: dict[bytes, CompiledSeconds] = field(default_factory=dict)

    def compile_planned(self, program, name, *, timeout_seconds, cache_folder):
        """In the place of `automap.verify.compiling.compile_planned`."""
        assert name == "gpu"
        self.before(len(self.compiled))
        if timeout_seconds < COMPILE_SECONDS:
            # A compiler that is busy gives up before it would ask again.
            self.clock.seconds += 0.9 * timeout_seconds
            raise CompilerTimeoutError(f"was not done after {timeout_seconds:g} s")
        self.clock.seconds += COMPILE_SECONDS
        self.compiled.append(program.plan)
        estimate, spent = self.truth(program.plan)
        peak = round(estimate.peak_bytes * self.peak_ratio)
        key = str(len(self.programs)).encode()
        self.programs[key] = spent
        step = StepRecord(
            seconds=estimate.step_seconds, kernel_seconds=spent.total, collective_seconds=0.0
        )
        witness = replace(
            WITNESS,
            compiler="gpu",
            fits=peak <= GPUS.device.memory_bytes,
            peak_bytes=peak,
            step=step,
            compile_seconds=COMPILE_SECONDS,
        )
        return Compiled(witness, key)

    def truth(self, plan):
        space = self.searched[1].context.space
        mesh = Mesh(*zip(*plan.mesh.axes, strict=True))
        split_classes = space.split_classes(restore_point(plan.search.point, space, mesh))
        tables = self.evaluator.tables
        sharding = shardings(tables, self.evaluator.n_classes, split_classes)
        seconds = self.evaluator.roofline.seconds(sharding) * tables.kernels.count
        by_site = {
            site: seconds[row] / len(sites)
            for row, sites in _sites_by_row(self.evaluator).items()
            for site in sites
        }
        spent = CompiledSeconds(total=float(seconds.sum()), by_site=by_site)
        return self.evaluator.evaluate(split_classes), spent


@pytest.fixture(scope="module")
def searched():
    step, args = mlp(batch=2048, width=2048, hidden=4096)
    call = traced_call(step, args)
    workload = lower_call(call, platform="cuda", target="mlp", rules={})
    return workload, find(workload, GPUS, OPTIONS), call


def _points(searched):
    """All points that were priced."""
    return [p for p, e in searched[1].context._priced.items() if e is not None]


@pytest.fixture
def slow_products(searched):
    """A truth in which the products of what is predicted to be the best plan take far longer."""
    context = searched[1].context
    split_classes = context.space.split_classes(context.best_candidates(1)[0].point)
    evaluator = context.evaluator
    nothing = CompiledSeconds(
        total=1.0,
        by_site={site: 1.0 for sites in _sites_by_row(evaluator).values() for site in sites},
    )
    rows = [
        CompiledDot(
            signature=r.signature,
            seconds=6 * r.predicted_seconds,
            predicted_seconds=r.predicted_seconds,
        )
        for r in learned_prices(nothing, evaluator, split_classes).kernels
        if isinstance(r, CompiledDot)
    ]
    return replace(evaluator, prices=KernelPrices(dots=tuple(rows)))


@pytest.fixture
def refine(searched, monkeypatch):
    """Refine with a fake compiler: the plan, and the compiler."""

    def run(
        truth=None,
        seconds=1000.0,
        folder=None,
        options=OPTIONS,
        outcome=None,
        on_compiled=lambda progress: None,
        timeout=math.inf,
        **given,
    ):
        workload, found, call = searched
        clock = FakeClock()
        evaluator = truth or found.context.evaluator
        fake = FakeCompiler(searched, evaluator, clock, **given)
        monkeypatch.setattr(confirm, "compile_planned", fake.compile_planned)
        monkeypatch.setattr(loop, "compiled_seconds", lambda data, topology: fake.programs[data])
        refinement = Refinement(
            seconds=seconds,
            timeout_seconds=min(timeout, 1e9),
            cache_folder=folder,
            clock=clock,
        )
        plan = refined_plan(
            workload,
            outcome or found,
            call,
            options,
            refinement,
            on_compiled=on_compiled,
        )
        return plan, fake

    return run


def test_it_finds_the_true_best_of_a_small_space(searched, slow_products, refine):
    points, space = _points(searched), searched[1].context.space
    steps = [slow_products.evaluate(space.split_classes(p)).step_seconds for p in points]
    predicted = searched[1].context.best_candidates(1)[0].point
    least = min(steps)
    # What is predicted to be the best is not, or there would be nothing to find.
    assert steps[points.index(predicted)] > 1.1 * least
    plan, fake = refine(slow_products)
    assert plan.refined.ended == "nothing faster is expected"
    chosen = plan.refined.compiled[plan.refined.chosen]
    assert chosen.compiled_seconds <= 1.001 * least
    assert len(fake.compiled) < len(points) / 2
    # The prediction is that of the evaluator, the verdict the compiler's.
    assert plan.predicted.step_seconds == chosen.predicted_seconds
    assert plan.verified.fits and plan.verified.peak_bytes == chosen.compiled_bytes


def test_a_right_prediction_is_confirmed_by_few_compilations(searched, refine):
    plan, fake = refine()
    best = searched[1].context.best_candidates(1)[0].estimate.step_seconds
    assert plan.predicted.step_seconds == pytest.approx(best)
    assert [row.compiled_seconds for row in plan.refined.compiled] == pytest.approx(
        [row.predicted_seconds for row in plan.refined.compiled]
    )
    assert plan.refined.ended == "nothing faster is expected" and len(fake.compiled) < 12


def test_the_fastest_and_the_searchs_own_and_the_best_preset_are_compiled_first(
    searched, slow_products, refine
):
    outcome = searched[1]
    context = outcome.context
    presets = sorted(
        context.best_per_preset.values(), key=lambda c: context.objective.key(c.estimate)
    )
    taken = {c.estimate.step_seconds for c in presets}
    own = next(c for c in context.best_candidates(50) if c.estimate.step_seconds not in taken)
    plan, _ = refine(
        slow_products, seconds=3.5 * COMPILE_SECONDS, outcome=replace(outcome, best=own)
    )
    steps = [row.predicted_seconds for row in plan.refined.compiled]
    fastest = context.best_candidates(1)[0]
    first = list(dict.fromkeys(c.estimate.step_seconds for c in (fastest, own, presets[0])))
    assert steps[: len(first)] == first and len(first) >= 2


def test_a_preset_is_compiled_with_the_last_of_the_seconds(slow_products, refine):
    def is_preset(row):
        return row.plan.split(" on ")[0] in PRESETS

    rows = refine(slow_products)[0].refined.compiled
    # One that is no preset, though there are presets that are compiled later.
    last = next(n for n in range(2, len(rows)) if not is_preset(rows[n]))
    assert any(is_preset(row) for row in rows[last:])
    rows = refine(slow_products, seconds=(last + 1.5) * COMPILE_SECONDS)[0].refined.compiled
    assert len(rows) == last + 1 and is_preset(rows[last])


def test_seconds_are_honoured_and_the_best_of_them_is_kept(slow_products, refine):
    plan, fake = refine(slow_products, seconds=3.5 * COMPILE_SECONDS)
    assert plan.refined.ended == "the seconds were over"
    assert len(fake.compiled) == len(plan.refined.compiled) == 3
    assert fake.clock.seconds <= 3.5 * COMPILE_SECONDS
    least = min(row.compiled_seconds for row in plan.refined.compiled)
    assert plan.refined.compiled[plan.refined.chosen].compiled_seconds == least


def test_without_time_for_one_compilation_it_is_the_searchs_own_plan(searched, refine):
    plan, _ = refine(seconds=COMPILE_SECONDS / 2)
    assert plan.refined.chosen is None and plan.verified is None and not plan.refined.compiled
    assert plan.predicted.step_seconds == searched[1].best.estimate.step_seconds
    assert any("had compiled no plan when the seconds were over" in w for w in plan.warnings)
    assert PlanRecord.from_json(plan.to_json()) == plan


def test_more_seconds_are_never_worse(slow_products, refine):
    def seconds_of(plan):
        return plan.refined.compiled[plan.refined.chosen].compiled_seconds

    steps = [
        seconds_of(refine(slow_products, seconds=n * COMPILE_SECONDS)[0]) for n in (1, 2, 4, 8)
    ]
    assert steps == sorted(steps, reverse=True)


def _interrupt(number):
    if number == 2:
        raise KeyboardInterrupt


def test_ctrl_c_in_a_compilation_keeps_the_best_so_far(slow_products, refine):
    plan, fake = refine(slow_products, before=_interrupt)
    assert plan.refined.ended == "interrupted" and len(plan.refined.compiled) == 2
    assert plan.refined.chosen is not None


def test_ctrl_c_in_a_search_ends_it_before_the_next_compilation(slow_products, refine):
    def press(progress):
        signal.raise_signal(signal.SIGINT)

    plan, fake = refine(slow_products, on_compiled=press)
    assert plan.refined.ended == "interrupted" and len(fake.compiled) == 1


def test_sigterm_ends_everything(refine):
    def end(number):
        raise Terminated

    with pytest.raises(Terminated):
        refine(before=end)


def test_a_plan_at_which_the_compiler_fails_is_told_and_not_taken(slow_products, refine):
    def fail(number):
        if number == 0 and not failed:
            failed.append(number)
            raise CompilerError("no tiles for this shape")

    failed = []
    plan, _ = refine(slow_products, before=fail, seconds=6.5 * COMPILE_SECONDS)
    first = plan.refined.compiled[0]
    assert first.note == "no tiles for this shape" and first.compiled_seconds is None
    assert plan.refined.chosen not in (None, 0)
    assert "not compiled: no tiles for this shape" in overview(plan)


def test_a_plan_that_takes_longer_than_one_may_is_told_and_the_loop_goes_on(slow_products, refine):
    def be_slow(number):
        if number == 0 and not slow:
            slow.append(number)
            raise CompilerTimeoutError("was not done after 60 s")

    slow = []
    plan, _ = refine(
        slow_products, before=be_slow, seconds=4.5 * COMPILE_SECONDS, timeout=2 * COMPILE_SECONDS
    )
    assert plan.refined.compiled[0].note == "was not done after 60 s"
    assert len(plan.refined.compiled) >= 4 and plan.refined.chosen is not None


def test_a_compiler_that_fails_at_every_plan_is_an_error(refine):
    def fail(number):
        clock.append(number)
        if len(clock) > 4:
            raise KeyboardInterrupt
        raise CompilerError("ptxas is missing")

    clock = []
    with pytest.raises(CompilerError, match="ptxas is missing"):
        refine(before=fail)


def test_refused_plans_are_never_returned(searched, refine):
    with pytest.raises(
        InfeasiblePlanError, match=r"confirms none of the \d+ plans.*on each device"
    ):
        refine(peak_ratio=1e6, seconds=3.5 * COMPILE_SECONDS)


def test_what_peaks_are_compiled_decides_what_is_compiled_next(searched, refine):
    """With peaks twice as large as predicted and a limit between, only half of it may be used."""
    workload, found, call = searched
    context = found.context
    peaks = sorted(c.estimate.peak_bytes for c in context.best_candidates(10**6))
    limit = float(2 * peaks[len(peaks) // 8])
    options = replace(OPTIONS, memory_limit_bytes=limit)
    outcome = find(workload, GPUS, options)
    plan, _ = refine(options=options, outcome=outcome, peak_ratio=2.0)
    assert plan.verified.peak_bytes <= limit
    allowed = [c for c in context.best_candidates(10**6) if 2 * c.estimate.peak_bytes <= limit]
    least = min(c.estimate.step_seconds for c in allowed)
    chosen = plan.refined.compiled[plan.refined.chosen]
    assert chosen.compiled_seconds == pytest.approx(least, rel=0.01)


def test_prices_are_kept_and_used_by_the_next_search(slow_products, refine, tmp_path):
    refine(slow_products, folder=tmp_path)
    prices = load_prices(prices_path(tmp_path, GPUS))
    ratios = [row.seconds / row.predicted_seconds for row in prices.dots]
    assert max(ratios) == pytest.approx(6.0)
    # With what is known, the best preset's and others' steps are expected as they are compiled.
    plan, fake = refine(slow_products, folder=tmp_path)
    first = plan.refined.compiled[0]
    assert first.expected_seconds == pytest.approx(first.compiled_seconds, rel=0.02)
    assert first.predicted_seconds < 0.9 * first.compiled_seconds


def test_progress_says_what_was_compiled_and_the_best_so_far(slow_products, refine):
    said = []
    plan, _ = refine(slow_products, seconds=4.5 * COMPILE_SECONDS, on_compiled=said.append)
    assert [p.compiled for p in said] == list(plan.refined.compiled)
    best = [p.best_seconds for p in said]
    assert best == sorted(best, reverse=True) and min(best) == best[-1]
    assert [p.seconds_left for p in said] == pytest.approx([3.5, 2.5, 1.5, 0.5])


def test_parts_of_a_step_add_up_to_its_kernels_and_collectives(searched):
    context = searched[1].context
    evaluator = context.evaluator
    for candidate in context.best_candidates(5):
        split_classes = context.space.split_classes(candidate.point)
        estimate, priced = candidate.estimate, evaluator.price_point(split_classes)
        busy = (priced.collective_seconds + priced.overlapped_seconds) @ priced.collectives.count
        parts = step_parts(evaluator, split_classes)
        assert parts.sum() == pytest.approx(estimate.compute_seconds + busy)
        assert (parts >= 0).all()
