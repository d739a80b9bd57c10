"""Steps that hold `shard_map` are planned around it: equal numbers, its collectives counted, or a
refusal before the search.
"""

from collections import Counter
from functools import partial

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P
import numpy as np
import pytest

import automap
from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.errors import InputError
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import read_workload, trace_step
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.transfers import compiled_transfers, predicted_transfers


AXES = {"data": 4, "model": 2}


def auto_mesh(axes):
    """A mesh of JAX's devices."""
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def abstract(axes):
    """The same without devices."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def normal(*dims):
    return np.random.default_rng(sum(dims)).normal(size=dims, scale=0.3).astype(np.float32)


def descended(value, params):
    loss, grads = jax.value_and_grad(value)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def data_parallel(mesh):
    """A loss on each device's examples, and its mean."""

    def local(w, x):
        return lax.pmean(jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2), ("data", "model"))

    whole = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(("data", "model"))), out_specs=P())

    def step(w, x):
        return descended(lambda w: whole(w, x), w)

    return step, ({"a": normal(16, 32), "b": normal(32, 8)}, normal(16, 16))


def ring(mesh):
    """Attention over sequences split four ways: keys and values go round."""

    def local(q, k, v):
        def visit(carry, _):
            k, v, top, total = carry
            weights = jnp.exp(q @ k.T)
            pairs = [(i, (i + 1) % 4) for i in range(4)]
            k, v = (lax.ppermute(x, "data", pairs) for x in (k, v))
            return (k, v, top + weights @ v, total + weights.sum(1)), None

        start = k, v, jnp.zeros_like(v) + 0 * q[:, :1], 0 * q[:, 0]
        (_, _, top, total), _ = lax.scan(visit, start, None, 4)
        return top / total[:, None]

    spec = P("data")
    attention = jax.shard_map(
        local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )

    def step(p, x):
        def loss(p):
            return jnp.mean((attention(x @ p["q"], x @ p["k"], x @ p["v"]) @ p["o"]) ** 2)

        return descended(loss, p)

    return step, ({n: normal(16, 16) for n in "qkvo"}, normal(32, 16))


def experts(mesh):
    """A mixture of experts: tokens travel to the device of their expert and back."""

    def local(x, w):
        sent = lax.all_to_all(x.reshape(4, -1, x.shape[-1]), "data", 0, 0)
        made = jnp.tanh(jnp.einsum("dtf,fg->dtg", sent, w[0]))
        return lax.all_to_all(made, "data", 0, 0).reshape(x.shape[0], -1)

    layer = jax.shard_map(
        local, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False
    )

    def step(p, x):
        return descended(lambda p: jnp.mean(layer(x @ p["in"], p["experts"]) ** 2), p)

    return step, ({"in": normal(16, 8), "experts": normal(4, 8, 8)}, normal(32, 16))


def scanned(mesh, wrap):
    """Layers in a scan, each a shard_map that gathers its weight by hand and scatters the
    gradient.
    """

    def local(x, w):
        return jnp.tanh(x @ lax.all_gather(w, "model", axis=0, tiled=True))

    layer = jax.shard_map(
        local, mesh=mesh, in_specs=(P("data"), P("model")), out_specs=P("data"), check_vma=False
    )

    def step(p, x):
        def loss(p):
            out, _ = lax.scan(wrap(lambda x, w: (layer(x, w), None)), x, p["layers"])
            return jnp.mean((out @ p["last"]) ** 2)

        return descended(loss, p)

    return step, ({"layers": normal(3, 16, 16), "last": normal(16, 4)}, normal(32, 16))


def whole_step(mesh):
    """Everything but the call in a shard_map, the update too."""

    def local(w, m, x):
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        m = 0.9 * m + lax.pmean(grads, ("data", "model"))
        return w - 0.1 * m, m

    step = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P(), P(("data", "model"))),
        out_specs=(P(), P()),
        check_vma=False,
    )
    return step, (normal(16, 8), normal(16, 8), normal(32, 16))


STEPS = {
    "data parallel": data_parallel,
    "ring": ring,
    "experts": experts,
    "in a scan": partial(scanned, wrap=lambda layer: layer),
    "in a scan with remat": partial(scanned, wrap=jax.checkpoint),
    "whole step": whole_step,
}


