"""What the engine finds on models whose answer is known."""

import jax
import jax.numpy as jnp
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.space.leaves import LeafClass, leaf_classes, storage_dims
from automap.space.point import SplitClasses
from automap.space.presets import PRESETS, feature_classes
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from tests.steps import decoder, mlp, problem_of


def test_roles_and_phases_of_a_train_step():
    problem = problem_of(*mlp())
    roles = dict(zip(problem.paths, problem.roles))
    assert roles["[0]['params']['w1']"] is Role.PARAMETER
    assert roles["[0]['m']['w1']"] is Role.OPTIMIZER
    assert roles["[1]['x']"] is Role.BATCH
    dots = [p for op, p in zip(problem.graph.ops, problem.phases) if op.opcode == "dot"]
    assert dots.count(Phase.FORWARD) == 2
    assert dots.count(Phase.BACKWARD) == 3
    assert dots.count(Phase.UPDATE) == 0


def test_megatron_is_what_the_feature_classes_say():
    space = Space(problem_of(*decoder()))
    chosen = feature_classes(space, 4)
    split = {}
    for leaf in leaf_classes(space.problem):
        for path in (space.problem.paths[i] for i in leaf.inputs):
            split[path.split("'")[-2]] = [d for d, c in enumerate(leaf.compute) if c in chosen]
    assert split["q"] == split["k"] == split["v"] == split["up"] == [1]
    assert split["o"] == split["down"] == split["embedding"] == [0]
    assert split["norm1"] == split["norm2"] == []


def test_layers_fold():
    two, four = (Space(problem_of(*decoder(layers=n))) for n in (2, 4))
    assert len(two.candidates) == len(four.candidates)
    assert [len(leaf.inputs) * 2 for leaf in two.leaves if len(leaf.inputs) > 1] == [
        len(leaf.inputs) for leaf in four.leaves if len(leaf.inputs) > 1
    ]


def test_the_sequence_meets_itself_and_is_offered_after_the_features():
    space = Space(problem_of(*decoder()))
    conflicting = {c.group_class for c in space.problem.self_conflicts}
    tokens = space.problem.paths.index("[1]['tokens']")
    sequence = space.problem.compute_classes(space.problem.graph.inputs[tokens])[1]
    assert sequence in conflicting
    assert sequence in space.activations
    weights = [c for c in space.candidates if c not in space.activations]
    order = [space.candidates.index(c) for c in (weights[-1], sequence, space.problem.batch_class)]
    assert order == sorted(order)


def test_storage_of_equal_leaves_agrees_on_both_sides():
    space = Space(problem_of(*decoder()))
    point = space.point(Mesh(("data",), (8,)), [[space.problem.batch_class]])
    for leaf in space.leaves:
        assert len(leaf.parameter_side) == len(leaf.optimizer_side) == len(leaf.dims)
        assert not set(leaf.parameter_side) & set(leaf.optimizer_side)
    assert space.is_valid(point)


@pytest.mark.parametrize(
    ("dims", "sizes", "expected"),
    [
        ((768, 3072), (8,), (1,)),  # 384 of the largest
        ((768, 3072), (16,), (0,)),  # 192 are no multiple of 128
        ((768, 3072), (4, 4), (0, 0)),  # of both axes, so that one collective gathers them
        ((3072, 768), (16,), (0,)),
        ((1000,), (8,), (0,)),  # there is no other
        ((16, 64), (8,), (1,)),  # less than a tile is not copied for it
        ((3, 3072), (16,), (1,)),
    ],
)
def test_what_is_stored_in_parts_is_cut_where_tiles_are_not(dims, sizes, expected):
    n = len(dims)
    leaf = LeafClass(
        inputs=(0,),
        dims=dims,
        n_bytes=4,
        compute=(9,) * n,
        regional=(9,) * n,
        parameter_side=tuple(range(n)),
        optimizer_side=(9,) * n,
        reach=(1,) * n,
        imposed=None,
    )
    axes = [(f"axis{a}", size) for a, size in enumerate(sizes)]
    assert storage_dims(leaf, axes, [True] * len(axes), (1,) * n, 9, 128) == expected


def test_the_batch_of_gradient_accumulation_is_that_of_a_microbatch():
    """The reshape keeps only the number of microbatches on the batch's dimension: no work runs over
    it.
    """

    def step(w, x):
        def add(total, micro):
            return total + jax.grad(lambda w: jnp.tanh(micro @ w).sum())(w), None

        grads, _ = jax.lax.scan(add, jnp.zeros_like(w), x.reshape(4, 16, 32))
        return w - grads

    shapes = (jax.ShapeDtypeStruct((32, 32), "float32"), jax.ShapeDtypeStruct((64, 32), "float32"))
    problem = problem_of(step, shapes)
    dots = [op for op in problem.graph.ops if op.opcode == "dot"]
    micro = {v for op in dots for v in op.inputs if problem.graph.values[v].dims == (16, 32)}
    assert {problem.compute_classes(v)[0] for v in micro if problem.graph.varies[v]} == {
        problem.batch_class
    }
    (parallel,) = PRESETS["data-parallel"].points(Space(problem), Mesh(("data",), (8,)))
    assert parallel.compute == ((problem.batch_class,),)


