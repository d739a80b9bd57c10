"""Does the planned step compute what the step computes? Both run on the CPU, on the same inputs.

For every output leaf, with root mean squares from `automap.verify.run_both`:

    allowed = t * change + SAFETY * rounding + 2 e * value                -> in: `allowed_error`
    agrees  = error <= allowed

t     what a sum in another order may differ by: SAFETY (a sqrt(n) + c sqrt(P)), for sums of
      n = 2^16 terms, whose rounding errors a (of float32 at worst: shorter types are summed in it)
      add up at random, and the partial results of P devices, each rounded, c, to the least precise
      type that the step computes in                                      -> in: `tolerance`
e     the rounding error of the leaf's own type: a result is stored in it, and the change of a large
      parameter by a small update is lost in it

The `rounding` term is measured: a leaf that one rounding of the inputs moves as far is decided by
rounding on one device, too. A leaf of integers must be equal, up to that term. Gradients show in
the first moments, which start at zero (`automap.verify.inputs`). Random keys are inputs: dropout
must drop the same elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from automap.errors import CompilerError
from automap.jaxpr.reemit import Reemitter
from automap.plan.record import LeafRecord, PlanRecord
from automap.quantities import bytes_text
from automap.verify.compilers import CompilerMachine
from automap.verify.inputs import input_kinds, is_concrete
from automap.verify.job_folder import job_folder
from automap.verify.messages import (
    PLANNED_FILE,
    SINGLE_FILE,
    LeafErrors,
    Request,
    RunRequest,
    given_file,
)
from automap.verify.process import run_job
from automap.verify.program import PlannedProgram


# Rounding errors are random: eight standard deviations are not met by chance.
SAFETY: Final = 8.0
# As many terms as a gradient over a batch of sequences has: 64 sequences of 1,024 positions.
_TERMS: Final = 2**16
_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafResult:
    """One output leaf, in root mean squares relative to its change; `excess` is error / allowed."""

    path: str
    error: float
    rounding: float
    allowed: float
    excess: float
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The comparison of all output leaves, the worst first.

    `skipped` says why there is none. `finite` is the smallest fraction of finite elements of a
    leaf.
    """

    leaves: tuple[LeafResult, ...]
    finite: float
    skipped: str

    @property
    def agrees(self) -> bool:
        """Whether all leaves that were compared agree."""
        return all(leaf.agrees for leaf in self.leaves)


def compare_numerics(
    program: PlannedProgram,
    args: Sequence[Any],
    *,
    timeout_seconds: float,
    limit_bytes: float,
) -> Numerics:
    """Run both steps on fake CPU devices. `args` are the traced leaves, arrays or abstract ones.

    Skipped, with the reason, if it would take more than `limit_bytes` of this machine's memory.
    Raises `CompilerError` if the run fails or is not done in time.
    """
    needed = bytes_needed(program.plan)
    if needed > limit_bytes:
        return _skipped(
            f"running both steps takes about {bytes_text(round(needed))}, "
            f"{bytes_text(round(limit_bytes))} are allowed; give a larger --numerics-limit, or a "
            "smaller model"
        )
    plan, avals = program.plan, program.call.jaxpr.in_avals
    count = plan.mesh.device_count
    machine = CompilerMachine(compiler="cpu", device_count=count)
    state = program.call.state
    request = RunRequest(
        kinds=input_kinds(plan.inputs, args),
        state=tuple(state.get(i) for i in range(len(plan.outputs))),
        input_rounding=rounding_error(least_precise(program.reemitter)),
        seed=_SEED,
    )
    with job_folder() as folder:
        (folder / PLANNED_FILE).write_bytes(program.exported("cpu").artifact)
        (folder / SINGLE_FILE).write_bytes(program.exported_single().artifact)
        for i, (array, aval) in enumerate(zip(args, avals, strict=True)):
            # What is abstract is drawn in the other process, from the seed.
            if is_concrete(array):
                _save(folder / given_file(i), array, aval)
        job = Request(machine=machine, shardings=program.shardings, run=request)
        answer = run_job(job, folder, timeout_seconds=timeout_seconds, what="running both steps")
    if answer.outcome != "done":
        raise CompilerError(f"running the step on {count} CPU devices failed: {answer.message}")
    return judged(plan.outputs, answer.leaves, program.reemitter, count)


