"""What a loop scans: split otherwise than what it carries though both have one shape, and used
otherwise than it is kept.
"""

from collections import Counter

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.search.context import Candidate
from automap.space.point import Point, StorageLevel
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.transfers import compiled_transfers, predicted_transfers


WORDS, WIDTH, BATCH, STEPS = 64, 32, 16, 5
MESH = Mesh(("m",), (8,))


def step(params, tokens):
    """The embedded words go through a recurrence whose state has their shape."""

    def cell(h, x):
        h = jnp.tanh(jnp.concatenate([x, h], axis=-1) @ params["w"])
        return h, h

    def loss(p):
        x = p["table"][tokens]
        _, hs = lax.scan(cell, jnp.zeros((BATCH, WIDTH)), x)
        return jnp.mean(hs**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def bytes_from_kinds(transfers):
    """Bytes of all collectives of each kind."""
    total = Counter()
    for transfer, count in transfers.items():
        total[transfer.kind] += transfer.n_bytes * count
    return total


def planned(workload, topology, context, point):
    """An outcome whose plan is a point."""
    estimate = context.evaluator.evaluate(context.space.split_classes(point))
    return Outcome(
        workload=workload,
        topology=topology,
        context=context,
        strategy="a test",
        seconds=0.0,
        best=Candidate(point, estimate, "a test"),
    )


def test_a_carry_is_not_pinned_as_what_is_scanned():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "table": jax.random.normal(keys[0], (WORDS, WIDTH)),
        "w": jax.random.normal(keys[1], (2 * WIDTH, WIDTH)) / WIDTH,
    }
    tokens = jax.random.randint(keys[2], (STEPS, BATCH), 0, WORDS)
    workload = trace_step(step, (params, tokens))
    pins = ("[0]['table']=null,m", "[1]=null,m")
    outcome = find(
        workload, get_topology("cpu:8"), Options(mesh=MESH, pins=pins, strategy="greedy")
    )
    plan = Plan.from_record(build_plan(outcome))
    compiled = plan.jit(step).lower(params, tokens).compile()
    # XLA may move what is scanned at once, before the loop.
    compiled_bytes = bytes_from_kinds(compiled_transfers(compiled.as_text(), MESH))
    assert compiled_bytes == bytes_from_kinds(predicted_transfers(outcome, backend_for("cpu")))
    want, got = jax.jit(step)(params, tokens), plan.jit(step)(params, tokens)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got[0], want[0])


def test_slices_of_what_is_scanned_are_pinned_in_the_body():
    """An axis has hidden features and the batch, the other the words: products want samples
    otherwise than residuals have them.

    Without pins the partitioner gathers the whole stack of residuals in every trip.
    """
    step, args = load_target("models.bert:bert_tiny", {"layers": "scanned"})
    workload, topology = trace_step(step, args), get_topology("cpu:8")
    mesh = Mesh(("model", "data"), (4, 2))
    context = find(workload, topology, Options(mesh=mesh, preset="data-parallel")).context
    problem = context.space.problem

    def feature(path, dim):
        leaf = problem.paths.index(f"[0]['params']{path}")
        return problem.compute_classes(problem.graph.inputs[leaf])[dim]

    hidden, words = (
        feature("['layers']['mlp']['up']['kernel']", 2),
        feature("['tokens']['embedding']", 0),
    )
    batch = problem.batch_class
    whole = (StorageLevel.REPLICATED,) * len(context.space.leaves)
    point = Point(mesh, ((hidden, batch), (words, batch)), (whole, whole))
    outcome = planned(workload, topology, context, point)
    compiled = Plan.from_record(build_plan(outcome)).jit(step).lower(*args).compile()
    compiled_bytes = compiled_transfers(compiled.as_text(), mesh)
    wanted = predicted_transfers(outcome, backend_for("cpu"))
    # Devices that change places for the words are not what is asked here.
    assert {t: n for t, n in compiled_bytes.items() if t.kind != "collective-permute"} == wanted


def test_stacks_split_otherwise_outside_of_loops_are_moved_once():
    """The layers are split in the update and cannot be in the loops: the stack of weights is moved
    before each loop, that of their gradients after the second.
    """
    layers, width, batch = 8, 64, 32

    def step(w, roots, x):
        def loss(w):
            layer = lambda h, w: (h + jnp.tanh(h @ w), None)  # noqa: E731
            return jnp.mean(lax.scan(layer, x, w)[0] ** 2)

        value, g = jax.value_and_grad(loss)(w)
        return w - 0.1 * (roots @ g), roots, value

    stack = jax.ShapeDtypeStruct((layers, width, width), "float32")
    args = (stack, stack, jax.ShapeDtypeStruct((batch, width), "float32"))
    workload, topology, mesh = trace_step(step, args), get_topology("cpu:8"), Mesh(("m",), (8,))
    context = find(workload, topology, Options(mesh=mesh, preset="data-parallel")).context
    problem = context.space.problem
    first, hidden, _ = problem.compute_classes(problem.graph.inputs[0])
    point = Point(
        mesh, ((first, hidden),), ((StorageLevel.REPLICATED,) * len(context.space.leaves),)
    )
    outcome = planned(workload, topology, context, point)
    compiled = Plan.from_record(build_plan(outcome)).jit(step).lower(*args).compile()
    compiled_bytes = compiled_transfers(compiled.as_text(), mesh)
    assert compiled_bytes == predicted_transfers(outcome, backend_for("cpu"))
    assert bytes_from_kinds(compiled_bytes)["all-to-all"] == 3 * layers * width * width * 4 / 8
