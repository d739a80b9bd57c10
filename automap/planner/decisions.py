"""Why a plan is as it is: its decisions, each with what the plan would cost without it.

compute   a class on axes: the dimensions of the inputs that it splits; or its small tensors, on
          none
storage   leaf classes kept split over the same axes to the same level, as one decision
reason    step and peak of the same plan with the decision's classes taken off their axes, priced
          by the same evaluator                                                  -> in: `_reason`

Devices that do the same work under a plan: how many, of how much of the computation, and why.

    parts(o)     in how many parts the plan splits op o; of N devices N / parts(o) do the same then
    share(k)     FLOPs of the ops that k devices do alike, of all FLOPs of the step
                                                                      -> in: `_shares`

A plan says so where over half of the computation is done alike, or where an axis of its mesh splits
nothing. Why, for each class that could be decided: it does not divide by an axis that is left, or
the same plan with it split there too is no faster, by the evaluator -> in: `_reasons`
What a `shard_map` of the step runs is the user's to split, and is not counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from typing import Final, Literal

import numpy as np

from automap.plan.record import DecisionRecord, PlanRecord
from automap.program.problem import Problem
from automap.quantities import bytes_text, seconds_text
from automap.search import SearchContext
from automap.space.leaves import LeafClass
from automap.space.point import Point, SplitClasses
from automap.space.space import starred
from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.roles import Role


@dataclass(frozen=True)
class Decisions:
    """A search's context and the classes that its best plan splits."""

    context: SearchContext
    split_classes: SplitClasses

    def records(self) -> tuple[DecisionRecord, ...]:
        """Compute decisions in order of precedence, then storage decisions, largest leaves first.

        Each names the paths of the inputs that it covers.
        """
        return (*self._compute(), *self._whole(), *self._storage())

    def _compute(self) -> Iterable[DecisionRecord]:
        problem = self.context.space.problem
        for group_class in dict.fromkeys(c for axis in self.split_classes.classes for c in axis):
            # Classes are numbered by kind: compute, then storage, which `_storage` tells of, then
            # regional.
            if problem.n_compute <= group_class < problem.n_split:
                continue
            is_regional = group_class >= problem.n_split
            # A regional class is split around its weights only, so only these hold it.
            class_per_dim = problem.regional_classes if is_regional else problem.compute_classes
            holders, axes = (
                self._holders(class_per_dim, {group_class}),
                self._axes_with({group_class}),
            )
            # The batch of a step that reshapes it to microbatches is no dimension of an input.
            if axes and (holders or group_class == problem.batch_class):
                yield DecisionRecord(
                    group=class_label(self.context, group_class),
                    kind="compute",
                    axes=axes,
                    level=None,
                    covers=tuple(problem.paths[i] for i in holders),
                    reason=self._reason({group_class}),
                )

    def _whole(self) -> Iterable[DecisionRecord]:
        problem = self.context.space.problem
        is_small, offset = problem.small_parts.is_small_node, problem.linkage.node_offset
        for group_class in sorted(self.split_classes.small_whole_classes):
            holders = [
                i
                for i in self._holders(problem.compute_classes, {group_class})
                for value in [problem.graph.inputs[i]]
                if is_small[offset[value] : offset[value + 1]].any()
            ]
            without = replace(
                self.split_classes,
                small_whole_classes=self.split_classes.small_whole_classes - {group_class},
            )
            yield DecisionRecord(
                group=f"small tensors of {class_label(self.context, group_class)}",
                kind="compute",
                axes=(),
                level=None,
                covers=tuple(problem.paths[i] for i in holders),
                reason=self._compared(without),
            )

    def _storage(self) -> Iterable[DecisionRecord]:
        space = self.context.space
        # Leaves without optimizer state apart: of them level OPTIMIZER stores nothing split.
        together = dict[
            tuple[tuple[str, ...], Literal["full", "optimizer"], bool], list[LeafClass]
        ]()
        for leaf in space.leaves:
            # The number of classes stands for no class.
            axes = self._axes_with(set(leaf.optimizer_side) - {space.problem.n_classes})
            full = self._axes_with(set(leaf.parameter_side) - {space.problem.n_classes})
            if axes or full:
                # Stored in full a leaf's optimizer state is split as well, so one decision says
                # both.
                has_state = bool(full) or self._has_state(leaf)
                key = (axes or full, "full" if full else "optimizer", has_state)
                together.setdefault(key, []).append(leaf)
        for (axes, level, _), leaves in together.items():
            classes = {c for x in leaves for c in (*x.optimizer_side, *x.parameter_side)}
            holders = self._holders(space.problem.storage_classes, classes)
            parameters = [i for leaf in leaves for i in leaf.inputs]
            first = starred(space.problem.paths[parameters[0]])
            # Named by the first of its parameters, with a * for the number of a layer.
            rest = f" and {len(parameters) - 1} more" if len(parameters) > 1 else ""
            yield DecisionRecord(
                group=f"{first}{rest}",
                kind="storage",
                axes=axes,
                level=level,
                covers=tuple(space.problem.paths[i] for i in sorted({*holders, *parameters})),
                reason=self._reason(classes),
            )

    def _has_state(self, leaf: LeafClass) -> bool:
        problem = self.context.space.problem
        held = self._holders(problem.storage_classes, set(leaf.optimizer_side))
        return any(problem.roles[i] is Role.OPTIMIZER for i in held)

    def _axes_with(self, classes: set[int]) -> tuple[str, ...]:
        """The axes of several devices that split one of the classes."""
        pairs = zip(self.split_classes.mesh.axes, self.split_classes.classes, strict=True)
        return tuple(n for (n, size), on_axis in pairs if size > 1 and classes & set(on_axis))

    def _holders(
        self, class_per_dim: Callable[[int], tuple[int, ...]], classes: set[int]
    ) -> list[int]:
        """Positions of the inputs that hold one of the classes."""
        problem = self.context.space.problem
        real = classes - {problem.n_classes}
        return [i for i, v in enumerate(problem.graph.inputs) if real & set(class_per_dim(v))]

    def _reason(self, classes: set[int]) -> str:
        without = SplitClasses(
            self.split_classes.mesh,
            tuple(
                tuple(c for c in axis if c not in classes) for axis in self.split_classes.classes
            ),
            self.split_classes.last_dim_classes,
            self.split_classes.small_whole_classes - classes,
        )
        return self._compared(without)

    def _compared(self, without: SplitClasses) -> str:
        evaluate, objective = self.context.evaluator.evaluate, self.context.objective
        now, then = evaluate(self.split_classes), evaluate(without)
        too_much = objective.fits(now) and not objective.fits(then)
        limit = bytes_text(round(objective.memory_limit_bytes))
        return (
            f"without it: step {seconds_text(then.step_seconds)}"
            f"{_change(now.step_seconds, then.step_seconds)}, "
            f"peak {bytes_text(round(then.peak_bytes))}{_change(now.peak_bytes, then.peak_bytes)}"
            + (f", which does not fit in {limit}" if too_much else "")
        )