def bytes_needed(plan: PlanRecord) -> float:
    """An estimate of what both runs hold in memory: all devices' peaks, and as much on one device
    twice.
    """
    return 3.0 * plan.predicted.peak_bytes * plan.mesh.device_count


def tolerance(dtype: Any, device_count: int) -> float:
    """What sums of a type may differ by, relative to their result, when taken in another order."""
    own = rounding_error(dtype)
    # Sums of short types are taken in float32; only what devices exchange of them is short.
    inside = min(own, rounding_error(np.float32)) * math.sqrt(_TERMS)
    return SAFETY * (inside + own * math.sqrt(device_count))


def rounding_error(dtype: Any) -> float:
    """The largest relative error of rounding to a float type."""
    return float(jax.numpy.finfo(dtype).eps) / 2


def least_precise(reemitter: Reemitter) -> Any:
    """The float type with the largest rounding error among all that the step computes."""
    dtypes = {np.dtype(np.float32)}
    for equation in reemitter.equations:
        for var in equation.eqn.outvars:
            dtype = getattr(var.aval, "dtype", None)
            if dtype is not None and jax.numpy.issubdtype(dtype, jax.numpy.floating):
                dtypes.add(dtype)
    return max(dtypes, key=rounding_error)


def _save(path: Path, array: Any, aval: Any) -> None:
    """An input for the other process: a key as its words, anything else as bytes."""
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        np.save(path, np.asarray(jax.random.key_data(array)), allow_pickle=False)
    else:
        whole = np.ascontiguousarray(np.asarray(array, aval.dtype)).reshape(-1)
        np.save(path, whole.view(np.uint8), allow_pickle=False)


def _skipped(reason: str) -> Numerics:
    return Numerics(leaves=(), finite=1.0, skipped=reason)


def judged(
    outputs: Sequence[LeafRecord],
    errors: Sequence[LeafErrors],
    reemitter: Reemitter,
    device_count: int,
) -> Numerics:
    """The errors of a plan's outputs held against what is allowed; `reemitter` has the step's
    equations.
    """
    relative = tolerance(least_precise(reemitter), device_count)
    results = [
        _judge(leaf.path, leaf.dtype, leaf_errors, relative)
        for leaf, leaf_errors in zip(outputs, errors, strict=True)
    ]
    finite = min((e.finite for e in errors), default=1.0)
    worst_first = sorted(results, key=lambda r: -r.excess)
    return Numerics(leaves=tuple(worst_first), finite=finite, skipped="")


def allowed_error(errors: LeafErrors, dtype: str, relative: float) -> float:
    """What a leaf may be off, in its units; `relative` is what sums may, of `tolerance`."""
    is_float = dtype.startswith(("float", "bfloat", "complex"))
    own = rounding_error(dtype) if is_float else 0.0
    sums = relative * errors.change if is_float else 0.0
    return sums + SAFETY * errors.rounding + 2 * own * errors.value


def _judge(path: str, dtype: str, errors: LeafErrors, relative: float) -> LeafResult:
    allowed = allowed_error(errors, dtype, relative)
    # JSON has no infinity: what is beyond 1e300 is shown as that.
    scale = errors.change or 1.0
    excess = errors.error / allowed if allowed else (0.0 if errors.error == 0 else 1e300)
    return LeafResult(
        path=path,
        error=min(errors.error / scale, 1e300),
        rounding=errors.rounding / scale,
        allowed=allowed / scale,
        excess=min(excess, 1e300),
        agrees=errors.error <= allowed,
    )