@pytest.mark.parametrize("name", STEPS)
def test_equal_numbers(name):
    step, args = STEPS[name](auto_mesh(AXES))
    plan = automap.plan(step, args, topology="cpu:8", strategy="greedy")
    assert plan.mesh.axes == tuple(AXES.items())
    assert not [warning for warning in plan.warnings if "rule" in warning]
    want, got = (jax.device_get(run(*args)) for run in (jax.jit(step), plan.jit(step)))
    for one, other in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def test_planned_without_devices_and_run_on_them():
    step, args = data_parallel(abstract(AXES))
    plan = automap.plan(step, args, topology="v5e:2x4", strategy="greedy")
    assert plan.inputs[-1].spec == (("data", "model"), None)
    run = automap.plan(step, args, topology="cpu:8", strategy="greedy").jit(step)
    np.testing.assert_allclose(
        run(*args)[1], jax.jit(data_parallel(auto_mesh(AXES))[0])(*args)[1], rtol=1e-5
    )


def test_its_collectives_are_counted():
    """A weight that is gathered over "model" in each of three layers, twice as remat makes it
    again; its gradient back.
    """
    step, args = STEPS["in a scan with remat"](auto_mesh(AXES))
    plan = automap.plan(step, args, topology="cpu:8", preset="data-parallel")
    counts = Counter()
    for row in plan.predicted.collectives:
        counts[row.kind, row.axes] += row.count
    assert counts["all-gather", ("model",)] >= 6
    assert counts["reduce-scatter", ("model",)] == 3
    gathers = [
        row
        for row in plan.predicted.collectives
        if row.axes == ("model",) and row.kind == "all-gather"
    ]
    assert sum(row.bytes for row in gathers) >= 6 * 16 * 16 * 4


@pytest.mark.parametrize("name", ["ring", "experts", "data parallel"])
def test_what_is_sent_is_what_is_predicted(name):
    step, args = STEPS[name](auto_mesh(AXES))
    outcome = find(trace_step(step, args), get_topology("cpu:8"), Options(strategy="greedy"))
    plan = Plan.from_record(build_plan(outcome))
    compiled = plan.jit(step).lower(*args).compile().as_text()
    laid = Mesh(tuple(AXES), tuple(AXES.values()))
    assert compiled_transfers(compiled, laid) == predicted_transfers(outcome, backend_for("cpu"))


ONE = {"data": 1, "model": 1}


@pytest.mark.parametrize(
    ("mesh", "options", "text"),
    [
        (
            abstract(ONE),
            {},
            r"shard_map at .*test_shard_map.py.* of 1 devices, cpu:8 has 8: the body",
        ),
        (abstract({"data": 2, "model": 2}), {}, "of 4 devices, cpu:8 has 8"),
        (abstract(AXES), {"mesh": {"data": 2, "model": 4}}, "the mesh asked for is"),
        (abstract(AXES), {"space": "pipeline"}, "in the space of shardings only"),
    ],
)
def test_what_is_refused_before_the_search(mesh, options, text):
    step, args = data_parallel(mesh)
    with pytest.raises(InputError, match=text):
        automap.plan(step, args, topology="cpu:8", **options)


def test_axes_left_to_the_compiler_are_refused():
    part = jax.shard_map(
        lambda x: lax.psum(x, "data"),
        mesh=abstract(AXES),
        in_specs=P("data"),
        out_specs=P(),
        axis_names={"data"},
    )
    with pytest.raises(InputError, match="leaves the axis 'model' of its mesh to the compiler"):
        automap.plan(lambda x: part(x).sum(), (normal(8, 4),), topology="cpu:8")


def test_without_a_mesh_the_one_given_is_meant():
    def step(x):
        whole = jax.shard_map(
            lambda x: lax.psum(x.sum(), ("data", "model")),
            in_specs=P(("data", "model")),
            out_specs=P(),
        )
        return whole(x)

    x = normal(16, 4)
    plan = automap.plan(step, (x,), topology="cpu:8", mesh=AXES)
    np.testing.assert_allclose(plan.jit(step)(x), x.sum(), rtol=1e-5)


def test_a_program_from_a_file_has_no_names_for_its_axes(tmp_path):
    step, args = data_parallel(auto_mesh(AXES))
    path = tmp_path / "step.stablehlo"
    path.write_text(jax.jit(step, keep_unused=True).lower(*args).as_text())
    with pytest.raises(InputError, match="holds a shard_map, whose axes have no names in HLO"):
        read_workload(path)
