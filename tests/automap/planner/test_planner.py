"""Plans of small models, from a step and from an HLO file."""

import os
import signal

import jax
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.errors import InfeasiblePlanError, InputError, TopologyError
from automap.plan.levers import LeversRecord, WithoutLeversRecord
from automap.planner.rebuild import levered_workload
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.planner.spaces import plan_workload
from automap.program import read_workload, trace_step
from automap.space.batches import undivided_batch
from automap.space.presets import PRESETS
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder, mlp


TOPOLOGY = get_topology("v5e:2x4")


def _last_key(path):
    return path.split("'")[-2]


def test_search_finds_megatron_when_the_batch_is_pinned_off_the_model_axis():
    workload = trace_step(*decoder(width=1024, hidden=4096, vocab=4096, batch=4, length=64))
    mesh = Mesh(("data", "model"), (2, 4))
    plan = Plan.from_record(
        plan_workload(workload, TOPOLOGY, Options(mesh=mesh, pins=("[1]*=data,null",)))
    )
    split = {
        _last_key(leaf.path): [d for d, axes in enumerate(leaf.spec) if axes and "model" in axes]
        for leaf in plan.inputs
        if leaf.role == "parameter"
    }
    assert split["q"] == split["k"] == split["v"] == split["up"] == [1]
    assert split["o"] == split["down"] == split["embedding"] == [0]


@pytest.mark.parametrize(
    ("batch", "devices", "said"),
    [
        (64, 24, "over 8 of 24 devices; a multiple of 24 over all of them, as 72"),
        (64, 8, None),
        (8, 64, None),
    ],
)
def test_a_batch_that_leaves_devices_out_is_named_with_one_that_does_not(batch, devices, said):
    """Where the batch is just small, that is no mistake, and not named."""
    workload = trace_step(*mlp(batch=batch))
    topology = get_topology(f"cpu:{devices}")
    warnings = Plan.from_record(
        plan_workload(workload, topology, Options(preset="data-parallel"))
    ).warnings
    assert [said in w for w in warnings if "the batch divides by 64" in w] == [True] * bool(said)
    options = Options(memory_limit_bytes=1000, levers=())
    with pytest.raises(InfeasiblePlanError, match=said or r"allowed\n  of these"):
        Plan.from_record(plan_workload(workload, topology, options))


def test_a_batch_in_parts_needs_as_many_more_examples():
    """Each of two microbatches of 32 has to divide over 24 devices, so the batch has 96."""
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    levers = LeversRecord(remat=(), microbatches=2, recompute_seconds=0.0, without=without)
    workload = levered_workload(trace_step(*mlp(batch=64)), levers, "cpu")
    (text,) = undivided_batch(workload.problem, 24)
    assert "divides by 32" in text
    assert text.endswith("over 8 of 24 devices; a multiple of 48 over all of them, as 96")
    assert not undivided_batch(workload.problem, 32)


@pytest.mark.parametrize("strategy", ["auto", "greedy"])
@pytest.mark.parametrize("model", [mlp, decoder])
def test_never_worse_than_a_preset_and_the_same_for_the_same_seed(model, strategy):
    workload = trace_step(*model())
    plans = [
        Plan.from_record(plan_workload(workload, TOPOLOGY, Options(strategy=strategy)))
        for _ in range(2)
    ]
    assert plans[0].inputs == plans[1].inputs
    names = {p.name for p in plans[0].presets}
    assert {"data-parallel", "zero-1", "zero-3", "megatron"} <= names <= set(PRESETS)
    best = min(p.step_seconds for p in plans[0].presets if p.fits)
    assert plans[0].predicted.step_seconds <= best


def test_on_one_device_all_presets_are_one_plan():
    presets = Plan.from_record(
        plan_workload(trace_step(*decoder()), get_topology("v5e:1x1"), Options())
    ).presets
    assert {"zero-3", "megatron", "sequence-parallel"} <= {p.name for p in presets}
    assert len({(p.step_seconds, p.peak_bytes) for p in presets}) == 1


def test_plan_file_round_trip_and_state_in_equals_state_out(tmp_path):
    plan = Plan.from_record(plan_workload(trace_step(*mlp()), TOPOLOGY, Options(preset="zero-3")))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    inputs = {leaf.path: leaf.spec for leaf in plan.inputs}
    for leaf in plan.outputs:
        if leaf.role != "result":
            assert inputs["[0]" + leaf.path.removeprefix("[0]")] == leaf.spec


