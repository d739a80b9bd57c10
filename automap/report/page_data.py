"""What the report's pictures are drawn from: a plan as plain JSON values, nothing else.

A plan is enough. What it does not hold is worked out from what it holds:

    the step over time    its program, simulated: in each of `_BINS` equal parts of the step the
                          share that a phase's kernels and that collectives take
                                                                  -> in: `_profile`
    a pipeline's passes   its stages' seconds, simulated          -> in: `_pipeline`

Every mark has a `text` that says all about it: what a pointer or the keyboard shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, Final

import numpy as np

from automap.pipeline.schedules import PASSES
from automap.pipeline.simulation import simulate_pipeline
from automap.plan.explain import memory_bytes, search_text
from automap.plan.memory_curve import MemoryCurveRecord
from automap.plan.pipeline import PipelineRecord, device_names
from automap.plan.placement import PlacementRecord
from automap.plan.rates import CAUSES, RatesRecord, mfu_text
from automap.plan.record import PlanRecord, mesh_text
from automap.plan.streams import OperatorRecord, StreamsRecord, StreamStageRecord
from automap.quantities import bytes_text, count_text, number_text, seconds_text
from automap.report.layers import LeafRow, axis_names, folded_leaves, leaf_text
from automap.report.priced import frontier, memory_limit_bytes, priced_plans
from automap.simulate.simulation import SimulationRecord
from automap.simulate.trace import Event
from automap.topology.model import Level, Topology


Values = dict[str, Any]

# The step over time has a bar for each of these parts of it.
_BINS: Final = 160
# A browser draws so many passes or operators at once without delay; those behind are left out.
_MOST_MARKS: Final = 3000
_PHASES: Final = ("forward", "backward", "update")


def page_data(plan: PlanRecord, simulated: SimulationRecord | None) -> Values:
    """All pictures' values; `simulated` is the step of a plan that is one program."""
    return {
        "axes": [[name, size] for name, size in plan.mesh.axes],
        "axis_names": axis_names(plan),
        "machine": _machine(plan),
        "time": _time(plan, simulated),
        "memory": _memory(plan),
        "plans": list(priced_plans(plan)),
        "frontier": list(frontier(plan)),
        "layers": [_layer(row, plan) for row in folded_leaves(plan)],
        "timeline": _timeline(plan),
        "streams": None if plan.streams is None else _streams(plan.streams),
    }


def sentence(plan: PlanRecord) -> str:
    """What a plan comes to, in one sentence for somebody who has a minute."""
    cost, topology, count = plan.predicted, plan.topology, plan.mesh.device_count
    # Of a graph the devices may be of several kinds.
    kinds = topology["kinds"] if "kinds" in topology else [topology["device"]["name"]]
    named = " and ".join(kinds)
    devices = f"{count} {named}" + (" devices" if count > 1 else " device")
    text = (
        f"A step takes {seconds_text(cost.step_seconds)} on {devices} and needs "
        f"{bytes_text(cost.peak_bytes)} of {bytes_text(memory_bytes(plan))} on "
        "each"
    )
    fitting = [row for row in plan.presets if row.fits]
    best = min(fitting, key=lambda row: row.step_seconds, default=None)
    if best is None:
        return text + (", where no preset fits." if plan.presets else ".")
    if not cost.step_seconds:
        return text + "."
    times = best.step_seconds / cost.step_seconds
    as_fast = f"{times:.2f} times as fast as" if round(times, 2) != 1 else "as fast as"
    return f"{text}, {as_fast} the best preset, {best.name}."


