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


def split_variables(choices):
    """The split dimension of each variable, as the paper's Tables 3 and 4 have it."""
    chosen = np.flatnonzero(optimum(choices))
    dims = [dim for i in chosen for dim in choices.dimensions[i]]
    return {path: int(dim[:-1]) for path, _, dim in (d.rpartition("[") for d in dims)}


def test_the_papers_t5_has_the_papers_plan():
    """Table 3, and 111 of Table 5: 18 variables of each pair of layers, the embedding and the two
    tables of positions.
    """
    choices = operator_partitioning(problem(t5.automap_t5_base()), 4, "products")
    assert choices.count(optimum(choices)) == 111 == 6 * 18 + 3
    split = split_variables(choices)
    assert len(split) == 111
    paper = {
        "['q']['kernel']": 1,
        "['k']['kernel']": 1,
        "['v']['kernel']": 1,
        "['o']['kernel']": 0,
        "['up']['kernel']": 1,
        "['up']['bias']": 0,
        "['down']['kernel']": 0,
        "['tokens']['embedding']": 0,
        "['table']['embedding']": 1,
    }
    for path, dim in split.items():
        (expected,) = [d for tail, d in paper.items() if path.endswith(tail)]
        # A table of positions is split by heads, or by buckets where heads are not decided.
        assert dim == expected, path
    assert not any("norm" in path or path.endswith("['down']['bias']") for path in split)


def test_of_vgg_the_classifier_alone_is_split():
    """Table 4; 5 of Table 5 are three dimensions of the first layer's outputs and two of the
    last's.
    """
    choices = operator_partitioning(problem(vgg.vgg_19()), 4, "products")
    assert split_variables(choices) == {
        "[0]['params']['classifier'][0]['kernel']": 1,
        "[0]['params']['classifier'][0]['bias']": 0,
        "[0]['params']['classifier'][1]['kernel']": 0,
        "[0]['params']['classifier'][2]['kernel']": 1,
        "[0]['params']['classifier'][2]['bias']": 0,
    }


def test_seven_tensors_of_a_packed_batch_are_split():
    """Table 6: seven tensors of T5-base."""
    tiny = replace(t5.TINY, is_packed=True)
    choices = data_parallelism(problem(t5.t5(tiny, batch=16, seq=16).target), 4)
    split = split_variables(choices)
    assert len(split) == 7 and set(split.values()) == {0}


def test_to_split_a_variable_leaves_its_other_dimension_whole(tiny_t5):
    choices = operator_partitioning(tiny_t5, 4)
    assert (choices.implied <= choices.conflicts).all()
    heads = choices.labels.index(
        "[0]['params']['decoder']['layers'][0]['attention']['k']['kernel'][1]"
    )
    assert choices.implied[heads, 0] and choices.implied[0, heads]


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
