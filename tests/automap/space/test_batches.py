"""The classes of the batch, of steps in which several dimensions could be it."""

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.space.batches import batch_size
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology.mesh import Mesh
from hlo_tools.analyses.roles import Role
from tests.steps import problem_of


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
    # All samples of a step count, not those of one microbatch.
    assert batch_size(problem) == 64


def _whole_inputs(pins, *, is_apart):
    """(the warnings of inputs that are whole, the spec of the batch) of gradients accumulated over
    microbatches of samples that are apart or follow each other.
    """

    def step(w, x):
        def add(total, micro):
            return total + jax.grad(lambda w: (jnp.tanh(micro @ w) ** 2).mean())(w), None

        apart = x.reshape(-1, 4, 128).swapaxes(0, 1)
        micros = apart if is_apart else x.reshape(4, -1, 128)
        return w - jax.lax.scan(add, jnp.zeros_like(w), micros)[0]

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((128, 128), (65536, 128))]
    plan = automap.plan(
        step, tuple(shapes), topology="v5e:2x4", preset="data-parallel", pin=pins, mesh="data=8"
    )
    (batch,) = [row for row in plan.decisions if row.group == "batch"]
    assert batch.axes == ("data",)
    return [w for w in plan.warnings if "whole on every device" in w], plan.inputs[1].spec


@pytest.mark.parametrize("microbatches", [2, 8])
def test_the_batch_of_loops_in_each_other_is_all_of_it(microbatches):
    """As where gradients are accumulated over a step that goes through its batch in parts."""

    def step(w, x):
        def loss(w, part):
            total, _ = jax.lax.scan(
                lambda c, p: (c + jnp.tanh(p @ w).mean(), None), 0.0, part.reshape(4, -1, 32)
            )
            return total / 4

        def accumulate(total, i):
            parts = x.reshape(-1, microbatches, 32)
            part = jax.lax.dynamic_index_in_dim(parts, i, 1, keepdims=False)
            return total + jax.grad(loss)(w, part), None

        return w - jax.lax.scan(accumulate, jnp.zeros_like(w), jnp.arange(microbatches))[0]

    shapes = (jax.ShapeDtypeStruct((32, 32), "float32"), jax.ShapeDtypeStruct((512, 32), "float32"))
    assert batch_size(problem_of(step, shapes)) == 512


def test_a_batch_that_is_whole_as_it_is_reshaped_to_microbatches_is_told_how_to_be_split():
    (told,), spec = _whole_inputs((), is_apart=False)
    assert spec == (None, None)
    assert told.startswith("[1]: whole on every device, as it is reshaped to 4 microbatches of 16,")
    assert "x.reshape(16384, 4, ...).swapaxes(0, 1) in place of x.reshape(4, 16384, ...)" in told
    # What is recommended does it.
    assert _whole_inputs((), is_apart=True) == ([], (("data",), None))
    # Who says where it lies is not told that it is whole.
    assert _whole_inputs(("[1]=data,null",), is_apart=False) == ([], (("data",), None))


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
            predicted = last if labels == "of sequences" else every
            return jnp.mean((predicted - data.get("y", 0.0)) ** 2)

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
