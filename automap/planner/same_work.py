"""Devices that do the same work under a plan: how many, of how much of the computation, and why.

    parts(o)     in how many parts the plan splits op o; of N devices N / parts(o) do the same then
    share(k)     FLOPs of the ops that k devices do alike, of all FLOPs of the step
                                                                      -> in: `_shares`

A plan says so where over half of the computation is done alike, or where an axis of its mesh splits
nothing. Why, for each class that could be decided: it does not divide by an axis that is left, or
the same plan with it split there too is no faster, by the evaluator -> in: `_reasons`
What a `shard_map` of the step runs is the user's to split, and is not counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
import math

from automap.planner.decisions import class_label
from automap.quantities import seconds_text
from automap.search import SearchContext
from automap.space.point import Point
from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.roles import Role


# Less is no surprise: under data parallelism every device updates all parameters.
_MOST = 0.5
_SHOWN = 3


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
            f"{copies} of {count} devices do the same work in {share:.0%} of the computation"
            for copies, share in sorted(alike.items(), key=lambda pair: -pair[1])[:_SHOWN]
            if share >= 0.005
        ]
        sizes = dict(mesh.axes)
        parts += [f"the axis {name} of {sizes[name]} devices splits nothing" for name in axes]
        return ("; ".join([*parts, *self._reasons(axes or list(mesh.names))]),)

    def _shares(self, count: int) -> Mapping[int, float]:
        """Number of devices that do the same -> share of the step's FLOPs."""
        evaluator, problem = self.context.evaluator, self.context.space.problem
        parts = evaluator.priced(self.context.space.split_classes(self.point)).sharding.parts_of_op
        row = evaluator.tables.row_of_op
        shares: Counter[int] = Counter()
        for index, (op, rule) in enumerate(
            zip(problem.graph.ops, problem.linkage.rules, strict=True)
        ):
            varies = any(problem.graph.varies[v] for v in op.outputs)
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
            if size > 1 and not classes and name not in own:
                yield name

    def _reasons(self, axes: list[str]) -> Iterator[str]:
        problem, space = self.context.space.problem, self.context.space
        sizes = [dict(self.point.mesh.axes)[name] for name in axes]
        leading = [
            (*problem.graph.values[v].dims, 0)[0]
            for v, role in zip(problem.graph.inputs, problem.roles, strict=True)
            if role is Role.BATCH
        ]
        if leading and max(leading) == 1:
            yield "the batch has one example"
        undivided = [
            f"{class_label(self.context, c)} into {problem.limits[c]} parts"
            for c in space.candidates
            if all(problem.limits[c] % size for size in sizes)
        ]
        if undivided:
            rest = f" and {len(undivided) - _SHOWN} more" if len(undivided) > _SHOWN else ""
            yield f"too small or not divisible: {', '.join(undivided[:_SHOWN])} at most{rest}"
        others = sorted(self._others(axes))
        if others:
            seconds, what = others[0]
            now = self.context.evaluator.evaluate(space.split_classes(self.point)).step_seconds
            told = f"{seconds_text(seconds)} a step instead of {seconds_text(now)}"
            yield (
                f"the best other choice, {what}, takes {told}"
                if seconds >= now
                else f"{what} would take {told}: search longer"
            )
        elif not undivided and not space.candidates:
            yield "no dimension of several elements is multiplied or looked up in"

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
