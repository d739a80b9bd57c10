"""The models of the zoo with sharded stages, beside the step on one device; tolerances are those of
`test_zoo`.
"""

import random
import subprocess
import sys

import jax
from jax import numpy as jnp
import optax
import pytest

import automap
from automap.space.point import Point, StorageLevel
from models.training import random_batch, train_step
from tests.automap.runtime.pipeline.hybrids import Inside, blocks, bytes_on_devices, hybrid_plan
from tests.automap.runtime.pipeline.running import assert_same, assert_trained_alike
from tests.automap.runtime.pipeline.test_zoo import MODELS


BOTH = "tensors in ZeRO-3, sequences in ZeRO-1"
STAGES = {
    "tensors": [Inside("megatron", {"data": 2, "model": 2})] * 2,
    "ZeRO-3 and ZeRO-1": [Inside("zero-3", {"data": 4}), Inside("zero-1", {"data": 4})],
    BOTH: [
        Inside("megatron", {"data": 2, "model": 2}, StorageLevel.FULL),
        Inside("sequence-parallel", {"data": 2, "model": 2}, StorageLevel.OPTIMIZER),
    ],
    "tensors and six replicas": [Inside("megatron", {"model": 2}), 6],
    "experts": [
        Inside("expert-parallel", {"data": 2, "model": 2}),
        Inside("expert-parallel", {"data": 4}),
    ],
}
CASES = [
    *(("gpt", "sgd", kind) for kind in STAGES if kind != "experts"),
    ("gpt", "adamw", BOTH),
    ("gpt", "adamw", "ZeRO-3 and ZeRO-1"),
    ("gpt remat", "adamw", BOTH),
    ("gpt scanned", "adamw", BOTH),
    ("gpt scanned", "sgd", "tensors"),
    ("t5 scanned", "adamw", BOTH),
    ("moe", "sgd", "experts"),
    ("moe", "adamw", BOTH),
    ("group norm", "sgd", "ZeRO-3 and ZeRO-1"),
]


def compared(made, run, optimizer: str, steps: int = 3):
    """Steps of both; the pipeline's last state."""
    single = jax.jit(made.step.__wrapped__)
    mine = theirs = made.init(jax.random.key(0))
    for seed in range(steps):
        batch = random_batch(made.args[1], seed)
        mine, results = run(jax.tree.map(jnp.copy, mine), batch)
        theirs, wanted = single(theirs, batch)
        assert_same(results, wanted, rtol=1e-5, atol=1e-5)
        assert_trained_alike(optimizer, seed + 1, mine, theirs)
    return mine


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer", "kind"), CASES)
def test_three_steps_equal_those_on_one_device(name, optimizer, kind):
    model, stages = MODELS[name], STAGES[kind]
    # Six replicas take six parts of a microbatch of twelve.
    samples, microbatches = (48, 4) if 6 in stages else (16, 2)
    shapes = {n: ((samples, *shape[1:]), dtype) for n, (shape, dtype) in model.shapes.items()}
    chosen = optax.sgd(0.1) if optimizer == "sgd" else optax.adamw(3e-4, weight_decay=0.01)
    made = train_step(model.build, model.loss, shapes, optimizer=chosen)
    plan = hybrid_plan(made.step, made.args, stages, microbatches=microbatches)
    last = compared(made, plan.jit(made.step), optimizer)
    if name == "gpt" and 6 not in stages:
        held = bytes_on_devices(last["params"])
        peaks = [stage.peak_bytes for stage in plan.pipeline.stages]
        fullest = plan.pipeline.stages[peaks.index(max(peaks))].devices[0]
        # The table of tokens is in both stages for the planner; it is stored in one, and sent to
        # the other in every step.
        table = last["params"]["tokens"]["embedding"].nbytes
        assert 0 <= plan.predicted.memory.parameters - held[fullest] <= table


def anything(seed: int):
    """Any classes on any axes in any order, as long as the stage may have them, and any storage."""
    source = random.Random(seed)

    def point(pricer, mesh) -> Point:
        space, problem = pricer.space, pricer.space.problem
        while True:
            parts: dict[int, int] = {}
            compute = []
            for size in mesh.sizes:
                fitting = [
                    c
                    for c in range(problem.n_compute)
                    if problem.limits[c] % (parts.get(c, 1) * size) == 0
                ]
                chosen = source.sample(fitting, source.randint(0, min(len(fitting), 4)))
                # Replicas beside something else are what is to be tested.
                chosen = [problem.batch_class] if source.random() < 0.5 else chosen
                parts.update((c, parts.get(c, 1) * size) for c in chosen)
                compute.append(tuple(chosen))
            storage = tuple(
                tuple(source.choice(list(StorageLevel)) for _ in space.leaves) for _ in compute
            )
            used = [c for classes in compute for c in classes]
            last = frozenset(c for c in used if source.random() < 0.3)
            whole = frozenset(c for c in used if source.random() < 0.2)
            found = Point(mesh, tuple(compute), storage, last, whole)
            if space.is_valid(found) and pricer.may_run(space.split_classes(found), 2):
                return found

    return Inside(point, source.choice([{"a": 4}, {"a": 2, "b": 2}]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),
    [("gpt", 0), ("gpt remat", 1), ("group norm", 2), ("moe", 3), ("t5 scanned", 4)],
)
def test_stages_sharded_at_random(name, seed):
    model = MODELS[name]
    made = train_step(model.build, model.loss, model.shapes, optimizer=optax.sgd(0.1))
    stages = [anything(2 * seed), anything(2 * seed + 1)]
    compared(made, hybrid_plan(made.step, made.args, stages).jit(made.step), "sgd", steps=2)


@pytest.mark.slow
def test_the_decorator_finds_and_runs_one():
    """Half of what replicas need is allowed."""
    step, (state, batch) = blocks()
    options = {"stages": 2, "microbatches": 2, "topology": "cpu:8", "budget": 600.0}
    replicas = automap.plan(step, (state, batch), space="pipeline", **options)
    limit = replicas.predicted.peak_bytes / 2 / 2**30
    run = automap.parallelize(step, space="hybrid", memory_limit=limit, **options)
    plan = run.plan_for(state, batch)
    assert plan.pipeline.is_sharded_inside
    mine = run.init(
        lambda key: jax.tree.map(lambda x: x + key[0].astype(x.dtype), state), jnp.zeros(2)
    )
    born = [leaf.sharding for leaf in jax.tree.leaves(mine)]
    theirs = state
    for _ in range(3):
        mine, results = run(mine, batch)
        theirs, wanted = jax.jit(step)(theirs, batch)
        assert_same((mine, results), (theirs, wanted), rtol=1e-5, atol=2e-6)
    leaves = jax.tree.leaves(mine)
    assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in zip(leaves, born, strict=True))


SCRIPT = """
import sys
import jax
from automap import Plan
from tests.automap.runtime.pipeline.hybrids import blocks
from tests.automap.runtime.pipeline.running import assert_same
step, args = blocks()
run = Plan.load(sys.argv[1]).jit(jax.jit(step, donate_argnums=0))
assert_same(run(*args), jax.jit(step)(*blocks()[1]), rtol=1e-5, atol=2e-6)
print(len(run.jobs))
"""


@pytest.mark.slow
def test_the_plan_file_runs_in_another_process(tmp_path):
    step, args = blocks()
    stages = STAGES["ZeRO-3 and ZeRO-1"]
    hybrid_plan(step, args, stages).save(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "plan.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * 2 * 2
