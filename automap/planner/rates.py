"""What a step does in a second, where its seconds go, and what would help (`automap.plan.rates`).

Of one program, whose kernels are rows k that run n_k times and take t_k seconds each:

    launches           what being launched adds to t_k
    padding            what whole tiles add to t_k
    rematerialization  of the n_k runs, those of operations that compute again, in what is left
    products at peak   flops_k / (devices * peak) in what is left of a product
    products, memory   the rest of products, and of all other kernels
                                                                   -> in: `program_losses`

No part is more than what is left when it is taken off, so that together with the collectives that
are waited for their sum is the step.

What would help is priced by the evaluator that has found the plan     -> in: `helpful_changes`

    batch     the same plan with twice as many examples, if that fits, and if it is known all that
              grows with them
    machine   the same plan on the fastest other machine of the catalogue with as many devices of
              the same platform on which it fits, if it is faster by rooflines too
    memory    the fastest of all plans that were priced and do not fit, if it is faster
    preset    the fastest preset, where another one was asked for
    type      products of float32 at the rate of bfloat16, the bytes as they are
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from automap.cost.evaluate import Estimate, Evaluator, Priced
from automap.cost.tables import Tables, with_batch
from automap.plan.levers import WithoutLeversRecord
from automap.plan.rates import ChangeKind, ChangeRecord, LostRecord, RatesRecord
from automap.planner.other_batch import is_growth_known
from automap.program.problem import Problem
from automap.program.trace import Workload
from automap.program.work import is_rematerialized
from automap.quantities import bytes_text
from automap.search.context import Candidate, SearchContext
from automap.space.batches import batch_size, batch_tokens, growing_classes
from automap.space.point import SplitClasses
from automap.topology import catalogue_machines, get_topology, lies_on
from automap.topology.model import Topology


_MOST_CHANGES: Final = 3
_LEAST_SPEEDUP: Final = 1.01
"""Less is within what two plans differ by for no reason."""


def rates_record(
    problem: Problem,
    topology: Topology,
    step_seconds: float,
    lost: LostRecord,
    changes: tuple[ChangeRecord, ...] = (),
) -> RatesRecord:
    """The rates of a step that takes so long on all devices of a topology."""
    work, samples, tokens = problem.model_work, batch_size(problem), batch_tokens(problem)
    peak = topology.device.peak_flops_per_s(work.dtype)
    # A step of nothing takes no time, and does nothing in it.
    per_second = 1.0 / step_seconds if step_seconds else 0.0
    return RatesRecord(
        mfu=utilization(problem, topology, step_seconds),
        model_flops=work.flops,
        peak_dtype=work.dtype,
        peak_flops_per_s=peak,
        samples=samples,
        samples_per_second=samples * per_second,
        tokens=tokens.count if tokens else 0,
        tokens_per_second=tokens.count * per_second if tokens else 0.0,
        token_input=tokens.path if tokens else None,
        lost=lost,
        changes=changes,
    )


def utilization(problem: Problem, topology: Topology, step_seconds: float) -> float:
    """MFU of a step that takes so long on all devices of a topology."""
    work, devices = problem.model_work, topology.device_count
    at_peak = work.flops / (devices * topology.device.peak_flops_per_s(work.dtype))
    return at_peak / step_seconds if step_seconds else 0.0


def without_levers(context: SearchContext, best: Candidate) -> WithoutLeversRecord:
    """What a step as it was written comes to: where nothing fits, what was found smallest, and the
    fastest of all that were priced.
    """
    estimate, fits = best.estimate, context.objective.fits(best.estimate)
    fastest = None if fits else context.refused()
    return WithoutLeversRecord(
        step_seconds=estimate.step_seconds,
        peak_bytes=round(estimate.peak_bytes),
        fits=fits,
        fastest_seconds=None if fastest is None else fastest.estimate.step_seconds,
        fastest_bytes=None if fastest is None else round(fastest.estimate.peak_bytes),
    )


def program_losses(evaluator: Evaluator, priced: Priced) -> LostRecord:
    """Where the seconds of one program go."""
    tables = evaluator.tables
    kernels, count = tables.kernels, tables.kernels.count
    peak = evaluator.topology.device.peak_flops_per_s(tables.program.problem.model_work.dtype)
    is_product = np.array([dtype != "" for dtype in kernels.dtype], bool)
    repeated = _repeated_share(tables)
    once = kernels.flops * count * (1.0 - repeated)
    at_peak = np.where(is_product, once, 0.0) / (evaluator.topology.device_count * peak)
    # First what no loss is: a part of a larger product takes less than its own launch would.
    whole = priced.kernel_seconds * count
    left = whole - np.minimum(at_peak, whole)
    taken = []
    for part in (
        evaluator.roofline.launch_seconds(priced.sharding) * count,
        evaluator.roofline.padding_seconds(priced.sharding) * count,
        repeated * whole,
    ):
        # Measured seconds may be less than a part of the roofline's.
        taken.append(np.minimum(part, left))
        left = left - taken[-1]
    launches, padding, rematerialization = (float(part.sum()) for part in taken)
    estimate = evaluator.estimate(priced)
    return LostRecord(
        collectives=estimate.collective_seconds,
        bubbles=0.0,
        rematerialization=rematerialization,
        padding=padding,
        launches=launches,
        products=float(left[is_product].sum()),
        memory=float(left[~is_product].sum() + priced.copying_seconds @ priced.collectives.count)
        + evaluator.fresh_seconds(priced),
    )


def _repeated_share(tables: Tables) -> np.ndarray:
    """Of the runs of each distinct kernel, the share that computes again, [kernels]."""
    program, again = tables.program, np.zeros(len(tables.kernels.count))
    for kernel, row in zip(program.kernels, program.row_of_kernel, strict=True):
        op = program.problem.graph.ops[kernel.op]
        again[row] += op.trip_count * is_rematerialized(op)
    return again / np.maximum(tables.kernels.count, 1)


def helpful_changes(
    context: SearchContext, best: Candidate, workload: Workload
) -> tuple[ChangeRecord, ...]:
    """At most three changes to a plan that make more samples a second, each of another kind."""
    alone = (row for change in (_machine, _memory, _preset, _type) for row in change(context, best))
    changes = (*_batch(context, best, workload), *alone)
    rows = [row for row in changes if row.speedup > _LEAST_SPEEDUP]
    return tuple(sorted(rows, key=lambda row: -row.speedup)[:_MOST_CHANGES])


def _row(
    kind: ChangeKind, what: str, best: Candidate, estimate: Estimate, samples: float = 1.0
) -> ChangeRecord:
    """A change by which there are `samples` times as many samples in a step."""
    before, after = best.estimate.step_seconds, estimate.step_seconds
    return ChangeRecord(
        kind=kind,
        what=what,
        step_seconds=after,
        peak_bytes=round(estimate.peak_bytes),
        speedup=samples * before / after if after else 0.0,
    )


def _batch(context: SearchContext, best: Candidate, workload: Workload) -> Iterator[ChangeRecord]:
    space, evaluator = context.space, context.evaluator
    problem, size = space.problem, batch_size(space.problem)
    kernels = evaluator.tables.program.kernels
    moved = {access.value for kernel in kernels for access in (*kernel.reads, *kernel.writes)}
    if not size or not is_growth_known(context, workload, moved):
        return
    growing = growing_classes(problem)
    tables = with_batch(evaluator.tables, evaluator.n_classes, growing, 2.0)
    estimate = replace(evaluator, tables=tables).evaluate(space.split_classes(best.point))
    if context.objective.fits(estimate):
        yield _row("batch", f"a batch of {2 * size:,} in place of {size:,}", best, estimate, 2.0)


def _machine(context: SearchContext, best: Candidate) -> Iterator[ChangeRecord]:
    evaluator, mesh = context.evaluator, best.point.mesh
    topology = evaluator.topology
    if _is_measured(evaluator):
        return
    others = []
    split_classes = context.space.split_classes(best.point)
    # Where least products and messages are measured on one machine and not on the other, a step of
    # launches is faster on what was not measured: it has to be faster by the formulas of both too.
    before = _by_rooflines(evaluator, topology, split_classes).step_seconds
    for name in catalogue_machines(topology.device_count):
        other = get_topology(name)
        is_alike = other.platform == topology.platform and lies_on(other, mesh.sizes)
        if not is_alike or other.device.name == topology.device.name:
            continue
        estimate = Evaluator(evaluator.tables, evaluator.n_classes, other).evaluate(split_classes)
        is_fitting = estimate.peak_bytes <= other.device.memory_bytes
        if is_fitting and _by_rooflines(evaluator, other, split_classes).step_seconds < before:
            others.append(_row("machine", f"{name} in place of {topology.name}", best, estimate))
    yield from sorted(others, key=lambda row: row.step_seconds)[:1]


def _by_rooflines(
    evaluator: Evaluator, topology: Topology, split_classes: SplitClasses
) -> Estimate:
    """A step on a machine, without the products and the messages that were measured on it."""
    device = replace(topology.device, measured="")
    levels = tuple(replace(level, measured="") for level in topology.levels)
    machine = replace(topology, device=device, levels=levels)
    return Evaluator(evaluator.tables, evaluator.n_classes, machine).evaluate(split_classes)


def _memory(context: SearchContext, best: Candidate) -> Iterator[ChangeRecord]:
    refused = context.refused()
    if refused is not None:
        needed = bytes_text(round(refused.estimate.peak_bytes))
        yield _row("memory", f"{needed} of memory on each device", best, refused.estimate)


def _preset(context: SearchContext, best: Candidate) -> Iterator[ChangeRecord]:
    fitting = [
        (row.estimate.step_seconds, name)
        for name, row in context.best_per_preset.items()
        if context.objective.fits(row.estimate)
    ]
    for _, name in sorted(fitting)[:1]:
        yield _row("preset", f"preset {name}", best, context.best_per_preset[name].estimate)


def _type(context: SearchContext, best: Candidate) -> Iterator[ChangeRecord]:
    evaluator = context.evaluator
    kernels = evaluator.tables.kernels
    # Where the compiler rounds operands anyway, the rates are equal and nothing is gained.
    narrow = replace(
        kernels,
        dtype=tuple(_narrowed(dtype) for dtype in kernels.dtype),
        shape=tuple(replace(shape, dtype=_narrowed(shape.dtype)) for shape in kernels.shape),
    )
    if narrow.dtype == kernels.dtype or _is_measured(evaluator):
        return
    pricer = replace(evaluator, tables=replace(evaluator.tables, kernels=narrow))
    estimate = pricer.evaluate(context.space.split_classes(best.point))
    yield _row("type", "products of bfloat16 in place of float32", best, estimate)


def _narrowed(dtype: str) -> str:
    return "bf16" if dtype == "f32" else dtype


def _is_measured(evaluator: Evaluator) -> bool:
    """Whether kernels were measured, or priced by a compiler, as they are on this device."""
    return evaluator.kernel_profile is not None or evaluator.prices is not None
