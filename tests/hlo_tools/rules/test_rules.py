"""Golden rows: each rule as algebra, read off the HLO of a one-line function, beside Shardy's own.

A row whose last part is missing has Shardy's rule; else it says Shardy's (of older and newer
jaxlibs, where they differ) and why ours is another.
"""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from hlo_tools.analyses.linkage import op_rules
from hlo_tools.graph import flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module
from hlo_tools.rules import RULES
from tests.hlo_tools.rules import shardy


INT, COMPLEX = jnp.int32, jnp.complex64
IMAGE, KERNEL = (2, 8, 8, 4), (3, 3, 4, 6)


def _conv(x, w, strides=(1, 1), padding="SAME", **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers, **options)


def _options(strides=(1, 1), padding="SAME", **options):
    return lambda x, w: _conv(x, w, strides, padding, **options)


def _gradient(argument, **options):
    """The gradient of a convolution by its image (0) or kernel (1), alone."""

    def gradient(x, w):
        result = jax.eval_shape(lambda: _conv(x, w, **options))
        operands = [x, w]

        def with_argument(operand):
            return _conv(*operands[:argument], operand, *operands[argument + 1 :], **options)

        return jax.vjp(with_argument, operands[argument])[1](jnp.ones(result.shape))[0]

    return gradient


def _pool(x, size=2, stride=2, padding="VALID"):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


def _pool_gradient(x):
    return jax.vjp(_pool, x)[1](jnp.ones((2, 4, 4, 4)))[0]


def _take_along(x, i):
    return jnp.take_along_axis(x, i, axis=1, mode="clip")


def _windows(x, i):
    numbers = lax.GatherDimensionNumbers((1, 2), (), (0,))
    return lax.gather(x, i, numbers, (2, 6), mode="clip")


def _ragged_gradient(x, w, n):
    return jax.vjp(lambda w: lax.ragged_dot(x, w, n), w)[1](jnp.ones((8, 6)))[0]


