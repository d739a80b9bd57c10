"""The step of a published run as automap predicts it, laid out as the run was.

A run is M microbatches on replicas x tensor x stages devices. Nothing is searched: one microbatch
is priced at a preset's point on the mesh of a stage (ZeRO-3 or ZeRO-1, Megatron's, or
data-parallel), by the evaluator, in `Parts`.

depth      layers are equal, so parts are linear in their number: the decoder is traced with
           one layer and with two, and                                       -> in: `price_run`
               part(L) = part(1) + (L - 1) (part(2) - part(1))
           where layers are scanned, with all of them
sharded    step = M (F + B + waiting) + update: every microbatch gathers parameters and scatters
           gradients, beside kernels
other      a stage has L / S layers, the last one the logits too; it sums its gradients and updates
           after its last microbatch; the step is `automap.pipeline.value`
                                                                             -> in: `Run`
host       an eager framework launches each kernel from Python, so a pass takes
               max(kernels + waiting, n launch + begin)                      -> in: `Parts.seconds`
           with n kernels and collectives
"""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cache
import math
from typing import Final

import numpy as np

from automap.backends import backend_for
from automap.cost.evaluate import Evaluator, Priced
from automap.cost.tables import Tables, build_tables
from automap.pipeline.arrays import Arrays
from automap.pipeline.schedules import SCHEDULES, pass_order
from automap.pipeline.value import value
from automap.program import Workload, trace_step
from automap.space.point import SplitClasses
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.step.rules import user_rules
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Platform, Topology
from automap.topology.parts import sub_topology
from hlo_tools.analyses.phases import Phase
from models.decoder import DecoderConfig, train_step
from models.decoder_attention import attention_rules
from scripts.published_rows import Parallelism, Row
from scripts.published_runs import DEVICES, decoder_as_run


