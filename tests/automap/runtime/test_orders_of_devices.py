"""A plan's order of devices when it runs: of chips by coordinates, of others as they stand."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.api.plan import Plan
from automap.config import Options
from automap.errors import MeshMismatchError, PlanError
from automap.planner.spaces import plan_workload
from automap.program import trace_step
from automap.runtime.meshes import mesh_on, on_own_slices
from automap.topology import get_topology
from automap.topology.device_order import device_order
from automap.topology.mesh import Mesh
from tests.steps import mlp


RING = (0, 4, 5, 6, 7, 3, 2, 1)


def planned(name, axes, preset="zero-3"):
    step, args = mlp()
    topology = get_topology(name)
    workload = trace_step(step, args, platform=topology.platform)
    names, sizes = zip(*axes.items(), strict=True)
    options = Options(mesh=Mesh(names, sizes), preset=preset)
    return step, args, Plan.from_record(plan_workload(workload, topology, options))


def concrete(args):
    keys = iter(jax.random.split(jax.random.key(0), 99))
    return jax.tree.map(lambda leaf: 0.1 * jax.random.normal(next(keys), leaf.shape), args)


@pytest.mark.parametrize(
    ("name", "axes", "devices"),
    [
        ("v5e:2x4", {"data": 8}, RING),
        ("v5e:2x4", {"data": 2, "model": 4}, None),
        ("v5p:2x2x2", {"data": 4, "model": 2}, (0, 1, 4, 5, 6, 7, 2, 3)),
        ("8xh100", {"data": 8}, None),
        ("cpu:8", {"data": 8}, None),
    ],
)
def test_a_plan_says_the_order_where_it_is_not_that_of_the_numbers(name, axes, devices, tmp_path):
    _, _, plan = planned(name, axes)
    assert plan.mesh.devices == devices
    assert plan.mesh.order == device_order(get_topology(name), tuple(axes.values()))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 4, "model": 2}])
def test_a_step_on_devices_in_order_computes_the_same(axes):
    step, args, plan = planned("v5p:2x2x2", axes)
    state, batch = concrete(args)
    run = plan.jit(step)
    devices = jax.devices()
    assert list(run.mesh.devices.flat) == [devices[number] for number in plan.mesh.order]
    by_number = Plan.from_record(replace(plan, mesh=replace(plan.mesh, devices=None)))
    mine, others = run(state, batch), by_number.jit(step)(state, batch)
    for a, b, c in zip(*map(jax.tree.leaves, (mine, others, step(state, batch))), strict=True):
        np.testing.assert_array_equal(a, b)
        # Sums over eight devices associate differently.
        np.testing.assert_allclose(a, c, rtol=2e-4, atol=2e-5)
    w, planned_w = jax.tree.leaves(mine)[0], jax.tree.leaves(others)[0]
    assert w.sharding.device_set == planned_w.sharding.device_set


@dataclass(frozen=True)
class Chip:
    """A chip of a slice as JAX shows it."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0


def test_chips_are_found_by_their_coordinates(monkeypatch):
    monkeypatch.setattr("automap.runtime.meshes.Mesh", lambda grid, *_, **__: grid)
    # Numbered by trays of 2x2, as the hosts of a slice number theirs.
    coords = [(x, y, 0) for tray in (0, 2) for y in (tray, tray + 1) for x in (0, 1)]
    chips = [Chip(number, place) for number, place in enumerate(coords)]
    laid = mesh_on(chips, (("data", 8),), RING)
    there = [chip.coords[:2] for chip in laid]
    assert there == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (0, 3), (0, 2), (0, 1)]
    for one, other in zip(there, there[1:] + there[:1], strict=True):
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) == 1
    by_number = mesh_on(chips, (("data", 8),))
    assert [chip.coords[:2] for chip in by_number] == sorted(there)
    # Devices without coordinates stand as they are given.
    assert mesh_on(list("abcdefgh"), (("data", 8),), RING).tolist() == list("aefghdcb")


def test_another_number_of_devices_is_refused():
    """Of two devices a chip half would be left out, and the order would be that of other chips."""
    message = "a mesh of 8 devices .* cannot be laid on 16; give as many"
    with pytest.raises(MeshMismatchError, match=message):
        mesh_on(range(16), (("data", 8),), RING)