ALIGNED = "our windows know where they need no neighbour: the parts are cut at the same places"
STRIDED = "Shardy cuts a strided window in (stride, position) factors, we let the sizes differ"
CUT = "Shardy keeps a name for what is cut off, though it may not be split"
# opcode, function, operand shapes (the first entry may be a dtype), rule[, Shardy's rule, reason]
GOLDEN = [
    ("add", lambda x, y: x + y, [(4, 6), (4, 6)], "ab,ab->ab"),
    ("bitcast-convert", lambda x: lax.bitcast_convert_type(x, INT), [(4, 6)], "ab->ab"),
    ("bitcast-convert", lambda x: lax.bitcast_convert_type(x, jnp.uint8), [(4, 6)],
     "ab->abc replicate=c"),
    ("broadcast", lambda x: lax.broadcast_in_dim(x, (4, 6), (1,)), [(6,)], "a->ba"),
    ("clamp", lambda x: lax.clamp(0.0, x, 1.0), [(4, 6)], "ab,ab,ab->ab"),
    ("concatenate", lambda x, y: jnp.concatenate([x, y], 1), [(4, 6), (4, 2)],
     "ab,ab->ab replicate=b"),
    ("convolution", _conv, [IMAGE, KERNEL], "abcd,efdg->abcg reduce=d permute=b,c replicate=e,f"),
    ("convolution", _conv, [IMAGE, (1, 1, 4, 6)], "abcd,11de->abce reduce=d",
     "abcd,11de->abce reduce=d permute=b,c", ALIGNED),
    ("convolution", _options((2, 2)), [IMAGE, KERNEL],
     "abcd,efdg->abcg reduce=d permute=b,c replicate=e,f",
     "a(bc)(de)f,cefg->abdg reduce=c,e,f permute=b,d", STRIDED),
    ("convolution", _options((4, 4), "VALID"), [IMAGE, (4, 4, 4, 6)],
     "abcd,efdg->abcg reduce=d replicate=e,f",
     "a(bc)(de)f,bdfg->aceg reduce=b,d,f permute=c,e", ALIGNED),
    ("convolution", _options(padding="VALID"), [IMAGE, KERNEL],
     "abcd,efdg->abcg reduce=d permute=b,c replicate=e,f"),
    ("convolution", _options(rhs_dilation=(2, 2)), [IMAGE, KERNEL],
     "abcd,efdg->abcg reduce=d permute=b,c replicate=e,f"),
    ("convolution", _options(padding=((2, 1), (2, 1)), lhs_dilation=(2, 2)), [IMAGE, KERNEL],
     "abcd,efdg->abcg reduce=d permute=b,c replicate=e,f"),
    ("convolution", _options(feature_group_count=2), [IMAGE, (3, 3, 2, 6)],
     "abc(de),fge(dh)->abc(dh) reduce=e permute=b,c replicate=f,g"),
    ("convolution", _options(feature_group_count=4), [IMAGE, (3, 3, 1, 4)],
     "abcd,ef1d->abcd permute=b,c replicate=e,f"),
    ("convolution", _gradient(1), [IMAGE, KERNEL], "abcd,abce->fgde reduce=a,b,c replicate=f,g"),
    ("convolution", _gradient(1, strides=(2, 2)), [IMAGE, KERNEL],
     "abcd,abce->fgde reduce=a,b,c replicate=f,g",
     "a(bc)(de)f,abdg->cefg reduce=a,b,d permute=c,e", STRIDED),
    ("convolution", _gradient(1, feature_group_count=2), [IMAGE, (3, 3, 2, 6)],
     "abc(de),abc(df)->ghe(df) reduce=a,b,c replicate=g,h"),
    ("convolution", _gradient(0, strides=(2, 2)), [IMAGE, KERNEL],
     "abcd,efgd->abcg reduce=d permute=b,c replicate=e,f"),
    ("custom-call", jnp.linalg.eigh, [(3, 4, 4)], "abc->ade,af,a replicate=b,c,d,e,f"),
    ("custom-call", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
     [(3, 4, 4), (3, 4, 5)],
     "abc,ade->afg replicate=b,c,d,e,f,g"),
    ("dot", lambda x, y: x @ y, [(4, 6), (6, 8)], "ab,bc->ac reduce=b"),
    ("dot", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [(2, 4, 6), (2, 6, 8)],
     "abc,acd->abd reduce=c"),
    ("dynamic-slice", lambda x, i: lax.dynamic_index_in_dim(x, i, 0), [(4, 6), INT],
     "ab,.,.->1b replicate=a",
     "ab,.,.->ab replicate=a", CUT),
    ("dynamic-update-slice", lambda x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 0),
     [(4, 6), (1, 6), INT], "ab,1b,.,.->ab replicate=a",
     ("ab,1b,.,.->ab", "ab,1b,.,.->ab permute=a"),
     "the offset is known at run time only: XLA gathers what it updates"),
    ("fft", lambda x: jnp.fft.fft(x), [(COMPLEX, 4, 6)], "ab->ab replicate=b"),
    ("fft", lambda x: jnp.fft.irfft2(x), [(COMPLEX, 4, 6, 8)], "abc->abc replicate=b,c"),
    ("gather", lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [(9, 6), (INT, 4, 5)],
     "ab,cd1->cdb reduce=a"),
    ("gather", _take_along, [(4, 6), (INT, 4, 3)], "ab,ac1->ac reduce=b"),
    ("gather", _windows, [(9, 6), (INT, 4, 1)], "ab,c1->cdb replicate=a,d",
     "ab,c1->cab replicate=a", CUT),
    ("pad", lambda x: jnp.pad(x, ((0, 0), (1, 1))), [(4, 6)], "ab,.->ab permute=b"),
    ("reduce", lambda x: x.sum(1), [(4, 6)], "ab,.->a reduce=b"),
    ("reduce", lambda x: jnp.argmax(x, 1), [(4, 6)], "ab,ab,.,.->a,a reduce=b"),
    ("reduce-window", lambda x: _pool(x, 3, 1, "SAME"), [IMAGE], "abcd,.->abcd permute=b,c"),
    ("reduce-window", lambda x: lax.cumsum(x, 1), [(4, 6)], "ab,.->ab permute=b"),
    ("reduce-window", _pool, [IMAGE], "abcd,.->abcd", "abcd,.->abcd permute=b,c", ALIGNED),
    ("reshape", lambda x: x.reshape(4, 2, 3), [(4, 6)], "a(bc)->abc"),
    ("reshape", lambda x: x.reshape(24), [(4, 6)], "ab->(ab)"),
    ("reshape", lambda x: x.reshape(2, 12), [(4, 6)], "(ab)c->a(bc)"),
    ("reshape", lambda x: x.reshape(3, 8), [(4, 6)], "ab->cd replicate=a,b,c,d",
     ("a(bc)->d(ec)", "ab->ab permute=a"),
     "Shardy links the minor 2 of 6 and 8, which contiguous parts cannot keep"),
    ("reshape", lambda x: x.reshape(8, 4, 6, 5), [(8, 6, 4, 5)], "abcd->aefd replicate=b,c,e,f",
     ("a(bc)(de)f->a(bg)(he)f", "a(bc)de->a(bc)de permute=c"),
     "Shardy links the major 2 of 6 and 4, which are cut at other places"),
    ("reverse", lambda x: x[:, ::-1], [(4, 6)], "ab->ab permute=b"),
    ("scatter", lambda x, i, u: x.at[i].add(u), [(9, 6), (INT, 4), (4, 6)],
     "ab,c1,cb->ab reduce=c"),
    ("scatter", lambda x, i, u: x.at[i].set(u), [(9, 6), (INT, 4), (4, 6)],
     "ab,c1,cb->ab replicate=c"),
    ("scatter", lambda x, i: jax.grad(lambda x: (_take_along(x, i) ** 2).sum())(x),
     [(4, 6), (INT, 4, 3)],
     "ab,ac1,ac->ab reduce=c"),
    ("select", lambda x, y: jnp.where(x > 0, x, y), [(4, 6), (4, 6)], "ab,ab,ab->ab"),
    ("select-and-scatter", _pool_gradient, [IMAGE], "abcd,abcd,.->abcd",
     "abcd,a11d,.->abcd permute=b,c", ALIGNED),
    ("slice", lambda x: x[:, 1:3], [(4, 6)], "ab->ab permute=b"),
    ("sort", lambda x: jnp.sort(x, axis=1), [(4, 6)], "ab->ab replicate=b"),
    ("sort", lambda x: jnp.argsort(x, axis=0), [(4, 6)], "ab,ab->ab,ab replicate=a"),
    ("topk", lambda x: lax.top_k(x, 2), [(4, 6)], "ab->ab,ab replicate=b", None, "Shardy has none"),
    ("transpose", lambda x: x.T, [(4, 6)], "ab->ba"),
]  # fmt: skip

