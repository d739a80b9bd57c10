"""Eleven steps, each under every lever alone and under every two: what is computed, beside the
plain step on one device.

    remat      nothing of any block is kept, all is computed again
    batch      gradients are accumulated over two microbatches
    state      the optimizer's state is in the host's memory
    kept       what loops keep is in the host's memory, their carries too; with `remat` every second
               value of it is, and the others are computed again

All of them are under the plan of a preset on eight devices, three steps, each of which takes what
the one before left. What may differ is what `tests.corpus.check` allows of a plan: sums of another
order, and roundings. A lever that a step has no use for, or that is refused, is
`NoSuchLeverError` with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
import importlib
from itertools import combinations
from typing import Any, Final, Literal

import jax

import automap
from automap.config import read_options
from automap.cost.hosted import movable_leaves
from automap.errors import InputError, NotSeparableError
from automap.jaxpr.blocks import BlockGroup, block_groups
from automap.plan.levers import CARRY, LeversRecord, RematRecord, WithoutLeversRecord
from automap.planner.rebuild import levered_workload
from automap.planner.records import build_plan
from automap.planner.remat import KeptValues, keep_all, remat_records
from automap.planner.sharding import find
from automap.program.trace import Workload, trace_step
from automap.topology import get_topology
from automap.verify.numerics import least_precise, rounding_error, tolerance
from models.training import random_batch
from tests.corpus.check import DEVICES, Comparison, Reference
from tests.corpus.entry import Call, Entry
from tests.corpus.trajectory import run, run_with_noise


Lever = Literal["remat", "batch", "state", "kept"]
Levers = tuple[Lever, ...]

LEVERS: Final[Levers] = ("remat", "batch", "state", "kept")
COMBINATIONS: Final[tuple[Levers, ...]] = (
    *((lever,) for lever in LEVERS),
    *combinations(LEVERS, 2),
)
MICROBATCHES: Final = 2
_DRAWS: Final = 2
_PRESETS: Final = ("zero-1", "data-parallel")


class NoSuchLeverError(Exception):
    """A lever that changes nothing of a step, or that is refused; the text says why."""


@dataclass(frozen=True)
class LeveredStep:
    """A row: a small step of the zoo or of a library; `make` gives arrays of its own each time."""

    name: str
    make: Callable[[], Call]
    carried: tuple[int, ...] = (0,)


def _zoo(name: str, **options: Any) -> Callable[[], Call]:
    def make() -> Call:
        module = importlib.import_module(f"models.{name}")
        step, args = getattr(module, f"{name}_tiny")(**options)
        sizes = {field: value for field, value in options.items() if field != "seq"}
        state = module.init(replace(module.TINY, **sizes), jax.random.key(0))
        return Call(step, (state, random_batch(args[1], 0)), {})

    return make


def _library(module: str, function: str) -> Callable[[], Call]:
    return Entry("", f"{module}_steps", function, "").make


LOOP: Final = {"layers": "scanned"}
STEPS: Final = (
    LeveredStep("GPT, layers in a loop", _zoo("gpt", **LOOP)),
    LeveredStep("T5, layers in a loop", _zoo("t5", **LOOP)),
    LeveredStep("MoE, layers in a loop", _zoo("moe", **LOOP)),
    LeveredStep("Llama, layers in a loop", _zoo("llama", **LOOP, attention="flash", seq=128)),
    LeveredStep("ViT, layers in a loop", _zoo("vit", **LOOP)),
    LeveredStep("BERT, layers apart", _zoo("bert")),
    LeveredStep("MLP", _zoo("mlp")),
    LeveredStep("Flax, LSTM and GRU over time", _library("flax", "linen_lstm")),
    LeveredStep("Flax, transformer with dropout", _library("flax", "linen_dropout")),
    LeveredStep("Equinox, GRU over time", _library("equinox", "recurrent"), (0, 1)),
    LeveredStep("ResNet, batch normalization", _zoo("resnet")),
)


@cache
def _workload(step: LeveredStep) -> Workload:
    call = step.make()
    return trace_step(call.step, call.args, call.kwargs, platform="cpu")


@cache
def reference(step: LeveredStep) -> Reference:
    """The step as it is, on one device, and what roundings do to it."""
    reemitter = _workload(step).reemitter
    assert reemitter is not None
    dtype = least_precise(reemitter)
    noisy = tuple(
        run_with_noise(step.make(), step.carried, rounding_error(dtype), seed)
        for seed in range(_DRAWS)
    )
    call = step.make()
    return Reference(run(call.step, call, step.carried), noisy, tolerance(dtype, DEVICES))


def compare(step: LeveredStep, levers: Levers) -> Comparison:
    """What comes of three steps with levers. Raises `NoSuchLeverError`."""
    workload, record = _levered(step, levers)
    plan = automap.Plan.from_json(_plan(workload, record).to_json())
    call = step.make()
    return reference(step).compare(run(plan.jit(call.step), call, step.carried))


def _plan(workload: Workload, levers: LeversRecord) -> automap.Plan:
    for preset in _PRESETS:
        options = read_options(preset=preset, levers="none")
        try:
            outcome = find(workload, get_topology(f"cpu:{DEVICES}"), options)
        except InputError:
            if preset == _PRESETS[-1]:
                raise
            continue
        return automap.Plan.from_record(build_plan(replace(outcome, levers=levers)))
    raise AssertionError


def _record(**fields: Any) -> LeversRecord:
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    return LeversRecord(**{"remat": (), "recompute_seconds": 0.0, "without": without} | fields)


def _levered(step: LeveredStep, levers: Levers) -> tuple[Workload, LeversRecord]:
    """The step with levers, and what a plan says of them."""
    workload, fields = _workload(step), dict[str, Any]()
    if "batch" in levers:
        fields["microbatches"] = MICROBATCHES
        try:
            workload = levered_workload(workload, _record(**fields), "cpu")
        except NotSeparableError as error:
            raise NoSuchLeverError(str(error)) from error
    if {"remat", "kept"} & set(levers):
        fields["remat"] = _remat(workload, levers)
        workload = levered_workload(workload, _record(**fields), "cpu")
    if "state" in levers:
        problem = workload.problem
        paths = tuple(problem.paths[leaf] for leaf in movable_leaves(problem, "in parts"))
        if not paths:
            raise NoSuchLeverError("no state that only the update reads")
        fields["offload"] = paths
        workload = levered_workload(workload, _record(**fields), "cpu")
    return workload, _record(**fields)


def _remat(workload: Workload, levers: Levers) -> Sequence[RematRecord]:
    assert workload.reemitter is not None
    groups = block_groups(workload.reemitter.flat)
    if not groups:
        raise NoSuchLeverError("no block whose values a backward pass reads")
    hosted = {n: _stacked(group) for n, group in enumerate(groups) if _is_loop(group)}
    if "kept" not in levers:
        choice = KeptValues({n: frozenset() for n in range(len(groups))})
    elif not hosted:
        raise NoSuchLeverError("no loop that stacks values for its backward pass")
    elif "remat" in levers:
        some = {n: frozenset(sorted(places)[::2]) for n, places in hosted.items()}
        kept = {
            n: frozenset(p for p in some.get(n, ()) if p[0] != CARRY) for n in range(len(groups))
        }
        choice = KeptValues(kept, some)
    else:
        choice = KeptValues(keep_all(groups).kept, hosted)
    records = remat_records(groups, choice)
    assert records
    return records


def _is_loop(group: BlockGroup) -> bool:
    return group.blocks[0].kind == "scan"


def _stacked(group: BlockGroup) -> frozenset[tuple[int, int]]:
    carries = {(CARRY, n) for n in range(len(group.blocks[0].carries))}
    return frozenset(group.residuals | carries)
