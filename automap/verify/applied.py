"""A plan run on the devices that are there, for a few steps, beside the step on one of them.

Any plan runs as its user would run it (`automap.runtime`): one program, stages, operators on
devices of their own, schedules of streams. Both runs begin with the same inputs, made as those of
`automap.verify.numerics`; each goes on from its own state, and its batch stays the same:

    a = single(single(single(x))),  b = planned(planned(planned(x)))       -> in: `_Steps.run`

The results of the last steps are compared as there, with the single-device steps of inputs that are
rounded otherwise for what rounding alone may move. Seconds are those of the planned steps, without
the first, which compiles.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

import jax
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from automap.errors import AutomapError, InputError
from automap.jaxpr.reemit import Reemitter
from automap.plan.codec import encode
from automap.plan.record import PlanRecord
from automap.quantities import bytes_text
from automap.runtime.meshes import device_mesh, platform_name
from automap.runtime.planned_calls import on_leaves, timed_steps
from automap.runtime.run import step_under_plan
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import as_step
from automap.verify.inputs import InputKind, input_kinds, is_concrete, make, rounded_otherwise
from automap.verify.numerics import (
    Numerics,
    bytes_needed,
    judged,
    least_precise,
    rounding_error,
)
from automap.verify.run_both import as_leaf, as_numpy, is_key, leaf_errors, states_before


STEPS: Final = 3
"""The first compiles; each of the others begins with what the one before has made."""

_SEED: Final = 0
_TRACEBACK: Final = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRecord:
    """What came of running a plan: the mean `step_seconds` on devices of a `kind`, as JAX names it,
    and `numerics`, None if one device was not to run the step.

    `is_planned_kind` says whether the devices are of the platform that the plan is for; several CPU
    devices of one process share its cores, so they are none that were planned for.
    """

    target: str
    topology: str
    steps: int
    devices: int
    kind: str
    is_planned_kind: bool
    step_seconds: float
    predicted_step_seconds: float
    numerics: Numerics | None

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap apply --json` prints them."""
        return encode(self)


def make_cpu_devices(count: int) -> None:
    """Let JAX have as many CPU devices in this process, unless it has made its devices already."""
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)


def chosen_devices(count: int) -> Sequence[Any]:
    """The accelerators, if there are as many, else CPU devices. Raises `InputError` if JAX has too
    few of both.
    """
    for devices in (jax.devices(), jax.devices("cpu")):
        if len(devices) >= count:
            return devices[:count]
    raise InputError(
        f"the plan is for {count} devices, and this process has {len(jax.devices('cpu'))} CPU "
        f"devices: set XLA_FLAGS=--xla_force_host_platform_device_count={count} for it"
    )


def apply_plan(
    plan: PlanRecord,
    call: TracedCall,
    devices: Sequence[Any],
    *,
    compares: bool,
    limit_bytes: float,
) -> AppliedRecord:
    """Run `STEPS` steps of the plan of a traced call, and with `compares` of the step on one
    device.

    Leaves of the call that are abstract are drawn. CPU devices share this machine's memory: what
    would take more than `limit_bytes` of it is not run (`InputError`).

    Raises `PlanError` for a plan of another step, `NotSeparableError` for a pipeline of a step that
    needs all samples at once.
    """
    # A step that needs a mesh, as for a `shard_map` without one, is traced on the plan's.
    step = as_step(call.function, mesh=plan.mesh.axes, name=plan.workload.target)
    running = step_under_plan(plan, step, devices, is_own=False)
    args, kwargs = call.arguments(jax.tree.leaves(call.args))
    # Whether the plan is of this call is said before anything runs, which may take minutes.
    running.prepare(*args, **kwargs)
    needed = bytes_needed(plan) if compares else bytes_needed(plan) / 3
    if devices[0].platform == "cpu" and needed > limit_bytes:
        raise InputError(
            f"running the plan on CPU devices takes about {bytes_text(round(needed))}, "
            f"{bytes_text(round(limit_bytes))} are allowed; give a larger "
            "--numerics-limit, or --no-numerics, which takes a third, or plan a smaller model"
        )
    steps = _Steps.of(plan, call)
    random = np.random.default_rng(_SEED)
    inputs = steps.inputs(random)
    # One device first: a callback of the step that raises is an error there, where of several CPU
    # devices the others wait for the one that called it until XLA ends the process.
    single, compared = steps.single(device_mesh(plan, devices)), None
    if compares:
        nudged = [rounded_otherwise(x, steps.input_rounding, random) for x in inputs]
        compared = nudged, *(steps.run(single, each)[0] for each in (inputs, nudged))
    elif steps.calls_python and devices[0].platform == "cpu" and len(devices) > 1:
        # They share one memory, so one of them holds the step too.
        steps.run(single, inputs)
    results, seconds = steps.run(on_leaves(running, call), inputs)
    numerics = None
    if compared is not None:
        nudged, a, c = compared
        state = [call.state.get(output) for output in range(len(a))]
        befores = states_before(state, call.jaxpr.in_avals, inputs, nudged)
        errors = list(map(leaf_errors, a, results, c, befores))
        numerics = judged(plan.outputs, errors, steps.own, len(devices))
    platform = platform_name(devices[0])
    is_planned = platform == plan.topology["platform"]
    return AppliedRecord(
        target=plan.workload.target,
        topology=plan.topology["name"],
        steps=STEPS,
        devices=len(devices),
        kind=devices[0].device_kind,
        is_planned_kind=is_planned and (platform != "cpu" or len(devices) == 1),
        step_seconds=mean(seconds[1:]),
        predicted_step_seconds=plan.predicted.step_seconds,
        numerics=numerics,
    )


