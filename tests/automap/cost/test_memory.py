"""The memory profile, and the curve over a step, against a walk over every position."""

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np

from automap.backends import backend_for
from automap.cost.memory import ACTIVATION_KIND, TEMPORARY_KIND, BufferTable, MemoryTimeline
from automap.cost.on_chip import ChipRoom
from hlo_tools.graph import Graph


POSITIONS, SHAPES, EDGES = 12, 3, 3
NUMBERS = backend_for("tpu").tile_numbers


def _intervals(draw, count):
    spans = [sorted(draw(st.tuples(*[st.integers(0, POSITIONS - 1)] * 2))) for _ in range(count)]
    return np.array(spans, np.int64).reshape(-1, 2).T


@st.composite
def profiles(draw):
    """(buffers, local, gathered bytes, which repeats hold)."""
    n_buffers, n_copies = draw(st.integers(1, 8)), draw(st.integers(0, 6))
    birth, death = _intervals(draw, n_buffers)
    copy_birth, copy_death = _intervals(draw, n_copies)
    integers = lambda low, high, n: np.array(  # noqa: E731
        draw(st.lists(st.integers(low, high), min_size=n, max_size=n)), np.int64
    )
    pairs = [(later, earlier) for later in range(n_copies) for earlier in range(later)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4)) if pairs else []
    repeats = np.array([(*p, i) for i, p in enumerate(chosen)], np.int64).reshape(-1, 3)
    buffers = BufferTable(
        hosted_bytes=np.zeros(n_buffers),
        value=np.full(n_buffers, -1),
        shape=integers(0, SHAPES - 1, n_buffers),
        n_bytes=integers(1, 100, n_buffers).astype(float),
        birth=birth,
        death=death,
        kind=integers(0, ACTIVATION_KIND, n_buffers),
        is_lasting=integers(0, 1, n_buffers).astype(bool),
        n_positions=POSITIONS,
        copy_edge=integers(0, EDGES - 1, n_copies),
        copy_birth=copy_birth,
        copy_death=copy_death,
        copy_repeats=repeats,
    )
    local = 1.0 / integers(1, 4, SHAPES)
    gathered = integers(0, 100, EDGES).astype(float)
    return buffers, local, gathered, integers(0, 1, len(chosen)).astype(bool)


def _walked(b, local, gathered, is_repeat):
    """(bytes alive, bytes of forward values alive) at every position."""
    held_bytes = b.n_bytes * local[b.shape]
    death = b.copy_death.copy()
    for later, earlier, pair in b.copy_repeats:
        if is_repeat[pair]:
            death[earlier] = max(death[earlier], b.copy_death[later])
    alive, forward = [], []
    for p in range(POSITIONS):
        held = (b.birth <= p) & (p <= b.death)
        copied = (b.copy_birth <= p) & (p <= death)
        alive.append(held_bytes[held].sum() + gathered[b.copy_edge[copied]].sum())
        forward.append(held_bytes[held & (b.kind == ACTIVATION_KIND)].sum())
    return np.array(alive), np.array(forward)


@given(profiles())
def test_the_peak_is_that_of_a_walk(case):
    buffers, local, gathered, is_repeat = case
    profile = MemoryTimeline(buffers, SHAPES, EDGES)
    alive, forward = _walked(buffers, local, gathered, is_repeat)
    np.testing.assert_allclose(profile.peak_bytes(local, gathered, is_repeat), alive.max())
    memory = profile.memory(local, gathered, is_repeat)
    np.testing.assert_allclose(memory.peak_bytes, alive.max())
    at_peak = np.isclose(alive, alive.max())
    assert any(np.isclose(memory.activation_bytes, forward[at_peak]))
    held = buffers.n_bytes * local[buffers.shape]
    np.testing.assert_allclose(
        sum(memory.input_bytes), held[buffers.kind < TEMPORARY_KIND].sum(), atol=1e-9
    )
    np.testing.assert_allclose(profile.input_bytes(local), sum(memory.input_bytes), atol=1e-9)


@given(profiles(), st.integers(1, 2000))
def test_what_is_on_the_chip_is_that_of_a_walk(case, capacity):
    buffers, local, gathered, is_repeat = case
    chip = ChipRoom(capacity, NUMBERS)
    alive, _ = _walked(buffers, local, gathered, is_repeat)
    # What may stay there is what is left of each array, so that a walk adds it up.
    held = chip.may_stay(buffers.n_bytes * local[buffers.shape]) * ~buffers.is_lasting
    staying = replace(buffers, n_bytes=held, shape=np.zeros(len(held), int))
    may_stay, _ = _walked(staying, np.ones(1), chip.may_stay(gathered), is_repeat)
    memory = MemoryTimeline(buffers, SHAPES, EDGES, chip).memory(local, gathered, is_repeat)
    in_device = alive - chip.kept_bytes(alive, may_stay)
    np.testing.assert_allclose(memory.on_chip_bytes, alive.max() - in_device.max(), atol=1e-9)
    # What a plan needs is all of it.
    np.testing.assert_allclose(memory.peak_bytes, alive.max())


@given(profiles())
def test_the_curve_is_that_of_a_walk_and_has_its_peak(case):
    buffers, local, gathered, is_repeat = case
    # Inputs are there for the whole step, as the curve takes them to be.
    is_input = buffers.kind < TEMPORARY_KIND
    buffers = replace(
        buffers,
        birth=np.where(is_input, 0, buffers.birth),
        death=np.where(is_input, POSITIONS - 1, buffers.death),
    )
    alive, forward = _walked(buffers, local, gathered, is_repeat)
    profile = MemoryTimeline(buffers, SHAPES, EDGES)
    curve = profile.curve(local, gathered, is_repeat, Graph.__new__(Graph))
    columns = zip(curve.activations, curve.temporaries, strict=True)
    totals = [curve.stored + sum(column) for column in columns]
    # Three parts are rounded, each by half a byte.
    assert abs(max(totals) - alive.max()) <= 1.5
    # Fewer positions than parts: each position at which something changes is a point.
    for total, activations in zip(totals, curve.activations, strict=True):
        pairs = zip([*alive, curve.stored], [*forward, 0.0], strict=True)
        assert any(abs(total - a) <= 1.5 and abs(activations - f) <= 0.5 for a, f in pairs)
    assert sum(row.count for row in curve.held) >= 1 or max(totals) <= curve.stored + 1
