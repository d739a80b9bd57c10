"""Grouped dimensions: the query heads of each key head have a region of their own."""

import jax
import jax.numpy as jnp
import pytest

from automap.program import trace_step
from hlo_tools.analyses.grouped import inner_factor
from hlo_tools.rules import parse_notation


B, T, D, WIDTH = 2, 64, 8, 32


def _problem(heads, key_heads, *, via_groups=False):
    def attention(params, x):
        q = jnp.einsum("btm,mf->btf", x, params["q"]).reshape(B, T, heads, D)
        k, v = (
            jnp.einsum("btm,mf->btf", x, params[n]).reshape(B, T, key_heads, D) for n in ("k", "v")
        )
        if via_groups:
            # Here a dimension of the key heads is reached from queries.
            q = (q.reshape(B, T, key_heads, -1, D) * params["scale"][:, None, None]).reshape(
                q.shape
            )
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        return jnp.einsum("btf,fm->btm", y.reshape(B, T, -1), params["o"])

    def step(params, x):
        grads = jax.grad(lambda p: attention(p, x).astype(jnp.float32).sum())(params)
        return jax.tree.map(lambda p, g: p - g, params, grads)

    bf16 = lambda *shape: jax.ShapeDtypeStruct(shape, "bfloat16")  # noqa: E731
    params = {
        "q": bf16(WIDTH, heads * D),
        "k": bf16(WIDTH, key_heads * D),
        "v": bf16(WIDTH, key_heads * D),
        "o": bf16(heads * D, WIDTH),
    }
    if via_groups:
        params["scale"] = bf16(key_heads)
    return trace_step(step, (params, bf16(B, T, WIDTH)), platform="cuda").problem


def test_query_heads_have_a_region_that_keys_are_not_in():
    problem = _problem(16, 4)
    ((number, (own, parts)),) = problem.outer_parts.items()
    assert (parts, problem.limits[own], problem.limits[number]) == (4, 4, 4)
    inputs = dict(zip(problem.paths, problem.graph.inputs, strict=True))
    heads = {"q": 1, "k": 1, "v": 1, "o": 0}
    for name, dim in heads.items():
        value = inputs[f"[0]['{name}']"]
        # All are of one class, which the key heads limit.
        assert problem.compute_classes(value)[dim] == own
        assert (problem.regional_classes(value)[dim] == number) is (name in "qo")
    calls = [
        index
        for index, op in enumerate(problem.graph.ops)
        if op.instruction.attributes.attention is not None
    ]
    assert sorted(problem.regions.inner_of_op) == calls
    for index, inner in problem.regions.inner_of_op.items():
        queries = problem.linkage.rules[index].operands[0][2]
        assert queries[1] == inner
        factors = problem.regional_class_of_factor[index].tolist()
        assert [f for f, c in enumerate(factors) if c == number] == [inner]


@pytest.mark.parametrize(
    ("heads", "key_heads", "via_groups"), [(16, 16, False), (16, 1, False), (16, 4, True)]
)
def test_other_heads_have_none(heads, key_heads, via_groups):
    problem = _problem(heads, key_heads, via_groups=via_groups)
    assert not problem.outer_parts
    assert not problem.regions.classes


@pytest.mark.parametrize(
    ("rule", "shapes", "pair"),
    [
        ("b(kg)d,bkd->b(kg)d replicate=d", [(2, 8, 4), (2, 2, 4), (2, 8, 4)], (1, 2)),
        # A dimension of the inner factor alone is a decision of its own.
        ("b(kg)d,bgd->b(kg)d replicate=d", [(2, 8, 4), (2, 4, 4), (2, 8, 4)], None),
        ("b(kg)d,bkd->b(kg)d replicate=d,g", [(2, 8, 4), (2, 2, 4), (2, 8, 4)], None),
        ("(ka)(bc)d,kb->(ka)(bc)d replicate=d", [(8, 6, 4), (2, 3), (8, 6, 4)], None),
    ],
)
def test_the_inner_factor_of_a_rule(rule, shapes, pair):
    made = parse_notation(rule).rule("kernel", shapes[:-1], shapes[-1:])
    assert inner_factor(made) == pair
