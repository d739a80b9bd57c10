"""Stages that are sharded inside compute what one device computes, and hold what the plan says,
where it says.

The blocks have momentum and clipping by the norm of all gradients. Tolerances are those of
replicated stages: sums of a few hundred float32 products in another order, three times.
"""

from collections import Counter
import copy
from dataclasses import replace
import math

import jax
import pytest

from automap.api.plan import Plan
from automap.errors import InputError, PlanError
from automap.pipeline.schedules import Interleaved, planned_schedule
from automap.runtime.pipeline.divide import StagePass
from automap.runtime.pipeline.runner import run_step
from automap.runtime.pipeline.step import check_separable
from automap.step.step import traced_call
from automap.topology.mesh import Mesh
from scripts.transfers import Transfer, compiled_transfers
from tests.automap.runtime.pipeline.hybrids import Inside, blocks, bytes_on_devices, hybrid_plan
from tests.automap.runtime.pipeline.running import assert_same


CLOSE = {"rtol": 1e-5, "atol": 2e-6}
STAGES = [
    Inside("megatron", {"data": 2, "model": 2}),
    Inside("zero-3", {"data": 2}),
    Inside("zero-1", {"data": 2}),
]


def leaf_bytes(plan: Plan, stage: int, role: str) -> int:
    """What the plan says that each device of a stage has of the leaves of a role."""
    inside = plan.pipeline.stages[stage].inside
    sizes = dict(inside.mesh.axes)
    specs = {leaf.path: leaf.spec for leaf in inside.inputs}
    return sum(
        math.prod(leaf.shape)
        * 4
        // math.prod(sizes[axis] for axes in specs[leaf.path] for axis in axes or ())
        for leaf in plan.inputs
        if leaf.role == role and leaf.path in specs
    )


@pytest.fixture(scope="module")
def trained():
    """(step, arguments, plan as its file has it, planned step, state after three steps)."""
    step, (state, batch) = blocks()
    made = hybrid_plan(step, (state, batch), STAGES, shares=(0.48, 0.22, 0.3))
    plan = Plan.from_json(made.to_json())
    run, single = plan.jit(step), jax.jit(step)
    mine, theirs = state, state
    for seed in range(3):
        here = jax.tree.map(lambda x, n=seed: x + n / 8, batch)
        mine, results = run(mine, here)
        theirs, wanted = single(theirs, here)
        assert_same((mine, results), (theirs, wanted), **CLOSE)
    return step, (state, batch), plan, run, mine