@pytest.mark.parametrize("labels", ["of sequences", "of times", "none"])
@pytest.mark.parametrize("projected", ["before", "in the loop"])
def test_the_batch_of_sequences_by_time_is_not_time(labels, projected):
    time, batch, width = 32, 8, 16

    def step(params, data):
        def loss(params):
            def cell(h, x):
                x = x if projected == "before" else x @ params["in"]
                h = jnp.tanh(x + h @ params["own"])
                return h, h

            x = data["x"] @ params["in"] if projected == "before" else data["x"]
            last, every = jax.lax.scan(cell, jnp.zeros((batch, width)), x)
            found = last if labels == "of sequences" else every
            return jnp.mean((found - data.get("y", 0.0)) ** 2)

        return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))

    shapes = {"of sequences": (batch, width), "of times": (time, batch, width)}
    data = {"x": jax.ShapeDtypeStruct((time, batch, width), "float32")}
    if labels in shapes:
        data["y"] = jax.ShapeDtypeStruct(shapes[labels], "float32")
    square = jax.ShapeDtypeStruct((width, width), "float32")
    problem = problem_of(step, ({"in": square, "own": square}, data))
    x = problem.graph.inputs[problem.paths.index("[1]['x']")]
    assert problem.batch_class == problem.compute_classes(x)[1]


def _two_towers(params, batch):
    def tower(x, layers):
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    def loss(params):
        images, texts = (tower(batch[name], params[name]) for name in ("images", "texts"))
        logits = images @ texts.T
        return -jnp.diagonal(jax.nn.log_softmax(logits)).mean() + batch["positions"].sum()

    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))


def _inside_and_boundary(params, batch):
    def loss(params):
        inside, boundary = (
            jnp.tanh(batch[n] @ params["in"]) @ params["out"] for n in ("x", "edge")
        )
        return (inside**2).mean() + (boundary**2).mean()

    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))


def _attending(params, batch):
    """As many positions as sequences: what meets the batch in every layer is none."""

    def loss(params):
        x = batch["x"] + (batch["positions"] @ params["table"])[None]
        for w in params["layers"]:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))


def _shapes(tree):
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, "float32"), tree, is_leaf=lambda s: isinstance(s, tuple)
    )


@pytest.mark.parametrize(
    ("step", "params", "batch", "expected"),
    [
        (
            _two_towers,
            {name: [(16, 64), (64, 64), (64, 32)] for name in ("images", "texts")},
            {"images": (64, 16), "texts": (64, 16), "positions": (64,)},
            {"images", "texts"},
        ),
        (
            _inside_and_boundary,
            {"in": (4, 32), "out": (32, 1)},
            {"x": (64, 4), "edge": (16, 4)},
            {"x", "edge"},
        ),
        (
            _attending,
            {"table": (8, 16), "layers": [(16, 16)] * 3},
            {"x": (32, 32, 16), "positions": (32, 8)},
            {"x"},
        ),
    ],
)
def test_data_parallel_splits_every_batch_that_a_step_has(step, params, batch, expected):
    problem = problem_of(step, (_shapes(params), _shapes(batch)))
    space = Space(problem)
    (point,) = PRESETS["data-parallel"].points(space, Mesh(("data",), (8,)))
    leading = {
        path.split("'")[1]: problem.compute_classes(value)[0]
        for path, value, role in zip(problem.paths, problem.graph.inputs, problem.roles)
        if role is Role.BATCH
    }
    assert set(point.compute[0]) == {leading[name] for name in expected}
    assert problem.batch_class == point.compute[0][-1]


def test_layers_apart_have_their_own_decisions_and_the_same_presets():
    step, args = decoder(layers=3)
    folded, apart = (Space(problem_of(step, args, layers=layers)) for layers in ("folded", "apart"))
    assert len(apart.candidates) > len(folded.candidates)
    assert all(len(leaf.inputs) == 1 for leaf in apart.leaves)
    mesh, topology = Mesh(("data", "model"), (2, 4)), get_topology("8xv100")
    for preset in ("data-parallel", "zero-3", "megatron", "sequence-parallel"):
        estimates = []
        for space in (folded, apart):
            (point,) = PRESETS[preset].points(space, mesh)
            tables = build_tables(space.problem, "cuda")
            evaluator = Evaluator(tables, space.problem.n_classes, topology)
            estimates.append(evaluator.evaluate(space.split_classes(point)))
        first, second = estimates
        assert first.step_seconds == pytest.approx(second.step_seconds, rel=1e-9)
        assert first.peak_bytes == pytest.approx(second.peak_bytes, rel=1e-9)


def test_a_class_splits_the_first_or_the_last_dimension_that_holds_it():
    problem = problem_of(*decoder())
    space, tables = Space(problem), build_tables(problem, "cpu")
    (length,) = (c for c in space.repeated_classes if c in space.activations)
    scores = problem.self_conflicts[[c.group_class for c in problem.self_conflicts].index(length)]
    held = [d for d, c in enumerate(problem.compute_classes(scores.value)) if c == length]
    assert len(held) == 2
    for last, dim in ((frozenset(), held[0]), (frozenset({length}), held[1])):
        split_classes = SplitClasses(Mesh(("model",), (8,)), ((length,),), last)
        sharding = shardings(tables, problem.n_classes, split_classes)
        assert sharding.dim_of_axis[tables.row_of_value[scores.value], 0] == dim
