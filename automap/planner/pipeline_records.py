"""A pipeline that was found -> the plan's records.

The predicted step is the simulated one. Of it a device computes M (F + B), weight passes included,
and the update of its stage, sums for the rest of R, and waits for what is left; the plan says the
mean over devices.
Memory is that of the stage that needs most.
"""

from collections.abc import Mapping
import re
from typing import Any

import numpy as np

from automap.backends import backend_for
from automap.pipeline.fabric import Fabric
from automap.pipeline.interleaved import group_bytes
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import Interleaved, in_flight, late_weights
from automap.pipeline.search import Choice, PipelineSearchResult
from automap.plan.memory_curve import MemoryRecord
from automap.plan.parts import CollectiveRecord, PredictedRecord
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.plan.rates import LostRecord
from automap.planner.rates import rates_record
from automap.program.problem import Problem
from automap.topology.model import Topology


AXIS = "device"
"""The one mesh axis of a pipeline plan, over all devices."""
# Of a step's seconds: less is how two orders of adding them differ.
_ROUNDING = 1e-9
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")


def pipeline_record(choice: Choice, points: Points) -> PipelineRecord:
    """The stages of a choice."""
    partition, arrays, profile = choice.partition, choice.arrays, points.profile
    stages = []
    for s, each in enumerate(choice.stages):
        i, j = partition.cuts[s], partition.cuts[s + 1]
        first, last = int(points.first[i]), int(points.first[j]) - 1
        unit, group = arrays.unit_devices, s % choice.groups
        first_unit, end_unit = partition.device_cuts[group : group + 2]
        devices = range(first_unit * unit, end_unit * unit)
        stages.append(
            StageRecord(
                devices=tuple(int(d) for d in devices),
                cut_after=profile.names[last] if s < partition.stages - 1 else None,
                layers=f"{layer_name(profile.labels[first])} to {layer_name(profile.labels[last])}",
                forward_seconds=each.forward,
                backward_seconds=each.backward,
                reduce_seconds=each.reduce,
                sent_bytes=round(float(arrays.cut_bytes[j])),
                peak_bytes=round(sum(_memory(choice, points, s).values())),
                transfer_seconds=each.transfer,
                weights_seconds=each.weights,
            )
        )
    return PipelineRecord(
        schedule=choice.terms.schedule.name,
        microbatches=choice.terms.microbatches,
        stages=tuple(stages),
    )


def layer_name(path: str) -> str:
    """`[0]['params']['layers'][3]['mlp']['kernel']` -> `layers.3`: up to the first number, or the
    leaf's parents.
    """
    # Without the number of the argument, and then without the name of the tree in it (`params`).
    keys = ["".join(parts) for parts in _KEY.findall(path)][1:]
    if len(keys) > 1 and not keys[0].isdecimal():
        keys = keys[1:]
    numbers = [place for place, key in enumerate(keys) if key.isdecimal()]
    kept = keys[: numbers[0] + 1] if numbers else keys[:-1] or keys
    return ".".join(kept) or "inputs"


def _memory(choice: Choice, points: Points, s: int) -> dict[str, float]:
    """Bytes on each device of stage s, by the kinds of `MemoryRecord`."""
    arrays, partition = choice.arrays, choice.partition
    if isinstance(choice.terms.schedule, Interleaved):
        # Of all stages that the devices have.
        group = s % choice.groups
        cuts, groups = partition.cuts, choice.groups
        held = group_bytes(arrays, choice.terms.schedule, cuts, group, groups)
        own = zip(cuts[group::groups], cuts[group + 1 :: groups])
        return _with_parameters(held, sum(float(points.parameter_bytes[i, j]) for i, j in own))
    i, j = partition.cuts[s], partition.cuts[s + 1]
    replicas = int(partition.device_cuts[s + 1] - partition.device_cuts[s]) * arrays.unit_devices
    k = partition.stages - s
    # Stage s of S is the k-th from the end, k = S - s: in 1F1B that many microbatches wait for
    # their backward pass there.
    most = in_flight(arrays.order, arrays.microbatches, k)
    late = late_weights(arrays.order, arrays.microbatches, k, s)
    waiting = most * arrays.saved_bytes[i, j] + late * arrays.kept_bytes[i, j]
    held = {
        "state": arrays.state_bytes[i, j],
        "activations": waiting / replicas,
        "temporaries": (arrays.working_bytes[i, j] + 2 * arrays.cut_bytes[i]) / replicas,
    }
    return _with_parameters(held, float(points.parameter_bytes[i, j]))


