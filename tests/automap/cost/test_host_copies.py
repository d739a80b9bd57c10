"""Seconds in which a device waits for its host's memory: closed forms, and an event at a time."""

from types import SimpleNamespace

from hypothesis import given, settings, strategies as st
import jax
from jax import lax, memory
import jax.numpy as jnp
import numpy as np
import pytest

from automap.config import read_options
from automap.cost.host_copies import HostCopies, in_line_seconds, waiting_seconds
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.topology import get_topology


WHOLE = SimpleNamespace(parts_of_value=np.ones(1))


def _copies(before, kinds, n_bytes, trips=1):
    """Copies in one place, whose kernels each have a row of their own."""
    count = len(kinds)
    return HostCopies(
        row=np.zeros(count, int),
        n_bytes=np.array(n_bytes, float),
        is_store=np.array([kind == "store" for kind in kinds]),
        place=np.zeros(count, int),
        trips=np.full(count, float(trips)),
        before=np.array(before, float),
        in_place=np.ones((1, np.array(before).shape[1])),
    )


def _event_by_event(copies, kernel_seconds):
    """(waiting for loads alone, seconds of stores after the last kernel)."""
    late, link = 0.0, 0.0
    loads = sorted(np.flatnonzero(~copies.is_store), key=lambda n: copies.before[n].sum())
    for n in loads:
        link += copies.n_bytes[n]
        late = max(late, link - copies.before[n] @ kernel_seconds)
    link = 0.0
    for n in sorted(np.flatnonzero(copies.is_store), key=lambda n: copies.before[n].sum()):
        link = max(link, copies.before[n] @ kernel_seconds) + copies.n_bytes[n]
    return late, max(link - kernel_seconds.sum(), 0.0)


@settings(max_examples=100, deadline=None)
@given(
    kernel_seconds=st.lists(st.floats(0.0, 4.0), min_size=1, max_size=5),
    copies=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(("load", "store")), st.floats(0.1, 5.0)),
        min_size=1,
        max_size=6,
    ),
)
def test_links_serve_one_copy_after_the_other(kernel_seconds, copies):
    seconds = np.array(kernel_seconds)
    before = [[float(k < first) for k in range(len(seconds))] for first, _, _ in copies]
    made = _copies(before, [kind for _, kind, _ in copies], [size for _, _, size in copies])
    expected = sum(_event_by_event(made, seconds))
    assert waiting_seconds(made, WHOLE, seconds, 1.0) == pytest.approx(expected)


def test_one_load_hides_behind_what_runs_before_its_reader():
    copies = _copies([[1.0, 0.0]], ["load"], [3.0], trips=7)
    assert waiting_seconds(copies, WHOLE, np.array([1.0, 5.0]), 1.0) == pytest.approx(7 * 2.0)
    assert waiting_seconds(copies, WHOLE, np.array([3.0, 0.0]), 1.0) == 0.0


def test_copies_in_line_hide_behind_nothing():
    copies = _copies([[1.0, 0.0], [1.0, 1.0]], ["load", "store"], [3.0, 1.0], trips=7)
    assert in_line_seconds(copies, WHOLE, 2.0) == 7 * (3.0 + 1.0) / 2.0


LAYERS, ROWS, WIDTH = 6, 4096, 1024


def _step(memory_space):
    def loss(w, x):
        def forward(x, w):
            y = jnp.tanh(x @ w)
            return y, jax.device_put(x, memory_space)

        return lax.scan(forward, x, w)

    def step(w, x):
        y, kept = loss(w, x)

        def backward(g, given):
            w, x = given
            x = jax.device_put(x, memory.Space.Device)
            return g @ w.T, x.T @ g

        _, gradients = lax.scan(backward, y, (w, kept), reverse=True)
        return w - gradients

    return step


def _estimate(memory_space, topology):
    args = jnp.zeros((LAYERS, WIDTH, WIDTH)), jnp.zeros((ROWS, WIDTH))
    workload = trace_step(jax.jit(_step(memory_space)), args, platform="cuda")
    outcome = find(workload, get_topology(topology), read_options(strategy="greedy", budget=5.0))
    return outcome.context.evaluator, outcome.best.estimate


def test_a_stack_in_host_memory_takes_no_room_and_the_links_seconds():
    device, here = _estimate(memory.Space.Device, "1xh100")
    host, there = _estimate(memory.Space.Host, "1xh100")
    stack = LAYERS * ROWS * WIDTH * 4
    assert here.peak_bytes - there.peak_bytes == pytest.approx(stack, rel=0.2)
    assert here.host_seconds == 0.0
    link = stack / host.topology.device.host_bytes_per_s
    # On GPUs nothing hides them: both directions one after the other.
    assert there.host_seconds == pytest.approx(2 * link)
    assert there.compute_seconds == pytest.approx(here.compute_seconds, rel=0.25)
    assert device.tables.host_copies is None