def summary_numbers(plan: PlanRecord) -> dict[str, tuple[str, str]]:
    """What a number is -> (the number, what to know of it)."""
    cost, device_bytes = plan.predicted, memory_bytes(plan)
    waits = cost.collective_seconds + cost.bubble_seconds + cost.host_seconds
    share = f"{waits / cost.step_seconds:.1%} of it waits" if cost.step_seconds else ""
    numbers = {
        "a step": (seconds_text(cost.step_seconds), share),
        "memory of a device": (
            bytes_text(cost.peak_bytes),
            f"{cost.peak_bytes / device_bytes:.0%} of {bytes_text(device_bytes)}",
        ),
        "devices": (str(plan.mesh.device_count), f"{plan.topology['name']}: {mesh_text(plan)}"),
        "search": (f"{plan.search.evaluations:,} plans", search_text(plan)),
    }
    numbers |= _rates_numbers(cost.rates, plan.mesh.device_count)
    if plan.pipeline is not None:
        record = plan.pipeline
        parts = number_text(record.microbatches, "microbatch", "microbatches")
        note = f"{parts}, schedule {record.schedule}"
        if record.stages_per_group > 1:
            note += f", {record.stages_per_group} stages on each of {len(record.groups)} groups"
        numbers["pipeline"] = (number_text(len(record.stages), "stage"), note)
    return numbers


def _rates_numbers(rates: RatesRecord | None, devices: int) -> dict[str, tuple[str, str]]:
    """How well the devices are used, and how much is done in a second."""
    if rates is None:
        return {}
    numbers: dict[str, tuple[str, str]] = {}
    if rates.model_flops:
        peak = f"{count_text(rates.peak_flops_per_s)}FLOP/s in {rates.peak_dtype} on each device"
        numbers["MFU"] = (mfu_text(rates.mfu), f"of {peak}")
    done = {"tokens": rates.tokens_per_second, "samples": rates.samples_per_second}
    for name, rate in done.items():
        if rate:
            note = f"{count_text(rate / devices)}/s on each device"
            numbers[f"{name} a second"] = (f"{count_text(rate)}/s", note)
    return numbers


def _machine(plan: PlanRecord) -> Values:
    pipeline = plan.pipeline
    return {
        "count": plan.mesh.device_count,
        "levels": _levels(plan),
        # Null where devices stand in the order of their numbers, which needs no list.
        "order": None if plan.mesh.devices is None else list(plan.mesh.devices),
        "stages": None if pipeline is None else [list(stage.devices) for stage in pipeline.groups],
    }


def _levels(plan: PlanRecord) -> list[Values]:
    # A graph has no levels: its devices are drawn side by side.
    if "links" in plan.topology:
        count = plan.mesh.device_count
        text = f"a graph of {len(plan.topology['links'])} links"
        return [{"name": "graph", "size": count, "kind": "switch", "text": text}]
    return [_level(level) for level in Topology.from_dict(plan.topology).levels]


def _level(level: Level) -> Values:
    speed = level.bytes_per_s / level.shared_by / 1e9
    return {
        "name": level.name,
        "size": level.size,
        "kind": level.kind,
        "text": f"{level.name}: a {level.kind} of {level.size}, {speed:.4g} GB/s for each device",
    }


def _time(plan: PlanRecord, simulated: SimulationRecord | None) -> Values:
    cost = plan.predicted
    step = cost.step_seconds
    parts = {
        "compute": cost.compute_seconds,
        "exposed collectives": cost.collective_seconds,
        "bubbles": cost.bubble_seconds,
        "host memory": cost.host_seconds,
    }
    bars = [_part("the step", name, seconds, step) for name, seconds in parts.items() if seconds]
    if cost.hidden_seconds:
        bars.append(_part("beside computation", "hidden collectives", cost.hidden_seconds, step))
    # What is left are products at the peak: by cause, the seconds that a faster step would save.
    causes = cost.rates.lost.by_cause if cost.rates else {}
    bars += [_part("lost to", CAUSES[cause], seconds, step) for cause, seconds in causes.items()]
    # The bars of a phase say where the seconds of the step are.
    for row in simulated.phases if simulated else ():
        shares = {"compute": row.compute_seconds, "exposed collectives": row.exposed_seconds}
        bars += [_part(row.phase, name, share, step) for name, share in shares.items() if share]
    return {"bars": bars, "profile": None if simulated is None else _profile(simulated)}


