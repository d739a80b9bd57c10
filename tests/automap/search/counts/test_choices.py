"""Decisions of real programs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.errors import InputError
from automap.program.trace import trace_step
from automap.search.counts.choices import data_parallelism, operator_partitioning
from automap.search.counts.solvers import optimum
from models import t5, vgg


def problem(target, layers="apart"):
    return trace_step(*target, layers=layers).problem


@pytest.fixture(scope="module")
def tiny_t5():
    return problem(t5.t5(t5.TINY, batch=16, seq=16).target)


def test_linkage_counts_every_dimension_that_follows(tiny_t5):
    choices = operator_partitioning(tiny_t5, 4)
    weights = dict(zip(choices.labels, choices.weights.tolist()))
    assert choices.weights.tolist() == sorted(choices.weights, reverse=True)
    # d_model: 4 + 2 kernels and 2 norms of each of 2 encoder layers, 8 + 2 and 3 of the decoder's,
    # 2 norms, 1 table.
    assert choices.weights[0] == 2 * (6 + 2) + 2 * (10 + 3) + 2 + 1
    # Heads of the encoder: q, k, v, o of 2 layers and the table of positions, which ties the
    # layers.
    assert weights["[0]['params']['encoder']['layers'][0]['attention']['k']['kernel'][1]"] == 9
    assert weights["[0]['params']['encoder']['layers'][0]['mlp']['down']['kernel'][0]"] == 2
    # Every kernel holds d_model beside something else.
    assert choices.conflicts[0, 1:].sum() == len(choices) - 3
    assert not choices.linked.any()


def test_an_axis_that_does_not_divide_a_dimension_cannot_split_it(tiny_t5):
    heads = "[0]['params']['encoder']['layers'][0]['attention']['k']['kernel'][1]"
    for axis_size, is_allowed in ((8, True), (16, False)):
        choices = operator_partitioning(tiny_t5, axis_size)
        assert choices.allowed[choices.labels.index(heads)] == is_allowed


def test_a_chain_of_convolutions_splits_every_other_layer():
    choices = operator_partitioning(problem(vgg.vgg_tiny()), 2)
    split_labels = {choices.labels[i] for i in np.flatnonzero(optimum(choices))}
    first, *_, last = [
        f"[0]['params']['blocks'][{b}]['convolutions'][0]['bias'][0]" for b in (0, 1, 2)
    ]
    assert {first, last} <= split_labels
    for i, j in np.argwhere(choices.conflicts):
        assert choices.labels[i].rpartition("[")[0].partition("'bias'")[0]
        assert not ({choices.labels[i], choices.labels[j]} <= split_labels)


def test_data_parallelism_splits_the_batch_of_every_tensor(tiny_t5):
    choices = data_parallelism(tiny_t5, 8)
    assert len(choices) == 6
    split = optimum(choices)
    assert [choices.labels[i] for i in np.flatnonzero(split)] == [
        "[1]['decoder_tokens'][0]",
        "[1]['encoder_tokens'][0]",
        "[1]['targets'][0]",
    ]


def test_dimensions_of_one_tensor_contradict_each_other_even_if_they_meet_in_no_op():
    def step(state, batch):
        def loss(w):
            return jnp.mean((batch["x"].sum(1) @ w) ** 2) + jnp.mean(batch["x"].sum(0) ** 2)

        return jax.tree.map(lambda w, g: w - g, state, jax.grad(loss)(state)), loss(state)

    args = (
        jax.ShapeDtypeStruct((8, 16), jnp.float32),
        {"x": jax.ShapeDtypeStruct((32, 64, 8), jnp.float32)},
    )
    choices = data_parallelism(problem((step, args)), 2)
    assert (choices.conflicts == ~np.eye(3, dtype=bool)).all()


def test_what_cannot_be_asked_is_refused(tiny_t5):
    with pytest.raises(InputError, match="layers='apart'"):
        operator_partitioning(replace(tiny_t5, layers="folded"), 4)
    nothing = trace_step(lambda: jnp.zeros(3), ()).problem
    with pytest.raises(InputError, match="takes no batch"):
        data_parallelism(nothing, 4)
    with pytest.raises(InputError, match="trains nothing"):
        operator_partitioning(replace(nothing, layers="apart"), 4)
