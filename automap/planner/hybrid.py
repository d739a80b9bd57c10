"""Pipelines whose stages are sharded inside: search -> records -> plan.

Of the predicted step a device computes M (F + B) less the waits for collectives within its stage,
and the update of its stage; the waits and the rest of R are collectives, what is left is the
bubble. M is the number of microbatches, F and B are the seconds of a stage's forward and backward
pass of one, and R those of its gradients' sum and update. Seconds are means over devices; memory is
the fullest stage's                                                      -> in: `HybridRecords`
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
import time

import numpy as np

from automap.backends import backend_for
from automap.config import Options
from automap.cost.shardings import shardings
from automap.errors import InfeasiblePlanError
from automap.jaxpr.sites import parse_place, parse_site
from automap.pipeline.hybrid.inner_plans import INNER_SEARCHES
from automap.pipeline.hybrid.membership import StageMembership
from automap.pipeline.hybrid.pricing import InnerPlan, Pricer
from automap.pipeline.hybrid.search import HybridChoice, HybridSearchResult, find_hybrid
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import in_flight, late_weights
from automap.pipeline.search import Limits
from automap.plan.explain import all_the_same_text
from automap.plan.memory_curve import MemoryRecord
from automap.plan.parts import CollectiveRecord, MeshRecord, PredictedRecord
from automap.plan.pipeline import InsideRecord, PipelineRecord, StageLeafRecord, StageRecord
from automap.plan.rates import LostRecord
from automap.plan.record import PlanRecord, SearchRecord
from automap.planner.constraints import Constraint
from automap.planner.pipeline import Setup, pipeline_plan
from automap.planner.pipeline_records import (
    AXIS,
    bubble,
    fabric_warning,
    layer_name,
    memory_verdict,
)
from automap.planner.rates import rates_record
from automap.planner.records import (
    constraint_record,
    leaf_spec,
    make_sharded_graph,
    step_constraints,
)
from automap.planner.sharded_graph import ShardedGraph
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.search.progress import ChoiceProgress
from automap.space.point_record import record_point
from automap.space.space import Space
from automap.topology.device_order import device_order


def plan_hybrid(
    setup: Setup,
    options: Options,
    bound_seconds: float,
    on_stages: Callable[[ChoiceProgress], None],
) -> tuple[PlanRecord | None, InfeasiblePlanError | None]:
    """The best pipeline with sharded stages that is faster than a bound, else why there is none."""
    start = time.monotonic()
    workload, topology, limits = setup.workload, setup.topology, setup.limits
    space = Space(workload.problem, backend_for(topology.platform).stored_multiple)
    pricer = Pricer(setup.points.profile, space, topology, options.profile)
    inner_search = INNER_SEARCHES[options.strategy]
    search = find_hybrid(
        pricer, setup.points, setup.fabric, limits, bound_seconds, on_stages, inner_search
    )
    if search.best is None:
        return None, _no_hybrid_fits(search, limits, topology.name)
    records = HybridRecords(workload, pricer, setup.points, search.best)
    plan = pipeline_plan(
        setup,
        records.pipeline(),
        records.predicted(),
        SearchRecord(
            strategy=options.strategy,
            seconds=time.monotonic() - start,
            evaluations=search.tried,
            seed=options.seed,
            gap=None,
        ),
        (*search.warnings, *fabric_warning(setup.fabric)),
    )
    return plan, None


@dataclass(frozen=True)
class HybridRecords:
    """The records of one choice."""

    workload: Workload
    pricer: Pricer
    points: Points
    choice: HybridChoice

    @cached_property
    def membership(self) -> StageMembership:
        """Which stages ops and leaves belong to."""
        return StageMembership(self.points.profile, self.points.first[self.choice.partition.cuts])

    def pipeline(self) -> PipelineRecord:
        """The stages."""
        choice = self.choice
        return PipelineRecord(
            schedule=choice.terms.schedule.name,
            microbatches=choice.terms.microbatches,
            stages=tuple(self._stage(s) for s in range(choice.partition.stages)),
        )

    def _stage(self, s: int) -> StageRecord:
        choice, profile, options = (
            self.choice,
            self.points.profile,
            self.choice.kind_options.options,
        )
        partition = choice.partition
        first, end = (int(x) for x in self.membership.first[s : s + 2])
        # None for a stage of replicas: it has no mesh of its own, and its leaves are whole on each
        # device.
        seconds, inner = choice.stages[s], choice.inner(s)
        is_last = s == partition.stages - 1
        sent = 0.0
        if not is_last:
            kinds, j = list(partition.kinds[s : s + 2]), partition.cuts[s + 1]
            # The larger of what the two stages say: they may split the tensors of the boundary
            # differently.
            sent = float(options.crossing[kinds, j].max())
        return StageRecord(
            devices=self._devices(s, inner),
            cut_after=None if is_last else profile.names[end - 1],
            layers=f"{layer_name(profile.labels[first])} to {layer_name(profile.labels[end - 1])}",
            forward_seconds=seconds.forward,
            backward_seconds=seconds.backward,
            reduce_seconds=seconds.reduce,
            sent_bytes=round(sent),
            peak_bytes=round(choice.stage_bytes(s)),
            transfer_seconds=seconds.transfer,
            weights_seconds=seconds.weights,
            inside=None if inner is None else self._inside(s, inner),
        )

    @property
    def _unit(self) -> int:
        return self.pricer.topology.device_count // self.choice.kind_options.options.n_units

    def _devices(self, s: int, inner: InnerPlan | None) -> tuple[int, ...]:
        """The stage's devices; those of an inner plan in the order that its mesh has on its part of
        the machine.
        """
        group, device_cuts = s % self.choice.groups, self.choice.partition.device_cuts
        first, end = (int(d) * self._unit for d in device_cuts[group : group + 2])
        if inner is None:
            return tuple(range(first, end))
        part = self.pricer.evaluator(inner.devices).topology
        return tuple(
            first + number for number in device_order(part, inner.split_classes.mesh.sizes)
        )

    def _inside(self, s: int, inner: InnerPlan) -> InsideRecord:
        sharded, constraints = self._sharded(inner)
        problem = self.workload.problem
        leaves = [
            StageLeafRecord(path=leaf.path, spec=leaf_spec(sharded, value, leaf, None))
            for leaf, value, bits in zip(
                self.workload.inputs,
                problem.graph.inputs,
                self.membership.stages_by_leaf,
                strict=True,
            )
            # `stages_by_leaf` has a bit for each stage: layers of a loop may be in several.
            if bits >> s & 1
        ]
        return InsideRecord(
            mesh=MeshRecord(axes=inner.split_classes.mesh.axes),
            inputs=tuple(leaves),
            constraints=tuple(
                constraint_record(c)
                # Constraints are those of the whole step under the stage's point, of which it has
                # the equations that it runs.
                for c in constraints
                if self._stages_of_site.get(parse_place(c.at).site, 0) >> s & 1
            ),
            point=record_point(inner.point, problem.layers),
            replica_axes=self.pricer.replica_axes(inner.point),
        )

    def _sharded(self, inner: InnerPlan) -> tuple[ShardedGraph, Sequence[Constraint]]:
        # Stages that are sharded alike share the work, which goes over the whole step.
        if inner not in self._known:
            sharded = make_sharded_graph(self.pricer.space, self.pricer.tables, inner.split_classes)
            self._known[inner] = sharded, step_constraints(self.workload, sharded)[0]
        return self._known[inner]

    @cached_property
    def _known(self) -> dict[InnerPlan, tuple[ShardedGraph, Sequence[Constraint]]]:
        return {}

    @cached_property
    def _stages_of_site(self) -> dict[str, int]:
        """The stages of each equation; of each instruction in a program without equations."""
        has_sites = self.workload.reemitter is not None
        stages: dict[str, int] = {}
        for op, bits in zip(
            self.workload.problem.graph.ops, self.membership.stages_by_op, strict=True
        ):
            site = parse_site(op.op_name) if has_sites else op.instruction.name
            if site is not None:
                stages[site] = stages.get(site, 0) | bits
        return stages

    def predicted(self) -> PredictedRecord:
        """Seconds as means over devices, bytes of the fullest device."""
        choice, options = self.choice, self.choice.kind_options.options
        partition, m = choice.partition, self.choice.terms.microbatches
        # Of all devices, those of each stage [stages]: weights that make means over devices.
        units = np.diff(partition.device_cuts)[np.arange(partition.stages) % choice.groups]
        share = units / options.n_units
        waits = m * float(share @ np.array([self._waiting(s) for s in range(partition.stages)]))
        passes = m * float(share @ np.array([x.passes for x in choice.stages]))
        reduce = float(share @ np.array([x.reduce for x in choice.stages]))
        # The update is a part of R: rounding must not make the rest of it negative.
        update = min(self._update_seconds(share), reduce)
        compute, collective = passes - waits + update, waits + reduce - update
        fullest = max(range(partition.stages), key=choice.stage_bytes)
        peak_bytes = choice.stage_bytes(fullest)
        waited = bubble(choice.step_seconds, compute + collective)
        return PredictedRecord(
            step_seconds=choice.step_seconds,
            compute_seconds=compute,
            collective_seconds=collective,
            bubble_seconds=waited,
            rates=rates_record(
                self.workload.problem,
                self.pricer.topology,
                choice.step_seconds,
                LostRecord(collectives=collective, bubbles=waited),
            ),
            **memory_verdict(peak_bytes, options.memory_limit_bytes, self.pricer.topology),
            memory=self._memory(fullest),
            collectives=tuple(self._transfers()),
        )

    def _waiting(self, s: int) -> float:
        """Seconds of a microbatch in which a stage waits for collectives of its own."""
        inner = self.choice.inner(s)
        if inner is None:
            return 0.0
        first, end = self.membership.first[s : s + 2]
        costs = self.pricer.costs(inner, self.choice.terms.microbatches)
        return float(costs.waiting[first:end].sum())

    def _update_seconds(self, share: np.ndarray) -> float:
        """Seconds of the update, the mean over devices; collectives within a sharded one count with
        it.
        """
        partition, total = self.choice.partition, 0.0
        options = self.choice.kind_options.options
        plain = self.points.update_seconds_per_byte
        for s, kind in enumerate(partition.kinds):
            first_unit = partition.device_cuts[s % self.choice.groups]
            weights = options.gradient_bytes[partition.cuts[s], partition.cuts[s + 1]]
            # Seconds of the update per byte of gradients, which depend on how the stage's state is
            # stored.
            rate = options.rate[kind, first_unit] if self.choice.inner(s) else plain
            total += share[s] * rate * weights
        return float(total)

    def _memory(self, s: int) -> MemoryRecord:
        partition, options = self.choice.partition, self.choice.kind_options.options
        i, j = partition.cuts[s : s + 2]
        t, k = options.table[partition.kinds[s]], partition.stages - s
        share, m = options.share[partition.kinds[s]], options.microbatches
        grouped = self.choice.group_memory(s)
        # Of interleaved stages with all those on the same devices.
        groups = self.choice.groups
        here = [s] if grouped is None else range(s % groups, partition.stages, groups)
        state = sum(float(options.state[t, *partition.cuts[n : n + 2]]) for n in here)
        if grouped is None:
            held = in_flight(options.order, m, k) * options.saved[t, i, j]
            held += late_weights(options.order, m, k, s) * options.kept[t, i, j]
            activations = held / share
            temporaries = (options.working[t, i, j] + 2 * options.entering[t, i]) / share
        else:
            activations, temporaries = grouped["activations"], grouped["temporaries"]
        # Counted apart from the solver's state bytes, of which they are a part whatever the
        # rounding.
        parameters = min(sum(self._parameter_bytes(n) for n in here), state)
        return MemoryRecord(
            parameters=round(parameters),
            optimizer=round(state - parameters),
            other_state=0,
            inputs=0,
            activations=round(activations),
            temporaries=round(temporaries),
        )

    def _parameter_bytes(self, s: int) -> float:
        """Bytes of parameters on each device of a stage."""
        inner, uses, tables = (
            self.choice.inner(s),
            self.points.profile.parameters,
            self.pricer.tables,
        )
        first, end = self.membership.first[s : s + 2]
        # A parameter that several items of the stage use is there once.
        here = (uses.item >= first) & (uses.item < end)
        tensors, chosen = np.unique(uses.tensor[here], return_index=True)
        n_bytes = uses.n_bytes[here][chosen]
        if inner is None:
            return float(n_bytes.sum())
        problem = self.workload.problem
        parts = shardings(tables, problem.n_classes, inner.split_classes).parts_of_value
        # A slice of stacked layers is named (leaf, trip): the leaf says how it is split.
        roots = [n[0] if isinstance(n, tuple) else n for n in (uses.names[t] for t in tensors)]
        values = [problem.graph.inputs[root] for root in roots]  # type: ignore[index]
        return float((n_bytes / parts[tables.row_of_value[values]]).sum())

    def _transfers(self) -> Iterator[CollectiveRecord]:
        """What stages send each other; the collectives within stages are in the seconds only."""
        stages, m = self.pipeline_stages, self.choice.terms.microbatches
        sent = sum(stage.sent_bytes for stage in stages) * m
        for phase in ("forward", "backward") if len(stages) > 1 else ():
            yield CollectiveRecord(
                kind="collective-permute",
                axes=(AXIS,),
                phase=phase,
                count=(len(stages) - 1) * m,
                bytes=sent,
            )

    @cached_property
    def pipeline_stages(self) -> tuple[StageRecord, ...]:
        """The records of the stages."""
        return self.pipeline().stages


def _no_hybrid_fits(
    result: HybridSearchResult, limits: Limits, topology_name: str
) -> InfeasiblePlanError:
    """The error when there is none."""
    asked = (
        f"{limits.stages or 'any number of'} stages and {limits.microbatches or 'any number of'} "
        f"microbatches on {topology_name}"
    )
    if not np.isfinite(result.least_bytes):
        return InfeasiblePlanError(
            f"there is no pipeline of {asked}: in each stage the parts of the batch must divide a "
            "microbatch's examples; "
            "use fewer microbatches, or other stages"
        )
    needed = round(result.least_bytes)
    return InfeasiblePlanError(
        f"no pipeline of {asked} fits, with stages sharded inside: the smallest needs "
        f"{bytes_text(needed)} on a device, {bytes_text(round(limits.memory_limit_bytes))} are "
        "allowed; "
        f"{all_the_same_text(needed)}"
    )
