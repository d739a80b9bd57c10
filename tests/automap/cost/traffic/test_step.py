"""Collectives of small steps in closed form; against compiled programs:
tests/automap/runtime/test_models.py.
"""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import KINDS
from automap.space.point import Point, StorageLevel
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from tests.steps import decoder, mlp, problem_of


def test_zero_3_gathers_each_parameter_once_and_scatters_each_gradient():
    problem = problem_of(*mlp())
    space, tables = Space(problem), build_tables(problem, "cpu")
    mesh = Mesh(("data",), (8,))
    (point,) = PRESETS["zero-3"].points(space, mesh)
    collectives = tables.collectives(
        shardings(tables, problem.n_classes, space.split_classes(point))
    )
    weight_bytes = 4 * 32 * 64
    counts = Counter()
    for kind, n_bytes, count in zip(collectives.kind, collectives.n_bytes, collectives.count):
        counts[KINDS[kind].value, int(n_bytes)] += int(count)
    assert counts == {
        ("all-gather", weight_bytes): 2,
        ("reduce-scatter", weight_bytes): 2,
        ("all-reduce", 4): 1,
    }


@pytest.mark.parametrize(
    ("is_looked_up", "gathers"),
    # A product's operand is rounded first. As libtpu 0.0.51 compiles zero-3 of GPT-124M, whose
    # table is looked up in before it is multiplied: there is one gather of it, in float32.
    [(False, [64 * 16 * 2]), (True, [64 * 16 * 4])],
)
def test_a_table_that_is_there_whole_serves_products_as_it_is(is_looked_up, gathers):
    def loss(table, x, words):
        rows = table[words] if is_looked_up else x
        return jnp.tanh(jnp.einsum("rk,wk->rw", rows, table)).sum()

    def step(table, x, words):
        return table - 0.1 * jax.grad(loss)(table, x, words)

    shapes = ((64, 16), "float32"), ((32, 16), "float32"), ((32,), "int32")
    problem = problem_of(step, tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    space, tables = Space(problem), build_tables(problem, "tpu")
    (point,) = PRESETS["zero-3"].points(space, Mesh(("data",), (8,)))
    collectives = tables.collectives(
        shardings(tables, problem.n_classes, space.split_classes(point))
    )
    is_gather = collectives.kind == [kind.value for kind in KINDS].index("all-gather")
    rows = zip(collectives.edge[is_gather].tolist(), collectives.n_bytes[is_gather].tolist())
    values, table = tables.operands.value, problem.graph.inputs[0]
    assert [n_bytes for edge, n_bytes in rows if values[edge] == table] == gathers


def test_megatron_reduces_q_k_and_v_once_where_the_backend_adds_first():
    layers = 2
    problem = problem_of(*decoder(layers=layers))
    space, mesh = Space(problem), Mesh(("model",), (8,))
    (point,) = PRESETS["megatron"].points(space, mesh)
    backward = {}
    for platform in ("cpu", "tpu"):
        tables = build_tables(problem, platform)
        collectives = tables.collectives(
            shardings(tables, problem.n_classes, space.split_classes(point))
        )
        assert {KINDS[kind] for kind in collectives.kind} == {KINDS[0]}
        backward[platform] = int(collectives.count[collectives.phase == Phase.BACKWARD].sum())
    # Gradients of the inputs of q, k, v and of the feed-forward layer; once of the logits and
    # log-softmax.
    assert backward == {"cpu": layers * (3 + 1) + 2, "tpu": layers * (1 + 1) + 2}


@pytest.mark.parametrize(
    ("partial", "messages"),
    # As libtpu 0.0.51 compiles h1 @ w1 + h2 @ w2 + ... for v5e:2x4, P: the sum's dimension is
    # split, -: it is whole.
    [("PPP", 1), ("-PP", 2), ("P-P", 2), ("PP-", 1), ("-PPP", 3), ("PP-PP", 3), ("PPP-", 1)],
)
def test_terms_are_added_first_up_to_one_that_is_whole(partial, messages):
    def step(w, x):
        return w, sum((h @ v for h, v in zip(x[1:], w[1:], strict=True)), start=x[0] @ w[0])

    # Each term has sizes of its own, so that its dimension is one decision.
    inner = [64 * (n + 1) for n in range(len(partial))]
    w = [jax.ShapeDtypeStruct((k, 32), "float32") for k in inner]
    x = [jax.ShapeDtypeStruct((16, k), "float32") for k in inner]
    problem = problem_of(step, (w, x))
    space, tables = Space(problem), build_tables(problem, "tpu")
    weight_classes = [problem.compute_classes(value)[0] for value in problem.graph.inputs[: len(w)]]
    split = [c for c, kind in zip(weight_classes, partial, strict=True) if kind == "P"]
    point = space.point(Mesh(("model",), (8,)), [split])
    collectives = tables.collectives(
        shardings(tables, problem.n_classes, space.split_classes(point))
    )
    is_sum = collectives.kind == KINDS.index("all-reduce")
    assert collectives.count[is_sum].sum() == messages


@pytest.mark.parametrize(
    ("platform", "dtype", "precision", "n_bytes"),
    [
        ("tpu", "float32", None, 2),  # multiplied as bfloat16, and gathered so
        ("tpu", "float32", "highest", 4),
        ("tpu", "bfloat16", None, 2),
        ("cuda", "float32", None, 4),
        ("cpu", "float32", None, 4),
    ],
)
def test_operands_of_products_are_gathered_as_they_are_multiplied(
    platform, dtype, precision, n_bytes
):
    def step(state, x):
        return jax.tree.map(lambda w: w - jnp.matmul(x.T, x, precision=precision) @ w, state)

    state = jax.ShapeDtypeStruct((64, 64), dtype)
    problem = problem_of(step, (state, jax.ShapeDtypeStruct((8, 64), dtype)))
    tables = build_tables(problem, platform)
    products = [i for i, op in enumerate(problem.graph.ops) if op.opcode == "dot"]
    first = [
        int(tables.operands.n_bytes[e])
        for e, op in enumerate(tables.operands.op)
        if op == products[0]
    ]
    assert first and set(first) == {8 * 64 * n_bytes}


@pytest.mark.parametrize(
    ("stored", "trips"),
    [
        # Added up as it is: reduced after the last trip.
        ((StorageLevel.REPLICATED, StorageLevel.REPLICATED), 1),
        # Reduced along "data", then sliced along "model": the loop adds up slices.
        ((StorageLevel.REPLICATED, StorageLevel.FULL), 4),
        ((StorageLevel.FULL, StorageLevel.FULL), 4),
    ],
)
def test_a_sum_that_is_sliced_does_not_leave_its_loop(stored, trips):
    def step(w, x):
        def add(total, micro):
            return total + jax.grad(lambda w: jnp.tanh(micro @ w).sum())(w), None

        gradient, _ = jax.lax.scan(add, jnp.zeros_like(w), x)
        return w - gradient

    shapes = [(64, 64), (4, 16, 64)]
    problem = problem_of(step, tuple(jax.ShapeDtypeStruct(s, "float32") for s in shapes))
    space, tables = Space(problem), build_tables(problem, "tpu")
    mesh = Mesh(("data", "model"), (2, 4))
    point = space.point(mesh, [[problem.batch_class], []], stored)
    collectives = tables.collectives(
        shardings(tables, problem.n_classes, space.split_classes(point))
    )
    sums = KINDS.index("all-reduce"), KINDS.index("reduce-scatter")
    is_sum = np.isin(collectives.kind, sums)
    assert collectives.count[is_sum].tolist() == [trips]


_WHOLE, _SPLIT = StorageLevel.REPLICATED, StorageLevel.FULL


@pytest.mark.parametrize(
    ("platform", "stored", "expected"),
    [
        # Split along the last axis: taken apart where the compiler does so.
        ("cuda", (_WHOLE, _SPLIT), ["10 reduce-scatter", "1 all-reduce"]),
        ("tpu", (_WHOLE, _SPLIT), ["11 all-reduce"]),
        # Groups of neighbours, of which each scatters, have slices along the last axis.
        ("cuda", (_SPLIT, _WHOLE), ["11 all-reduce"]),
        ("cuda", (_SPLIT, _SPLIT), ["11 reduce-scatter"]),
        ("cuda", (_WHOLE, _WHOLE), ["11 all-reduce"]),
    ],
)
def test_an_all_reduce_that_is_sliced_along_the_last_axis_is_taken_apart(
    platform, stored, expected
):
    def step(b, x):
        return b - jax.grad(lambda b: jnp.tanh(x + b).sum())(b)

    args = tuple(jax.ShapeDtypeStruct(s, "float32") for s in ((64,), (64, 64)))
    problem = problem_of(step, args)
    space, tables = Space(problem), build_tables(problem, platform)
    batch = problem.batch_class
    point = space.point(Mesh(("data", "model"), (2, 4)), [[batch], [batch]], stored)
    got = tables.collectives(shardings(tables, problem.n_classes, space.split_classes(point)))
    sums = np.flatnonzero(~got.on_operand)
    assert [f"{got.mask[e]:b} {KINDS[got.kind[e]]}" for e in sums] == expected
    # What is scattered first is added up further as each device's part.
    assert got.n_bytes[sums].tolist() == [256.0, 64.0][: len(expected)]


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("cpu", ["1 all-reduce", "10 all-reduce"]),
        # Embeddings of BERT under sequence parallelism, by both compilers (jaxlib 0.10.2, libtpu
        # 0.0.51): one all-reduce over all eight devices.
        ("tpu", ["11 all-reduce"]),
        ("cuda", ["11 all-reduce"]),
    ],
)
def test_a_product_that_sums_over_two_dimensions_has_one_all_reduce_where_they_are_folded(
    platform, expected
):
    def step(w, x):
        return w - jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

    args = tuple(jax.ShapeDtypeStruct(s, "float32") for s in ((32, 16), (64, 128, 32)))
    problem = problem_of(step, args)
    space, tables = Space(problem), build_tables(problem, platform)
    (sequence,) = (c for c in space.candidates if space.label(c) == "[1][1]")
    point = space.point(Mesh(("data", "model"), (2, 4)), [[problem.batch_class], [sequence]])
    got = tables.collectives(shardings(tables, problem.n_classes, space.split_classes(point)))
    assert [f"{got.mask[e]:b} {KINDS[got.kind[e]]}" for e in range(len(got.kind))] == expected
    assert set(got.n_bytes.tolist()) == {32 * 16 * 4}


