"""A stage's way of running on its own devices, priced item by item.

An *inner plan* shards the step over r devices: a point of the sharding space on a mesh of a part of
the machine. Under it, with M microbatches,

    forward, backward  of an item: its kernels on 1 / M of the batch, and the collectives that its
                       ops issue in every microbatch, of which the share w counts in which a device
                       waits                                               -> in: `Pricer.costs`
    w                  waiting over all seconds of such collectives, by the evaluator's walk along
                       one microbatch                              -> in: `Pricer._waiting_share`
    weights            of the backward kernels those of weight passes, for schedules that have them
                       apart; all collectives are the backward pass's
    reduce             sums of gradients after the last microbatch, by the item whose gradient it is
    update             kernels and collectives of the update, spread by bytes of gradients

Gradients of parameters that are stored split (ZeRO-3) are scattered in every microbatch, and such
parameters are gathered in each forward and each backward pass, which are programs of their own:
nothing that is gathered stays for the other. All other gradients are summed up where they are
made and reduced over replicas once; what they are over other axes (of sequences, of experts and
their batch) is summed in every microbatch. Bytes of a device are those of
`automap.pipeline.profile.profile` with every tensor divided in the parts that it is split in; what
is gathered for an op counts while it runs.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from automap.cost.edges import Edges
from automap.cost.evaluate import Evaluator, Priced
from automap.cost.profile import KernelProfile
from automap.cost.schedule.overlap import exposed_seconds
from automap.cost.schedule.work import step_work
from automap.cost.shardings import Shardings, shardings
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives
from automap.pipeline.hybrid.membership import ItemShares, item_shares
from automap.pipeline.profile.profile import Profile
from automap.pipeline.profile.traffic import Uses
from automap.pipeline.transfers import Layout
from automap.space.leaves import parameter_sides
from automap.space.point import Point, SplitClasses
from automap.space.space import Space
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.topology.parts import sub_topology
from hlo_tools.analyses.phases import Phase


_MICROBATCHES = "microbatches"
"""An axis of its own that splits the batch only."""


@dataclass(frozen=True, slots=True)
class InnerPlan:
    """A sharding of a stage over `devices`; `origin` is the preset or search that it comes from."""

    devices: int
    point: Point
    split_classes: SplitClasses
    origin: str


@dataclass(frozen=True)
class Held:
    """What a device holds of the whole batch, and of the state; `cut_bytes` and `working_bytes`
    [items].
    """

    cut_bytes: np.ndarray
    working_bytes: np.ndarray
    saved: Uses
    kept: Uses
    state: Uses


@dataclass(frozen=True)
class Costs:
    """An inner plan by items, [items] unless said; seconds of one microbatch.

    `weights` is a part of `backward`, `waiting` what collectives are of forward and backward;
    `update_seconds` is of the whole step's parameters. `gathered_bytes` are of a device and one
    microbatch.
    """

    forward: np.ndarray
    backward: np.ndarray
    weights: np.ndarray
    waiting: np.ndarray
    reduce: np.ndarray
    update_seconds: float
    gathered_bytes: np.ndarray
    held: Held


@dataclass(frozen=True)
class Pricer:
    """Prices inner plans of one step on parts of one machine."""

    profile: Profile
    space: Space
    topology: Topology
    kernel_profile: KernelProfile | None = None
    _evaluators: dict[int, Evaluator] = field(default_factory=dict, repr=False)
    _costs: dict[tuple[SplitClasses, int], Costs] = field(default_factory=dict, repr=False)

    @cached_property
    def tables(self) -> Tables:
        """The step's, but the backward pass finds nothing gathered by the forward pass."""
        tables = self.profile.timing.tables

        def apart(edges: Edges) -> Edges:
            later, earlier = edges.repeats.T
            return replace(edges, repeats=edges.repeats[edges.phase[later] == edges.phase[earlier]])

        return replace(tables, operands=apart(tables.operands), results=apart(tables.results))

    def evaluator(self, devices: int) -> Evaluator:
        """The evaluator of a part of the machine. Raises `ValueError` if there is no such part."""
        if devices not in self._evaluators:
            part = sub_topology(self.topology, devices)
            if part is None:
                raise ValueError(f"{devices} devices are no part of {self.topology.name}")
            n_classes = self.space.problem.n_classes
            self._evaluators[devices] = Evaluator(self.tables, n_classes, part, self.kernel_profile)
        return self._evaluators[devices]

    def batch_parts(self, split_classes: SplitClasses) -> int:
        """In how many parts the batch is split."""
        batch = self.space.problem.batch_class
        sizes = [
            s
            for s, c in zip(split_classes.mesh.sizes, split_classes.classes, strict=True)
            if batch in c
        ]
        return int(np.prod(sizes, initial=1))

    def replica_axes(self, point: Point) -> tuple[str, ...]:
        """The axes that split the batch and nothing else."""
        alone = (self.space.problem.batch_class,)
        named = zip(point.mesh.names, point.compute, strict=True)
        return tuple(name for name, classes in named if classes == alone)

    def may_run(self, split_classes: SplitClasses, microbatches: int) -> bool:
        """Whether a microbatch's examples divide in the parts of the batch."""
        return self.profile.batch_size % (microbatches * self.batch_parts(split_classes)) == 0

    def costs(self, inner: InnerPlan, microbatches: int) -> Costs:
        """An inner plan item by item; what was asked for before is not worked out again."""
        key = inner.split_classes, microbatches
        if key not in self._costs:
            self._costs[key] = self._priced_by_item(inner, microbatches)
        return self._costs[key]

    def _priced_by_item(self, inner: InnerPlan, microbatches: int) -> Costs:
        profile, tables, split_classes = self.profile, self.tables, inner.split_classes
        timing, n_items = profile.timing, profile.n_items
        sharding = shardings(tables, self.space.problem.n_classes, split_classes)
        evaluator, priced = self._priced(inner, sharding, microbatches)
        # Entries of `Collectives`: one kind of collective of one edge, `count` times a step.
        entries, in_each = priced.collectives, self._in_each(priced.collectives, inner)
        seconds, joined = (
            each * entries.count for each in (priced.collective_seconds, priced.copying_seconds)
        )
        is_update = entries.phase == Phase.UPDATE
        waiting_share = self._waiting_share(evaluator, priced, in_each)
        run = priced.kernel_seconds[timing.row] * timing.runs
        kernels, exposed = [], []
        for is_backward, side in ((False, "forward"), (True, "backward")):
            chosen = timing.is_backward == is_backward
            own = np.bincount(timing.item[chosen], run[chosen], n_items)
            kernels.append(own + self._by_item(entries, joined * in_each, side))
            exposed.append(waiting_share * self._by_item(entries, seconds * in_each, side))
        # What is done once a step: the gradients' sums over replicas, without the kernels that copy
        # them, which stages of replicas alone do not have either.
        once = seconds * ~(in_each | is_update)
        reduce = self._by_item(entries, once, "forward") + self._by_item(entries, once, "backward")
        # The update works on whole parameters: it does not become less with microbatches.
        whole = evaluator.roofline.seconds(sharding)
        inputs = list(self.space.problem.graph.inputs)
        adding = profile.adding_seconds(sharding.parts_of_value[tables.row_of_value[inputs]])
        weights = np.bincount(timing.item[profile.is_weights], run[profile.is_weights], n_items)
        return Costs(
            forward=kernels[0] + exposed[0],
            backward=kernels[1] + adding + exposed[1],
            weights=weights + adding,
            waiting=exposed[0] + exposed[1],
            reduce=reduce,
            update_seconds=float(whole @ timing.update + (seconds + joined)[is_update].sum()),
            gathered_bytes=self._item_shares[0].copies @ entries.copied,
            held=self._held(sharding),
        )

    def _priced(
        self, inner: InnerPlan, sharding: Shardings, microbatches: int
    ) -> tuple[Evaluator, Priced]:
        """Kernels and collectives of one microbatch."""
        evaluator, mesh = self.evaluator(inner.devices), inner.split_classes.mesh
        timing, tables = self.profile.timing, self.tables
        entries = tables.collectives(sharding)
        # Tensors with examples are 1 / M as large; those of parameters stay whole.
        holds = self._holds_examples
        entry_holds = np.where(
            entries.on_operand,
            holds[tables.operands.value_row[np.where(entries.on_operand, entries.edge, 0)]],
            holds[tables.results.value_row[np.where(entries.on_operand, 0, entries.edge)]],
        )
        copied = np.where(holds[tables.operands.value_row], microbatches, 1)
        made = np.where(holds[tables.results.value_row], microbatches, 1)
        again = entries.scattered_again
        entries = replace(
            entries,
            n_bytes=entries.n_bytes / np.where(entry_holds, microbatches, 1),
            copied=entries.copied / copied,
            whole_sums=entries.whole_sums / made,
            turned_operands=entries.turned_operands / copied,
            copied_results=entries.copied_results / made,
            scattered_again=replace(again, n_bytes=again.n_bytes / made),
        )
        # Kernels see a microbatch as one more mesh axis that splits the batch and nothing else; no
        # collective crosses it, which is why those above are of the mesh without it.
        in_parts = replace(
            inner.split_classes,
            mesh=Mesh((_MICROBATCHES, *mesh.names), (microbatches, *mesh.sizes)),
            classes=((timing.batch_class,), *inner.split_classes.classes),
        )
        split = shardings(tables, self.space.problem.n_classes, in_parts)
        priced = evaluator.combine(sharding, entries, evaluator.roofline.seconds(split))
        return evaluator, evaluator.as_one_point(priced)

    def _in_each(self, entries: Collectives, inner: InnerPlan) -> np.ndarray:
        """Whether each entry is done in every microbatch, [entries]; the others once in a step.

        Those others are sums of gradients over replicas alone: what the partitioner splits, it also
        sums.
        """
        split_classes, replicas = inner.split_classes, self.replica_axes(inner.point)
        is_sum = ~entries.on_operand & entries.combinable & (entries.phase == Phase.BACKWARD)
        in_each = np.zeros(len(entries.edge), bool)
        row = self.tables.results.value_row[np.where(entries.on_operand, 0, entries.edge)]
        # [entries, dimensions]: the class along which the parameter of a gradient is stored split.
        parameter_side = self._parameter_side[self.tables.value_rows[row, :, 1]]
        for axis, classes in enumerate(split_classes.classes):
            is_stored = np.isin(parameter_side, classes).any(axis=1)
            # Bit `axis` of a mask: the collective is over that axis of the mesh.
            is_over = (entries.mask >> axis & 1).astype(bool)
            in_each |= is_over & (is_stored | (split_classes.mesh.names[axis] not in replicas))
        return (entries.phase != Phase.UPDATE) & (~is_sum | in_each)

    def _waiting_share(self, evaluator: Evaluator, priced: Priced, in_each: np.ndarray) -> float:
        """w of the first lines, from 0 to 1; 1 where the backend overlaps nothing."""
        entries, collective_seconds = priced.collectives, priced.collective_seconds * in_each
        busy = float(collective_seconds @ entries.count)
        scheduled = evaluator.backend.schedule_numbers
        if not busy or scheduled is None:
            return 1.0
        kernel_seconds = np.where(
            self.tables.kernels.phase == Phase.UPDATE, 0.0, priced.kernel_seconds
        )
        work, _ = step_work(
            self.tables.order,
            kernel_seconds,
            entries,
            collective_seconds,
            unseen_seconds=scheduled.unseen_seconds,
        )
        return exposed_seconds(work) / busy

    def _by_item(self, entries: Collectives, seconds: np.ndarray, side: str) -> np.ndarray:
        """Seconds of entries by the items whose ops issue them, [items]; `side` is forward or
        backward.
        """
        result = np.zeros(self.profile.n_items)
        tables = self.tables
        for shares, is_here, edges in (
            (self._item_shares[0], entries.on_operand, tables.operands),
            (self._item_shares[1], ~entries.on_operand, tables.results),
        ):
            seconds_by_edge = np.bincount(entries.edge[is_here], seconds[is_here], len(edges.count))
            result += getattr(shares, side) @ seconds_by_edge
        return result

    def _held(self, sharding: Shardings) -> Held:
        profile, structure = self.profile, self.profile.structure
        kept = profile.kept
        parts = sharding.parts_of_value[self.tables.row_of_value]
        local = self._value_bytes / parts
        saved = profile.saved
        return Held(
            cut_bytes=structure.crossing.alive(local),
            working_bytes=structure.working.n_bytes(np.where(self._is_batched, local, 0.0)),
            saved=replace(saved, n_bytes=saved.n_bytes / parts[self._saved_value]),
            kept=replace(kept, n_bytes=kept.n_bytes / parts[self._kept_value]),
            state=structure.stored.uses(parts),
        )

    @cached_property
    def _value_bytes(self) -> np.ndarray:
        """Of whole values, [values]."""
        return np.array([value.n_bytes for value in self.space.problem.graph.values], float)

    @cached_property
    def _is_batched(self) -> np.ndarray:
        """Whether a value holds examples, [values]."""
        return self.profile.timing.is_batched

    @cached_property
    def _kept_value(self) -> np.ndarray:
        """The value of each use of what weight passes read, [uses]."""
        return np.array(self.profile.kept.names, np.int64)[self.profile.kept.tensor]

    @cached_property
    def _saved_value(self) -> np.ndarray:
        """The value of each use of saved activations, [uses]."""
        saved = self.profile.saved
        value = [name[0] if isinstance(name, tuple) else name for name in saved.names]
        return np.array(value, np.int64)[saved.tensor]

    def layout(self, split_classes: SplitClasses) -> Layout:
        """Which part of what crosses most cuts each device has; the batch's parts come first."""
        sharding = shardings(self.tables, self.space.problem.n_classes, split_classes)
        dims, sizes = sharding.dim_of_axis[self._crossing_row], split_classes.mesh.sizes
        # The coordinates of each device in the mesh, [axes, devices]. Devices with one number hold
        # the same part; axes that split an earlier dimension are major.
        at = np.indices(sizes).reshape(len(sizes), -1)
        part = np.zeros(at.shape[1], np.int64)
        for axis in sorted(np.flatnonzero(dims >= 0).tolist(), key=lambda a: (dims[a], a)):
            part = part * sizes[axis] + at[axis]
        return Layout(tuple(part.tolist()))

    @cached_property
    def _crossing_row(self) -> int:
        """The value row of which the most bytes cross where stages may be cut.

        Of these the better half counts: stages end where little crosses.
        """
        changes, profile = self.profile.structure.crossing, self.profile
        # A layout is one for all cuts, so that of the tensor that crosses most of the likely ones.
        crossing = profile.cut_bytes[profile.may_cut]
        most = np.median(crossing) if len(crossing) else 0.0
        counts = profile.may_cut & (profile.cut_bytes <= most)
        before = np.concatenate([[0], counts.cumsum()])
        crossed = -changes.sign * before[changes.at] * self._value_bytes[changes.value]
        rows = self.tables.row_of_value[changes.value]
        return int(np.bincount(rows, crossed, len(self.tables.value_rows)).argmax())

    @cached_property
    def _holds_examples(self) -> np.ndarray:
        """Whether a value row holds examples, [value rows]."""
        result = np.zeros(len(self.tables.value_rows), bool)
        result[self.tables.row_of_value] = self._is_batched
        return result

    @cached_property
    def _parameter_side(self) -> np.ndarray:
        """The storage class of the parameter's dimension by that of its gradient's; -1 for other
        classes.
        """
        n_numbers = int(self.tables.value_rows.max()) + 1
        result = np.full(n_numbers, -1)
        for gradient, parameter in parameter_sides(self.space.leaves).items():
            # Others are no classes: a dimension that nothing splits.
            if gradient < self.space.problem.n_classes:
                result[gradient] = parameter
        return result

    @cached_property
    def _item_shares(self) -> tuple[ItemShares, ItemShares]:
        """The shares of each item in operand edges, and in result edges."""
        tables = self.tables
        return item_shares(self.profile, tables.operands), item_shares(self.profile, tables.results)
