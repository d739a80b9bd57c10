"""What would make a step fit that does not: levers that apply to it, with what each would come to.

Read off the smallest plan that was found (point x on a mesh of N devices):

    peak(s)        bytes of a device under x with s times as many examples: s times those of what
                   holds them, s^2 of what holds them by each other   -> in: `_Step.peak_bytes`
    batch          the largest b with peak(b / B) within the limit under x, or under a preset with
                   all state split; a multiple of the parts that the plan splits the batch in
    checkpoint     if the backward pass reads what no jax.checkpoint makes again, and that is much
                   of the peak
    bfloat16       if most operations of the matrix products are in float32
    devices        2, 4, ... times N: the peak of presets with all state split on meshes of so many
    padding        of state that no axis divides, so that it is whole on every device
    options        presets that fit, levers that --levers rules out, and what was asked for that
                   leaves the search less to choose from

A lever that does not apply is not named.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
import math
from typing import Final

import numpy as np

from automap.config import Options
from automap.cost.memory import ACTIVATION_KIND, Memory, MemoryTimeline
from automap.cost.shardings import Shardings, shardings
from automap.cost.tables import holds_classes
from automap.cost.traffic import Collectives
from automap.planner.other_batch import is_growth_known
from automap.program.problem import Problem
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.search.context import SearchContext
from automap.space.batches import batch_size, growing_classes
from automap.space.point import Point, SplitClasses, StorageLevel
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology.mesh import Mesh
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role


# Shares of the peak: a part is worth naming, and a lever on it worth pulling.
_NAMED_SHARE, _MUCH_SHARE = 0.05, 0.2
_MOST_TIMES_DEVICES: Final = 64
_MOST_FEATURE_PARTS: Final = 32
_SPLITTING: Final = ("zero-3", "megatron", "sequence-parallel")
# JAX names what `jax.checkpoint` computes again so.
_CHECKPOINTED: Final = ("rematted_computation", "checkpoint")
_STATE: Final = {Role.PARAMETER, Role.OPTIMIZER}


def advice(
    context: SearchContext, workload: Workload, point: Point, options: Options
) -> tuple[str, ...]:
    """Where the bytes of a plan that does not fit are, and what would make the step fit."""
    step = _Step(context, workload, context.space.split_classes(point))
    levers = (
        _presets,
        _all_split,
        _left_out,
        _checkpoint,
        _bfloat16,
        _batch,
        _padding,
        _devices,
        _state,
        _free_choice,
    )
    texts = [text for lever in levers for text in lever(step, options)]
    return (_parts_text(step.memory), *texts)


def listed(text: str, more: Iterable[str]) -> str:
    """A sentence, and what else there is to say of it, a line each."""
    return "\n  ".join((text, *more))


@dataclass(frozen=True)
class _Step:
    """A step under the smallest plan."""

    context: SearchContext
    workload: Workload
    split_classes: SplitClasses

    @property
    def problem(self) -> Problem:
        return self.context.space.problem

    @property
    def limit_bytes(self) -> float:
        return self.context.objective.memory_limit_bytes

    @property
    def devices(self) -> int:
        return self.context.evaluator.topology.device_count

    @cached_property
    def memory(self) -> Memory:
        return self.context.evaluator.memory(self.split_classes)

    @cached_property
    def all_split_bytes(self) -> float:
        """The least peak with all state split over the devices; infinite where that is no plan."""
        evaluator, split = self.context.evaluator, _split_state(self.context.space, self.devices)
        return min((evaluator.memory(each).peak_bytes for each in split), default=math.inf)

    @property
    def fits_all_split(self) -> bool:
        return self.all_split_bytes <= self.limit_bytes

    @cached_property
    def sharding(self) -> Shardings:
        evaluator = self.context.evaluator
        return shardings(evaluator.tables, evaluator.n_classes, self.split_classes)

    @cached_property
    def _collectives(self) -> Collectives:
        return self.context.evaluator.tables.collectives(self.sharding)

    @cached_property
    def batch_dimensions(self) -> np.ndarray:
        """How many dimensions of each value row grow with the batch, [rows]."""
        evaluator, growing = self.context.evaluator, growing_classes(self.problem)
        rows = evaluator.tables.value_rows
        return holds_classes(rows, evaluator.n_classes, growing).sum(axis=1)

    def peak_bytes(self, scale: float, timeline: MemoryTimeline | None = None) -> float:
        """The peak with `scale` times as many examples."""
        # A row that is s times as large takes s times the bytes; how it is padded is taken to stay.
        scale_by_row = scale**self.batch_dimensions
        evaluator = self.context.evaluator
        tables = evaluator.tables
        # As `Collectives.held_bytes` has them.
        edge_rows = np.tile(
            np.concatenate([tables.operands.value_row, tables.results.value_row]), 2
        )
        timeline = timeline or evaluator.memory_timeline
        collectives = self._collectives
        return timeline.peak_bytes(
            evaluator.stored_local(self.sharding) * scale_by_row[tables.shapes.row],
            collectives.held_bytes * scale_by_row[edge_rows],
            collectives.is_repeat,
        )

    @property
    def is_growth_known(self) -> bool:
        """Whether all is known that another batch makes larger in memory."""
        stored = self.context.evaluator.tables.buffers.value
        return is_growth_known(self.context, self.workload, set(stored[stored >= 0].tolist()))

    @cached_property
    def without_activations_bytes(self) -> float:
        """The peak if nothing that the forward pass makes took memory."""
        timeline = self.context.evaluator.memory_timeline
        buffers = timeline.buffers
        # The buffers stay in the schedule, with no bytes: what is alive beside them does not
        # change.
        left = np.where(buffers.kind == ACTIVATION_KIND, 0.0, buffers.n_bytes)
        return self.peak_bytes(1.0, replace(timeline, buffers=replace(buffers, n_bytes=left)))

    @property
    def state_bytes(self) -> float:
        """Of parameters and optimizer state, over all devices once."""
        values, inputs = self.problem.graph.values, self.problem.graph.inputs
        inputs_with_roles = zip(inputs, self.problem.roles, strict=True)
        return float(sum(values[v].n_bytes for v, role in inputs_with_roles if role in _STATE))


def _parts_text(memory: Memory) -> str:
    """`of these 80 GiB made by the forward pass, ...`: the parts that are worth naming, the largest
    first.
    """
    parts = {
        "parameters": memory.role_bytes("parameter"),
        "optimizer state": memory.role_bytes("optimizer state"),
        "other state": memory.role_bytes("other state"),
        "the batch": memory.role_bytes("batch"),
        "results of the forward pass": memory.activation_bytes,
        "gradients and other temporaries": memory.temporary_bytes,
    }
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    named = [
        f"{bytes_text(round(n_bytes))} {name}"
        for name, n_bytes in ranked
        if n_bytes > _NAMED_SHARE * memory.peak_bytes
    ]
    return f"of these {' + '.join(named)}"


def _presets(step: _Step, options: Options) -> Iterator[str]:
    """Presets that fit though what was asked for does not."""
    fitting = [
        f"{name} ({bytes_text(round(preset.estimate.peak_bytes))})"
        for name, preset in step.context.best_per_preset.items()
        if step.context.objective.fits(preset.estimate)
    ]
    if fitting:
        yield f"presets that fit: {', '.join(fitting)}"


def _all_split(step: _Step, options: Options) -> Iterator[str]:
    """A plan with all state split that fits, which the search did not come to."""
    # A preset that fits is named by itself.
    if step.fits_all_split and not any(_presets(step, options)):
        yield (
            "with all state split over the devices about "
            f"{bytes_text(round(step.all_split_bytes))} would be needed, which fits: what was "
            "asked for leaves such a plan out, or the search did not come to it; give a larger "
            "--budget"
        )


def _left_out(step: _Step, options: Options) -> Iterator[str]:
    """Levers that `--levers` leaves out, of those that take something off the peak."""
    allowed, memory = set(options.levers), step.memory
    # Levers are of one program for all devices.
    if "auto" in allowed or options.space != "sharding":
        return
    is_train_step = Phase.BACKWARD in step.problem.phases
    has_host = step.context.evaluator.topology.device.host_bytes_per_s > 0
    bytes_by_lever = {
        "remat": memory.activation_bytes * is_train_step,
        "accumulate": memory.activation_bytes * is_train_step,
        "offload": memory.role_bytes("optimizer state") * has_host,
    }
    missing = [
        name
        for name, n_bytes in bytes_by_lever.items()
        if name not in allowed and n_bytes > _MUCH_SHARE * memory.peak_bytes
    ]
    if missing:
        yield (
            f"--levers {','.join(options.levers) or 'none'} rules out {' and '.join(missing)}, "
            "which may make it fit: plan without --levers, or with "
            f"--levers {','.join((*options.levers, *missing))}"
        )


def _checkpoint(step: _Step, options: Options) -> Iterator[str]:
    memory, ops = step.memory, step.problem.graph.ops
    is_checkpointed = any(name in op.op_name for op in ops for name in _CHECKPOINTED)
    is_much = memory.activation_bytes > _MUCH_SHARE * memory.peak_bytes
    # Of inference, of a step that does it already, and where little waits for the backward pass it
    # would be no help.
    if Phase.BACKWARD not in step.problem.phases or is_checkpointed or not is_much:
        return
    rest = step.without_activations_bytes
    enough = "" if rest <= step.limit_bytes else ", which is too much still"
    yield (
        "rematerialize each layer with jax.checkpoint: "
        f"{bytes_text(round(memory.activation_bytes))} are results of the "
        "forward pass that wait for the backward pass; all else needs "
        f"{bytes_text(round(rest))}{enough}"
    )


def _bfloat16(step: _Step, options: Options) -> Iterator[str]:
    table = step.context.evaluator.tables.kernels
    operations = table.flops * table.count
    f32_operations = float(operations @ np.array([dtype == "f32" for dtype in table.dtype], float))
    products = float(operations.sum())
    if products and f32_operations > 0.5 * products:
        # About: whole numbers, and what is in 16 bits already, stay as they are.
        half = step.memory.peak_bytes / 2
        enough = "" if half <= step.limit_bytes else ", which is too much still"
        yield (
            f"use bfloat16: {f32_operations / products:.0%} of the operations of matrix products "
            "are in float32; with all floating point in 16 bits the plan needs about "
            f"{bytes_text(round(half))}{enough}"
        )


def _batch(step: _Step, options: Options) -> Iterator[str]:
    # A plan that fits with the whole batch is said above.
    if step.fits_all_split or not step.is_growth_known:
        return
    size, best = batch_size(step.problem), 0
    needed = np.inf
    # The state may take less on another mesh, which leaves more room for examples.
    for split_classes in (step.split_classes, *_split_state(step.context.space, step.devices)):
        other = replace(step, split_classes=split_classes)
        examples = _largest_batch(other, size)
        if examples > best:
            best, needed = examples, other.peak_bytes(examples / size)
    if best > 0:
        text = bytes_text(round(needed))
        yield f"a batch of {best:,} in place of {size:,} would need about {text}"


def _largest_batch(step: _Step, size: int) -> int:
    """The most examples below `size` that fit under a plan; 0 if none do."""
    batch = step.problem.batch_class
    # Of a batch that is gone through in parts, each of them is split.
    parts = 1 if batch is None else max(size // int(step.problem.limits[batch]), 1)
    for axis_size, classes in zip(
        step.split_classes.mesh.sizes, step.split_classes.classes, strict=True
    ):
        parts *= axis_size if batch in classes else 1
    # Bisection over multiples of the parts that the batch is split in: a peak grows with the batch.
    least, most = 0, (size - 1) // parts
    while least < most:
        middle = (least + most + 1) // 2
        fits = step.peak_bytes(middle * parts / size) <= step.limit_bytes
        least, most = (middle, most) if fits else (least, middle - 1)
    return least * parts


def _padding(step: _Step, options: Options) -> Iterator[str]:
    """The largest state that is whole on every device as nothing of it divides."""
    problem, tables = step.problem, step.context.evaluator.tables
    parts = step.sharding.parts_of_value[tables.row_of_value[list(problem.graph.inputs)]]
    # A dimension that the smallest axis does not divide is divided by none: sizes of axes are
    # mostly powers of two.
    least = min((size for size in step.split_classes.mesh.sizes if size > 1), default=1)
    whole = [
        (problem.graph.values[v], path)
        for v, path, role, n in zip(
            problem.graph.inputs, problem.paths, problem.roles, parts, strict=True
        )
        if role in _STATE and n == 1 and all(d % least for d in problem.graph.values[v].dims)
    ]
    n_bytes = sum(value.n_bytes for value, _ in whole)
    if least == 1 or n_bytes < _MUCH_SHARE * step.memory.peak_bytes:
        return
    value, path = max(whole, key=lambda pair: pair[0].n_bytes)
    longest = max(value.dims)
    # Rounded up to a multiple of all devices, which any mesh of them divides.
    padded = -(-longest // step.devices) * step.devices
    yield (
        f"pad {path} [{','.join(map(str, value.dims))}] from {longest:,} to {padded:,}, a multiple "
        f"of {step.devices} "
        f"devices: state that no mesh axis divides is whole on each, {bytes_text(n_bytes)}"
    )


def _devices(step: _Step, options: Options) -> Iterator[str]:
    """The fewest devices, of some more, on which ZeRO-3 fits."""
    times = 2
    while times <= _MOST_TIMES_DEVICES:
        devices = times * step.devices
        evaluator, split = step.context.evaluator, _split_state(step.context.space, devices)
        # The machine may be larger than the step can use: then no preset has a point on its meshes.
        needed = min(
            (evaluator.memory(split_classes).peak_bytes for split_classes in split), default=np.inf
        )
        if needed <= step.limit_bytes:
            yield f"{devices:,} such devices would need about {bytes_text(round(needed))} each"
            return
        times *= 2


def _split_state(space: Space, devices: int) -> Iterator[SplitClasses]:
    """Presets with all state split, on meshes of so many devices."""
    features = 1
    while features <= min(_MOST_FEATURE_PARTS, devices) and devices % features == 0:
        sizes = (devices,) if features == 1 else (devices // features, features)
        mesh = Mesh(("data", "model")[: len(sizes)], sizes)
        for name in _SPLITTING:
            for point in PRESETS[name].points(space, mesh):
                # Whatever the preset keeps whole is stored split too, as it is bytes that count
                # here.
                levels = ((StorageLevel.FULL,) * len(space.leaves),) * len(sizes)
                yield space.split_classes(replace(point, storage=levels))
        features *= 2


def _state(step: _Step, options: Options) -> Iterator[str]:
    """Parameters and optimizer that are too large even split over all devices."""
    each = step.state_bytes / step.devices
    if each > step.limit_bytes:
        least = int(-(-step.state_bytes // step.limit_bytes))
        yield (
            f"parameters and optimizer state alone are {bytes_text(round(step.state_bytes))}, "
            f"{bytes_text(round(each))} on "
            f"each of {step.devices} devices: they need at least {least:,} devices of this memory, "
            "fewer parameters, or "
            "an optimizer with less state"
        )


def _free_choice(step: _Step, options: Options) -> Iterator[str]:
    given = {"--mesh": options.mesh, "--pin": options.pins, "--preset": options.preset}
    names = [name for name, value in given.items() if value]
    if names:
        yield f"leave out {' and '.join(names)}, which leaves fewer plans to choose from"