@pytest.mark.parametrize(
    ("platform", "stored", "expected"),
    [
        # The axis that splits the parameter stands before the other one.
        ("cuda", (StorageLevel.OPTIMIZER, _SPLIT), "11 all-reduce"),
        ("cuda", (_SPLIT, StorageLevel.OPTIMIZER), "11 reduce-scatter"),
        ("cuda", (StorageLevel.OPTIMIZER, StorageLevel.OPTIMIZER), "11 reduce-scatter"),
        ("tpu", (StorageLevel.OPTIMIZER, _SPLIT), "11 reduce-scatter"),
    ],
)
def test_a_sum_over_rows_is_scattered_along_axes_in_the_order_of_the_mesh(
    platform, stored, expected
):
    """Of a product, whose devices are put in the order of the parts, along all."""

    def step(state, x):
        gradients = jax.grad(lambda s: jnp.tanh(x @ s["weight"] + s["bias"]).sum())(state)
        return jax.tree.map(lambda w, g: w - g, state, gradients)

    state = {"weight": (64, 64), "bias": (64,)}
    args = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, "float32"),
        (state, (64, 64)),
        is_leaf=lambda node: isinstance(node, tuple) and isinstance(node[0], int),
    )
    problem = problem_of(step, args)
    space, tables = Space(problem), build_tables(problem, platform)
    levels = [[level] * len(space.leaves) for level in stored]
    batch = problem.batch_class
    mesh = Mesh(("replica", "data"), (2, 4))
    split_classes = space.split_classes(
        Point(mesh, ((batch,), (batch,)), tuple(map(tuple, levels)))
    )
    got = tables.collectives(shardings(tables, problem.n_classes, split_classes))
    sums = {
        tables.results.n_bytes[got.edge[e]]: f"{got.mask[e]:b} {KINDS[got.kind[e]]}"
        for e in np.flatnonzero(~got.on_operand)
        if KINDS[got.kind[e]].value in ("all-reduce", "reduce-scatter")
    }
    assert sums == {4 * 64: expected, 4 * 64**2: "11 reduce-scatter"}


def test_casts_that_a_loop_keeps_for_the_backward_pass_are_gathered_again_there():
    layers, width = 3, 64

    def step(w, x):
        def layer(x, w):
            return jnp.tanh(x @ w.astype(jnp.bfloat16)), None

        def loss(w):
            return jax.lax.scan(layer, x, w)[0].sum().astype(jnp.float32)

        return jax.tree.map(lambda w, g: w - g, w, jax.grad(loss)(w))

    w = jax.ShapeDtypeStruct((layers, width, width), "float32")
    x = jax.ShapeDtypeStruct((16, width), "bfloat16")
    problem = problem_of(step, (w, x))
    space, tables = Space(problem), build_tables(problem, "tpu")
    (point,) = PRESETS["zero-3"].points(space, Mesh(("data",), (8,)))
    collectives = tables.collectives(
        shardings(tables, problem.n_classes, space.split_classes(point))
    )
    is_gather = collectives.kind == KINDS.index("all-gather")
    sizes = dict.fromkeys(collectives.n_bytes[is_gather].tolist())
    assert sizes == {2 * width**2: None}
    # Each layer's weights in the forward pass, and again for the gradient of its input.
    assert collectives.count[is_gather].sum() == 2 * layers