def test_dies_are_numbered_inside_their_chip(monkeypatch):
    monkeypatch.setattr("automap.runtime.meshes.Mesh", lambda grid, *_, **__: grid)
    dies = [Chip(2 * n + die, (n, 0, 0), die) for n in range(2) for die in (0, 1)]
    laid = mesh_on(dies[::-1], (("data", 4),), (0, 1, 3, 2))
    assert [die.id for die in laid] == [0, 1, 3, 2]


def test_an_order_of_a_pipeline_is_refused():
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def step(params, x):
        return jax.tree.map(jnp.subtract, params, jax.grad(loss)(params, x))

    params = [jax.ShapeDtypeStruct((64, 64), "float32")] * 4
    workload = trace_step(step, (params, jax.ShapeDtypeStruct((32, 64), "float32")))
    options = Options(space="pipeline", stages=2, microbatches=2)
    plan = plan_workload(workload, get_topology("cpu:8"), options)
    assert plan.mesh.devices is None
    with pytest.raises(PlanError, match=r"mesh\.devices: got .*; allowed: null for a pipeline"):
        replace(plan, mesh=replace(plan.mesh, devices=RING))


@dataclass(frozen=True)
class SliceChip:
    """A chip of a slice; hosts have 2 x 2 chips unless it is said."""

    slice: str
    coords: list[int]
    process_index: int
    core_on_chip: int = 0


def described(name, *, host=(2, 2, 1)):
    sides = [int(side) for side in name.partition(":")[2].split("x")]
    sides += [1] * (3 - len(sides))
    hosts = [-(-side // n) for side, n in zip(sides, host, strict=True)]
    return [
        SliceChip(name, [*place], int(np.ravel_multi_index(np.floor_divide(place, host), hosts)))
        for place in np.ndindex(*sides)
    ]


def own_slices(monkeypatch, name, groups):
    asked = []

    def slice_devices(name, device_count, *, chips_per_host_bounds):
        asked.append((name, tuple(chips_per_host_bounds)))
        chips = described(name, host=chips_per_host_bounds)
        assert len(chips) == device_count
        return chips

    monkeypatch.setattr("automap.runtime.meshes.slice_devices", slice_devices)
    devices = described(name)
    return devices, on_own_slices(name, devices, groups), asked


@pytest.mark.parametrize(
    ("name", "groups", "slices"),
    [
        # Lines over two hosts of 2 x 2 chips.
        ("v5e:2x4", [range(4), range(4, 8)], [("v5e:1x4", (1, 2, 1))] * 2),
        ("v5e:2x4", [(0, 1, 4, 5), (2, 3, 6, 7)], [("v5e:2x2", (2, 2, 1))] * 2),
        ("v5e:2x4", [(1, 2)], [("v5e:1x2", (1, 1, 1))]),
        ("v5p:2x2x2", [range(4)], [("v5p:1x2x2", (1, 2, 1))]),
    ],
)
def test_a_part_of_a_slice_is_compiled_as_a_slice_of_its_own(monkeypatch, name, groups, slices):
    devices, replaced, asked = own_slices(monkeypatch, name, [tuple(g) for g in groups])
    assert asked == slices
    for group, (own, _) in zip(groups, slices, strict=True):
        first = np.min([devices[n].coords for n in group], axis=0)
        for number in group:
            chip = replaced[number]
            assert chip.slice == own
            assert np.add(chip.coords, first).tolist() == devices[number].coords
            # The same chips share a host.
            for other in group:
                is_near = devices[other].process_index == devices[number].process_index
                assert (replaced[other].process_index == chip.process_index) == is_near


@pytest.mark.parametrize("group", [(0, 1, 5), (1, 2, 3)], ids=["no box", "unequal hosts"])
def test_other_parts_stay_where_they_are(monkeypatch, group):
    devices, replaced, asked = own_slices(monkeypatch, "v5e:2x4", [group])
    assert replaced == devices
    assert not asked


def test_half_a_chip_stays_where_it_is(monkeypatch):
    """A chip of a TPU7x is two devices, and no slice has half of one."""
    monkeypatch.setattr("automap.runtime.meshes.slice_devices", lambda *_, **__: pytest.fail())
    chips = described("tpu7x:2x2x1")
    devices = [replace(chip, core_on_chip=core) for chip in chips for core in range(2)]
    assert on_own_slices("tpu7x:2x2x1", devices, [(0,), (1,), (2, 4)]) == devices
