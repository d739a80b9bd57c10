"""Regions of experts: around their weights, not in the gate or the dispatch."""

import jax
import jax.numpy as jnp
import pytest

from tests.steps import problem_of


GROUPS, TOKENS, EXPERTS, ROOM, WIDTH, HIDDEN = 8, 16, 4, 6, 32, 64


def _mixture(experts_first):
    def loss(params, batch):
        gates = jax.nn.softmax(batch["x"] @ params["gate"])
        place = jax.nn.one_hot(batch["place"], ROOM)
        dispatch = jnp.einsum("gse,gsc->gsec", gates, place)
        out = "egcm" if experts_first else "gecm"
        hidden = "egcf" if experts_first else "gecf"
        y = jnp.einsum(f"gsec,gsm->{out}", dispatch, batch["x"])
        y = jax.nn.relu(jnp.einsum(f"{out},emf->{hidden}", y, params["up"]))
        y = jnp.einsum(f"{hidden},efm->{out}", y, params["down"])
        return (jnp.einsum(f"gsec,{out}->gsm", dispatch, y) ** 2).mean()

    def step(params, batch):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, batch))

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    params = {
        "gate": f32(WIDTH, EXPERTS),
        "up": f32(EXPERTS, WIDTH, HIDDEN),
        "down": f32(EXPERTS, HIDDEN, WIDTH),
    }
    batch = {
        "x": f32(GROUPS, TOKENS, WIDTH),
        "place": jax.ShapeDtypeStruct((GROUPS, TOKENS), "int32"),
    }
    return step, (params, batch)


@pytest.mark.parametrize("experts_first", [True, False])
def test_experts_have_a_region_around_their_weights(experts_first):
    problem = problem_of(*_mixture(experts_first))
    (experts,) = problem.regions.classes
    inputs = dict(zip(problem.paths, problem.graph.inputs, strict=True))
    regional = {path: problem.regional_classes(v) for path, v in inputs.items()}
    here, none = problem.n_split, problem.n_classes
    assert regional["[0]['up']"] == regional["[0]['down']"] == (here, none, none)
    assert regional["[0]['gate']"] == (none, none)
    # The gate has the same compute class: the region is a part of it.
    assert problem.compute_classes(inputs["[0]['gate']"])[1] == experts
    dispatched = [
        v
        for v, value in enumerate(problem.graph.values)
        if sorted(value.dims) == sorted((EXPERTS, GROUPS, ROOM, WIDTH))
    ]
    assert dispatched
    assert all(here in problem.regional_classes(v) for v in dispatched)
    masks = [
        v
        for v, value in enumerate(problem.graph.values)
        if value.dims == (GROUPS, TOKENS, EXPERTS, ROOM) and problem.graph.varies[v]
    ]
    assert masks
    assert not any(here in problem.regional_classes(v) for v in masks)


def test_sums_over_gradients_of_experts_are_in_their_region_and_others_are_not():
    step, args = _mixture(True)

    def with_norm(params, batch):
        new = step(params, batch)
        squares = [((new[name] - params[name]) ** 2).sum() for name in ("up", "down")]
        return new, sum(squares)

    problem = problem_of(with_norm, args)
    here = problem.n_split
    sums = {True: 0, False: 0}
    for index, op in enumerate(problem.graph.ops):
        if op.opcode == "reduce":
            dims = problem.graph.values[op.inputs[0]].dims
            is_of_weight = sorted(dims) == sorted((EXPERTS, WIDTH, HIDDEN))
            sums[is_of_weight] += 1
            assert (here in problem.regional_class_of_factor[index].tolist()) == is_of_weight
    assert sums[True] == 2 and sums[False] > 2


def test_attention_has_no_region():
    def step(w, x):
        def loss(w):
            q, k = (jnp.einsum("bsd,dhe->bshe", x, w[n]) for n in "qk")
            return jax.nn.softmax(jnp.einsum("bshe,bthe->bhst", q, k)).sum()

        return jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w))

    weight = jax.ShapeDtypeStruct((16, 4, 8), "float32")
    problem = problem_of(
        step, ({"q": weight, "k": weight}, jax.ShapeDtypeStruct((8, 12, 16), "float32"))
    )
    assert problem.regions.classes == ()
