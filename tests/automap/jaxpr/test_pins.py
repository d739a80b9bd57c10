"""Pins against what the partitioner gets wrong without them."""

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.errors import PlanError
from automap.jaxpr.reemit import Reemitter
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.search.context import Candidate
from automap.space import point as points
from automap.topology import get_topology


@pytest.mark.parametrize("start", [-9, -1, 0, 3, 4, 6, 100])
def test_a_split_dynamic_slice_starts_inside(start):
    def step(x, i):
        return lax.dynamic_slice(x, (i, i), (4, 2))

    x = jnp.arange(48.0).reshape(6, 8)
    traced = jax.jit(step).trace(x, start).jaxpr
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    emitter = Reemitter(traced)
    (site,) = (s.path for s in emitter.sites if s.primitive == "dynamic_slice")
    pinned = emitter.constrained({f"{site}:out0": P("a")}, mesh)
    (got,) = jax.jit(pinned)(x, jnp.int32(start))
    np.testing.assert_array_equal(got, step(x, start))


def test_a_sum_that_lands_on_a_split_dimension():
    """The batch of a matmul on one axis, its sum on two, one of which the batch gets too."""

    def step(x):
        return jnp.einsum("bik,bjk->bij", x, x)

    x = jax.random.normal(jax.random.key(0), (8, 4, 8))
    workload, topology = trace_step(step, (x,)), get_topology("cpu:8")
    mesh = points.Mesh(("a", "b", "c"), (2, 2, 2))
    context = find(workload, topology, Options(mesh=mesh)).context
    batch, _, summed = workload.problem.compute_classes(workload.problem.graph.inputs[0])
    # Along b the matmul is summed over, as that costs least, and its result is split by the batch.
    for order in ((summed, batch), (batch, summed)):
        point = context.space.point(mesh, [()] * 3)
        point = points.Point(mesh, ((batch,), order, (summed,)), point.storage)
        estimate = context.evaluator.evaluate(context.space.split_classes(point))
        outcome = Outcome(
            workload=workload,
            topology=topology,
            context=context,
            strategy="test",
            seconds=0.0,
            best=Candidate(point, estimate, "test"),
        )
        got = Plan.from_record(build_plan(outcome)).jit(step)(x)
        np.testing.assert_allclose(got, step(x), rtol=1e-5, atol=1e-5)


def test_a_convolution_whose_parts_do_not_fit_is_refused():
    def step(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    arrays = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 4))
    emitter = Reemitter(jax.jit(step).trace(*arrays).jaxpr)
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    pins = {"0:in0": P(None, "a"), "0:made0": P(None, None, "a")}
    with pytest.raises(PlanError, match="allowed: the same"):
        emitter.constrained(pins, mesh)
    pins["0:made0"] = P(None, "a")
    (got,) = jax.jit(emitter.constrained(pins, mesh))(*arrays)
    np.testing.assert_allclose(got, step(*arrays))


def test_a_top_k_split_by_rows_needs_no_other_device():
    def step(x):
        return lax.top_k(x, 2)

    x = jax.random.normal(jax.random.key(0), (8, 4, 6))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    emitter = Reemitter(jax.jit(step).trace(x).jaxpr)
    split = jax.device_put(x, NamedSharding(mesh, P("b", "a")))
    pinned = jax.jit(emitter.constrained({"0:made0": P("b", "a")}, mesh))
    assert "all-" not in pinned.lower(split).compile().as_text()
    for got, want in zip(pinned(split), step(x), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(PlanError, match="top_k along dimension 2"):
        emitter.constrained({"0:made0": P(None, None, "a")}, mesh)


TRANSFORMS = {
    "fft": jnp.fft.fft,
    "rfft2": lambda x: jnp.fft.rfft2(x.real),
    "irfft": jnp.fft.irfft,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_fourier_transform_split_by_rows_needs_no_other_device(name):
    x = jax.lax.complex(*jax.random.normal(jax.random.key(0), (2, 8, 4, 4, 6)))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    emitter = Reemitter(jax.jit(TRANSFORMS[name]).trace(x).jaxpr)
    (site,) = [site.path for site in emitter.sites if site.primitive == "fft"]
    split = jax.device_put(x, NamedSharding(mesh, P("b", "a")))
    pinned = jax.jit(emitter.constrained({f"{site}:made0": P("b", "a")}, mesh))
    assert "all-" not in pinned.lower(split).compile().as_text()
    (got,) = pinned(split)
    np.testing.assert_allclose(got, TRANSFORMS[name](x), atol=1e-5)
    with pytest.raises(PlanError, match="fft along dimension 3"):
        emitter.constrained({f"{site}:made0": P(None, None, None, "a")}, mesh)


def test_a_pin_from_an_equation_on_holds_for_those_after_it():
    def step(x):
        return jnp.sin(x) + 1, jnp.cos(x), jnp.tan(x)

    x = jnp.arange(8.0)
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    emitter = Reemitter(jax.jit(step).trace(x).jaxpr)
    before = {site.primitive: site.path for site in emitter.sites}
    pinned = emitter.constrained({f"{before['cos']}:from0": P("a")}, mesh)
    eqns = jax.make_jaxpr(pinned)(x).eqns
    (constrained,) = [e.outvars[0] for e in eqns if e.primitive.name == "sharding_constraint"]
    read = {e.primitive.name: e.invars[0] for e in eqns}
    assert read["sin"] is not constrained
    assert read["cos"] is read["tan"] is constrained
    for got, want in zip(jax.jit(pinned)(x), step(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
