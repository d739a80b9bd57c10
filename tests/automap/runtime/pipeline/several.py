"""One of two processes with four CPU devices each, and what both are asked to do: see
`test_processes.py`.

    python -m tests.automap.runtime.pipeline.several ADDRESS NUMBER CASE...

Every case is run by both processes alike, and compares what each holds with the step on one device.
"""

from dataclasses import replace
import os
import re
import signal
import sys
import traceback


# Behind the flags of the tests: of a flag that is given twice the later one counts.
_FLAGS = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{_FLAGS} --xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
import numpy as np  # noqa: E402

import automap  # noqa: E402
from automap.errors import InputError, MeshMismatchError, PlanError, ProcessLostError  # noqa: E402
from automap.jaxpr.flatten import flatten  # noqa: E402
from automap.space.point import StorageLevel  # noqa: E402
from tests.automap.runtime.pipeline.hybrids import Inside, blocks, hybrid_plan  # noqa: E402
from tests.automap.runtime.pipeline.placed import placed_cases  # noqa: E402
from tests.automap.runtime.pipeline.running import even_cuts, mlp, record  # noqa: E402
from tests.automap.runtime.pipeline.test_scanned import scanned  # noqa: E402


TENSORS = Inside("megatron", {"data": 2, "model": 2})
CLOSE = {"rtol": 1e-5, "atol": 3e-6}


