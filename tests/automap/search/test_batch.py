"""Points priced together against one at a time: equal to the last bit."""

import dataclasses
import random

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from automap.config import Options
from automap.cost.evaluate import Evaluator
from automap.planner.sharding import find
from automap.program import trace_step
from automap.search.factored.copied import Batches
from automap.search.greedy import random_point
from automap.search.presets import price_presets
from automap.step.rules import user_rules
from automap.topology import get_topology
from models.dlrm import dlrm_tiny
from tests.automap.search.contexts import search_context
from tests.steps import decoder, images, mlp
from tests.user_shardings import FOUR_BY_TWO


@pytest.mark.parametrize(
    ("step", "topology"),
    [
        (mlp, "cpu:8"),
        (decoder, "8xh100"),
        (decoder, "v5e:2x4"),
        # Windows are rows of their own, and so are uses of tables.
        (images, "v5e:2x4"),
        (dlrm_tiny, "v5e:2x4"),
    ],
)
def test_a_batch_gives_what_single_points_give(step, topology):
    check(search_context(*step(), topology=topology))


def test_a_batch_merges_sums_of_one_type_only():
    def loss(layers, x):
        def layer(x, weights):
            matrix, bias = weights
            return jnp.tanh((x @ matrix).astype("float32") + bias).astype("bfloat16"), None

        return lax.scan(layer, x, layers)[0].astype("float32").sum()

    def step(layers, x):
        return jax.tree.map(lambda w, g: w - g, layers, jax.grad(loss)(layers, x))

    layers = jnp.ones((4, 64, 64), "bfloat16"), jnp.ones((4, 64))
    workload = trace_step(jax.jit(step), (layers, jnp.ones((128, 64), "bfloat16")), platform="cuda")
    context = find(workload, get_topology("8xh100"), Options(strategy="optcnn")).context
    assert len(set(context.evaluator.collective_prices._dtypes.tolist())) > 1
    check(context)


def test_a_batch_keeps_to_shardings_of_the_steps_code():
    def step(weights, x):
        return jnp.tanh(lax.with_sharding_constraint(x @ weights, FOUR_BY_TWO(None, "model"))).sum()

    workload = trace_step(jax.jit(step), (jnp.ones((16, 32)), jnp.ones((64, 16))))
    context = find(workload, get_topology("8xh100"), Options(strategy="optcnn")).context
    assert context.evaluator.tables.imposed.ops
    check(context)


def test_a_batch_keeps_the_efficiency_that_a_rule_states():
    @jax.jit
    def my_kernel(x):
        return jnp.cumsum(x, axis=1)

    rules = user_rules([("my_kernel", "bk->bk replicate=k flops=50000bk efficiency=0.25")])

    def step(w, x):
        return w, my_kernel(jnp.tanh(x @ w) @ w)

    args = (jnp.ones((32, 32)), jnp.ones((64, 32)))
    workload = trace_step(step, args, platform="tpu", rules=rules)
    context = find(workload, get_topology("v5e:2x4"), Options(strategy="optcnn")).context
    assert 0.25 in context.evaluator.tables.kernels.efficiency
    check(context)


def check(context):
    """Compare on all meshes, at several sizes of batches."""
    source = random.Random(0)
    evaluator, batches = context.evaluator, Batches(context.evaluator)
    assert batches.most_points > 1
    for mesh in context.meshes:
        points = [random_point(context, mesh, source) for _ in range(batches.most_points)]
        assert all(map(context.space.is_valid, points))
        split_classes = list({context.space.split_classes(point): None for point in points})
        # Copies of earlier batches are at hand for later ones, which may need fewer.
        most = len(split_classes)
        for n in (1, 2, most, most - 1, max(most // 2, 1), most - 1, 3):
            assert batches.estimates(split_classes[:n]) == [
                evaluator.evaluate(e) for e in split_classes[:n]
            ]


def test_copies_at_hand_are_used_until_as_many_points_were_priced_for_nobody():
    context = search_context(*decoder(batch=6))
    batches, source = Batches(context.evaluator), random.Random(0)
    points = [random_point(context, context.meshes[0], source) for _ in range(8)]
    split_classes = [context.space.split_classes(point) for point in points]
    made = []
    for n in (8, 5, 5, 5, 3, 5):
        batches.estimates(split_classes[:n])
        made.append(sorted(batches._copies))
    # 5 of 8: three too many, twice, until it is more than five; 3 of 5 is one of its own.
    assert made == [[8], [8], [8], [5, 8], [5, 8], [5, 8]]


class _ByItself(Evaluator):
    """One whose estimates are no sums of parts, as of stages."""

    has_parts = False

    def evaluate(self, split_classes):
        return dataclasses.replace(super().evaluate(split_classes), peak_bytes=7.0)


def test_presets_are_priced_one_by_one_where_that_is_all_there_is():
    context = search_context(*decoder(batch=6))
    own = {f.name: getattr(context.evaluator, f.name) for f in dataclasses.fields(Evaluator)}
    alone = dataclasses.replace(context, evaluator=_ByItself(**own))
    price_presets(alone)
    assert alone.best_per_preset
    assert {each.estimate.peak_bytes for each in alone.best_per_preset.values()} == {7.0}


def test_evaluate_all_is_evaluate_of_each():
    single, together = search_context(*decoder(batch=6)), search_context(*decoder(batch=6))
    source, space = random.Random(0), single.space
    meshes = single.meshes[:2]
    points = [random_point(single, mesh, source) for _ in range(40) for mesh in meshes]
    # One that does not divide, and points given twice.
    odd = space.point(meshes[1], [space.candidates] * len(meshes[1].sizes))
    assert not space.is_valid(odd)
    points = [*points, odd, *points[:5]]
    wanted = [single.evaluate(point, "here") for point in points]
    assert list(together.evaluate_all(points, "here")) == wanted
    assert together.evaluations == single.evaluations
    assert together.best == single.best
