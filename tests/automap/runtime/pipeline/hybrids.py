"""Hybrid plans with stages as a test wants them, built from the planner's own records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from automap.api.plan import Plan
from automap.config import read_options
from automap.deadline import Deadline
from automap.pipeline.arrays import Terms, pipeline_arrays
from automap.pipeline.hybrid.inner_plans import StageKinds
from automap.pipeline.hybrid.pricing import InnerPlan, Pricer
from automap.pipeline.hybrid.search import HybridChoice
from automap.pipeline.interleaved import Grouped
from automap.pipeline.schedules import ONE_FORWARD_ONE_BACKWARD, Interleaved, Schedule
from automap.pipeline.solvers.exact import Partition
from automap.plan.record import SearchRecord
from automap.planner.hybrid import HybridRecords
from automap.planner.pipeline import pipeline_plan, set_up
from automap.program.trace import lower_call
from automap.space.point import Point, StorageLevel
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh


@dataclass(frozen=True)
class Inside:
    """A stage of as many devices as `mesh` says, under a preset or a point, with all leaves at
    least at `level`.
    """

    preset: str | Callable[[Pricer, Mesh], Point]
    mesh: dict[str, int]
    level: StorageLevel = StorageLevel.REPLICATED


def hybrid_plan(
    step: Any,
    args: Any,
    stages: Sequence[Inside | int],
    *,
    microbatches: int = 2,
    schedule: Schedule = ONE_FORWARD_ONE_BACKWARD,
    shares: Sequence[float] | None = None,
    machine: str = "cpu:8",
) -> Plan:
    """A plan on 8 devices; an int is that many replicas. `shares` are of the points of each
    stage.
    """
    topology = get_topology(machine)
    call = traced_call(step, args)
    workload = lower_call(
        call, platform=topology.platform, target="a test", rules={}, layers="folded"
    )
    setup = set_up(workload, topology, read_options(space="hybrid"), Deadline.never())
    points, pricer = (
        setup.points,
        Pricer(setup.points.profile, Space(workload.problem), topology, None),
    )
    inners = tuple(_inner(pricer, s) for s in stages if isinstance(s, Inside))
    is_interleaved = isinstance(schedule, Interleaved)
    kind_options = (
        StageKinds(pricer, points, setup.fabric, inners)
        .options(microbatches, 1e12)
        .scheduled(ONE_FORWARD_ONE_BACKWARD if is_interleaved else schedule)
    )
    left = [n for n, inner in enumerate(kind_options.inners) if inner is not None]
    if is_interleaved:
        left = left[:1] * len(stages)
    units = kind_options.options.units.tolist()
    kinds = [units.index(s) if isinstance(s, int) else left.pop(0) for s in stages]
    partition = Partition(
        cuts=_cuts(points, shares or [1 / len(stages)] * len(stages)),
        # Interleaved ones are all of one kind.
        device_cuts=np.arange(0, 9, units[kinds[0]])
        if is_interleaved
        else np.cumsum([0, *(units[kind] for kind in kinds)]),
        seconds=0.0,
        kinds=tuple(kinds),
    )
    terms = Terms(microbatches=microbatches, schedule=schedule, memory_limit_bytes=1e12)
    grouped = None
    if is_interleaved:
        plain = replace(terms, schedule=ONE_FORWARD_ONE_BACKWARD)
        arrays = pipeline_arrays(points, setup.fabric, plain)
        grouped = Grouped.from_kind(kind_options.options, kinds[0], arrays, setup.fabric)
    choice = HybridChoice(terms, kind_options, partition, 1.0, grouped)
    records = HybridRecords(workload, pricer, points, choice)
    search = SearchRecord(strategy="auto", seconds=0.0, evaluations=1, seed=0, gap=None)
    made = pipeline_plan(setup, records.pipeline(), records.predicted(), search, ())
    return Plan.from_record(made)


def _inner(pricer: Pricer, wanted: Inside) -> InnerPlan:
    mesh = Mesh(tuple(wanted.mesh), tuple(wanted.mesh.values()))
    if isinstance(wanted.preset, str):
        (point, *_) = PRESETS[wanted.preset].points(pricer.space, mesh)
    else:
        point = wanted.preset(pricer, mesh)
    storage = tuple(tuple(max(own, wanted.level) for own in axis) for axis in point.storage)
    point = replace(point, storage=storage)
    return InnerPlan(int(np.prod(mesh.sizes)), point, pricer.space.split_classes(point), "a test")


def _cuts(points: Any, shares: Sequence[float]) -> np.ndarray:
    """Boundaries of points nearest to the shares of the forward seconds where a cut is allowed."""
    seconds, _ = points.seconds(1)
    allowed = np.flatnonzero(points.may_cut[1:-1]) + 1
    ends = [
        int(allowed[abs(seconds[allowed] / seconds[-1] - share).argmin()])
        for share in np.cumsum(shares)[:-1]
    ]
    return np.array([0, *ends, points.n_points])


def bytes_on_devices(tree: Any) -> dict[int, int]:
    """Bytes of a tree's arrays that each device holds."""
    found: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            found[shard.device.id] = found.get(shard.device.id, 0) + shard.data.nbytes
    return found


def blocks(depth: int = 4, width: int = 16, hidden: int = 32, batch: int = 16) -> Any:
    """(step, arguments) of residual blocks of two products, with momentum and clipping by the norm
    of all gradients.
    """
    keys = iter(jax.random.split(jax.random.key(0), 3 * depth + 2))
    layers = [
        {
            "up": jax.random.normal(next(keys), (width, hidden)) * 0.3,
            "bias": jax.random.normal(next(keys), (hidden,)),
            "down": jax.random.normal(next(keys), (hidden, width)) * 0.2,
        }
        for _ in range(depth)
    ]

    def loss(layers: Any, batch: Any) -> jax.Array:
        x = batch["x"]
        for layer in layers:
            x = x + jnp.tanh(x @ layer["up"] + layer["bias"]) @ layer["down"]
        return ((x - batch["y"]) ** 2).mean()

    def step(state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state["params"], batch)
        norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradient)))
        momentum = jax.tree.map(
            lambda m, g: 0.9 * m + g / jnp.maximum(norm, 0.1), state["momentum"], gradient
        )
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}, {"loss": value, "norm": norm}

    state = {"params": layers, "momentum": jax.tree.map(jnp.zeros_like, layers)}
    data = {name: jax.random.normal(next(keys), (batch, width)) for name in ("x", "y")}
    return step, (state, data)
