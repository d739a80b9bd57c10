"""What messages take, and the kernels that make one array of what they add up."""

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np
import pytest

from automap.cost.collectives import CollectiveCost
from automap.cost.collectives.algorithms import Line
from automap.cost.schedule.work import device_work
from automap.cost.traffic.flows import ALL_REDUCE, REDUCE_SCATTER
from automap.program.trace import trace_step
from models import gpt
from tests.automap.cost.schedule.programs import priced_on_gpus, sent_messages


rows_of_messages = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 100), st.sampled_from([0.25, 0.5, 1.0])),
    min_size=1,
    max_size=8,
)


@given(rows_of_messages)
def test_a_message_takes_what_all_of_its_bytes_take(rows):
    """Two trips of one message each: 3 seconds and 5 a byte; a kernel that copies takes a second
    and 7 a byte, and reads and writes each.
    """
    message, n_bytes, share = (np.array(column, float) for column in zip(*rows))
    n = len(rows)
    cost = CollectiveCost(lines=(Line(alpha_seconds=3.0, beta_seconds_per_byte=5.0),))
    messages = sent_messages(np.ones(n))._replace(
        trip_bytes=n_bytes,
        trips=np.full(n, 2.0),
        costs=[cost],
        copy_seconds=lambda n_bytes: 1.0 + 7.0 * n_bytes,
    )
    entry = np.arange(n)
    packed = messages.packed_seconds(message, entry, share)
    joining, slicing = messages.joined_seconds(message, entry, share)
    for each in np.unique(message):
        here = message == each
        sent = (n_bytes * share)[here]
        assert packed[here].sum() == pytest.approx(2 * (3.0 + 5.0 * sent.sum()))
        assert packed[here] / packed[here].sum() == pytest.approx(sent / sent.sum())
        # What goes alone is its own array already.
        is_joined = here.sum() > 1
        assert joining[here].sum() == pytest.approx(is_joined * 2 * (1.0 + 14.0 * sent.sum()))
        assert slicing[here] == pytest.approx(is_joined * 2 * (1.0 + 14.0 * sent))


def test_sums_of_one_message_are_copied_into_one_array_and_out_of_it():
    """Under data parallelism all gradients of a layer go together; under ZeRO-3 they are scattered,
    and stay as they are.
    """
    step, args = gpt.gpt(replace(gpt.TINY, depth=4, layers="scanned"), batch=16, seq=16).target
    problem = trace_step(step, args, platform="cuda").problem
    order, priced = priced_on_gpus(problem, "data-parallel")
    collectives = priced.collectives
    seconds = priced.collective_seconds * collectives.count
    is_summed = (collectives.kind == ALL_REDUCE) & collectives.combinable
    arrays = [
        number
        for edge in collectives.edge[is_summed].tolist()
        for number in range(*order.results.first[edge : edge + 2])
    ]
    in_loop = [n for n in arrays if order.loop[order.results.ready[n]] >= 0]
    assert len(in_loop) > 10
    messages = sent_messages(np.full(len(seconds), 1 / 64))
    # A second for each kernel: one that joins, and one for each array, in a loop or outside.
    messages = messages._replace(copy_seconds=np.ones_like)
    slots = np.zeros(len(order.kind))
    work, taken = device_work(order, slots, slots, collectives, seconds, messages)
    assert work.sums.slices.tolist() == [len(in_loop)]
    assert taken.joined.sum() == pytest.approx(len(arrays) + 2)
    order, priced = priced_on_gpus(problem, "zero-3")
    collectives = priced.collectives
    is_scattered = (collectives.kind != ALL_REDUCE) | ~collectives.combinable
    seconds = np.where(is_scattered, priced.collective_seconds * collectives.count, 0.0)
    messages = sent_messages(np.full(len(seconds), 1 / 64))._replace(copy_seconds=np.ones_like)
    work, taken = device_work(order, slots, slots, collectives, seconds, messages)
    assert (collectives.kind == REDUCE_SCATTER).any() and taken.joined.sum() == 0
