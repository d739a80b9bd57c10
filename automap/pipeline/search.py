"""The search for a pipeline: over the number of stages S, microbatches M and schedules, the best partition of each.

V is never above the simulated step (`automap.pipeline.value`), so with B the least simulated step so far

    a choice of (S, M, schedule) whose least V is above B need not be looked at further: B bounds the solver
    the least V over all choices that were solved, or B, is a lower bound of every pipeline's step

and the plan's gap is B over that bound, less one. A partition is simulated before it counts
                                                                         -> in: `simulated_seconds`
Strategies: `exact` and `auto` solve (`automap.pipeline.exact`); `agent` infers in milliseconds
(`automap.pipeline.agent`), `agent-gap` solves after it to say what it lost; `rainbow` learns (`automap.pipeline.online`);
the others are baselines (`automap.pipeline.local`). Only those of `PROVING` give a bound.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
import time
from typing import Final

import numpy as np

from automap.errors import InfeasiblePlanError
from automap.pipeline.agent.network import shipped_weights
from automap.pipeline.agent.play import infer
from automap.pipeline.arrays import Arrays, Schedule, Terms, arrays_of
from automap.pipeline.exact import Partition, Solved, solve
from automap.pipeline.fabric import Fabric
from automap.pipeline.local import at_servers, even_split, local_search, optimum
from automap.pipeline.online.game import ideal_seconds
from automap.pipeline.points import Points
from automap.pipeline.smallest import least_bytes
from automap.pipeline.task_graph import pipeline_tasks, stage_seconds
from automap.plan_explain import all_the_same_text, bytes_text
from automap.simulate.tasks import simulate


AUTO_STAGES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of stages that `auto` tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a search keeps to: `stages` and `microbatches` None leave them open.

    The budget counts from the end of the first choice that is solved, for in its course the solvers are compiled if they
    were not before; the first choice of an agent that learns counts too.
    """

    stages: int | None
    microbatches: int | None
    memory_limit_bytes: float
    budget_seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Tried:
    """How far a search is: what it looks at, how many choices of how many are done, the best step so far (inf: none)."""

    what: str
    done: int
    of: int
    best_seconds: float


@dataclass(frozen=True)
class Choice:
    """A partition with what it was found for, and its simulated step."""

    terms: Terms
    arrays: Arrays
    partition: Partition
    step_seconds: float


@dataclass(frozen=True)
class Found:
    """The best choice, None if nothing fits; `bound_seconds` is None unless every choice was solved.

    `least_bytes` is what the smallest of all partitions needs on a device.
    """

    best: Choice | None
    bound_seconds: float | None
    least_bytes: float
    tried: int
    warnings: tuple[str, ...]


def simulated_seconds(arrays: Arrays, partition: Partition) -> float:
    """The step of a partition by the task graph simulator."""
    stages = stage_seconds(arrays, partition.cuts, partition.parts)
    tasks, _ = pipeline_tasks(stages, arrays.microbatches, Schedule(arrays.schedule))
    return simulate(tasks).makespan_seconds


def find_pipeline(
    points: Points, fabric: Fabric, limits: Limits, strategy: str = "auto",
    on_progress: Callable[[Tried], None] = lambda tried: None,
) -> Found:  # fmt: skip
    """The best pipeline; stops at the deadline or at Ctrl-C with the best one so far."""
    best: Choice | None = None
    start, searched, is_begun = time.monotonic(), 0.0, False
    bound, least, tried, proven, warnings = np.inf, np.inf, 0, strategy in PROVING, ()
    wanted = list(choices(points, fabric, limits))
    try:
        for stages, terms in wanted:
            so_far = best.step_seconds if best else np.inf
            on_progress(Tried(f"pipelines of {stages} stages", tried, len(wanted), so_far))
            if is_begun and time.monotonic() > start + limits.budget_seconds:
                proven, warnings = (
                    False,
                    ("the search was not done after its budget; this is the best pipeline it had",),
                )
                break
            tried += 1
            arrays = arrays_of(points, fabric, terms)
            needed = least_bytes(arrays, stages)
            least = min(least, needed)
            if needed > limits.memory_limit_bytes:
                continue
            solved = PIPELINE_STRATEGIES[strategy](
                arrays, stages, so_far, fabric, limits.seed,
                max(start + limits.budget_seconds - time.monotonic(), 0.0),
            )  # fmt: skip
            proven, searched = proven and solved.proven, solved.searched_seconds
            if not is_begun:
                start, is_begun = time.monotonic() - searched, True
            if solved.best is not None and np.isfinite(solved.best.seconds):
                bound = min(bound, solved.least_seconds or solved.best.seconds)
                choice = Choice(terms, arrays, solved.best, simulated_seconds(arrays, solved.best))
                if choice.step_seconds < so_far:
                    best = choice
            if solved.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        proven, warnings = False, ("the search was interrupted; this is the best pipeline it had",)
    if best is None:
        return Found(None, None, least, tried, warnings)
    proven_bound = min(bound, best.step_seconds) if proven else None
    return Found(best, proven_bound, least, tried, warnings)