ROWS, MATRICES, COUNTS = (8, 4), (2, 4, 6), (INT, 2)
# What only other platforms' programs have; Shardy has no rule for ragged dots, and only other names
# for dimensions that stay whole in the rest.
GOLDEN_ON_TPU = [
    ("cholesky", lax.linalg.cholesky, [(3, 4, 4)], "abc->ade replicate=b,c,d,e"),
    ("custom-call", jnp.linalg.qr, [(3, 4, 4)], "abc->ade,af replicate=b,c,d,e,f"),
    ("ragged-dot", lax.ragged_dot, [ROWS, MATRICES, COUNTS], "ab,cbd,c->ad reduce=b,c replicate=a"),
    ("ragged-dot", _ragged_gradient, [ROWS, MATRICES, COUNTS], "ab,ac,d->dbc replicate=a"),
    ("triangular-solve", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
     [(3, 4, 4), (3, 4, 5)],
     "abc,ade->afg replicate=b,c,d,e,f,g"),
]  # fmt: skip
# Programs that were written for many devices already: HLO text, rule.
GOLDEN_AS_TEXT = [
    ("all-gather", "f32[8,6] all-gather(%p), dimensions={0}", "ab->ab replicate=a"),
    ("all-reduce", "f32[4,6] all-reduce(%p), to_apply=%add", "ab->ab"),
    ("all-to-all", "f32[4,6] all-to-all(%p), dimensions={1}, replica_groups={{0,1}}",
     "ab->ab replicate=b"),
    ("collective-permute", "f32[4,6] collective-permute(%p), source_target_pairs={{0,1}}",
     "ab->ab"),
    ("reduce-scatter", "f32[2,6] reduce-scatter(%p), dimensions={0}, to_apply=%add",
     "ab->ab replicate=a"),
    ("custom-call", 'f32[4,6] custom-call(%p), custom_call_target="cu_threefry2x32_ffi"', "ab->ab"),
    ("sharding-constraint",
     'f32[4,6] custom-call(%p), custom_call_target="sharding-constraint:x,null"', "ab->ab"),
    ("custom-call", 'f32[2,6] custom-call(%p), custom_call_target="SPMDFullToShardShape"',
     "ab->ab replicate=a"),
    ("custom-call", 'f32[4,6] custom-call(%p), custom_call_target="nobody_knows"',
     "ab->cd replicate=a,b,c,d"),
    ("rng", "f32[4,6] rng(%zero, %zero), distribution=rng_uniform", ".,.->ab"),
]  # fmt: skip


