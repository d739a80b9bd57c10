"""What another batch of a step comes to, where the batch stands in two dimensions of a tensor: held
against the same step traced with that batch, and left unsaid where it is not known.
"""

from dataclasses import replace
import re

import jax
import jax.numpy as jnp
import pytest

from automap.config import Options
from automap.cost.tables import with_batch
from automap.errors import InfeasiblePlanError
from automap.planner.records import build_plan
from automap.planner.sharding import find, fitting_plan
from automap.program.trace import trace_step
from automap.space.batches import growing_classes
from automap.topology import get_topology


TPU, GPU = get_topology("v5e:2x4"), get_topology("8xh100")
LARGE, WIDTH = 4096, 64


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def trained(loss, *arrays):
    """A step that trains a square matrix."""

    def step(w, *batch):
        return w - 0.1 * jax.grad(loss)(w, *batch)

    return step, (floats(WIDTH, WIDTH), *arrays)


def contrastive(batch):
    """Scores [batch, batch] of two towers."""

    def loss(w, images, texts):
        return jax.nn.logsumexp((images @ w) @ (texts @ w).T, axis=1).mean()

    return trained(loss, floats(batch, WIDTH), floats(batch, WIDTH))


def both_views(batch):
    """Scores [2 batch, 2 batch], whose classes are those of no input."""

    def loss(w, x):
        z = jnp.concatenate([x @ w, jnp.tanh(x) @ w])
        return jax.nn.logsumexp(z @ z.T, axis=1).mean()

    return trained(loss, floats(batch, WIDTH))


def gaussian_process(batch):
    """A factorization of [batch, batch], which nothing can split."""

    def loss(w, x):
        z = x @ w
        factor = jnp.linalg.cholesky(z @ z.T + jnp.eye(len(x)))
        return jnp.log(jnp.diag(factor)).sum()

    return trained(loss, floats(batch, WIDTH))


def heads(batch):
    """Eight parts of a width, as many as there are examples by chance."""

    def loss(w, x):
        parts = (x @ w).reshape(*x.shape[:2], 8, -1)
        return (jnp.tanh(parts) * parts[..., ::-1, :]).mean()

    return trained(loss, floats(batch, 48, WIDTH))


def planned(target, topology=TPU, **options):
    given = Options(strategy="greedy", preset="data-parallel", **options)
    return find(trace_step(*target, platform=topology.platform), topology, given)


def hint(outcome):
    changes = build_plan(outcome).predicted.rates.changes
    return next((row for row in changes if row.kind == "batch"), None)


# A library for GPUs takes larger tiles for larger products, which is left as it is.
@pytest.mark.parametrize(("topology", "most_error"), [(TPU, 0.1), (GPU, 0.25)])
def test_scores_of_all_by_all_grow_with_the_square(topology, most_error):
    small, large = (planned(contrastive(batch), topology) for batch in (LARGE, 2 * LARGE))
    evaluator, space = small.context.evaluator, small.context.space
    growing = growing_classes(space.problem)
    tables = with_batch(evaluator.tables, evaluator.n_classes, growing, 2.0)
    got = replace(evaluator, tables=tables).evaluate(space.split_classes(small.best.point))
    want = large.best.estimate
    assert got.peak_bytes == pytest.approx(want.peak_bytes, rel=0.02)
    assert got.step_seconds == pytest.approx(want.step_seconds, rel=most_error)
    # The scores of all examples on a device: a quarter of them with half the batch.
    assert got.peak_bytes > 3.5 * small.best.estimate.peak_bytes


@pytest.mark.parametrize("batch", [64, LARGE])
@pytest.mark.parametrize("target", [contrastive, both_views, gaussian_process])
def test_a_larger_batch_is_no_help_that_it_is_not(target, batch):
    outcome = planned(target(batch))
    row = hint(outcome)
    if row is not None:
        seconds = planned(target(2 * batch)).best.estimate.step_seconds
        assert row.step_seconds == pytest.approx(seconds, rel=0.1)
    # More than twice the work by far.
    assert row is None or batch != LARGE


@pytest.mark.parametrize("batch", [8, 16])
def test_a_size_of_the_batch_by_chance_is_told_from_it_by_another_trace(batch):
    row = hint(planned(heads(batch)))
    assert row is not None
    assert row.step_seconds == pytest.approx(
        planned(heads(2 * batch)).best.estimate.step_seconds, rel=0.05
    )


def test_a_smaller_batch_needs_what_it_needs_when_it_is_planned():
    outcome = planned(contrastive(LARGE), GPU)
    limit = outcome.best.estimate.peak_bytes / 3
    options = Options(strategy="greedy", preset="data-parallel", memory_limit_bytes=limit)
    with pytest.raises(InfeasiblePlanError) as error:
        fitting_plan(planned(contrastive(LARGE), GPU, memory_limit_bytes=limit), options)
    said = re.search(r"a batch of ([\d,]+) in place of 4,096 would need", str(error.value))
    assert said, error.value
    batch = int(said[1].replace(",", ""))
    # A third of the bytes is more than half of the examples, as bytes grow with their square.
    assert batch > LARGE / 2
    assert planned(contrastive(batch), GPU).best.estimate.peak_bytes <= 1.01 * limit


def test_what_a_smaller_batch_needs_is_not_said_where_it_is_not_known():
    outcome = planned(both_views(LARGE), GPU)
    limit = outcome.best.estimate.peak_bytes / 3
    options = Options(strategy="greedy", preset="data-parallel", memory_limit_bytes=limit)
    with pytest.raises(InfeasiblePlanError) as error:
        fitting_plan(planned(both_views(LARGE), GPU, memory_limit_bytes=limit), options)
    assert "a batch of" not in str(error.value)