def _change(now: float, then: float) -> str:
    # A step that only hands on its inputs takes no time.
    return f" ({then / now - 1:+.1%})" if now else ""


def class_label(context: SearchContext, group_class: int) -> str:
    """A class as people call it: "batch", or the largest input dimension it covers, or of any
    tensor.
    """
    space = context.space
    if group_class == space.problem.batch_class:
        return "batch"
    label = space.label(group_class) or _tensor_label(space.problem, group_class)
    if group_class not in space.problem.outer_parts:
        return label
    _, parts = space.problem.outer_parts[group_class]
    return f"{label} in each of its {parts} parts"


def _tensor_label(problem: Problem, group_class: int) -> str:
    """The largest tensor that holds a class of no input, and on which dimension."""
    # A node is a dimension of a value. They are numbered value by value, from `node_offset` on.
    is_grouped = group_class in problem.outer_parts
    classes = problem.regional_class_of_node if is_grouped else problem.compute_class_of_node
    nodes = np.flatnonzero(classes == group_class)
    offset = problem.linkage.node_offset
    owners = np.searchsorted(offset, nodes, side="right") - 1
    values = problem.graph.values
    largest = max(range(len(nodes)), key=lambda n: values[owners[n]].n_bytes)
    value = values[owners[largest]]
    return f"{value.dtype}{list(value.dims)}[{nodes[largest] - offset[owners[largest]]}]"


# Less is no surprise: under data parallelism every device updates all parameters.
_MOST = 0.5
_SHOWN = 3
# By which a plan's warnings of this kind are known again.
_ALIKE: Final = "devices do the same work"
_IDLE: Final = "devices splits nothing"


def size_reasons(context: SearchContext, sizes: Sequence[int]) -> Iterator[str]:
    """What cannot be split over axes of these sizes, as it is too small or does not divide."""
    problem, candidates = context.space.problem, context.space.candidates
    leading = [
        # The leading dimension; 0 of a scalar.
        (*problem.graph.values[v].dims, 0)[0]
        for v, role in zip(problem.graph.inputs, problem.roles, strict=True)
        if role is Role.BATCH
    ]
    if leading and max(leading) == 1:
        yield "the batch has one example"
    # A class and the part of it that is split around weights alone are one dimension to people.
    undivided = dict.fromkeys(
        f"{class_label(context, c)} into {problem.limits[c]} parts"
        for c in candidates
        if all(problem.limits[c] % size for size in sizes)
    )
    if undivided:
        rest = f" and {len(undivided) - _SHOWN} more" if len(undivided) > _SHOWN else ""
        yield f"too small or not divisible: {', '.join([*undivided][:_SHOWN])} at most{rest}"
    if not candidates:
        yield "nothing is computed over a dimension of several elements"


