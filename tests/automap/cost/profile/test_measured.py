"""Evaluations with a profile: measured kernels in closed form, the others by the roofline."""

from dataclasses import replace

import numpy as np
import pytest

from automap.api.call_plans import cache_key
from automap.config import Options, read_options
from automap.cost.evaluate import Evaluator
from automap.cost.profile import KernelProfile
from automap.cost.profile.measured import factor_parts
from automap.cost.profile.signatures import DotSignature, StreamSignature, matmul_sizes
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from tests.steps import decoder, images, mlp, problem_of


EMPTY = KernelProfile(device="cpu-8", device_kind="cpu", jax_version="0")
MESH = Mesh(("data", "model"), (2, 4))
RATE, BANDWIDTH = 1e9, 1e8


def setting(make, profile):
    problem = problem_of(*make())
    tables, topology = build_tables(problem, "cpu"), get_topology("cpu:8")
    evaluator = Evaluator(tables, problem.n_classes, topology, profile)
    (point,) = PRESETS["megatron" if make is not images else "zero-3"].points(Space(problem), MESH)
    return evaluator, Space(problem).split_classes(point)


def local_signatures(evaluator, split_classes):
    table = evaluator.tables.kernels
    sharding = shardings(evaluator.tables, evaluator.n_classes, split_classes)
    moved = table.moved_bytes(sharding.parts_of_value)
    for row, shape, n_bytes in zip(table.op_row, table.shape, moved, strict=True):
        split = sharding.factor_of_axis[row].tolist()
        yield shape.local(
            factor_parts(shape, split, MESH.sizes) if shape.kind else (), int(n_bytes)
        )


def seconds_at(signature):
    if isinstance(signature, StreamSignature):
        return max(signature.n_bytes, 1) / BANDWIDTH
    return 2.0 * np.prod(matmul_sizes(signature), dtype=float) / RATE


@pytest.mark.parametrize("make", [mlp, decoder, images])
def test_a_plan_whose_kernels_were_all_measured_costs_their_sum(make):
    evaluator, split_classes = setting(make, None)
    signatures = list(local_signatures(evaluator, split_classes))
    profile = EMPTY.with_times((s, seconds_at(s)) for s in signatures)
    measured = replace(evaluator, kernel_profile=profile).evaluate(split_classes)
    counts = evaluator.tables.kernels.count
    expected = sum(seconds_at(s) * n for s, n in zip(signatures, counts, strict=True))
    assert measured.compute_seconds == pytest.approx(expected, rel=1e-6)
    plain = evaluator.evaluate(split_classes)
    assert measured.collective_seconds == plain.collective_seconds
    assert measured.peak_bytes == plain.peak_bytes


def test_a_measured_time_beats_that_of_its_neighbours():
    evaluator, split_classes = setting(mlp, None)
    products = [
        s for s in local_signatures(evaluator, split_classes) if isinstance(s, DotSignature)
    ]
    odd = products[0]
    profile = EMPTY.with_times([(s, 1e-3) for s in products] + [(odd, 5.0)])
    table = evaluator.tables.kernels
    count = sum(
        n for s, n in zip(local_signatures(evaluator, split_classes), table.count) if s == odd
    )
    seconds = replace(evaluator, kernel_profile=profile).evaluate(split_classes).compute_seconds
    assert 5.0 * count < seconds < 5.0 * count + 0.1


@pytest.mark.parametrize("make", [mlp, images])
def test_an_empty_profile_leaves_the_roofline(make):
    evaluator, split_classes = setting(make, EMPTY)
    assert evaluator.evaluate(split_classes) == replace(evaluator, kernel_profile=None).evaluate(
        split_classes
    )


def test_types_that_were_not_measured_keep_the_roofline():
    other = DotSignature(dtype="bf16", batch=1, m=8, n=8, k=8)
    evaluator, split_classes = setting(mlp, EMPTY.with_times([(other, 1.0)]))
    assert evaluator.evaluate(split_classes) == replace(evaluator, kernel_profile=None).evaluate(
        split_classes
    )


def test_convolutions_fall_back_to_other_convolutions_of_their_type():
    evaluator, split_classes = setting(images, None)
    found = [
        s for s in local_signatures(evaluator, split_classes) if not isinstance(s, StreamSignature)
    ]
    profile = EMPTY.with_times([(found[0], seconds_at(found[0]))])
    table = evaluator.tables.kernels
    kernels = [i for i, shape in enumerate(table.shape) if shape.kind]
    seconds = replace(evaluator, kernel_profile=profile).price_point(split_classes).kernel_seconds
    expected = [seconds_at(s) for s in found]
    np.testing.assert_allclose(seconds[kernels], expected, rtol=1e-6)


def test_a_second_evaluation_is_the_first():
    evaluator, split_classes = setting(decoder, None)
    times = ((s, seconds_at(s) + 1e-4) for s in local_signatures(evaluator, split_classes))
    measured = replace(evaluator, kernel_profile=EMPTY.with_times(times))
    assert measured.evaluate(split_classes) == measured.evaluate(split_classes)


def test_the_profile_is_part_of_what_a_kept_plan_depends_on(tmp_path):
    path, topology = tmp_path / "profile.json", get_topology("cpu:8")
    dot = DotSignature(dtype="f32", batch=1, m=8, n=8, k=8)
    keys = {cache_key("0", topology, Options())}
    for seconds in (1.0, 2.0, 1.0):
        EMPTY.with_times([(dot, seconds)]).save(path)
        keys.add(cache_key("0", topology, read_options(profile=path)))
    assert len(keys) == 3
