"""Stream plans as a user gets them: the command, the function, the file, the run."""

from functools import cache
from importlib.util import find_spec
import json
import re

from click.testing import CliRunner
import jax
import numpy as np
import pytest

import automap
from automap.api.plan import Plan
from automap.cli import main
from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InputError, PlanError, PlanWarning, TopologyError
from automap.jaxpr.staged import StageSites, staged
from automap.planner.records import sharded_graph
from automap.planner.sharding import find
from automap.planner.streams import priced_operators
from automap.program import load_target, trace_step
from automap.streams.schedule import find_schedule
from automap.streams.strategies import Limits
from automap.topology import get_topology
from automap.topology.gpu_devices import MULTIPROCESSORS
from automap.verify.compilers import machine_for
from automap.verify.gpu_targets import GPU_TARGETS
from automap.verify.worker import compiler_devices
from models.training import random_batch


SLOW = pytest.mark.slow
IOS = Limits(groups=8, group_size=3)
MODELS = {
    "squeezenet": "squeezenet_small",
    "inception": "inception_small_forward",
    "nasnet": "nasnet_small",
    "randwire": "randwire_small",
    "branches": "branches_small",
}


# The random and the searched networks have wide blocks, and many kernels to compile.
QUICK = [
    name if name in ("squeezenet", "inception", "branches") else pytest.param(name, marks=SLOW)
    for name in MODELS
]


@cache
def target(name):
    return load_target(f"models.{name}:{MODELS[name]}", {})


def planned(name="inception", topology="1xv100", **options):
    step, args = target(name)
    return automap.plan(step, args, topology=topology, space="streams", budget=600, **options)


