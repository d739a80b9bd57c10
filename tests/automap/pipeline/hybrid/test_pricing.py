"""Inner plans item by item against the evaluator, replicas, and sums worked out by hand."""

import numpy as np
import pytest

from automap.cost.evaluate import Evaluator
from automap.cost.kernels.roofline import Roofline
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import ALL_GATHER
from automap.pipeline.arrays import Terms, pipeline_arrays
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.hybrid.average import Setting, totals
from automap.pipeline.hybrid.inner_plans import StageKinds, candidate, preset_inner_plans
from automap.pipeline.hybrid.pricing import InnerPlan, Pricer
from automap.pipeline.interleaved import Grouped, group_bytes, interleaved_stages
from automap.pipeline.profile.points import coarsen
from automap.pipeline.profile.profile import pipeline_profile
from automap.pipeline.schedules import ONE_FORWARD_ONE_BACKWARD, Interleaved
from automap.space.point import StorageLevel
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from models.gpt import gpt_tiny
from models.mlp import mlp_tiny
from tests.steps import problem_of


def pricer_of(make, topology) -> Pricer:
    machine = get_topology(topology)
    problem = problem_of(*make())
    tables = build_tables(problem, machine.platform)
    profile = pipeline_profile(problem, tables, Roofline(tables.kernels, machine))
    return Pricer(profile, Space(problem), machine)


@pytest.fixture(scope="module")
def gpt() -> Pricer:
    return pricer_of(gpt_tiny, "2x4xv100")


def inner_of(pricer: Pricer, preset: str, mesh: Mesh) -> InnerPlan:
    (point, *_) = PRESETS[preset].points(pricer.space, mesh)
    devices = int(np.prod(mesh.sizes))
    return InnerPlan(devices, point, pricer.space.split_classes(point), preset)


def adding(pricer: Pricer, inner: InnerPlan) -> np.ndarray:
    """Seconds of adding gradients to their sums, which a step of one program does not, [items]."""
    tables, problem = pricer.profile.timing.tables, pricer.space.problem
    parts = shardings(tables, problem.n_classes, inner.split_classes).parts_of_value
    return pricer.profile.adding_seconds(parts[tables.row_of_value[list(problem.graph.inputs)]])


MESHES = (Mesh(("data",), (4,)), Mesh(("data", "model"), (2, 2)))


@pytest.mark.parametrize(
    "preset", ["data-parallel", "zero-1", "zero-3", "megatron", "sequence-parallel"]
)
@pytest.mark.parametrize("mesh", MESHES, ids=["4", "2x2"])
def test_kernels_are_those_of_the_evaluator(gpt, preset, mesh):
    """One microbatch, one stage: all kernels, and as many seconds of collectives or more."""
    inner = inner_of(gpt, preset, mesh)
    costs = gpt.costs(inner, 1)
    evaluator = Evaluator(
        gpt.profile.timing.tables, gpt.space.problem.n_classes, gpt.evaluator(4).topology
    )
    estimate = evaluator.evaluate(inner.split_classes)
    priced = gpt.evaluator(4).price_point(inner.split_classes)
    of_update = float(
        (priced.collective_seconds * priced.collectives.count)[
            priced.collectives.phase == Phase.UPDATE
        ].sum()
    )
    passes = costs.forward + costs.backward - costs.waiting - adding(gpt, inner)
    kernels = float(passes.sum()) + costs.update_seconds - of_update
    # Backward passes of stages gather for themselves, and may turn what one program turns once.
    more = _copying_seconds(priced) - _copying_seconds(evaluator.price_point(inner.split_classes))
    expected = estimate.compute_seconds + more - _joined_once(gpt, inner, priced)
    assert kernels == pytest.approx(expected, rel=1e-9)


def _copying_seconds(priced):
    return float(priced.copying_seconds @ priced.collectives.count)


def _joined_once(gpt, inner, priced):
    """Seconds of kernels that copy the gradients' sums over replicas, of which stages have none."""
    entries = priced.collectives
    is_once = ~gpt._in_each(entries, inner) & (entries.phase != Phase.UPDATE)
    return float((priced.copying_seconds * entries.count)[is_once].sum())