def test_plan_of_an_hlo_file_agrees_with_that_of_the_step(tmp_path):
    step, args = mlp()
    lowered = jax.jit(step, keep_unused=True, donate_argnums=0).lower(*args)
    path = tmp_path / "step.hlo.txt"
    path.write_text(lowered.compiler_ir("hlo").as_hlo_text())
    from_file = Plan.from_record(plan_workload(read_workload(path), TOPOLOGY, Options()))
    from_step = Plan.from_record(plan_workload(trace_step(step, args), TOPOLOGY, Options()))
    assert [i.role for i in from_file.inputs] == [i.role for i in from_step.inputs]
    assert [i.spec for i in from_file.inputs] == [i.spec for i in from_step.inputs]


def test_bad_requests_are_refused():
    workload = trace_step(*mlp())
    with pytest.raises(
        InfeasiblePlanError, match="no plan fits: the smallest that was found needs"
    ):
        Plan.from_record(plan_workload(workload, TOPOLOGY, Options(memory_limit_bytes=1000)))
    with pytest.raises(TopologyError, match="has 4 devices"):
        Plan.from_record(plan_workload(workload, TOPOLOGY, Options(mesh=Mesh(("a",), (4,)))))
    with pytest.raises(InputError, match="allowed: auto, "):
        Plan.from_record(plan_workload(workload, TOPOLOGY, Options(strategy="magic")))
    with pytest.raises(InputError, match="allowed: data-parallel"):
        Plan.from_record(plan_workload(workload, TOPOLOGY, Options(preset="magic")))
    with pytest.raises(InputError, match="must run under jax.jit"):
        trace_step(lambda x: x + "a", (jax.ShapeDtypeStruct((2,), "float32"),))


TWO_HOSTS = get_topology("2x8xv100")
NAMED = (Mesh(("data", "model"), (8, 2)), Mesh(("model", "data"), (2, 8)))


@pytest.mark.parametrize(
    ("batch", "preset", "said"),
    [
        (64, "one-weird-trick", "on v5e:2x4; presets that do: data-parallel, "),
        (
            7,
            "zero-3",
            "over 1 of 8 devices; a multiple of 8 over all of them, as 8; presets that do: "
            "megatron",
        ),
    ],
)
def test_a_preset_that_does_not_suit_is_refused_with_those_that_do(batch, preset, said):
    with pytest.raises(InputError, match=f"{preset} does not suit .*{said}"):
        Plan.from_record(
            plan_workload(trace_step(*mlp(batch=batch)), TOPOLOGY, Options(preset=preset))
        )


@pytest.mark.parametrize("mesh", NAMED)
@pytest.mark.parametrize(
    ("model", "inside"),
    [
        # Activations are summed over the model axis in every layer: many tokens make it the
        # heavier.
        (decoder(batch=64, length=256, width=256, hidden=512, layers=4), "model"),
        # Gradients are summed over the data axis: large weights and few tokens make that the
        # heavier.
        (decoder(batch=8, length=2, width=256, hidden=8192, layers=4), "data"),
    ],
)
def test_the_axis_with_the_heavier_traffic_lies_inside_the_hosts(mesh, model, inside):
    plan = Plan.from_record(
        plan_workload(trace_step(*model), TWO_HOSTS, Options(mesh=mesh, preset="megatron"))
    )
    assert dict(plan.mesh.axes) == {"data": 8, "model": 2}
    assert plan.mesh.axes[-1][0] == inside
    assert f"{inside} over nvlink {dict(plan.mesh.axes)[inside]}" in plan.explain()
    split = {leaf.path: leaf.spec for leaf in plan.inputs if leaf.role == "parameter"}
    up = next(spec for path, spec in split.items() if path.endswith("['up']"))
    assert up == (None, ("model",))


def test_a_mesh_without_a_model_axis_lets_each_take_the_features():
    workload = trace_step(*decoder(batch=64, length=64))
    axes = {}
    for sizes in ((8, 2), (2, 8)):
        plan = Plan.from_record(
            plan_workload(
                workload, TWO_HOSTS, Options(mesh=Mesh(("x", "y"), sizes), preset="megatron")
            )
        )
        (up,) = {
            leaf.spec for leaf in plan.inputs if leaf.path.endswith("['params']['layers'][0]['up']")
        }
        axes[sizes] = dict(plan.mesh.axes)[up[1][0]]
    assert axes[8, 2] == axes[2, 8]


