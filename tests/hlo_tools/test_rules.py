"""Golden rows: each opcode's rule as algebra, read off the HLO of a one-line function."""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from hlo_tools.flatten import flatten
from hlo_tools.linkage import rules_of
from hlo_tools.proto import decode_module
from hlo_tools.rules import RULES


def _conv(x, w, **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, **options)


def _conv_kernel_gradient(x, w):
    return jax.vjp(lambda w: _conv(x, w), w)[1](jnp.ones((2, 8, 8, 6)))[0]


def _pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _pool_gradient(x):
    return jax.vjp(_pool, x)[1](jnp.ones((2, 4, 4, 3)))[0]


INT = jnp.int32
# opcode, function, operand shapes (int operands marked), rule
GOLDEN = [
    ("add", lambda x, y: x + y, [(4, 6), (4, 6)], "ab,ab->ab"),
    ("bitcast-convert", lambda x: lax.bitcast_convert_type(x, INT), [(4, 6)], "ab->ab"),
    ("broadcast", lambda x: lax.broadcast_in_dim(x, (4, 6), (1,)), [(6,)], "a->ba"),
    ("concatenate", lambda x, y: jnp.concatenate([x, y], 1), [(4, 6), (4, 2)], "ab,ac->ad permute=b,c,d"),
    ("convolution", _conv, [(2, 8, 8, 4), (3, 3, 4, 6)], "abcd,efdg->ahig reduce=d permute=b,c,e,f,h,i"),
    ("convolution", lambda x, w: _conv(x, w, feature_group_count=2), [(2, 8, 8, 4), (3, 3, 2, 6)],
     "abc(de),fge(dh)->aij(dh) reduce=e permute=b,c,f,g,i,j"),
    ("convolution", _conv_kernel_gradient, [(2, 8, 8, 4), (3, 3, 4, 6)],
     "abcd,aefg->hidg reduce=a permute=b,c,e,f,h,i"),
    ("dot", lambda x, y: x @ y, [(4, 6), (6, 8)], "ab,bc->ac reduce=b"),
    ("dot", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [(2, 4, 6), (2, 6, 8)], "abc,acd->abd reduce=c"),
    ("dynamic-slice", lambda x, i: lax.dynamic_index_in_dim(x, i, 0), [(4, 6), INT], "ab,.,.->1b replicate=a"),
    ("dynamic-update-slice", lambda x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 0),
     [(4, 6), (1, 6), INT], "ab,1b,.,.->ab replicate=a"),
    ("gather", lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [(9, 6), (INT, 4, 5)],
     "ab,cd1->cdb reduce=a"),
    ("pad", lambda x: jnp.pad(x, ((0, 0), (1, 1))), [(4, 6)], "ab,.->ac permute=b,c"),
    ("reduce", lambda x: x.sum(1), [(4, 6)], "ab,.->a reduce=b"),
    ("reduce-window", _pool, [(2, 8, 8, 3)], "abcd,.->aefd permute=b,c,e,f"),
    ("reshape", lambda x: x.reshape(4, 2, 3), [(4, 6)], "a(bc)->abc"),
    ("reshape", lambda x: x.reshape(24), [(4, 6)], "ab->(ab)"),
    ("reverse", lambda x: x[:, ::-1], [(4, 6)], "ab->ac permute=b,c"),
    ("scatter", lambda x, i, u: x.at[i].add(u), [(9, 6), (INT, 4), (4, 6)], "ab,c1,cb->ab reduce=c"),
    ("select-and-scatter", _pool_gradient, [(2, 8, 8, 3)], "abcd,aefd,.->aghd permute=b,c,e,f,g,h"),
    ("slice", lambda x: x[:, 1:3], [(4, 6)], "ab->ac permute=b,c"),
    ("sort", lambda x: jnp.sort(x, axis=1), [(4, 6)], "ab->ac replicate=b,c"),
    ("transpose", lambda x: x.T, [(4, 6)], "ab->ba"),
]  # fmt: skip


def _argument(shape):
    if shape is INT:
        return jax.ShapeDtypeStruct((), INT)
    is_integer = shape[0] is INT
    return jax.ShapeDtypeStruct(
        shape[1:] if is_integer else shape, INT if is_integer else jnp.float32
    )


@pytest.mark.parametrize(("opcode", "function", "shapes", "expected"), GOLDEN)
def test_rule(opcode, function, shapes, expected):
    lowered = jax.jit(function, keep_unused=True).lower(*map(_argument, shapes))
    graph = flatten(decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))
    found = [str(r) for op, r in zip(graph.ops, rules_of(graph)) if op.opcode == opcode]
    assert expected in found, found


def test_every_rule_family_has_a_golden_row():
    covered = {RULES[row[0]] for row in GOLDEN}
    missing = {name for name, rule in RULES.items() if rule not in covered}
    assert missing <= {"constant", "iota", "partition-id", "replica-id", "rng", "rng-bit-generator"}