def _argument(shape):
    if shape is INT:
        return jax.ShapeDtypeStruct((), INT)
    is_typed = shape[0] in (INT, COMPLEX)
    dtype = shape[0] if is_typed else jnp.float32
    return jax.ShapeDtypeStruct(shape[1:] if is_typed else shape, dtype)


def _graph(function, shapes, platform="cpu"):
    traced = jax.jit(function, keep_unused=True).trace(*map(_argument, shapes))
    lowered = traced.lower(lowering_platforms=(platform,))
    return flatten(decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))


def _rules(function, shapes, opcode, platform="cpu"):
    graph = _graph(function, shapes, platform)
    return [r for op, r in zip(graph.ops, op_rules(graph, {})) if op.opcode == opcode]


def rules_and_shapes(opcode, function, shapes):
    """(rule, operand shapes, result shapes) of the ops of a golden row."""
    graph = _graph(function, shapes)
    for op, rule in zip(graph.ops, op_rules(graph, {})):
        if op.opcode == opcode:
            tensors = [[graph.values[v].dims for v in side] for side in (op.inputs, op.outputs)]
            yield rule, *tensors


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row[0]} {row[3]}")
def test_rule_is_the_golden_one(row):
    opcode, function, shapes, expected, *_ = row
    printed = [str(rule) for rule in _rules(function, shapes, opcode)]
    assert expected in printed, printed


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row[0]} {row[3]}")
def test_rule_is_shardys_or_differs_as_stated(row):
    opcode, function, shapes, ours, *different = row
    theirs = shardy.shardy_rules(function, list(map(_argument, shapes)), opcode)
    if theirs is None:
        pytest.skip("this jaxlib does not run Shardy's passes")
    if different:
        expected, _ = different
        known = {expected} if isinstance(expected, str) else set(expected or ())
        assert known & set(theirs) if known else not theirs, theirs
    else:
        (rule,) = [r for r in _rules(function, shapes, opcode) if str(r) == ours][:1]
        assert shardy.comparable(rule) in theirs


@pytest.mark.parametrize("row", GOLDEN_ON_TPU, ids=lambda row: f"{row[0]} {row[3]}")
def test_rule_of_a_program_for_tpu(row):
    opcode, function, shapes, expected = row
    assert expected in [str(rule) for rule in _rules(function, shapes, opcode, platform="tpu")]


@pytest.mark.parametrize("row", GOLDEN_AS_TEXT, ids=lambda row: f"{row[0]} {row[2]}")
def test_rule_of_an_op_in_hlo_text(row):
    opcode, instruction, expected = row
    lines = (
        "HloModule m, num_partitions=2",
        "%add {",
        "%a = f32[] parameter(0)",
        "%b = f32[] parameter(1)",
        "ROOT %c = f32[] add(%a, %b)",
        "}",
        "ENTRY %e {",
        "%p = f32[4,6] parameter(0)",
        "%zero = f32[] constant(0)",
        f"ROOT %r = {instruction}",
        "}",
    )
    graph = flatten(decode_module(text_to_proto("\n".join(lines))))
    assert [str(r) for op, r in zip(graph.ops, op_rules(graph, {})) if op.opcode == opcode] == [
        expected
    ]


def test_every_rule_family_has_a_golden_row():
    rows = (*GOLDEN, *GOLDEN_ON_TPU, *GOLDEN_AS_TEXT)
    covered = {RULES[row[0]] for row in rows if row[0] in RULES}
    missing = {name for name, rule in RULES.items() if rule not in covered}
    assert not missing