def _with_parameters(held: Mapping[str, float], parameters: float) -> dict[str, float]:
    """Bytes with those of the state parted in parameters and the rest."""
    rest = {kind: n_bytes for kind, n_bytes in held.items() if kind != "state"}
    return {"parameters": parameters, "optimizer": held["state"] - parameters, **rest}


def predicted_record(
    choice: Choice, points: Points, problem: Problem, topology: Topology
) -> PredictedRecord:
    """Seconds as means over devices, bytes of the fullest device."""
    arrays, partition, m = choice.arrays, choice.partition, choice.arrays.microbatches
    seconds = choice.stages
    share = _units(choice) / arrays.n_units
    weights = arrays.gradient_bytes[partition.cuts[:-1], partition.cuts[1:]]
    # The update reads and writes what gradients are of, so its seconds go by their bytes.
    update = float(share @ weights) * points.update_seconds_per_byte
    compute = float(share @ np.array([m * x.passes for x in seconds])) + update
    # R is the sum of gradients and the update; what is left of it is the all-reduce.
    reduce = max(float(share @ np.array([x.reduce for x in seconds])) - update, 0.0)
    fullest = max(
        (_memory(choice, points, s) for s in range(partition.stages)), key=lambda x: sum(x.values())
    )
    waited = bubble(choice.step_seconds, compute + reduce)
    lost = LostRecord(collectives=reduce, bubbles=waited)
    return PredictedRecord(
        step_seconds=choice.step_seconds,
        compute_seconds=compute,
        collective_seconds=reduce,
        bubble_seconds=waited,
        rates=rates_record(problem, topology, choice.step_seconds, lost),
        **memory_verdict(sum(fullest.values()), choice.terms.memory_limit_bytes, topology),
        memory=MemoryRecord(
            other_state=0, inputs=0, **{kind: round(n) for kind, n in fullest.items()}
        ),
        collectives=_collectives(choice),
    )


def memory_verdict(peak_bytes: float, limit_bytes: float, topology: Topology) -> dict[str, Any]:
    """What `PredictedRecord` says of the fullest stage's bytes: whether they fit, and whether they
    would if the compiler needed more by the backend's margin.
    """
    margin = backend_for(topology.platform).memory_margin
    fits = bool(peak_bytes <= limit_bytes)
    return {
        "peak_bytes": round(peak_bytes),
        "fits": fits,
        "memory_margin": margin,
        "unsure": fits and bool(peak_bytes * (1.0 + margin) > limit_bytes),
    }


def _units(choice: Choice) -> np.ndarray:
    """The units of each stage."""
    each = np.diff(choice.partition.device_cuts)
    return each[np.arange(choice.partition.stages) % len(each)]


def bubble(step_seconds: float, busy_seconds: float) -> float:
    """What a step takes beyond what its devices are busy; the rounding of two sums is none."""
    idle = step_seconds - busy_seconds
    return idle if idle > _ROUNDING * step_seconds else 0.0


def _collectives(choice: Choice) -> tuple[CollectiveRecord, ...]:
    arrays, partition, m = choice.arrays, choice.partition, choice.arrays.microbatches
    sent = float(arrays.cut_bytes[partition.cuts[1:-1]].sum()) * m
    replicated = [s for s in range(partition.stages) if _units(choice)[s] > 1]
    summed = sum(
        float(arrays.gradient_bytes[partition.cuts[s], partition.cuts[s + 1]]) for s in replicated
    )
    collectives = []
    if partition.stages > 1:
        # Each microbatch passes each boundary once forward, and its gradient once back.
        count = (partition.stages - 1) * m
        for phase in ("forward", "backward"):
            collectives.append(
                CollectiveRecord(
                    kind="collective-permute",
                    axes=(AXIS,),
                    phase=phase,
                    count=count,
                    bytes=round(sent),
                )
            )
    # One all-reduce for each stage with replicas, of the gradients of its own parameters.
    if replicated:
        collectives.append(
            CollectiveRecord(
                kind="all-reduce",
                axes=(AXIS,),
                phase="backward",
                count=len(replicated),
                bytes=round(summed),
            )
        )
    return tuple(collectives)


def bound_gap(search: PipelineSearchResult) -> float | None:
    """How far the best choice is above the proven bound, as a fraction."""
    if search.best is None or search.bound_seconds is None:
        return None
    return max(search.best.step_seconds / search.bound_seconds - 1, 0.0)


def fabric_warning(fabric: Fabric) -> tuple[str, ...]:
    """A warning where stages are whole units of several devices."""
    if fabric.unit_devices == 1:
        return ()
    return (
        f"stages are made of units of {fabric.unit_devices} devices: there are too many to part "
        "each",
    )