@dataclass(frozen=True)
class _Steps:
    """The steps of a call one after the other; `own` has its equations without levers."""

    call: TracedCall
    own: Reemitter
    kinds: tuple[InputKind, ...]

    @classmethod
    def of(cls, plan: PlanRecord, call: TracedCall) -> "_Steps":
        own = Reemitter(call.own_jaxpr, user_rules(plan.workload.rules))
        return cls(call, own, input_kinds(plan.inputs, jax.tree.leaves(call.args)))

    @property
    def input_rounding(self) -> float:
        return rounding_error(least_precise(self.own))

    @property
    def calls_python(self) -> bool:
        """Whether the step calls back into Python, as by `jax.pure_callback`."""
        return any("callback" in each.eqn.primitive.name for each in self.own.equations)

    def inputs(self, random: np.random.Generator) -> list[np.ndarray]:
        """The caller's arrays, and those that are drawn for abstract ones."""
        avals, given = self.call.jaxpr.in_avals, jax.tree.leaves(self.call.args)
        return [
            _on_host(leaf, aval) if is_concrete(leaf) else make(kind, aval, random)
            for leaf, kind, aval in zip(given, self.kinds, avals, strict=True)
        ]

    def single(self, mesh: Any) -> Callable[[Sequence[Any]], list[Any]]:
        """The step as it was written on the first device; one with a `shard_map` on its mesh, all
        else whole on each.
        """
        step = jax.jit(self.own.freed(), keep_unused=True)
        on = NamedSharding(mesh, PartitionSpec())
        where = on if self.own.manual_shardings else mesh.devices.flat[0]
        return lambda leaves: step(*jax.device_put(list(leaves), where))

    def run(
        self, step: Callable[[Sequence[Any]], Any], inputs: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[float]]:
        """The results of the last step, and the seconds of each."""
        avals = self.call.jaxpr.in_avals
        leaves = [_value(x, *about) for x, *about in zip(inputs, avals, self.kinds, strict=True)]
        with _refusals():
            results, seconds = timed_steps(step, self.call, leaves, STEPS)
        return as_numpy(results), seconds


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what JAX and the devices refuse, as a kernel of another platform or a step that is too
    large, and what a callback of the step raises, as an `InputError`.
    """
    try:
        yield
    except AutomapError:
        raise
    except Exception as error:
        text = str(error)
        # JAX's text of what Python raised inside of it: the whole traceback, its last line behind.
        if "Callback error" in text and _TRACEBACK in text:
            raise InputError(
                "a callback of the step raised: " + text.strip().splitlines()[-1]
            ) from error
        raise InputError(
            f"the step cannot be run on these devices: {type(error).__name__}: {text[:500]}; "
            "kernels that are written for GPUs or TPUs run on those only, and what is compared has "
            "to fit on one device: --no-numerics compares nothing"
        ) from error


def _on_host(leaf: Any, aval: Any) -> np.ndarray:
    return as_numpy([leaf])[0] if is_key(aval) else np.asarray(leaf, aval.dtype)


def _value(array: np.ndarray, aval: Any, kind: InputKind) -> Any:
    """An input as the step is called with it; a number of Python's stays one."""
    if aval.weak_type and not aval.shape:
        return array.item()
    # A copy: a step that donates its state may write where it lies.
    return as_leaf(array.copy(), aval, kind)