@pytest.mark.parametrize(
    "preset", ["data-parallel", "zero-1", "zero-3", "megatron", "sequence-parallel"]
)
@pytest.mark.parametrize("mesh", MESHES, ids=["4", "2x2"])
def test_one_stage_is_priced_as_the_evaluator_does(gpt, preset, mesh):
    """Seconds within 3 %: only what gradients take is not hidden behind the backward pass, nor what
    gathers of new parameters take behind the update.

    In one program not all gradients are there at once, and what is gathered may stay for the
    backward pass.
    """
    inner = inner_of(gpt, preset, mesh)
    costs, tables = gpt.costs(inner, 1), gpt.profile.timing.tables
    evaluator = Evaluator(tables, gpt.space.problem.n_classes, gpt.evaluator(4).topology)
    estimate = evaluator.evaluate(inner.split_classes)
    passes = costs.forward + costs.backward - adding(gpt, inner)
    seconds = float((passes + costs.reduce).sum()) + costs.update_seconds
    step = estimate.step_seconds - _joined_once(
        gpt, inner, gpt.evaluator(4).price_point(inner.split_classes)
    )
    assert seconds == pytest.approx(step, rel=0.03)
    assert seconds >= step * (1 - 1e-9)
    held = costs.held
    peak = held.state.total_bytes + held.saved.total_bytes
    peak += float((held.working_bytes + costs.gathered_bytes).max())
    assert peak - gpt.profile.gradients.total_bytes <= estimate.peak_bytes * 1.15
    assert estimate.peak_bytes <= peak * 1.12


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_data_parallel_is_a_stage_of_replicas(gpt, parts):
    mesh = Mesh(("data",), (4,))
    costs, profile = gpt.costs(inner_of(gpt, "data-parallel", mesh), parts), gpt.profile
    forward, backward = profile.seconds(4 * parts)
    kernels = costs.forward + costs.backward - costs.waiting
    assert kernels == pytest.approx(forward + backward, abs=1e-12)
    # Replicas are not charged for adding up the loss.
    assert costs.waiting.sum() < 1e-5
    assert (costs.waiting > 0).sum() <= 2
    # The loss is a number that each device has.
    assert costs.held.cut_bytes == pytest.approx(profile.cut_bytes / 4, abs=4)
    assert costs.held.working_bytes == pytest.approx(profile.working_bytes / 4, abs=16)
    assert costs.held.saved.total_bytes == pytest.approx(profile.saved.total_bytes / 4)
    assert costs.held.state.total_bytes == pytest.approx(profile.state.total_bytes)
    assert costs.gathered_bytes.max() == 0


def test_zero_by_hand():
    """AdamW on a step whose every parameter divides: 16 bytes for each element, of which ZeRO keeps
    parts.
    """
    pricer = pricer_of(mlp_tiny, "4xv100")
    elements = pricer.profile.gradients.total_bytes / 4
    mesh, states = Mesh(("data",), (4,)), []
    for preset, local in (("data-parallel", 16), ("zero-1", 8 + 8 / 4), ("zero-3", 16 / 4)):
        costs = pricer.costs(inner_of(pricer, preset, mesh), 2)
        states.append(costs.held.state.total_bytes)
        # A step counter besides.
        assert states[-1] == pytest.approx(elements * local, rel=1e-3)
    assert states == sorted(states, reverse=True)


def test_split_parameters_are_gathered_in_both_passes_of_every_microbatch(gpt):
    inner = inner_of(gpt, "zero-3", MESHES[0])
    for microbatches in (1, 4):
        costs = gpt.costs(inner, microbatches)
        assert costs.gathered_bytes.max() > 0
        evaluator, priced = gpt._priced(
            inner, gpt.evaluator(4).price_point(inner.split_classes).sharding, microbatches
        )
        found = priced.collectives
        is_gather = (found.kind == ALL_GATHER) & found.on_operand
        # Bytes do not depend on the microbatches, and both passes have them.
        total = [
            float((found.n_bytes * found.count)[is_gather & (found.phase == phase)].sum())
            for phase in (Phase.FORWARD, Phase.BACKWARD)
        ]
        matrices = sum(
            leaf.n_bytes * len(leaf.inputs) for leaf in gpt.space.leaves if len(leaf.dims) > 1
        )
        assert total[0] >= 0.9 * matrices
        assert total[1] >= 0.5 * matrices
        # Gradients of what is stored split are scattered each time: nothing is left to the end but
        # the norm.
        assert costs.reduce.sum() == pytest.approx(0.0, abs=1e-12)
        assert evaluator.topology.device_count == 4


