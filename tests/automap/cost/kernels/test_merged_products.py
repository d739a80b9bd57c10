"""Products of one operand are parts of one product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.kernels.merged_products import larger_products, product_groups
from automap.cost.profile.shapes import Larger
from automap.cost.profile.signatures import Role
from automap.cost.tables import build_tables
from automap.program.trace import trace_step
from automap.space.point import SplitClasses
from automap.topology import get_topology
from automap.topology.mesh import Mesh


def _problem(step, *shapes):
    arrays = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return trace_step(step, arrays, platform="cuda").problem


def _products(graph):
    return [n for n, op in enumerate(graph.ops) if op.instruction.attributes.dot is not None]


def test_what_is_made_of_one_of_them_is_apart_and_the_others_are_one():
    def step(x, a, b, c):
        first, second = x @ a, x @ b
        return first.sum() + second.sum() + (x @ jnp.tanh(c * first.sum())).sum()

    graph = _problem(step, (32, 8), (8, 16), (8, 48), (8, 4)).graph
    first, second, third = _products(graph)
    assert product_groups(graph) == [[first, second]]
    assert larger_products(graph) == {
        first: Larger(Role.N, 4.0),
        second: Larger(Role.N, 64 / 48),
    }
    assert third not in larger_products(graph)


def test_rows_of_another_operand_go_on_along_m_and_other_dimensions_are_not_shared():
    def step(x, y, a):
        # `a` is summed over along its rows, along its rows, and along its columns.
        return (x @ a).sum() + (y @ a).sum() + (x[:, :6] @ a.T).sum()

    graph = _problem(step, (4, 8), (12, 8), (8, 6)).graph
    sizes = {n: graph.values[graph.ops[n].outputs[0]].dims for n in _products(graph)}
    got = {sizes[n]: larger for n, larger in larger_products(graph).items()}
    assert got == {(4, 6): Larger(Role.M, 4.0), (12, 6): Larger(Role.M, 16 / 12)}


def test_types_and_loops_keep_products_apart():
    def step(x, a, b, c):
        def layer(h, w):
            return jnp.tanh(x @ w).sum() + h, None

        inside = jax.lax.scan(layer, 0.0, c)[0]
        narrow = jnp.dot(x, b, preferred_element_type=jnp.bfloat16).astype(jnp.float32)
        return (x @ a).sum() + narrow.sum() + inside

    graph = _problem(step, (32, 8), (8, 16), (8, 16), (3, 8, 16)).graph
    assert len(_products(graph)) == 3 and product_groups(graph) == []


def test_what_is_computed_again_is_apart():
    def step(x, a):
        layer = jax.checkpoint(lambda x, a: jnp.tanh(jnp.tanh(x) @ a))
        value, gradient = jax.value_and_grad(lambda x: layer(x, a).sum())(x)
        return x - value * gradient

    graph = _problem(step, (32, 8), (8, 8)).graph
    # Forward, again, and backward.
    assert len(_products(graph)) == 3 and product_groups(graph) == []


@pytest.mark.parametrize(("rows", "is_merged"), [(512, True), (16384, False)])
def test_each_takes_its_part_of_the_larger_product_unless_it_is_large_itself(rows, is_merged):
    """64 MiB is the compiler's limit: 4 (n + 2 n + 2) MiB of n thousand rows."""

    def step(x, a, b, c):
        return (x @ a).sum() + (x @ b).sum() + (x @ c).sum()

    def alone(x, a):
        return (x @ a).sum()

    width = 1024
    shapes = (rows, width), *[(width, 2 * width)] * 3
    topology = get_topology("8xh100")
    mesh = SplitClasses(Mesh(("all",), (1,)), ((),))

    def seconds(problem):
        evaluator = Evaluator(build_tables(problem, "cuda"), problem.n_classes, topology)
        table = evaluator.tables.kernels
        is_product = np.array([shape.kind == "dot" for shape in table.shape])
        priced = evaluator.price_point(mesh)
        return float((priced.kernel_seconds * table.count)[is_product].sum())

    apart = 3 * seconds(_problem(alone, *shapes[:2]))
    whole = seconds(_problem(alone, (rows, width), (width, 6 * width)))
    together = seconds(_problem(step, *shapes))
    assert together == pytest.approx(whole if is_merged else apart)
    assert whole < 0.98 * apart or not is_merged


def test_no_other_compiler_merges_them():
    problem = _problem(lambda x, a, b: (x @ a).sum() + (x @ b).sum(), (8, 4), (4, 2), (4, 2))
    shapes = {
        platform: {s.merged_in for s in build_tables(problem, platform).kernels.shape if s.kind}
        for platform in ("cuda", "tpu", "cpu")
    }
    assert shapes == {"cuda": {Larger(Role.N, 2.0)}, "tpu": {None}, "cpu": {None}}