def test_an_interrupted_search_keeps_its_best_plan_and_says_so():
    calls = []

    def interrupt(context):
        calls.append(context.best.estimate.step_seconds)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    plan = Plan.from_record(
        plan_workload(trace_step(*decoder()), TOPOLOGY, Options(), on_progress=interrupt)
    )
    # It may be the best preset, which is kept where no plan is surely faster.
    preset_seconds = min(preset.step_seconds for preset in plan.presets if preset.fits)
    assert plan.predicted.step_seconds in (min(calls), preset_seconds)
    assert plan.warnings[0].startswith("the search was interrupted; ")


def test_a_search_ends_with_its_budget_and_says_so():
    options = Options(strategy="greedy", budget_seconds=1e-6)
    plan = Plan.from_record(plan_workload(trace_step(*decoder()), TOPOLOGY, options))
    assert "budget of 1e-06 s" in plan.warnings[0]
    assert plan.predicted.step_seconds <= min(p.step_seconds for p in plan.presets if p.fits)


def test_a_step_of_scalars_has_a_plan():
    scalar = jax.ShapeDtypeStruct((), "float32")
    workload = trace_step(lambda state, x: state + x, (scalar, scalar))
    plan = Plan.from_record(plan_workload(workload, TOPOLOGY, Options()))
    assert all(leaf.spec == () for leaf in (*plan.inputs, *plan.outputs))


def test_what_does_not_fit_says_so_of_what_was_found_and_why_that_may_not_be_all():
    workload = trace_step(*mlp())
    with pytest.raises(
        InfeasiblePlanError, match=r"that was found needs .*\n.* not done after its budget"
    ):
        Plan.from_record(
            plan_workload(workload, TOPOLOGY, Options(memory_limit_bytes=1000, budget_seconds=1e-9))
        )


def test_an_interruption_after_the_search_keeps_the_plan_and_a_second_ends_it(monkeypatch):
    presses = [signal.SIGINT]

    def interrupted(outcome):
        for number in presses:
            os.kill(os.getpid(), number)
        return Plan.from_record(build_plan(outcome))

    monkeypatch.setattr("automap.planner.sharding.build_plan", interrupted)
    workload = trace_step(*mlp())
    assert Plan.from_record(plan_workload(workload, TOPOLOGY, Options())).predicted.fits
    presses.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Plan.from_record(plan_workload(workload, TOPOLOGY, Options()))


@pytest.mark.parametrize("space", ["pipeline", "hybrid"])
def test_ctrl_c_ends_a_search_of_stages_with_the_best_it_has(space):
    seen = []

    def interrupt(tried):
        if np.isfinite(tried.best_seconds) and not seen:
            seen.append(tried)
            os.kill(os.getpid(), signal.SIGINT)

    plan = Plan.from_record(
        plan_workload(
            trace_step(*decoder()),
            TOPOLOGY,
            Options(space=space, microbatches=4),
            on_stages=interrupt,
        )
    )
    assert any("the search was interrupted; " in warning for warning in plan.warnings)


def test_bytes_that_read_alike_are_written_out():
    workload = trace_step(*mlp())
    needed = Plan.from_record(
        plan_workload(workload, TOPOLOGY, Options(preset="zero-3", levers=()))
    ).predicted.peak_bytes
    with pytest.raises(
        InfeasiblePlanError, match=f"needs {needed:,} B on each device, {needed - 1:,} B"
    ):
        Plan.from_record(
            plan_workload(
                workload,
                TOPOLOGY,
                Options(preset="zero-3", memory_limit_bytes=needed - 1, levers=()),
            )
        )


@pytest.mark.parametrize("strategy", ["auto", "greedy"])
def test_with_pins_presets_keep_them_and_none_is_better(strategy):
    pins = ("[1]['x']=null,data", "[0]['params']['w2']=null,null")
    workload = trace_step(*mlp())
    plan = Plan.from_record(
        plan_workload(workload, TOPOLOGY, Options(pins=pins, strategy=strategy))
    )
    free = Plan.from_record(plan_workload(workload, TOPOLOGY, Options(strategy=strategy)))
    assert {p.name for p in plan.presets} <= {p.name for p in free.presets}
    assert plan.predicted.step_seconds <= min(p.step_seconds for p in plan.presets if p.fits)
    outcome = find(workload, TOPOLOGY, Options(pins=pins, strategy=strategy))
    for preset in outcome.context.best_per_preset.values():
        assert outcome.context.pinned.allows(preset.point)