_PER_HOST: Final = 8
_DEPTHS: Final = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """What is set from the half that does not judge, of one family's kernels on one device.

    `products`, `memory` and `collectives` are shares of the speed that the catalogue and its
    efficiencies say, `attention` a fraction of the peak; `host_seconds` is what the host takes to
    launch a kernel, `pass_seconds` to begin and end a pass, both 0 for compiled programs.
    """

    products: float = 1.0
    memory: float = 1.0
    collectives: float = 1.0
    attention: float = 1.0
    host_seconds: float = 0.0
    pass_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one microbatch on a device, by what runs, and how many kernels are launched.

    `forward_waiting` and `backward_waiting` are of collectives in every microbatch, `sums` of those
    of gradients once in a step, `update` of the whole update.
    """

    forward_products: float
    forward_attention: float
    forward_other: float
    forward_waiting: float
    forward_launches: float
    backward_products: float
    backward_attention: float
    backward_other: float
    backward_waiting: float
    backward_launches: float
    sums: float
    update: float

    def plus(self, other: "Parts", times: float) -> "Parts":
        """These and `times` the others."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Parts(**dict(zip(self.__slots__, (a + times * b for a, b in pairs), strict=True)))

    def reached(self, given: Efficiencies) -> "Parts":
        """At the efficiencies of a family's kernels on a device."""
        fields = {"update": self.update / given.memory, "sums": self.sums / given.collectives}
        for side in ("forward", "backward"):
            for name, efficiency in (
                ("products", given.products),
                ("attention", given.attention),
                ("other", given.memory),
                ("waiting", given.collectives),
            ):
                fields[f"{side}_{name}"] = getattr(self, f"{side}_{name}") / efficiency
        return replace(self, **fields)

    def device_seconds(self, side: str) -> float:
        """Of a pass, "forward" or "backward": its kernels and what it waits for."""
        names = ("products", "attention", "other", "waiting")
        return float(sum(getattr(self, f"{side}_{name}") for name in names))

    def seconds(self, side: str, given: Efficiencies) -> float:
        """Of a pass: what the device does, or the host that launches it."""
        launches = getattr(self, f"{side}_launches")
        return max(self.device_seconds(side), launches * given.host_seconds + given.pass_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted step beside the published one; `parts` are of one microbatch and all layers.

    `by_host` is whether the host's launches decide a pass of them.
    """

    row: Row
    step_seconds: float
    parts: Parts
    by_host: bool

    @property
    def ratio(self) -> float:
        """Predicted over published seconds."""
        return self.step_seconds / self.row.step_seconds


@dataclass(frozen=True, eq=False)
class Traced:
    """A decoder traced for a platform: its problem, as a space and as tables."""

    workload: Workload
    space: Space
    tables: Tables


@dataclass(frozen=True)
class Run:
    """A run as it was priced by the catalogue: all its layers, and what is beside them.

    `transfers` are seconds of a microbatch over the boundary after each stage but the last.
    """

    row: Row
    layout: Parallelism
    layers: Parts
    ends: Parts
    transfers: tuple[float, ...]

    def predict(self, given: Efficiencies) -> Prediction:
        """The step at the efficiencies of a family on a device."""
        layers, ends = self.layers.reached(given), self.ends.reached(given)
        whole, sides = layers.plus(ends, 1.0), ("forward", "backward")
        if self.row.family.is_sharded:
            each = sum(whole.seconds(side, given) for side in sides)
            step = self.layout.microbatches * each + whole.update + whole.sums
        else:
            step = self._staged(layers, ends, given)
        return Prediction(
            row=self.row,
            step_seconds=step,
            parts=whole,
            by_host=any(whole.seconds(s, given) > whole.device_seconds(s) for s in sides),
        )

    def _staged(self, layers: Parts, ends: Parts, given: Efficiencies) -> float:
        inner = layers.plus(layers, 1 / self.layout.stages - 1.0)
        stages = [inner] * (self.layout.stages - 1) + [inner.plus(ends, 1.0)]
        return pipeline_value(
            [stage.seconds("forward", given) for stage in stages],
            [stage.seconds("backward", given) for stage in stages],
            self.transfers,
            [stage.sums + stage.update for stage in stages],
            self.layout.microbatches,
        )


def price_run(row: Row, store: "PartsStore") -> Run:
    """A run by the catalogue. Raises `ValueError` where the preset has no point on its mesh."""
    config = decoder_as_run(row.model, row.family, row.remat)
    layout, topology = row.layout(), run_topology(row)
    sent = row.length * layout.microbatch * config.d_model * 2  # bfloat16
    transfers = tuple(
        _transfer_seconds(topology, layout, s, sent) for s in range(layout.stages - 1)
    )
    if config.layers == "scanned":
        layers = store.parts(row, config)
        return Run(row, layout, layers, layers.plus(layers, -1.0), transfers)
    one, two = (store.parts(row, replace(config, depth=depth)) for depth in _DEPTHS)
    layer = two.plus(one, -1.0)
    return Run(row, layout, layer.plus(layer, config.depth - 1.0), one.plus(layer, -1.0), transfers)


def pipeline_value(
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: Sequence[float],
    reduce: Sequence[float],
    microbatches: int,
) -> float:
    """V of stages of given seconds under 1F1B: one entry a stage, of `transfer` one a boundary."""
    stages = len(forward)
    bounds = np.arange(stages + 1)
    # Stage s is point s on unit s: what depends on both its ends is read on the diagonal alone.
    sums = np.zeros((stages + 1, stages + 1))
    sums[bounds[:-1], bounds[1:]] = reduce
    sent = np.zeros((stages + 1,) * 3)
    for s, seconds in enumerate(transfer):
        sent[s, s + 1, s + 2] = seconds
    passes = np.zeros((2, 2, stages + 1))
    passes[:, 1, 1:] = np.cumsum(np.array([forward, backward]), axis=1)
    nothing = np.zeros((stages + 1, stages + 1))
    arrays = Arrays(
        forward=passes[0],
        backward=passes[1],
        weights=np.zeros_like(passes[1]),
        cut_bytes=np.ones(stages + 1),
        may_cut=np.ones(stages + 1, bool),
        may_cut_devices=np.ones(stages + 1, bool),
        usable=np.array([False, True]),
        gradient_bytes=sums,
        state_bytes=nothing,
        saved_bytes=nothing,
        kept_bytes=nothing,
        working_bytes=nothing,
        reduce_seconds_per_byte=np.ones((stages + 1, stages + 1)),
        transfer_seconds_per_byte=sent,
        latency_seconds=np.zeros(stages + 1),
        memory_limit_bytes=np.inf,
        unit_devices=1,
        microbatches=microbatches,
        order=pass_order(SCHEDULES["1f1b"]),
        transfers_differ=0,
    )
    return value(arrays, bounds, bounds)


def run_topology(row: Row) -> Topology:
    """The machine of a run, by the catalogue, with the network that its source states."""
    name, chips = DEVICES[row.chip], row.chips
    if row.chip.startswith("TPU"):
        side = 2 ** (int(math.log2(chips)) // 2)
        return get_topology(f"{name}:{side}x{chips // side}")
    if chips <= _PER_HOST:
        return get_topology(f"{chips}x{name}")
    topology = get_topology(f"{chips // _PER_HOST}x{_PER_HOST}x{name}")
    if not row.family.host_bytes_per_s:
        return topology
    inside, outside = topology.levels
    card = replace(outside, bytes_per_s=row.family.host_bytes_per_s / _PER_HOST)
    return replace(topology, levels=(inside, card))


@cache
def traced(config: DecoderConfig, batch: int, length: int, platform: Platform) -> Traced:
    """The decoder's train step on a batch of sequences; attention's work is in its rules."""
    step, args = train_step(config, batch=batch, seq=length)
    rules = attention_rules(1.0, 1.0) if config.attention == "kernel" else {}
    workload = trace_step(step, args, platform=platform, rules=user_rules(rules.items()))
    space = Space(workload.problem, backend_for(platform).stored_multiple)
    return Traced(workload, space, build_tables(workload.problem, platform))


@dataclass(frozen=True)
class PartsStore:
    """Parts that were priced already, by all that they depend on but automap itself."""

    known: dict[str, dict[str, float]] = field(default_factory=dict)

    def parts(self, row: Row, config: DecoderConfig) -> Parts:
        """Of one microbatch of a run, with so many layers, by the catalogue."""
        layout, topology = row.layout(), run_topology(row)
        stage = sub_topology(topology, layout.replicas * layout.tensor)
        if stage is None:
            raise ValueError(f"{row.key}: its stage is no part of {topology.name}")
        mesh, preset = _mesh_and_preset(row, layout)
        batch = layout.replicas * layout.microbatch
        key = repr((config, batch, row.length, mesh, preset, DEVICES[row.chip], stage.levels))
        if key not in self.known:
            made = traced(config, batch, row.length, topology.platform)
            # On one device nothing is split.
            whole = (made.space.point(mesh, [()]),) if mesh.sizes == (1,) else ()
            points = whole or PRESETS[preset].points(made.space, mesh)
            if not points:
                raise ValueError(f"{row.key}: {preset} has no point on {mesh}")
            split_classes = made.space.split_classes(points[0])
            evaluator = Evaluator(made.tables, made.workload.problem.n_classes, stage)
            is_sharded = row.family.is_sharded
            self.known[key] = asdict(_parts(evaluator, split_classes, is_sharded=is_sharded))
        return Parts(**self.known[key])


def _parts(evaluator: Evaluator, split_classes: SplitClasses, *, is_sharded: bool) -> Parts:
    priced = evaluator.price_point(split_classes)
    kernels, mesh = evaluator.tables.kernels, split_classes.mesh
    is_attention = kernels.efficiency > 0
    is_product = np.array([shape.kind == "dot" for shape in kernels.shape]) & ~is_attention
    seconds, fields = priced.kernel_seconds * kernels.count, dict[str, float]()
    for side, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
        here = kernels.phase == phase
        is_other = ~is_product & ~is_attention
        fields[f"{side}_launches"] = float(kernels.count[here].sum())
        for name, chosen in (
            ("products", is_product),
            ("attention", is_attention),
            ("other", is_other),
        ):
            fields[f"{side}_{name}"] = float(seconds[here & chosen].sum())
    collectives = _collective_parts(priced, mesh)
    if is_sharded:
        waiting = evaluator.estimate(priced).collective_seconds
        collectives |= {"forward_waiting": 0.0, "backward_waiting": waiting, "sums": 0.0}
    for side in ("forward", "backward"):
        fields[f"{side}_launches"] += collectives.pop(f"{side}_launches")
    return Parts(
        **fields,
        **collectives,
        update=float(seconds[kernels.phase == Phase.UPDATE].sum()),
    )


def _collective_parts(priced: Priced, mesh: Mesh) -> dict[str, float]:
    """Seconds of all collectives, as if a device waited for each, and how many a pass launches.

    Gradients' sums over replicas are once in a step.
    """
    entries = priced.collectives
    seconds = priced.collective_seconds * entries.count
    over_replicas = 1 << mesh.names.index("data") if "data" in mesh.names else 0
    is_once = ~entries.on_operand & entries.combinable & (entries.mask == over_replicas)
    is_update = entries.phase == Phase.UPDATE
    fields = {"sums": float(seconds[is_once | is_update].sum())}
    for side, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
        here = (entries.phase == phase) & ~is_once
        fields[f"{side}_waiting"] = float(seconds[here].sum())
        fields[f"{side}_launches"] = float(entries.count[here].sum())
    return fields


def _mesh_and_preset(row: Row, layout: Parallelism) -> tuple[Mesh, str]:
    if row.family.is_sharded:
        preset = "zero-1" if "SHARD_GRAD_OP" in row.parallelism else "zero-3"
        return Mesh(("data",), (layout.replicas,)), preset
    if layout.tensor == 1:
        return Mesh(("data",), (layout.replicas,)), "data-parallel"
    if layout.replicas == 1:
        return Mesh(("model",), (layout.tensor,)), "megatron"
    return Mesh(("data", "model"), (layout.replicas, layout.tensor)), "megatron"


def _transfer_seconds(topology: Topology, layout: Parallelism, stage: int, sent: int) -> float:
    """Seconds in which every device of a stage sends its part to the same one of the next."""
    # The innermost level whose groups do not end where the next stage begins.
    border, group = (stage + 1) * layout.replicas * layout.tensor, 1
    for level in topology.levels:
        group *= level.size
        if border % group:
            return level.latency_seconds + sent / level.bytes_per_s
    raise ValueError(f"stage {stage} has no next one on {topology.name}")
