"""Loops cut between their trips: the same results, in pieces, and no piece is put together on the
way.
"""

from collections import Counter

import jax
from jax import lax, numpy as jnp
from jax.extend.core import jaxpr_as_fun
import numpy as np
import pytest

from automap.jaxpr.flatten import flatten
from automap.runtime.pipeline.cuts import Cuts
from automap.runtime.pipeline.loops import cut_loops


def layers(x, w, *, reverse=False):
    def layer(x, w):
        return jnp.tanh(x @ w["kernel"] + w["bias"]), x.sum()

    return lax.scan(layer, x, w, reverse=reverse)


def step(state, x, *, reverse=False):
    """SGD with decay and the norm of all gradients, on stacked layers; the stack is also returned
    summed.
    """

    def loss(w):
        y, sums = layers(x, w, reverse=reverse)
        return (y**2).mean() + 0.1 * sums.mean()

    value, gradient = jax.value_and_grad(loss)(state["w"])
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradient)))
    m = jax.tree.map(lambda m, g: 0.9 * m + g / norm, state["m"], gradient)
    w = jax.tree.map(lambda w, m: w - 0.1 * (m + 0.01 * w), state["w"], m)
    return {"w": w, "m": m}, value, state["w"]["bias"][::-1].sum(1)


def arguments(length=6, width=4):
    keys = jax.random.split(jax.random.key(0), 3)
    w = {
        "kernel": jax.random.normal(keys[0], (length, width, width)),
        "bias": jax.random.normal(keys[1], (length, width)),
    }
    return {"w": w, "m": jax.tree.map(jnp.ones_like, w)}, jax.random.normal(keys[2], (8, width))


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("trips", [(3,), (1, 5), (1, 2, 3, 4, 5)])
def test_a_cut_loop_computes_the_same(reverse, trips):
    args = arguments()
    flat = flatten(jax.make_jaxpr(lambda s, x: step(s, x, reverse=reverse))(*args), {})
    site = next(int(e.path) for e in flat.equations if e.eqn.primitive.name == "scan")
    cut = cut_loops(flat, Cuts(tuple((site, t) for t in trips)))
    leaves = jax.tree.leaves(args)
    want = jaxpr_as_fun(flat.original)(*leaves)
    given = [
        leaves[p.leaf] if p.range is None else leaves[p.leaf][slice(*p.range)] for p in cut.inputs
    ]
    got = jaxpr_as_fun(cut.flat.original)(*given)
    for array, piece in zip(got, cut.outputs, strict=True):
        whole = want[piece.leaf]
        np.testing.assert_allclose(
            array,
            whole if piece.range is None else whole[slice(*piece.range)],
            rtol=1e-5,
            atol=1e-6,
        )
    # Both parameters and both moments are in pieces; only what reverses the stack needs it in one.
    assert sum(p.range is not None for p in cut.inputs) == 4 * (len(trips) + 1)
    names = Counter(e.eqn.primitive.name for e in cut.flat.equations)
    assert names["scan"] == 2 * (len(trips) + 1)
    assert names["concatenate"] == 1


def test_pieces_of_the_forward_loop_say_how_many_trips_are_done():
    flat = flatten(jax.make_jaxpr(lambda s, x: step(s, x, reverse=True))(*arguments()), {})
    site = next(int(e.path) for e in flat.equations if e.eqn.primitive.name == "scan")
    cut = cut_loops(flat, Cuts(((site, 2.0),)))
    first, second = (e for e in cut.flat.equations if e.path.startswith(f"{site}#"))
    assert (first.path, second.path) == (f"{site}#2", f"{site}#6")
    assert (first.eqn.params["length"], second.eqn.params["length"]) == (2, 4)


def test_a_step_without_cut_loops_is_as_it_was():
    flat = flatten(jax.make_jaxpr(step)(*arguments()), {})
    cut = cut_loops(flat, Cuts(((0, float("inf")),)))
    assert cut.flat is flat
    assert all(piece.range is None for piece in (*cut.inputs, *cut.outputs))
