"""Fused dimensions: recognised, and as good as the program that stores them interleaved."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.program.problem_build import interleaved
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.analyses.interleaved import fused_dimensions
from tests.steps import problem_of


BATCH, LENGTH, WIDTH, HEADS, SIZE = 8, 16, 32, 8, 4
INNER = HEADS * SIZE


def _f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def _attention(take_parts):
    """A step of one attention layer; `parts_of(w, x)` are its queries, keys and values [B, T,
    INNER].
    """

    def loss(params, x):
        q, k, v = (y.reshape(BATCH, LENGTH, HEADS, SIZE) for y in take_parts(params["qkv"], x))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(BATCH, LENGTH, INNER)
        return ((x + mixed @ params["o"]) ** 2).mean()

    def step(params, x):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x))

    return step


def _split(w, x):
    return jnp.split(x @ w, 3, axis=-1)


def _sliced(w, x):
    y = x @ w
    return [y[..., i * INNER : (i + 1) * INNER] for i in range(3)]


def _stored_apart(w, x):
    return [x @ w[:, i] for i in range(3)]


def _problem(take_parts, *shape):
    params = {"qkv": _f32(*shape), "o": _f32(INNER, WIDTH)}
    return problem_of(_attention(take_parts), (params, _f32(BATCH, LENGTH, WIDTH)))


def _classes(problem):
    inputs = dict(zip(problem.paths, problem.graph.inputs, strict=True))
    return {path: problem.compute_classes(value) for path, value in inputs.items()}


@pytest.mark.parametrize("take_parts", [_split, _sliced])
def test_fused_heads_are_linked_only_if_interleaved(take_parts):
    problem = _problem(take_parts, WIDTH, 3 * INNER)
    assert {f.parts for f in fused_dimensions(problem.graph)} == {3}
    apart, linked = _classes(problem), _classes(interleaved(problem))
    assert apart["[0]['qkv']"][1] != apart["[0]['o']"][0]
    assert linked["[0]['qkv']"][1] == linked["[0]['o']"][0]


def _megatron_collectives(problem):
    space = Space(problem)
    evaluator = Evaluator(build_tables(problem, "cpu"), problem.n_classes, get_topology("cpu:8"))
    (point,) = PRESETS["megatron"].points(space, Mesh(("model",), (HEADS,)))
    collectives = evaluator.collectives(space.split_classes(point))
    return Counter(
        dict(
            zip(
                zip(collectives.kind.tolist(), collectives.n_bytes.tolist()),
                collectives.count.tolist(),
            )
        )
    )


@pytest.mark.parametrize("take_parts", [_split, _sliced])
def test_the_interleaved_problem_is_that_of_the_program_that_stores_parts_apart(take_parts):
    fused = interleaved(_problem(take_parts, WIDTH, 3 * INNER))
    apart = _problem(_stored_apart, WIDTH, 3, INNER)
    assert _megatron_collectives(fused) == _megatron_collectives(apart)
    assert _megatron_collectives(fused) != _megatron_collectives(
        _problem(take_parts, WIDTH, 3 * INNER)
    )


def test_slices_that_are_no_equal_parts_are_not_fused():
    def step(_, x):
        return x[:, :4].sum() + x[:, 4:].sum() + x[:, 2:6].sum()

    assert fused_dimensions(problem_of(step, ((), _f32(8, 12))).graph) == ()
