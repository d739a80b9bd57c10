"""Sums over rows, and what XLA:GPU makes one kernel with them: small steps, counted by hand.

That XLA:GPU fuses them so was seen in programs that jax 0.10.2 compiled for an H100 on 2026-11-28.
"""

import jax.numpy as jnp
import pytest

from automap.backends import backend_for
from hlo_tools.analyses.column_kernels import column_kernels
from hlo_tools.analyses.kernels import kernels
from hlo_tools.analyses.widths import stored_bytes
from tests.hlo_tools.graphs import step_graph


ROWS, WIDTH = 1024, 512
ARRAY = (ROWS, WIDTH)
FUSER = backend_for("cuda").fuser


def _made(step, *shapes, dtype="float32"):
    graph = step_graph(step, *shapes, dtype=dtype)
    return graph, kernels(graph, FUSER, stored_bytes(graph, [False] * len(graph.values)))


def _one_with_sums(step, *shapes):
    """The opcodes of kernels that are one with a sum over rows."""
    graph, made = _made(step, *shapes)
    leaders = column_kernels(graph, FUSER, made).leaders
    return sorted(graph.ops[op].opcode for op, s in leaders.items() if op != s)


def _residual(gradient, weights):
    return gradient.sum(0), jnp.tanh(gradient @ weights) + gradient


def test_a_sum_and_what_adds_the_same_array_are_one_kernel_past_a_product():
    assert _one_with_sums(_residual, ARRAY, (WIDTH, WIDTH)) == ["add"]
    graph, made = _made(_residual, ARRAY, (WIDTH, WIDTH))
    (added,) = [k for k in made if graph.ops[k.op].opcode == "add"]
    assert added.joins
    assert [access.n_bytes for access in added.reads if access.value == 0] == [0]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x - x.sum(0),  # waits for the sum
        lambda x: (x.sum(0), jnp.exp(x) * x.sum(1, keepdims=True), (x * x).sum(1)),
        lambda x: (x.sum(0), x.sum(1)),
        lambda x: (x.sum(0), jnp.exp(x[:512])),  # works on less
    ],
)
def test_a_sum_is_one_with_nothing_that_waits_for_it_or_sums_along_rows(step):
    graph, made = _made(step, ARRAY)
    leaders = column_kernels(graph, FUSER, made).leaders
    assert {graph.ops[op].opcode for op in leaders} == {"reduce"}


def test_of_two_sums_of_an_array_one_reads_it_unless_it_waits_for_the_other():
    def read(step):
        _, made = _made(step, ARRAY)
        return [round(sum(a.n_bytes for a in k.reads) / (4 * ROWS * WIDTH)) for k in made]

    assert read(lambda x: (x.sum(0), (x * x).sum(0))) == [1, 0]
    assert read(lambda x: ((x - x.sum(0)) ** 2).sum(0)) == [1, 1]


def test_what_is_summed_of_several_arrays_has_what_other_sums_read():
    graph, made = _made(lambda d, x: (d.sum(0), (d * x).sum(0)), ARRAY, ARRAY)
    columns = column_kernels(graph, FUSER, made)
    assert [*columns.given.values()] == [{0}]
    # Whether it is one with the other depends on the plan.
    assert [[bool(a.n_bytes) for a in k.reads] for k in made] == [[True], [True, True]]


@pytest.mark.parametrize(("n_users", "is_written"), [(2, False), (3, True)])
def test_a_narrow_sum_that_many_read_in_a_wider_type_is_written(n_users, is_written):
    """n users of three arrays: 3 n > 3 + 1 + n."""

    def step(a, b, c):
        wide = (a + b + c).astype("float32")
        return [jnp.exp(wide * k) @ jnp.ones((WIDTH, WIDTH)) for k in range(2, 2 + n_users)]

    graph, made = _made(step, *[ARRAY] * 3, dtype="bfloat16")
    added = [op.outputs[0] for op in graph.ops if op.opcode == "add"][-1]
    written = {access.value for kernel in made for access in kernel.writes}
    assert (added in written) == is_written