def test_a_stage_on_part_of_a_slice_is_laid_along_a_ring_of_neighbours():
    step, (state, batch) = blocks()
    stages = [Inside("zero-3", {"data": 4}), Inside("megatron", {"data": 2, "model": 2})]
    made = hybrid_plan(step, (state, batch), stages, machine="v5p:2x2x2")
    plan = Plan.from_json(made.to_json())
    # The first stage is a square of chips, the axes of the second are its sides.
    assert [stage.devices for stage in plan.pipeline.stages] == [(0, 2, 3, 1), (4, 5, 6, 7)]
    assert "stage 0 on devices 0 to 3 in another order: " in plan.explain()
    assert_same(plan.jit(step)(state, batch), jax.jit(step)(state, batch), **CLOSE)
    in_a_mesh = plan.to_json()
    in_a_mesh["pipeline"]["stages"][0]["inside"]["mesh"]["devices"] = [0, 2, 3, 1]
    message = r"stages\[0\]\.inside\.mesh\.devices: got .*; allowed: null: a stage's mesh is laid"
    with pytest.raises(PlanError, match=message):
        Plan.from_json(in_a_mesh)


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(Inside("megatron", {"data": 2, "model": 2}), id="tensor parallel"),
        pytest.param(Inside("zero-3", {"data": 4}), id="zero-3", marks=pytest.mark.slow),
    ],
)
def test_interleaved_stages_are_sharded_inside(inside):
    """Two stages on each of two groups of four devices, which hold the state of both."""
    step, (state, batch) = blocks()
    made = hybrid_plan(step, (state, batch), [inside] * 4, schedule=Interleaved(2))
    plan = Plan.from_json(made.to_json())
    devices = [stage.devices for stage in plan.pipeline.stages]
    assert [sorted(d) for d in devices] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert plan.pipeline.schedule == "interleaved"
    run, single = plan.jit(step), jax.jit(step)
    mine, theirs = state, state
    for seed in range(2):
        here = jax.tree.map(lambda x, n=seed: x + n / 8, batch)
        mine, results = run(mine, here)
        theirs, wanted = single(theirs, here)
        assert_same((mine, results), (theirs, wanted), **CLOSE)
    said = [sum(leaf_bytes(plan, s, "parameter") for s in (g, g + 2)) for g in range(2)]
    assert bytes_on_devices(mine["params"]) == {d: said[d // 4] for d in range(8)}
    # The order that was run is the simulated one.
    passes = [(job.kind, job.stage, job.microbatch) for job in run.jobs]
    simulated = pipeline_tasks_of(plan)
    for group in range(2):
        own = [each for each in passes if each[1] % 2 == group]
        assert own == [each for each in simulated if each[1] % 2 == group]


def pipeline_tasks_of(plan: Plan) -> list[tuple[str, int, int]]:
    """The passes of an interleaved plan by group, in the schedule's order."""
    record = plan.pipeline
    groups = len(record.groups)
    jobs = [
        job
        for group in range(groups)
        for job in planned_schedule(record).passes(group, groups, record.microbatches)
    ]
    return [(job.kind, job.stage, job.microbatch) for job in jobs]


def test_tensors_and_zero_3_and_zero_1_in_one_pipeline(trained):
    _, (state, _), plan, run, last = trained
    assert [stage.inside.replica_axes for stage in plan.pipeline.stages] == [("data",)] * 3
    assert len(run.jobs) == 3 * 2 * 2
    assert jax.tree.structure(last) == jax.tree.structure(state)


def test_a_device_holds_its_stages_share_and_nothing_else(trained):
    _, _, plan, run, last = trained
    stage_of = [0, 0, 0, 0, 1, 1, 2, 2]
    for tree, role in ((last["params"], "parameter"), (last["momentum"], "optimizer state")):
        said = [leaf_bytes(plan, stage, role) for stage in range(3)]
        assert bytes_on_devices(tree) == {d: said[s] for d, s in enumerate(stage_of)}
        if role == "parameter":
            peaks = [stage.peak_bytes for stage in plan.pipeline.stages]
            assert said[peaks.index(max(peaks))] == plan.predicted.memory.parameters
    # Features in halves; parameters in halves; only the momentum in halves.
    for name, parts in (("params", (2, 2, 1)), ("momentum", (2, 2, 2))):
        for leaf in jax.tree.leaves(last[name]):
            ours = {stage_of[shard.device.id] for shard in leaf.addressable_shards}
            assert len(ours) == 1
            assert leaf.addressable_shards[0].data.size * parts[ours.pop()] == leaf.size
    stored = [leaf.sharding for leaf in jax.tree.leaves(last)]
    leaves = zip(jax.tree.leaves(last), stored, run.input_shardings)
    assert all(a.is_equivalent_to(b, x.ndim) for x, a, b in leaves)


def transfers_of(assembly, args) -> dict[StagePass, Counter[Transfer]]:
    """The collectives that are compiled into each pass of a microbatch."""
    (sweep,) = assembly.programs.sweeps
    seen = {}

    def watched(stage_pass, loop):
        def run(*given):
            seen[stage_pass] = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), given
            )
            return loop.run(*given)

        return replace(loop, run=run)

    loops = {stage_pass: watched(stage_pass, loop) for stage_pass, loop in sweep.loops.items()}
    programs = replace(assembly.programs, sweeps=[replace(sweep, loops=loops)])
    watching = replace(assembly, programs=programs)
    run_step(watching, jax.tree.leaves(args), lambda job: None)
    found = {}
    for stage_pass, given in seen.items():
        mesh = assembly.programs.places[stage_pass.stage].mesh
        programs = {stage_pass: sweep.loops[stage_pass].run.lower(*given)}
        if given[0]:
            programs[StagePass("after", stage_pass.stage)] = sweep.loops[stage_pass].finish.lower(
                given[0]
            )  # type: ignore[arg-type]
        for name, lowered in programs.items():
            text = lowered.compile().as_text()
            found[name] = compiled_transfers(text, Mesh(mesh.axis_names, mesh.devices.shape))
    return found