def same_work(plan: PlanRecord) -> tuple[str, ...]:
    """Those of a plan's warnings that `SameWork` wrote, also of a plan from a file."""
    return tuple(text for text in plan.warnings if _ALIKE in text or _IDLE in text)


@dataclass(frozen=True)
class SameWork:
    """What is said of the best point of a search."""

    context: SearchContext
    point: Point

    def warnings(self) -> tuple[str, ...]:
        """One sentence, or none."""
        mesh = self.point.mesh
        count = math.prod(mesh.sizes)
        shares = self._shares(count)
        alike = {copies: share for copies, share in shares.items() if copies > 1}
        axes = list(self._idle_axes())
        if count == 1 or not (axes or sum(alike.values()) > _MOST):
            return ()
        parts = [
            f"{copies} of {count} {_ALIKE} in {share:.0%} of the computation"
            for copies, share in sorted(alike.items(), key=lambda pair: -pair[1])[:_SHOWN]
            # Less would be printed as 0%.
            if share >= 0.005
        ]
        sizes = dict(mesh.axes)
        parts += [f"the axis {name} of {sizes[name]} {_IDLE}" for name in axes]
        return ("; ".join([*parts, *self._reasons(axes or list(mesh.names))]),)

    def _shares(self, count: int) -> Mapping[int, float]:
        """Number of devices that do the same -> share of the step's FLOPs."""
        evaluator, problem = self.context.evaluator, self.context.space.problem
        parts = evaluator.price_point(
            self.context.space.split_classes(self.point)
        ).sharding.parts_of_op
        row = evaluator.tables.row_of_op
        shares: Counter[int] = Counter()
        for index, (op, rule) in enumerate(
            zip(problem.graph.ops, problem.linkage.rules, strict=True)
        ):
            varies = any(problem.graph.varies[v] for v in op.outputs)
            # What depends on no input is folded by the compiler; the body of a shard_map is the
            # user's.
            if varies and index not in problem.graph.local_ops:
                copies = count // int(parts[row[index]])
                shares[copies] += op.trip_count * flops(problem.graph, op, rule)
        total = sum(shares.values())
        return {copies: n / total for copies, n in shares.items()} if total else {}

    def _idle_axes(self) -> Iterator[str]:
        """Axes of several devices along which nothing is split or stored, nor by the user's own
        code.
        """
        imposed = self.context.space.problem.imposed
        specs = (*imposed.specs_by_op.values(), *imposed.specs_by_value.values())
        own = {axis for spec in specs for axes in spec for axis in axes or ()}
        split_classes = self.context.space.split_classes(self.point)
        for (name, size), classes in zip(
            split_classes.mesh.axes, split_classes.classes, strict=True
        ):
            # The user's own constraints may split along an axis that the plan leaves alone.
            if size > 1 and not classes and name not in own:
                yield name

    def _reasons(self, axes: list[str]) -> Iterator[str]:
        space = self.context.space
        sizes = [dict(self.point.mesh.axes)[name] for name in axes]
        yield from size_reasons(self.context, sizes)
        others = sorted(self._others(axes))
        if others:
            seconds, what = others[0]
            now = self.context.evaluator.evaluate(space.split_classes(self.point)).step_seconds
            times = f"{seconds_text(seconds)} a step instead of {seconds_text(now)}"
            # A faster neighbour is left where the budget ended the search, or another strategy
            # than a climb was asked for.
            yield (
                f"the best other choice, {what}, takes {times}"
                if seconds >= now
                else f"{what} would take {times}: search longer"
            )

    def _others(self, axes: list[str]) -> Iterator[tuple[float, str]]:
        """Seconds of a step of the plan with one class more on one of the axes, where it fits."""
        space, names = self.context.space, self.point.mesh.names
        for name in axes:
            axis = names.index(name)
            for group_class in space.candidates:
                now = self.point.compute[axis]
                if group_class in now or self.point.mesh.sizes[axis] == 1:
                    continue
                compute = list(self.point.compute)
                compute[axis] = space.ordered((*now, group_class))
                point = replace(self.point, compute=tuple(compute))
                if space.is_valid(point) and self.context.pinned.allows(point):
                    estimate = self.context.evaluator.evaluate(space.split_classes(point))
                    if self.context.objective.fits(estimate):
                        label = class_label(self.context, group_class)
                        yield estimate.step_seconds, f"{label} split over {name}"
