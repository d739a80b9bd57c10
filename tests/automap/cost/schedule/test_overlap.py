"""Waiting for collectives: closed forms, and what must hold for any program."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings, strategies as st
import jax
import pytest

from automap.cost.schedule.order import ENTER, EXIT, KERNEL, LATE, SPARE
from automap.cost.schedule.overlap import exposed_seconds
from automap.search.greedy import random_point
from tests.automap.cost.schedule.programs import Program, kernels
from tests.automap.search.brute import search_context
from tests.steps import mlp, problem_of


LOOP = [(ENTER, 0.0), *kernels(2.0), (EXIT, 0.0)]
CASES = {
    "no collectives": (Program(kernels(1.0, 2.0)), 0.0),
    "urgent between two kernels": (Program(kernels(1.0, 1.0), urgent=[(1, 1, 3.0)]), 3.0),
    "urgent with a kernel beside it": (Program(kernels(1.0, 2.0, 1.0), urgent=[(1, 2, 3.0)]), 1.0),
    "two urgent on one link": (
        Program(kernels(1.0, 1.0), urgent=[(1, 1, 3.0), (1, 1, 2.0)]),
        5.0,
    ),
    "a gather that hides": (Program(kernels(4.0, 1.0), prefetch={1: 3.0}), 0.0),
    "a gather before the first kernel": (Program(kernels(4.0), prefetch={0: 3.0}), 3.0),
    "a gather that hides in part": (Program(kernels(4.0, 1.0), prefetch={1: 6.0}), 2.0),
    "a gather behind an urgent one": (
        Program(kernels(4.0, 4.0, 1.0), urgent=[(0, 1, 3.0)], prefetch={2: 6.0}),
        1.0,
    ),
    "a sum that hides": (Program(kernels(1.0, 5.0), backlog={1: 3.0}), 0.0),
    "a sum at the end": (Program(kernels(1.0, 5.0), backlog={2: 3.0}), 3.0),
    "a gather in a loop cannot begin before it": (
        Program([*kernels(9.0), *LOOP], prefetch={2: 3.0}),
        3.0,
    ),
    "a sum in a loop ends in it": (
        Program([*LOOP, *kernels(9.0)], backlog={2: 3.0}),
        3.0,
    ),
    "a kernel in a loop with collectives hides one of them": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 4.0, 1.0), (EXIT, 0.0)],
            urgent=[(2, 3, 2.0), (2, 3, 2.0)],
        ),
        2.0,
    ),
    "outside of a loop it hides both": (
        Program(kernels(1.0, 4.0, 1.0), urgent=[(1, 2, 2.0), (1, 2, 2.0)]),
        0.0,
    ),
    "one that is read behind a loop with collectives begins behind it": (
        Program(
            [*kernels(9.0), (ENTER, 0.0), *kernels(9.0), (EXIT, 0.0), *kernels(1.0, 1.0)],
            urgent=[(1, 5, 3.0)], backlog={3: 2.0},
        ),
        4.0,
    ),
    "of a loop without any it does not": (
        Program(
            [*kernels(9.0), (ENTER, 0.0), *kernels(9.0), (EXIT, 0.0), *kernels(1.0, 1.0)],
            urgent=[(1, 5, 3.0)],
        ),
        0.0,
    ),
    "what is believed to be longer than it is takes more kernels": (
        Program(
            [(ENTER, 0.0), *kernels(3.0, 3.0, 3.0), (EXIT, 0.0)],
            prefetch={2: 2.0, 3: 1.0}, believed={"prefetch": {3: 5.0}},
        ),
        2.0,
    ),
    "and leaves them to others where it is no longer": (
        Program(
            [(ENTER, 0.0), *kernels(3.0, 3.0, 3.0), (EXIT, 0.0)], prefetch={2: 2.0, 3: 1.0},
        ),
        0.0,
    ),
    "the last wait of a loop has the spare kernel, though it is longer": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0, 1.0), (SPARE, 3.0), (EXIT, 0.0)],
            urgent=[(2, 2, 1.5), (3, 3, 2.0)], data_at={4: 2},
        ),
        1.5,
    ),
    "a spare kernel whose data is made later fills no earlier wait": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (SPARE, 3.0), (EXIT, 0.0)],
            urgent=[(2, 2, 2.0)], data_at={3: 3},
        ),
        2.0,
    ),
    "a product in a loop does not hide its own sum": (
        Program(
            [(ENTER, 0.0), *kernels(1.0), (SPARE, 2.0), (EXIT, 0.0)],
            backlog={3: 3.0}, sum_at={2: 3},
        ),
        3.0,
    ),
    "but a shorter sum, which begins before": (
        Program(
            [(ENTER, 0.0), *kernels(1.0), (SPARE, 2.0), (SPARE, 2.0), (EXIT, 0.0)],
            backlog={3: 3.0, 4: 1.0}, sum_at={2: 3, 3: 4},
        ),
        3.0,
    ),
    "nor what makes another sum that is to come": (
        Program([(ENTER, 0.0), *kernels(1.0, 4.0), (EXIT, 0.0)], backlog={2: 5.0, 3: 1.0}),
        6.0,
    ),
    "a sum behind a collective is done after a longer one": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 2.0), (EXIT, 0.0)],
            urgent=[(2, 2, 4.0)], backlog={2: 5.0, 3: 2.0},
        ),
        9.0,
    ),
    "of two sums that are ready at once each hides behind whole kernels": (
        Program(
            [(ENTER, 0.0), *kernels(1.0), (SPARE, 4.0), (EXIT, 0.0)],
            stages=[(2, 1.0, 1.0)], data_at={2: 1},
        ),
        1.0,
    ),
    "the second stage of a sum, with what reads it behind, is hidden before the first": (
        Program(
            [(ENTER, 0.0), *kernels(1.0), (SPARE, 4.0), (SPARE, 1.0), (EXIT, 0.0)],
            stages=[(2, 3.0, 1.0)], data_at={2: 1, 3: 1},
        ),
        0.0,
    ),
    "a spare kernel comes behind the one that it reads": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0, 2.0), (SPARE, 5.0), (EXIT, 0.0)],
            backlog={2: 2.0, 3: 3.0}, data_at={4: 4},
        ),
        0.0,
    ),
    "of two sums the one that ends the longer chain hides first": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (SPARE, 2.0), (EXIT, 0.0)],
            backlog={2: 2.0, 3: 3.0}, data_at={3: 1},
        ),
        2.0,
    ),
    "unless that one is sliced": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (SPARE, 2.0), (EXIT, 0.0)],
            backlog={2: 2.0, 3: 3.0}, data_at={3: 1}, sliced={3},
        ),
        3.0,
    ),
    "and what its slices take hides the one that begins when it is done": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (EXIT, 0.0)],
            backlog={2: 2.0, 3: 3.0}, sliced={3}, slices={2: 0.5, 3: 0.75},
        ),
        4.25,
    ),
    "what makes only the data of a spare kernel is no limit of its sum": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 4.0), (SPARE, 1.0), (EXIT, 0.0)],
            backlog={4: 3.0}, data_at={3: 2}, sum_at={3: 4}, made_from={4: 2},
        ),
        0.0,
    ),
    "what reads a sum does not hide it": (
        Program(
            [(ENTER, 0.0), *kernels(1.0), (SPARE, 2.0), (EXIT, 0.0)],
            backlog={2: 3.0}, reads_sum={2: 2},
        ),
        3.0,
    ),
    "but the sums that are done after that one": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (SPARE, 2.0), (EXIT, 0.0)],
            backlog={2: 3.0, 3: 1.0}, reads_sum={3: 3},
        ),
        2.0,
    ),
    "of spare kernels the one that is nearest to the wait": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (SPARE, 3.0), (SPARE, 1.0), (EXIT, 0.0)],
            urgent=[(2, 2, 1.0), (3, 3, 3.0)], data_at={3: 1, 4: 1},
        ),
        0.0,
    ),
    "kernels that are no longer than a launch all go to the last wait": (
        Program(
            [(ENTER, 0.0), *kernels(1.0, 1.0), (SPARE, 1.0), (SPARE, 1.0), (EXIT, 0.0)],
            urgent=[(2, 2, 2.0), (3, 3, 1.0)], data_at={3: 1, 4: 1}, expected={3: 0.0, 4: 0.0},
        ),
        2.0,
    ),
    "a slice of what the loop is handed fills a wait before it is read": (
        Program(
            [(ENTER, 0.0), *kernels(2.0, 1.0, 1.0), (EXIT, 0.0)],
            urgent=[(3, 3, 2.0)], read_at={1: 3},
        ),
        0.0,
    ),
    "but none after it was read": (
        Program(
            [(ENTER, 0.0), *kernels(2.0, 1.0, 1.0), (EXIT, 0.0)],
            urgent=[(3, 3, 2.0)], read_at={1: 2},
        ),
        2.0,
    ),
    "a gather in a loop hides behind what comes before it": (
        Program([(ENTER, 0.0), *kernels(2.0, 1.0, 1.0), (EXIT, 0.0)], prefetch={3: 3.0}),
        0.0,
    ),
    "but not behind the slice that it gathers": (
        Program(
            [(ENTER, 0.0), *kernels(2.0, 1.0, 1.0), (EXIT, 0.0)],
            prefetch={3: 3.0}, gathered_at={1: 3}, read_at={1: 3},
        ),
        2.0,
    ),
    "a sum runs beside a loop without collectives": (
        Program([*kernels(1.0), *LOOP], backlog={1: 2.0}),
        0.0,
    ),
    "a sum waits for a loop with collectives": (
        Program([*kernels(1.0), *LOOP], backlog={1: 2.0}, urgent=[(2, 2, 1.0)]),
        3.0,
    ),
    "a spare kernel fills a wait": (
        Program([(KERNEL, 1.0), (SPARE, 2.0), (KERNEL, 1.0)], urgent=[(1, 2, 3.0)]),
        1.0,
    ),
    "a spare kernel that stands later fills it too": (
        Program(
            [(KERNEL, 1.0), (KERNEL, 1.0), (SPARE, 2.0)], urgent=[(1, 1, 3.0)], data_at={2: 1}
        ),
        1.0,
    ),
    "no spare kernel is kept without urgent ones to come": (
        Program([(SPARE, 2.0), (KERNEL, 1.0)], backlog={1: 1.0}),
        0.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "expected"), CASES.values(), ids=CASES)
def test_waits_in_closed_form(program, expected):
    assert exposed_seconds(program.work()) == pytest.approx(expected, abs=1e-12)


# Sevenths and the like, so that nothing is equal by rounding.
some_seconds = st.integers(0, 40).map(lambda n: n / 7)


@st.composite
def programs(draw, *, has_spare_in_loops=True):
    """Any program of kernels, nested loops and collectives."""
    slots, depth = [], 0
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from([KERNEL, KERNEL, KERNEL, SPARE, LATE, ENTER, EXIT]))
        if kind == EXIT:
            if not depth:
                continue
            depth -= 1
        depth += kind == ENTER
        if depth and (kind == LATE or kind == SPARE and not has_spare_in_loops):
            kind = KERNEL
        slots.append((kind, 0.0 if kind in (ENTER, EXIT) else draw(some_seconds)))
    slots += [(EXIT, 0.0)] * depth
    boundaries = st.integers(0, len(slots))
    urgent = draw(st.lists(st.tuples(boundaries, boundaries, some_seconds), max_size=4))
    by_boundary = st.dictionaries(boundaries, some_seconds, max_size=4)
    outside = [k for k in range(len(slots) + 1) if _depth(slots, k) == 0]
    return Program(
        slots,
        backlog=draw(by_boundary),
        stages=draw(st.lists(st.tuples(boundaries, some_seconds, some_seconds), max_size=2)),
        prefetch=draw(by_boundary),
        renewed=draw(st.dictionaries(st.sampled_from(outside), some_seconds, max_size=3)),
        urgent=[(min(a, b), max(a, b), s) for a, b, s in urgent],
    )


def _depth(slots, boundary):
    return sum((kind == ENTER) - (kind == EXIT) for kind, _ in slots[:boundary])


@st.composite
def wired_programs(draw):
    """Programs whose kernels wait for others, make and read sums, and may be shorter than a
    launch.
    """
    program = draw(programs())
    n, loops, first = len(program.slots), list[int](), list[int]()
    # The boundaries at which the loops around each slot begin.
    for slot, (kind, _) in enumerate(program.slots):
        if kind == EXIT:
            loops.pop()
        first.append(loops[-1] + 1 if loops else 0)
        if kind == ENTER:
            loops.append(slot)

    def some(numbers, at):
        return {k: draw(at(k)) for k in numbers if draw(st.booleans())}

    spare = [slot for slot, (kind, _) in enumerate(program.slots) if kind == SPARE]
    return replace(
        program,
        data_at=some(range(n), lambda slot: st.integers(first[slot], slot)),
        read_at=some(range(n), lambda slot: st.integers(slot + 1, n)),
        sum_at=some(spare, lambda slot: st.integers(slot + 1, n)),
        reads_sum=some(spare, lambda slot: st.integers(0, n)),
        made_from=some(range(n + 1), lambda boundary: st.integers(0, boundary)),
        expected=some(range(n), lambda slot: st.just(0.0)),
        sliced=set(some(range(n + 1), lambda boundary: st.just(0))),
        slices=some(range(n + 1), lambda boundary: st.just(0.5)),
    )


@settings(max_examples=400)
@given(programs() | wired_programs())
def test_no_collective_is_free_and_none_costs_more_than_itself(program):
    waiting = exposed_seconds(program.work())
    least = max(0.0, program.collective_seconds - program.compute_seconds)
    assert least - 1e-9 <= waiting <= program.collective_seconds + 1e-9
    assert exposed_seconds(program.work(factor=0.0)) == 0.0


@settings(max_examples=400)
@given(programs(has_spare_in_loops=False), st.floats(1.0, 4.0))
def test_slower_links_never_wait_less(program, factor):
    """Of spare kernels in a loop the nearest may be a better one for a longer wait."""
    assert exposed_seconds(program.work(factor)) >= exposed_seconds(program.work()) - 1e-9


@pytest.mark.parametrize("topology", ["8xh100", "4xa100"])
def test_waited_for_and_hidden_are_all_seconds_of_collectives(topology):
    context, source = search_context(problem_of(*mlp()), topology), Random(0)
    for _ in range(150):
        point = random_point(context, source.choice(context.meshes), source)
        priced = context.evaluator.price_point(context.space.split_classes(point))
        estimate = context.evaluator.estimate(priced)
        each = (priced.collective_seconds + priced.overlapped_seconds) * priced.collectives.count
        assert estimate.hidden_seconds >= 0
        assert estimate.collective_seconds + estimate.hidden_seconds == pytest.approx(
            sum(each.tolist())
        )


def test_a_step_without_late_kernels_or_collectives_waits_for_nothing():
    # Where there is nothing to count numpy has integers, of which compiled code knows no sums.
    args = (jax.ShapeDtypeStruct((4,), "float32"), jax.ShapeDtypeStruct((64, 64), "float32"))
    context = search_context(problem_of(lambda w, x: (w, x.sum()), args), "8xh100")
    whole = context.space.split_classes(context.empty(context.meshes[0]))
    evaluator = context.evaluator
    assert evaluator.estimate(evaluator.price_point(whole)).collective_seconds == 0.0