def test_what_is_sent_is_what_the_plan_says(trained):
    """Features are added in each pass, ZeRO-3 gathers and sums in each, ZeRO-1 sums once."""
    _, args, _, run, _ = trained
    found = transfers_of(run.program(run.step.enter(args, {})).assembly, args)
    # The first stage has two products with a split sum: 4 of 16 examples, a half of the devices
    # each.
    features = Counter({Transfer("all-reduce", ("model",), 4 * 16 * 4): 2})
    kernel, bias = 16 * 32 * 4, 32 * 4
    gathered = Counter({Transfer("all-gather", ("data",), kernel): 2})
    summed = {
        Transfer("all-reduce", ("data",), kernel): 2,
        Transfer("all-reduce", ("data",), bias): 1,
    }
    assert found[StagePass("forward", 0)] == found[StagePass("backward", 0)] == features
    assert found[StagePass("forward", 1)] == gathered + Counter(
        {Transfer("all-gather", ("data",), bias): 1}
    )
    assert found[StagePass("backward", 1)] == gathered + Counter(summed)
    assert found[StagePass("after", 1)] == Counter()
    assert found[StagePass("forward", 2)] == found[StagePass("backward", 2)] == Counter()
    assert {t.axes for t in found[StagePass("after", 2)]} == {("data",)}
    assert sum(t.n_bytes * n for t, n in found[StagePass("after", 2)].items()) == kernel + bias
    assert {t.axes for t in found[StagePass("after", 0)]} == {("data",)}


def test_what_cannot_run_is_refused_before_it_does(trained):
    step, args, plan, _, _ = trained

    def edited(change):
        data = copy.deepcopy(plan.to_json())
        change(data["pipeline"])
        return Plan.from_json(data).jit(step)

    def no_replicas(pipeline):
        pipeline["microbatches"] = 1
        for stage in pipeline["stages"]:
            stage["inside"]["replica_axes"] = []

    def elsewhere(pipeline):
        spot = {"value": "", "at": "9999:out0", "spec": [None, ["model"]]}
        pipeline["stages"][0]["inside"]["constraints"] = [spot]

    def renamed(pipeline):
        inside = pipeline["stages"][2]["inside"]
        inside["mesh"]["axes"][0][0] = "replica"
        inside["inputs"], inside["constraints"], inside["replica_axes"] = [], [], []

    for change, kind, text in (
        (no_replicas, InputError, "microbatches=1.*at least 2"),
        (elsewhere, PlanError, "no equation '9999'"),
        (renamed, PlanError, "axis 'replica'"),
    ):
        with pytest.raises(kind, match=text):
            edited(change).prepare(*args)
    with pytest.raises(PlanError, match="unknown axis 'nowhere'"):
        edited(lambda p: p["stages"][0]["inside"]["replica_axes"].append("nowhere"))
    data = plan.to_json()["pipeline"]
    data["microbatches"], data["stages"][0]["inside"]["replica_axes"] = 1, []
    call = traced_call(jax.jit(step), args)
    record = Plan.from_json({**plan.to_json(), "pipeline": data}).pipeline
    assert record is not None
    with pytest.raises(
        InputError, match="stage 0 .4 devices, none of them replicas.*--microbatches 2"
    ):
        check_separable(call, record)