def _part(row: str, part: str, seconds: float, step_seconds: float) -> Values:
    share = f", {seconds / step_seconds:.1%} of the step" if step_seconds else ""
    return {
        "row": row,
        "part": part,
        "seconds": seconds,
        "text": f"{row}\n{part}: {seconds_text(seconds)}{share}",
    }


def _profile(simulated: SimulationRecord) -> list[Values]:
    """What a device and its links do in each part of the step, as shares of that part."""
    step = simulated.step_seconds
    if not step:
        return []
    edges = np.linspace(0.0, step, _BINS + 1)
    series = [
        ("kernels", phase, [e for e in simulated.events if _is_kernel(e) and e.category == phase])
        for phase in _PHASES
    ]
    messages = [event for event in simulated.events if not _is_kernel(event)]
    series.append(("collectives", "collectives", messages))
    rows = []
    for lane, name, events in series:
        shares = np.diff(_busy_seconds(events, edges)) / (step / _BINS)
        rows += [
            {
                "lane": lane,
                "name": name,
                "start": float(start),
                "end": float(end),
                "share": round(float(share), 4),
            }
            for (start, end), share in zip(pairwise(edges), shares, strict=True)
            if share > 0
        ]
    return rows


def _is_kernel(event: Event) -> bool:
    return "kind" not in event.details


def _busy_seconds(events: Sequence[Event], times: np.ndarray) -> np.ndarray:
    """Seconds of the events before each time; they may overlap."""
    start = np.array([event.start_seconds for event in events])
    seconds = np.array([event.seconds for event in events])
    return np.array([np.clip(time - start, 0.0, seconds).sum() for time in times])


def _memory(plan: PlanRecord) -> Values:
    memory, limit_bytes = plan.predicted.memory, memory_limit_bytes(plan)
    shares = {field.name.replace("_", " "): getattr(memory, field.name) for field in fields(memory)}
    peak = max(plan.predicted.peak_bytes, 1)
    return {
        "limit": limit_bytes,
        "limit_text": f"{bytes_text(limit_bytes)} allowed",
        "peak": plan.predicted.peak_bytes,
        "parts": [
            {
                "part": name,
                "bytes": count,
                "text": f"{name}: {bytes_text(count)}, {count / peak:.1%} of the peak",
            }
            for name, count in shares.items()
            if count
        ],
        "curve": None if plan.memory_curve is None else _curve(plan.memory_curve),
    }


def _curve(curve: MemoryCurveRecord) -> list[Values]:
    """What is stored, activations and temporaries in each part of the step."""
    ends = (*curve.at[1:], 1.0)
    points = zip(curve.at, ends, curve.activations, curve.temporaries, strict=True)
    return [
        {
            "start": start,
            "end": end,
            "stored": curve.stored,
            "activations": activations,
            "temporaries": temporaries,
            "text": f"after {start:.0%} of the operations: "
            f"{bytes_text(curve.stored + activations + temporaries)}\nstored "
            f"{bytes_text(curve.stored)}, activations {bytes_text(activations)}, temporaries "
            f"{bytes_text(temporaries)}",
        }
        for start, end, activations, temporaries in points
    ]


def _layer(row: LeafRow, plan: PlanRecord) -> Values:
    return {
        "role": row.role,
        "block": row.block,
        "name": row.name,
        "axes": list(row.axes),
        "bytes": row.whole_bytes,
        "text": leaf_text(row, plan),
    }


def _timeline(plan: PlanRecord) -> Values | None:
    """What runs when, on a lane for each stage of a pipeline or each device of a placement."""
    if plan.pipeline is not None:
        return _pipeline(plan, plan.pipeline)
    return None if plan.placement is None else _placement(plan.placement)