def test_activations_shrink_with_the_microbatches_and_gradients_do_not(gpt):
    inner = inner_of(gpt, "megatron", MESHES[1])
    one, four = gpt.costs(inner, 1), gpt.costs(inner, 4)
    assert four.reduce.sum() == pytest.approx(one.reduce.sum())
    assert one.reduce.sum() > 0
    assert four.waiting.sum() < one.waiting.sum()
    assert four.forward.sum() < one.forward.sum() < 4 * four.forward.sum() + 1e-12


def test_layouts_say_who_has_which_examples(gpt):
    assert gpt.layout(inner_of(gpt, "data-parallel", MESHES[0]).split_classes).part == (0, 1, 2, 3)
    assert gpt.layout(inner_of(gpt, "megatron", MESHES[0]).split_classes).part == (0, 0, 0, 0)
    tensor_inside = inner_of(gpt, "megatron", MESHES[1])
    assert gpt.layout(tensor_inside.split_classes).part in ((0, 0, 1, 1), (0, 1, 0, 1))


def test_presets_have_every_level_of_storage_and_run_on_parts_of_the_batch(gpt):
    inners = list(preset_inner_plans(gpt, 4))
    assert {i.origin for i in inners} >= {"data-parallel", "megatron", "sequence-parallel"}
    megatron = {max(i.point.storage[0]) for i in inners if i.origin == "megatron"}
    assert megatron == set(StorageLevel)
    batch = gpt.profile.batch_size
    setting = Setting(stages=2, microbatches=batch, in_flight=2, memory_limit_bytes=1e12)
    for inner in inners:
        found = candidate(gpt, inner, setting)
        assert found is not None
        assert batch % (found.microbatches * found.batch_parts) == 0
        average = totals(found.costs, setting)
        assert average.peak_bytes(setting) > 0


def test_interleaved_stages_of_a_data_parallel_inner_plan_are_those_of_replicas(gpt):
    """Seconds and bytes of each stage, whichever of the two says them."""
    m, groups, schedule = 4, 2, Interleaved(2)
    points, fabric = coarsen(gpt.profile, 16), pipeline_fabric(gpt.topology)
    inner = inner_of(gpt, "data-parallel", Mesh(("data",), (4,)))
    kinds = StageKinds(gpt, points, fabric, (inner,)).options(m, 1e12)
    options = kinds.scheduled(ONE_FORWARD_ONE_BACKWARD).options
    terms = Terms(microbatches=m, schedule=ONE_FORWARD_ONE_BACKWARD, memory_limit_bytes=1e12)
    arrays = pipeline_arrays(points, fabric, terms)
    grouped = Grouped.from_kind(options, kinds.inners.index(inner), arrays, fabric)
    ends = np.flatnonzero(points.may_cut)[[3, 6, 9]]
    cuts = np.array([0, *ends, points.n_points])
    apart = interleaved_stages(arrays, fabric, cuts, groups)
    for mine, theirs in zip(grouped.stages(cuts, groups), apart, strict=True):
        assert mine.transfer == pytest.approx(theirs.transfer, rel=0.01)
        assert mine.forward == pytest.approx(theirs.forward, rel=0.02)
        assert mine.backward == pytest.approx(theirs.backward, rel=0.02)
        assert mine.reduce == pytest.approx(theirs.reduce, rel=0.02)
    for group in range(groups):
        both = [
            sum(group_bytes(each, schedule, cuts, group, groups).values())
            for each in (grouped.arrays, arrays)
        ]
        assert both[0] == pytest.approx(both[1], rel=1e-3)
