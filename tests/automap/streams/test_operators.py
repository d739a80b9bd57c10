"""Operators of steps whose kernels are known."""

import jax
from jax import lax
import jax.numpy as jnp

from automap.planner.streams import priced_operators
from automap.program import load_target, trace_step
from automap.streams.blocks import cut_blocks
from automap.topology import get_topology


def operators(step, *args):
    workload = trace_step(step, args, platform="cuda")
    return priced_operators(workload, get_topology("1xv100")).operators


def array(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def convolution(x, w, groups=1):
    return lax.conv_general_dilated(
        x,
        w,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def test_a_convolution_has_its_bias_and_activation():
    def step(x, w, b, v):
        return convolution(jax.nn.relu(convolution(x, w) + b), v)

    first, second = operators(
        step, array(1, 8, 8, 4), array(3, 3, 4, 16), array(16), array(1, 1, 16, 8)
    )
    assert [len(op.parts) for op in (first, second)] == [1, 1]
    assert (first.label, second.label) == ("conv 3x3 4 -> 16 at 8x8", "conv 1x1 16 -> 8 at 8x8")
    assert second.before == {0}
    product = first.parts[0].product
    assert (product.rows, product.columns, product.depth) == (64, 16, 36)
    # It writes what the activation makes, and reads the bias.
    assert first.parts[0].written_bytes == 4 * 64 * 16
    assert sum(n for _, n in first.parts[0].reads) == 4 * (8 * 8 * 4 + 36 * 16 + 16)


def test_a_depthwise_convolution_goes_with_its_pointwise_one():
    def step(x, w, v):
        return convolution(convolution(jax.nn.relu(x), w, groups=4), v)

    (only,) = operators(step, array(1, 8, 8, 4), array(3, 3, 1, 4), array(1, 1, 4, 8))
    # ReLU, which the convolution loads from memory, depthwise, pointwise.
    assert [part.product is None for part in only.parts] == [True, False, False]
    assert only.parts[1].product.groups == 4


def test_operators_of_one_operand_are_of_one_class():
    def step(x, y, w, v):
        return x @ w, x @ v, y @ w, x @ (w @ v)

    ops = operators(step, array(8, 16), array(8, 16), array(16, 16), array(16, 16))
    keys = {op.site: op.merge and op.merge.key for op in ops}
    assert len(ops) == 5
    classes = list(keys.values())
    # The last one's right side is no input; the fourth's operand is w.
    assert classes.count(classes[0]) == 2
    assert sum(key is None for key in classes) == 1


def test_a_loop_is_one_operator():
    def step(x, w):
        def body(carry, weight):
            return jnp.tanh(carry @ weight), None

        return lax.scan(body, x, w)[0] @ w[0]

    loop, product = operators(step, array(8, 16), array(3, 16, 16))
    assert {part.runs for part in loop.parts if part.product} == {3}
    assert product.before == {0}


def test_the_kernels_of_one_equation_are_one_operator():
    def step(table, rows, w):
        # Rows outside of the table are not numbers: a select behind the look-up.
        return jnp.take(table, rows, axis=0) @ w

    rows = jax.ShapeDtypeStruct((8,), "int32")
    ops = operators(step, array(32, 16), rows, array(16, 16))
    assert len({op.site for op in ops}) == len(ops)
    assert len(ops[0].parts) > 1
    assert ops[1].before == {0}


def test_inception_has_the_kernels_and_blocks_that_the_papers_count():
    step, args = load_target("models.inception:inception_v3_forward", {})
    ops = operators(step, *args)
    # DOS, table 5: 119 kernels; IOS, table 1: blocks of at most 11 operators and a width of 6.
    assert len(ops) == 119
    sizes = [len(b.members) for b in cut_blocks([op.before for op in ops]) if len(b.members) > 1]
    assert len(sizes) == 11
    assert max(sizes) == 11


def test_a_number_is_no_bias_of_a_product_of_two_vectors():
    def step(x, y):
        return jnp.maximum(x @ y + 1.0, 0.0)

    assert [op.label for op in operators(step, array(64), array(64))] == ["dot"]