def choices(points: Points, fabric: Fabric, limits: Limits) -> Iterator[tuple[int, Terms]]:
    """What a search tries: S, and M with a schedule."""
    batch = points.profile.batch_size
    most = min(fabric.n_units, int(points.may_cut[1:-1].sum()) + 1)
    of_stages = (limits.stages,) if limits.stages else AUTO_STAGES
    counts = (limits.microbatches,) if limits.microbatches else _powers(batch)
    for stages in of_stages:
        # One microbatch keeps all stages but one idle.
        several = [m for m in counts if m > 1 or stages == 1 or limits.microbatches]
        # Few microbatches leave bubbles, many leave small ones: the middle bounds the rest soonest.
        for microbatches in sorted(several or counts, key=lambda m: abs(np.log2(m / (4 * stages)))):
            for schedule in Schedule if stages <= most else ():
                yield stages, Terms(
                    microbatches=microbatches, schedule=schedule,
                    memory_limit_bytes=limits.memory_limit_bytes,
                )  # fmt: skip


def _powers(batch: int) -> tuple[int, ...]:
    """1 and the powers of two that divide the batch."""
    return tuple(2**k for k in range(batch.bit_length()) if batch % 2**k == 0)


def _exact(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    return optimum(arrays, stages, bound, seed)


def _local(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    return Solved(local_search(arrays, stages, seed), proven=False, widest=0, work=0)


def _even(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    return Solved(even_split(arrays, stages), proven=False, widest=0, work=0)


def _servers(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    return at_servers(arrays, stages, fabric.parted_by)


def _rainbow(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    # Its agent is of `rl`, which needs torch.
    from automap.pipeline.online.strategy import find

    if ideal_seconds(arrays) > bound:
        return Solved(None, proven=False, widest=0, work=0)
    found = find(arrays, stages, fabric.parted_by, "ours", seed=seed, budget_seconds=seconds)
    return Solved(
        found.improved, proven=False, widest=0, work=0, interrupted=found.interrupted,
        searched_seconds=found.seconds,
    )  # fmt: skip


def _agent(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    best = infer(arrays, stages, shipped_weights())
    return Solved(best, proven=False, widest=0, work=0)


def _agent_gap(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, seed: int, seconds: float
) -> Solved:
    best = infer(arrays, stages, shipped_weights())
    solved = solve(arrays, stages, min(bound, best.seconds if best else np.inf))
    least = solved.best.seconds if solved.best else np.inf
    return replace(solved, best=best or solved.best, least_seconds=least)


PipelineStrategy = Callable[[Arrays, int, float, Fabric, int, float], Solved]
PIPELINE_STRATEGIES: Final[Mapping[str, PipelineStrategy]] = {
    "auto": _exact,
    "exact": _exact,
    "rainbow": _rainbow,
    "local-search": _local,
    "even": _even,
    "servers": _servers,
    "agent": _agent,
    "agent-gap": _agent_gap,
}
"""By name: (arrays, stages, bound in seconds, fabric, seed, seconds left) -> the best partition that it finds."""
PROVING: Final = frozenset({"auto", "exact", "agent-gap"})
"""Strategies that know how far what they found can be from the optimum."""


def nothing_fits(
    found: Found, limits: Limits, points: Points, fabric: Fabric
) -> InfeasiblePlanError:
    """The error when no partition was found."""
    stages = limits.stages or "any number of"
    asked = (
        f"{stages} stages and {limits.microbatches or 'any number of'} microbatches on "
        f"{fabric.n_units * fabric.unit_devices} devices"
    )
    if np.isinf(found.least_bytes):
        return InfeasiblePlanError(
            f"there is no pipeline of {asked}: the devices of each stage must divide a microbatch's examples, of a "
            f"batch of {points.profile.batch_size}; use fewer microbatches, or other stages"
        )
    needed = round(found.least_bytes)
    return InfeasiblePlanError(
        f"no pipeline of {asked} fits: the smallest needs {bytes_text(needed)} on a device, "
        f"{bytes_text(round(limits.memory_limit_bytes))} are allowed; use --space hybrid, whose stages can be sharded "
        f"inside (ZeRO, tensor parallelism), more stages, or more microbatches; {all_the_same_text(needed)}"
    )