def held_same(got, want) -> int:
    """Compare all shards that this process holds; how many there are."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    count = 0
    for (path, a), b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        for shard in a.addressable_shards:
            part = np.asarray(b)[shard.index]
            np.testing.assert_allclose(
                np.asarray(shard.data), part, **CLOSE, err_msg=jax.tree_util.keystr(path)
            )
            count += 1
    return count


def numbers_of(leaf) -> set[int]:
    """The devices of a leaf by their place among all."""
    place = {device: n for n, device in enumerate(jax.devices())}
    return {place[device] for device in leaf.sharding.device_set}


def three_steps(run, step, state, batches):
    """Three steps of both; all see the results, each process the shards that it holds."""
    single = jax.jit(getattr(step, "__wrapped__", step))
    mine = theirs = jax.tree.map(np.asarray, state)
    for batch in batches:
        mine, results = run(mine, batch)
        theirs, wanted = single(theirs, batch)
        assert held_same((mine, results), (theirs, wanted))
        for got, value in zip(jax.tree.leaves(results), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(value), **CLOSE)
    return mine


def plan_of(step, args, pipeline, topology="local"):
    """A plan with these stages."""
    found = automap.plan(
        step, args, topology=topology, space="pipeline", stages=2, microbatches=2, strategy="even"
    )
    return replace(found, pipeline=pipeline)


def the_decorator():
    step, (state, batch) = mlp()
    run = automap.parallelize(
        step, space="pipeline", stages=2, microbatches=2, strategy="even", donate_argnums=0
    )
    plan = run.plan_for(state, batch)
    born = run.init(lambda x: jax.tree.map(jnp.copy, x), state)
    stages = [set(stage.devices) for stage in plan.pipeline.stages]
    found = [numbers_of(layer["w"]) for layer in born["params"]]
    assert sorted(map(min, found)) == [0, 0, 0, 4], found
    assert all(devices in stages for devices in found)
    theirs = jax.tree.map(np.asarray, state)
    mine = born
    for _ in range(3):
        mine, results = run(mine, batch)
        theirs, wanted = jax.jit(step)(theirs, batch)
        for got, value in zip(jax.tree.leaves(automap.fetch(mine)), jax.tree.leaves(theirs)):
            np.testing.assert_allclose(got, value, **CLOSE)
        assert abs(float(results["loss"]) - float(wanted["loss"])) < 1e-5
    assert list(map(numbers_of, jax.tree.leaves(mine))) == list(
        map(numbers_of, jax.tree.leaves(born))
    )
    mine_here = sum(len(x.addressable_shards) for x in jax.tree.leaves(mine["params"]))
    assert 0 < mine_here < 4 * len(jax.tree.leaves(mine["params"]))


def stages_of(devices, microbatches=4, schedule="1f1b"):
    """A case: momentum and clipping on stages of as many devices."""

    def case():
        step, args = mlp(batch=48)
        state, batch = args
        cuts = even_cuts(step, args, len(devices))
        run = plan_of(step, args, record(devices, cuts, microbatches, schedule)).jit(step)
        new = three_steps(run, step, state, [batch] * 3)
        if len(devices) == 4:
            ends = np.cumsum([0, *devices])
            stages = [set(range(a, b)) for a, b in zip(ends, ends[1:])]
            for tree in (new["params"], new["momentum"]):
                assert [numbers_of(layer["w"]) for layer in tree] == stages

    return case


def everything(devices, microbatches):
    """A case: tied weights, a mask, dropout, outputs per sample; a batch of global arrays beside
    own copies.
    """

    def case():
        keys = jax.random.split(jax.random.key(0), 3)
        state = {
            "table": jax.random.normal(keys[0], (10, 8)),
            "middle": [jax.random.normal(key, (8, 8)) * 0.5 for key in keys[1:]],
        }

        def step(state, batch):
            def loss(p):
                x = p["table"][batch["tokens"]]
                for w in p["middle"]:
                    x = jnp.tanh(x @ w)
                    x = jnp.where(jax.random.bernoulli(batch["key"], 0.5, x.shape), x * 2, 0)
                scores = jax.nn.log_softmax(x @ p["table"].T)
                each = -jnp.take_along_axis(scores, batch["tokens"][:, None], 1)[:, 0]
                return (each * batch["mask"]).sum() / batch["mask"].sum(), each

            (value, each), gradient = jax.value_and_grad(loss, has_aux=True)(state)
            return jax.tree.map(lambda p, g: p - 0.5 * g, state, gradient), (value, each)

        batch = {
            "tokens": jnp.arange(48) % 10,
            "mask": jnp.arange(48) % 3 > 0,
            "key": jax.random.key(3),
        }
        cuts = even_cuts(step, (state, batch), len(devices))
        run = plan_of(step, (state, batch), record(devices, cuts, microbatches)).jit(step)
        new = three_steps(run, step, state, [batch] * 3)
        # One array over all devices, each with a part.
        mesh = Mesh(np.array(jax.devices()), ("all",))
        split = NamedSharding(mesh, PartitionSpec("all"))
        tokens = np.arange(48) % 10
        batch["tokens"] = jax.make_array_from_callback(tokens.shape, split, lambda i: tokens[i])
        want = jax.jit(step)(automap.fetch(new), batch | {"tokens": jnp.asarray(tokens)})
        assert held_same(run(new, batch), want)

    return case


def stacked(trips, devices):
    """A case: a loop over layers that stages end in."""

    def case():
        step, state, x = scanned()
        call = flatten(jax.make_jaxpr(step)(state, x), {})
        site = next(e.path for e in call.equations if e.eqn.primitive.name == "scan")
        cuts = [f"{site}#{trip}" for trip in trips]
        run = plan_of(step, (state, x), record(devices, cuts, 2)).jit(step)
        three_steps(run, step, state, [x, x + 1, x - 1])

    return case


def sharded(make, *stages):
    """A case: stages that are sharded inside, in one process and across both."""

    def case():
        step, args = make()
        state, batch = args
        plan = hybrid_plan(step, args, stages, microbatches=2)
        three_steps(plan.jit(step), step, state, [batch] * 3)

    return case


def stack():
    """A loop over layers, as `hybrids.blocks`."""
    step, state, x = scanned()
    return step, (state, x)


def born_before_the_plan():
    step, (state, batch) = mlp()
    run = automap.parallelize(step, space="pipeline", stages=2, microbatches=2, strategy="even")
    born = run.init(lambda x: jax.tree.map(jnp.copy, x), state)
    assert all(len(leaf.addressable_shards) == 4 for leaf in jax.tree.leaves(born))
    assert held_same(run(born, batch), jax.jit(step)(state, batch))


def a_number_as_state():
    def step(state, batch):
        gradient = jax.grad(lambda w: (jnp.tanh(jnp.tanh(batch @ w) @ w) @ w).mean())(state["w"])
        return {"w": state["w"] - state["rate"] * gradient, "rate": state["rate"] * 0.5}

    args = {"w": jnp.ones((8, 8)), "rate": jnp.asarray(1.0)}, jnp.ones((16, 8))
    run = plan_of(step, args, record((4, 4), even_cuts(step, args, 2))).jit(step)
    expect(InputError, r"\['rate'\] has the type of a Python number", lambda: run(*args))


def one_program(**options):
    """A case: one program on all devices of both processes, by `plan.jit` and by the decorator."""

    def case():
        step, (state, batch) = mlp(batch=48)
        plan = automap.plan(step, (state, batch), topology="local", **options)
        new = three_steps(plan.jit(step), step, state, [batch] * 3)
        split = [leaf for leaf in jax.tree.leaves(new) if not leaf.sharding.is_fully_replicated]
        assert split or "preset" not in options
        run = automap.parallelize(step, **options)
        run.plan_for(state, batch)
        theirs, mine = state, run.init(lambda x: jax.tree.map(jnp.copy, x), state)
        for _ in range(3):
            mine, results = run(mine, batch)
            theirs, wanted = jax.jit(step)(theirs, batch)
            assert abs(float(results["loss"]) - float(wanted["loss"])) < 1e-5
        for got, value in zip(jax.tree.leaves(automap.fetch(mine)), jax.tree.leaves(theirs)):
            np.testing.assert_allclose(got, value, **CLOSE)

    return case


def keys_as_state():
    def step(state, x):
        key, now = jax.random.split(state["key"])
        noisy = x + jax.random.normal(now, x.shape)
        value, grad = jax.value_and_grad(lambda w: jnp.mean((noisy @ w) ** 2))(state["w"])
        return {"key": key, "w": state["w"] - 0.1 * grad}, value

    run, x = automap.parallelize(step, preset="data-parallel"), np.ones((16, 8), np.float32)
    mine = theirs = {"key": jax.random.key(3), "w": jnp.eye(8)}
    for _ in range(3):
        (mine, got), (theirs, wanted) = run(mine, x), jax.jit(step)(theirs, x)
        np.testing.assert_allclose(float(got), float(wanted), **CLOSE)
    kept, left = jax.random.key_data(automap.fetch(mine)["key"]), theirs["key"]
    assert (kept == jax.random.key_data(left)).all()


def other_programs():
    """Each process has a plan of its own for one program, which its first call finds out."""
    step, args = mlp(depth=2)
    presets = ("data-parallel", "zero-3")
    plan = automap.plan(step, args, topology="local", preset=presets[jax.process_index()])
    text = r"the plan \(equal in \[0\] and \[1\]\)"
    expect(PlanError, text, lambda: plan.jit(step)(*args))


def one_ends(name, *, pipelined, how):
    """A case: process 1 ends after its first step; process 0 says so instead of waiting for it."""

    def case():
        step, (state, batch) = mlp(batch=48)
        args = state, batch
        plan = (
            plan_of(step, args, record((4, 4), even_cuts(step, args, 2), 4))
            if pipelined
            else automap.plan(step, args, topology="local", preset="zero-3")
        )
        run = plan.jit(step)
        state, _ = run(jax.tree.map(np.asarray, state), batch)
        if jax.process_index() == 1:
            jax.block_until_ready(state)
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.excepthook = sys.__excepthook__
            raise ValueError("no more data")
        text = {
            "killed": "process 1 no longer answers",
            "raises": r"process 1 has ended \(ValueError: no more data\)",
        }

        def go_on():
            new = state
            for _ in range(5):
                new, _ = run(new, batch)

        expect(ProcessLostError, text[how], go_on)
        sys.stdout.write(f"done: {name}.\n")
        sys.stdout.flush()
        os._exit(0)

    return case


def other_plans():
    """Each process has a plan of its own, and one of them cannot be run."""
    step, (state, batch) = mlp(depth=2)
    cuts = even_cuts(step, (state, batch), 2)
    plan = plan_of(step, (state, batch), record((4, 4), cuts))
    me = jax.process_index()
    other = replace(plan, pipeline=record((4, 4), cuts, 2 + 2 * me))
    text = r"the plan \(equal in \[0\] and \[1\]\)"
    expect(PlanError, text, lambda: other.jit(step)(state, batch))
    cut = replace(plan, pipeline=record((4, 4), ["9999"] if me else cuts))
    text = "ascending sites of the step" if me else "differ in the plan"
    expect(PlanError, text, lambda: cut.jit(step)(state, batch))


def other_devices():
    """Arguments and plans that lie where they cannot be taken from."""
    step, (state, batch) = mlp(depth=2)
    cuts = even_cuts(step, (state, batch), 2)
    plan = plan_of(step, (state, batch), record((4, 4), cuts))
    here = jax.device_put(batch, jax.local_devices()[0])
    expect(PlanError, "where the arguments lie", lambda: plan.jit(step)(state, here))
    some = jax.devices()[:4]
    expect(MeshMismatchError, "8 devices.* 4 are given", lambda: plan.jit(step, some))
    small = plan_of(step, (state, batch), record((2, 2), cuts), "cpu:4")
    if jax.process_index() == 0:
        # All devices of a plan are its own: nobody else is asked.
        results = small.jit(step, some)(state, batch)
        assert held_same(results, jax.jit(step)(state, batch))
    else:
        expect(MeshMismatchError, "process 1 holds none", lambda: small.jit(step, some))


def expect(kind, text, call):
    """The error that a call raises."""
    try:
        call()
    except kind as error:
        assert re.search(text, str(error)), error
    else:
        raise AssertionError(f"no {kind.__name__}")


CASES = {
    "the decorator": the_decorator,
    "searched": one_program(budget=20.0),
    "ZeRO-3": one_program(preset="zero-3"),
    "keys": keys_as_state,
    "other programs": other_programs,
    "one is killed": one_ends("one is killed", pipelined=False, how="killed"),
    "one raises": one_ends("one raises", pipelined=False, how="raises"),
    "a stage is killed": one_ends("a stage is killed", pipelined=True, how="killed"),
    "a stage raises": one_ends("a stage raises", pipelined=True, how="raises"),
    "other plans": other_plans,
    "other devices": other_devices,
    "a number as state": a_number_as_state,
    "two stages gpipe": stages_of((4, 4), schedule="gpipe"),
    "two stages": stages_of((4, 4)),
    "four stages gpipe": stages_of((2, 2, 2, 2), schedule="gpipe"),
    "four stages": stages_of((2, 2, 2, 2)),
    "a stage on both": stages_of((2, 4, 2)),
    "unequal": stages_of((3, 2, 3), 2),
    "everything": everything((4, 4), 2),
    "everything on unequal stages": everything((3, 1, 4), 2),
    "equal parts of a loop": stacked((2,), (4, 4)),
    "unequal parts of a loop": stacked((1, 3), (2, 4, 2)),
    "born before the plan": born_before_the_plan,
    "tensors and ZeRO-3": sharded(blocks, TENSORS, Inside("zero-3", {"data": 4})),
    "tensors on both": sharded(
        blocks, 2, replace(TENSORS, level=StorageLevel.FULL), Inside("megatron", {"model": 2})
    ),
    "a sharded loop": sharded(stack, Inside("zero-3", {"data": 4}), Inside("zero-1", {"data": 4})),
    "a sharded loop on both": sharded(stack, 2, Inside("zero-3", {"data": 4}), 2),
    **placed_cases(three_steps),
}


def end_at_once(kind, error, trace) -> None:
    """The end of a process that failed: the orderly one waits minutes for the other process."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def main(address: str, number: str, *cases: str) -> None:
    sys.excepthook = end_at_once
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, int(number))
    for name in cases:
        CASES[name]()
        # What the collectives print may come into the same line.
        sys.stdout.write(f"done: {name}.\n")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
