"""Images split among devices: the compiled program exchanges the predicted halos and computes the
same.
"""

from functools import cache

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.search.context import Candidate
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from scripts.transfers import compiled_transfers, predicted_transfers
from tests.steps import images


TOPOLOGY = get_topology("cpu:8")


@cache
def _workload():
    step, args = images()
    key = iter(jax.random.split(jax.random.key(0), 1000))
    values = jax.tree.map(
        lambda leaf: jnp.abs(jax.random.normal(next(key), leaf.shape, leaf.dtype)) / 8, args
    )
    return step, args, trace_step(step, args), values, jax.device_get(jax.jit(step)(*values))


def _image_classes(problem, dim):
    """Classes of dimension `dim` of every image that a window makes in the forward phase."""
    classes = {}
    ops = zip(problem.graph.ops, problem.linkage.rules, problem.phases, strict=True)
    for op, rule, phase in ops:
        if phase is Phase.FORWARD and any(factor.halo is not None for factor in rule.factors):
            group_class = problem.compute_classes(op.outputs[0])[dim]
            if group_class < problem.n_classes:
                classes[group_class] = None
    return tuple(classes)


def _outcome(workload, mesh, dims):
    """Each axis splits a dimension of the images at all scales it divides, the batch if that is
    0.
    """
    outcome = find(workload, TOPOLOGY, Options(mesh=mesh, preset="data-parallel"))
    problem, context = workload.problem, outcome.context
    compute = []
    for size, dim in zip(mesh.sizes, dims, strict=True):
        classes = _image_classes(problem, dim) if dim else (problem.batch_class,)
        compute.append([c for c in classes if problem.limits[c] % size == 0])
    point = context.space.point(mesh, compute)
    estimate = context.evaluator.evaluate(context.space.split_classes(point))
    return Outcome(
        workload=workload,
        topology=TOPOLOGY,
        context=context,
        strategy="images",
        seconds=0.0,
        best=Candidate(point, estimate, "images"),
    )


@pytest.mark.parametrize(
    ("sizes", "dims"),
    [((8,), (1,)), ((2, 4), (0, 1)), ((4, 2), (0, 2)), ((2, 2, 2), (0, 1, 2)), ((2, 4), (1, 1))],
    ids=str,
)
def test_halos_are_exchanged_as_predicted(sizes, dims):
    step, args, workload, values, want = _workload()
    mesh = Mesh(("a", "b", "c")[: len(sizes)], sizes)
    outcome = _outcome(workload, mesh, dims)
    compiled = Plan.from_record(build_plan(outcome)).jit(step).lower(*args).compile()
    predicted = predicted_transfers(outcome, backend_for("cpu"))
    assert compiled_transfers(compiled.as_text(), mesh) == predicted
    assert any(transfer.kind == "collective-permute" for transfer in predicted)
    got = jax.device_get(Plan.from_record(build_plan(outcome)).jit(step)(*values))
    # Gradients of order one: sums of some thousand float32 terms in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


def test_the_peak_falls_with_the_images():
    _, _, workload, _, _ = _workload()
    peaks = [
        _outcome(workload, Mesh(("a", "b"), sizes), (0, 1)).best.estimate.peak_bytes
        for sizes in ((1, 8), (2, 4), (8, 1))
    ]
    # The same share of all images, but for halos, copies and what does not divide by eight.
    assert max(peaks) < 1.6 * min(peaks)