def _placement(record: PlacementRecord) -> Values:
    """The tasks of each device over the step."""
    names = [device.name for device in record.devices]
    passes = []
    for task in record.tasks[:_MOST_MARKS]:
        operator = record.operators[task.operator]
        end = task.start_seconds + task.seconds
        passes += [
            {
                "stage": names[device],
                "kind": task.phase,
                "label": str(part + 1) if operator.parts else "",
                "start": task.start_seconds,
                "end": end,
                "text": f"{operator.name}, {task.phase}\n{names[device]}\n"
                f"{seconds_text(task.seconds)}, from {seconds_text(task.start_seconds)} to "
                f"{seconds_text(end)}",
            }
            for part, device in enumerate(operator.devices)
        ]
    return {
        "stages": names,
        "passes": passes,
        "left_out": len(record.tasks) - len(record.tasks[:_MOST_MARKS]),
        "seconds": max((t.start_seconds + t.seconds for t in record.tasks), default=0.0),
    }


def _pipeline(plan: PlanRecord, record: PipelineRecord) -> Values:
    """The passes of each stage over the step; those of one group of devices on one lane."""
    simulated = simulate_pipeline(plan, record)
    # Links have lanes of their own in a trace; here the passes that wait for them show them.
    passes = [e for e in simulated.events if e.category in (*PASSES, "all-reduce")]
    passes.sort(key=lambda event: event.start_seconds)
    groups, count = record.groups, len(record.stages)
    lanes = [_lane(range(g, count, len(groups)), group.devices) for g, group in enumerate(groups)]
    shown = passes[:_MOST_MARKS]
    return {
        "stages": lanes,
        "passes": [_pass(event, lanes[event.details["stage"] % len(groups)]) for event in shown],
        "left_out": max(len(passes) - _MOST_MARKS, 0),
        "seconds": simulated.step_seconds,
    }


def _lane(stages: Sequence[int], devices: Sequence[int]) -> str:
    """`stage 1, devices 2 to 3`, `stages 1, 3, devices 2 to 3` where they are interleaved."""
    numbers = ", ".join(map(str, stages))
    return f"stage{'s' * (len(stages) > 1)} {numbers}, {device_names(devices)}"


def _pass(event: Event, lane: str) -> Values:
    details: Mapping[str, Any] = event.details
    end = event.start_seconds + event.seconds
    return {
        "stage": lane,
        "kind": event.category,
        "label": str(details.get("microbatch", "")),
        "start": event.start_seconds,
        "end": end,
        "text": f"{event.name}\nstage {details['stage']}: {details['layers']}\n"
        f"{seconds_text(event.seconds)}, from {seconds_text(event.start_seconds)} to "
        f"{seconds_text(end)}",
    }


def _alone_text(group: Sequence[OperatorRecord]) -> str:
    """What a group takes by itself; "" where the plan does not say."""
    alone = sum(operator.seconds or 0.0 for operator in group)
    return seconds_text(alone) if alone else ""


def _group_seconds(stage: StreamStageRecord, group: Sequence[OperatorRecord]) -> str:
    """What a group takes by itself, and its stage."""
    alone = _alone_text(group)
    by_itself = f"{alone} this group by itself, " if alone else ""
    how = "" if stage.model_seconds is None else ", measured"
    return f"{by_itself}{seconds_text(stage.seconds)} the whole stage{how}"


def _streams(record: StreamsRecord) -> Values:
    """The stages one after another, and in each the operators of its groups."""
    boxes: list[Values] = []
    start = 0.0
    for number, stage in enumerate(record.stages):
        end = start + stage.seconds
        for lane, group in enumerate(stage.groups):
            labels = [operator.label for operator in group]
            boxes.append(
                {
                    "stage": number,
                    "lane": lane,
                    "kind": stage.together if len(stage.groups) > 1 else "alone",
                    "labels": labels,
                    "alone": _alone_text(group),
                    "start": start,
                    "end": end,
                    "text": f"stage {number}, {stage.together}, group {lane + 1} of "
                    f"{len(stage.groups)}\n{' then '.join(labels)}\n{_group_seconds(stage, group)}",
                }
            )
        start = end
    return {
        "boxes": boxes[:_MOST_MARKS],
        "left_out": max(len(boxes) - _MOST_MARKS, 0),
        "seconds": start,
        "lanes": max(len(stage.groups) for stage in record.stages),
    }