def state_like(shapes):
    """Concrete leaves: parameters of any sign, statistics as a variance is."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = rng.standard_normal(leaf.shape) * 0.3
        is_variance = jax.tree_util.keystr(path).endswith("['var']")
        return np.asarray(np.abs(values) + 0.5 if is_variance else values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@pytest.fixture(scope="module")
def plan():
    return planned(strategy="dos")


def test_a_plan_has_each_operator_once_and_the_sum_of_its_stages(plan, tmp_path):
    record = plan.streams
    assert plan.predicted.step_seconds == pytest.approx(sum(s.seconds for s in record.stages))
    assert plan.predicted.step_seconds <= min(record.sequential_seconds, record.greedy_seconds)
    assert plan.search.gap == pytest.approx(0.0, abs=1e-9)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_explain_and_diff_name_stages(plan):
    assert "one after another" in plan.explain()
    assert " | conv " in plan.explain()
    other = planned(strategy="sequential")
    assert "streams: " in plan.diff(other)
    assert "stages of streams" in plan.diff(other)


def test_a_plan_is_simulated_from_its_file(plan):
    simulated = automap.simulate(plan)
    assert simulated.step_seconds == pytest.approx(plan.predicted.step_seconds)
    assert " stage, 1 run" in simulated.explain()
    with pytest.raises(PlanError, match="plan again with --space streams for another machine"):
        automap.simulate(plan, *target("inception"), topology="1xa100")


@pytest.mark.parametrize("name", QUICK)
def test_no_other_strategy_is_faster(name):
    record = planned(name, strategy="dos").streams
    assert record.seconds <= record.sequential_seconds * (1 + 1e-12)
    assert record.seconds <= record.greedy_seconds * (1 + 1e-12)
    # IOS's groups hold what DOS's stages hold, where no stage has more than eight.
    assert planned(name, groups=8, group_size=3, strategy="dos").predicted.step_seconds <= (
        planned(name, groups=8, strategy="dos").predicted.step_seconds * (1 + 1e-12)
    )


def test_exact_is_dos():
    exact = planned("squeezenet", strategy="exact").predicted.step_seconds
    assert exact == pytest.approx(planned("squeezenet", strategy="dos").predicted.step_seconds)


@pytest.mark.parametrize("name", QUICK)
def test_a_plan_computes_what_the_step_computes(name):
    step, (shapes, batch) = target(name)
    args = (state_like(shapes), random_batch(batch, 0))
    # What is merged is cheap to launch on a machine with few SMs and dear launches.
    plan = planned(name, topology="1xh100")
    expected = step(*args)
    got = plan.jit(step, devices=jax.devices()[:1])(*args)
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
    # With the calls that a GPU has on streams, which a processor runs as they stand.
    flat = trace_step(step, args, platform="cuda").reemitter.flat
    stages = [
        StageSites(tuple(tuple(op.at for op in g) for g in s.groups), s.together == "merged")
        for s in plan.streams.stages
    ]
    (got,) = jax.jit(staged(flat, stages, on_streams=True))(*jax.tree.leaves(args))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


def test_merged_operators_are_one_in_the_program_that_runs():
    step, args = target("branches")
    plan = planned("branches", topology="1xh100", strategy="dos")
    merged = [s for s in plan.streams.stages if s.together == "merged"]
    assert merged
    products = str(jax.make_jaxpr(step)(*args)).count("dot_general[")
    lowered = plan.jit(step, devices=jax.devices()[:1]).lower(*args).as_text()
    assert lowered.count("stablehlo.dot_general") == products - sum(
        len(stage.groups) - 1 for stage in merged
    )


def test_the_decorator_runs_such_a_plan():
    step, (shapes, batch) = target("squeezenet")
    args = (state_like(shapes), random_batch(batch, 0))
    parallel = automap.parallelize(
        topology="1xv100", space="streams", devices=jax.devices()[:1], budget=600
    )(step)
    with pytest.warns(PlanWarning, match="planned for 1xv100 and run on devices of platform cpu"):
        got = parallel(*args)
    np.testing.assert_allclose(got, step(*args), rtol=2e-4, atol=2e-4)
    assert parallel.plan.streams is not None


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"topology": "v5e:1x1"}, TopologyError, "multiprocessors.*allowed: k80"),
        ({"strategy": "beam"}, InputError, "unknown strategy 'beam' of streams; allowed: auto"),
        ({"groups": 0}, InputError, "--groups 0: allowed: auto, or an integer from 1"),
        ({"stages": 2}, InputError, "--stages 2 is of pipelines"),
        ({"preset": "zero-3"}, InputError, "--preset is of shardings"),
    ],
)
def test_what_cannot_be_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        planned(**options)


@pytest.mark.parametrize(
    ("name", "size"),
    [("squeezenet:squeezenet_small", "batch"), ("llama_serving:serving_tiny", "requests")],
)
def test_the_parts_of_a_device_are_the_operators_of_a_smaller_batch(name, size):
    topology = get_topology("2xh100")
    parts = []
    for batch, devices in ((6, 2), (3, 1)):
        step, args = load_target(f"models.{name}", {size: str(batch)})
        workload = trace_step(step, args, platform="cuda")
        local = None
        if devices > 1:
            options = Options(preset="data-parallel", budget_seconds=60)
            local = sharded_graph(find(workload, topology, options))
        operators = priced_operators(workload, topology, local).operators
        parts.append([part for op in operators for part in op.parts])
    for field in ("product", "written_bytes", "runs", "op_class"):
        assert [getattr(p, field) for p in parts[0]] == [getattr(p, field) for p in parts[1]]
    assert any(part.product is not None for part in parts[0])


def test_sharding_and_streams_are_chosen_together(tmp_path):
    step, args = load_target("models.llama_serving:serving_tiny", {})
    plan = automap.plan(step, args, topology="2xh100", space="streams", budget=4)
    assert plan.mesh.device_count == 2
    stages = sum(stage.seconds for stage in plan.streams.stages)
    waiting = plan.predicted.collective_seconds
    assert plan.predicted.step_seconds == pytest.approx(stages + waiting)
    assert automap.simulate(plan).step_seconds == pytest.approx(plan.predicted.step_seconds)
    assert all(stage.together == "concurrent" for stage in plan.streams.stages)
    # No preset's sharding, with stages of its own, takes less.
    workload = trace_step(step, args, platform="cuda")
    for preset in ("data-parallel", "megatron"):
        options = Options(preset=preset, budget_seconds=60)
        outcome = find(workload, get_topology("2xh100"), options)
        priced = priced_operators(workload, outcome.topology, sharded_graph(outcome))
        schedule = find_schedule(priced, "auto", IOS, Deadline.never())
        seconds = schedule.seconds + outcome.best.estimate.collective_seconds
        assert plan.predicted.step_seconds <= seconds * (1 + 1e-9)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    index = next(i for i, stage in enumerate(plan.streams.stages) if len(stage.groups) > 1)

    def merge(data):
        stage = data["streams"]["stages"][index]
        stage |= {"together": "merged", "groups": [group[:1] for group in stage["groups"]]}

    with pytest.raises(PlanError, match="concurrent ones only on several devices"):
        Plan.from_json(_edited(plan, merge))
    plan.jit(step, devices=jax.devices()[:2]).lower(*args)
    assert "stages on several devices are predicted only" in plan.explain()


def test_options_of_streams_are_refused_elsewhere():
    step, args = target("squeezenet")
    with pytest.raises(InputError, match="--group-size 2 is of streams"):
        automap.plan(step, args, topology="1xv100", group_size=2)


def _edited(plan, change):
    data = json.loads(json.dumps(plan.to_json()))
    change(data)
    return data


def _twice(data):
    data["streams"]["stages"].append(data["streams"]["stages"][0])


def _wide(data):
    data["streams"]["most_groups"] = 1


def _chain(data):
    stage = next(s for s in data["streams"]["stages"] if len(s["groups"]) > 1)
    stage["groups"] = [[*stage["groups"][0], *stage["groups"][1]], *stage["groups"][2:]]


def _alone(data):
    data["streams"]["stages"][0]["together"] = "merged"


HOSTILE = {
    "an operator twice": (_twice, r"streams\.stages: got .*each operator in one group"),
    "more groups than the limit": (_wide, r"streams\.stages\[\d+\]\.groups: got \d+; .*at most 1"),
    "a longer group": (_chain, r"groups\[0\]: got 2; allowed: at most 1 operators"),
    "one merged operator": (_alone, r"stages\[0\]\.groups: .*at least two"),
    "no stages": (lambda d: d["streams"].update(stages=[]), r"streams\.stages: .*at least one"),
    "no groups": (
        lambda d: d["streams"]["stages"][0].update(groups=[]),
        r"stages\[0\]\.groups: .*at least one group",
    ),
    "an empty group": (
        lambda d: d["streams"]["stages"][0].update(groups=[[]]),
        r"stages\[0\]\.groups\[0\]: .*at least one operator",
    ),
    "negative seconds": (
        lambda d: d["streams"]["stages"][0].update(seconds=-1.0),
        r"stages\[0\]\.seconds: got -1.0",
    ),
    "another word": (
        lambda d: d["streams"]["stages"][0].update(together="fused"),
        r"stages\[0\]\.together: got 'fused'; allowed: concurrent \| merged",
    ),
    "no groups allowed": (
        lambda d: d["streams"].update(most_in_group=0),
        r"streams\.most_in_group: got 0",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_with_the_field(plan, what):
    change, match = HOSTILE[what]
    with pytest.raises(PlanError, match=match):
        Plan.from_json(_edited(plan, change))


def test_a_plan_whose_merged_operators_are_edited_does_not_run(plan):
    def merge(data):
        stage = next(s for s in data["streams"]["stages"] if len(s["groups"]) > 1)
        stage["together"] = "merged"
        stage["groups"][0][0]["at"] = "99999"

    step, args = target("inception")
    edited = Plan.from_json(_edited(plan, merge))
    with pytest.raises(PlanError, match="99999: merged, but no equation"):
        edited.jit(step, devices=jax.devices()[:1]).lower(*args)


def test_the_command_plans_and_compares(tmp_path):
    runner = CliRunner()
    arguments = ["models.squeezenet:squeezenet_small", "--topology", "1xv100", "--space", "streams"]
    path = tmp_path / "plan.json"
    result = runner.invoke(main, ["plan", *arguments, "--strategy", "dos", "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert "operators of one device in" in result.output
    assert Plan.load(path).search.strategy == "dos"
    compared = runner.invoke(main, ["compare", *arguments])
    assert compared.exit_code == 0, compared.output
    assert "streams" in compared.output
    refused = runner.invoke(main, ["plan", *arguments, "--strategy", "dos", "--group-size", "no"])
    assert refused.exit_code == 2
    assert "--group-size no: allowed: auto, or an integer from 1" in refused.output


@pytest.mark.gpu_compiler
@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None or find_spec("nvidia") is None,
    reason="ptxas or the CUDA plugin is not installed (extra gpu-compiler)",
)
@pytest.mark.parametrize("topology", ["1xv100", "1xh100"])
def test_xla_starts_all_groups_of_a_stage_on_their_own_streams_and_runs_merged_ones_as_one(
    topology,
):
    step, args = target("inception")
    plan = planned("inception", topology=topology)
    devices = compiler_devices(machine_for("gpu", get_topology(topology)))
    lowered = plan.jit(step, devices=devices).lower(*args)
    program = lowered.compile().as_text()
    entry = program[program.index("\nENTRY ") :]
    calls = re.findall(
        r"call-(start|done)\(.*_scheduling_group_id=\"(\d+)\",_xla_stream_annotation=\"(\d+)\"",
        entry,
    )
    stages = {
        str(number): len(stage.groups)
        for number, stage in enumerate(plan.streams.stages)
        if stage.together == "concurrent" and len(stage.groups) > 1
    }
    assert stages
    assert {number for _, number, _ in calls} == set(stages)
    for number, count in stages.items():
        own = [(what, stream) for what, group, stream in calls if group == number]
        # No group is waited for before all have been started.
        assert [what for what, _ in own] == ["start"] * count + ["done"] * count
        assert {stream for what, stream in own} == {str(n + 1) for n in range(count)}
    merged = sum(
        len(s.groups) - 1
        for s in plan.streams.stages
        if s.together == "merged" and s.groups[0][0].label.startswith("conv")
    )
    plain = str(jax.make_jaxpr(step)(*args)).count("conv_general_dilated[")
    assert program.count('custom_call_target="__cudnn$conv') == plain - merged


def test_multiprocessors_are_those_that_the_compiler_is_told():
    for name, gpu in GPU_TARGETS.items():
        assert MULTIPROCESSORS[name] == gpu.sm_count
