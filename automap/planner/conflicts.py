"""Conflicts of a plan: places where one axis cannot serve all, with what each way out would cost.

a class with itself     some tensor holds it on two dimensions (queries and keys of attention, a
                        square weight with tied embeddings): on an axis it splits the first or the
                        last, or it is not split
two classes on an axis  they meet in some tensor or op: the one that comes first in the axis's order
                        gets the axis there, the other one keeps it elsewhere; or only one of them
                        is on the axis
a fused dimension       several parts side by side (q, k and v, the gates of an LSTM), of which
                        contiguous pieces hold pieces: they are decided apart, unless the program
                        stores them interleaved

Every outcome is the same plan with that change, priced by the same evaluator; interleaving changes
the program, so what a few moves from the best preset on the plan's mesh lead to stands for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from automap.cost.evaluate import Estimate, Evaluator
from automap.cost.tables import build_tables
from automap.deadline import Deadline
from automap.jaxpr.names import readable
from automap.plan.record import ConflictRecord, OutcomeRecord
from automap.planner.decisions import class_label
from automap.program.problem_build import interleaved
from automap.search import SearchContext
from automap.search.greedy import climb, starts
from automap.space.point import Point
from automap.space.space import Space
from hlo_tools.analyses.conflicts import SelfConflict
from hlo_tools.analyses.interleaved import Fused, fused_dimensions


_CLIMB_ROUNDS = 4


@dataclass(frozen=True)
class Conflicts:
    """The conflicts that the best point of a search has."""

    context: SearchContext
    point: Point

    def records(self) -> tuple[ConflictRecord, ...]:
        """Classes that meet themselves (most places first), pairs that share an axis, fused
        dimensions.
        """
        return (*self._with_itself(), *self._pairs(), *self._fused())

    def _with_itself(self) -> Iterator[ConflictRecord]:
        problem, space = self.context.space.problem, self.context.space
        # Reversed, so that what is left of each class is its first place.
        first = {c.group_class: c for c in reversed(problem.self_conflicts)}
        places = {
            c: sum(o.count for o in problem.self_conflicts if o.group_class == c) for c in first
        }
        for c in sorted(first.values(), key=lambda c: (-places[c.group_class], c.group_class)):
            if c.group_class not in space.candidates or space.label(c.group_class) is None:
                continue
            changes = dict(self._with_and_without(c.group_class))
            label = class_label(self.context, c.group_class)
            yield self._record(
                (label, label),
                f"{self._place(c)} and {places[c.group_class] - 1} more places",
                changes,
            )

    def _place(self, conflict: SelfConflict) -> str:
        """Where a class first meets itself: dimensions of a value, or indices of the op that makes
        it.
        """
        problem = self.context.space.problem
        value = problem.graph.values[conflict.value]
        text = f"{value.dtype}{list(value.dims)}"
        classes = problem.compute_classes(conflict.value)
        dims = [str(dim) for dim, c in enumerate(classes) if c == conflict.group_class]
        if len(dims) > 1:
            return f"dimensions {' and '.join(dims)} of {text}"
        opcode = problem.graph.ops[value.producer].opcode if value.producer >= 0 else "op"
        return f"several indices of the {opcode} that makes {text}"

    def _with_and_without(self, group_class: int) -> Iterator[tuple[str, Point]]:
        # Every outcome is this, with the class put back on at most one axis.
        without = [tuple(c for c in axis if c != group_class) for axis in self.point.compute]
        # A class splits the first of the dimensions that it holds of a tensor, unless it is in
        # `last_dim_classes`.
        sides = {
            "first": self.point.last_dim_classes - {group_class},
            "last": self.point.last_dim_classes | {group_class},
        }
        yield (
            "not split",
            replace(self.point, compute=tuple(without), last_dim_classes=sides["first"]),
        )
        for axis, name in enumerate(self.point.mesh.names):
            compute = list(without)
            compute[axis] = self._kept_order(axis, group_class)
            for side, last in sides.items():
                yield (
                    f"split over {name} on the {side} of them",
                    replace(self.point, compute=tuple(compute), last_dim_classes=last),
                )

    def _kept_order(self, axis: int, group_class: int) -> tuple[int, ...]:
        # Where the class is on the axis already its precedence stays, so that only the side
        # differs.
        now = self.point.compute[axis]
        return now if group_class in now else self.context.space.ordered((*now, group_class))

    def _pairs(self) -> Iterator[ConflictRecord]:
        problem = self.context.space.problem
        meetings = {(p.first, p.second): p for p in problem.pair_conflicts}
        for axis, classes in enumerate(self.point.compute):
            name = self.point.mesh.names[axis]
            for index, first in enumerate(classes):
                # In order of precedence: where both stand the first has the axis.
                for second in classes[index + 1 :]:
                    pair = sorted((problem.compute_class(first), problem.compute_class(second)))
                    # Regional classes meet as the compute classes that they are parts of.
                    meeting = meetings.get((pair[0], pair[1]))
                    # They share the axis in different places of the program, where neither is in
                    # the other's way.
                    if meeting is None:
                        continue
                    op = problem.graph.ops[meeting.op]
                    labels = (class_label(self.context, first), class_label(self.context, second))
                    where = f"{op.opcode} {readable(op.op_name) or op.instruction.name}"
                    yield self._record(
                        labels,
                        f"{name}: {where} and {meeting.count - 1} more ops",
                        dict(self._orders(axis, first, second, labels)),
                    )

    def _orders(
        self, axis: int, first: int, second: int, labels: tuple[str, str]
    ) -> Iterator[tuple[str, Point]]:
        classes = self.point.compute[axis]
        # They change places, so that each other class of the axis keeps its precedence over both.
        swapped = tuple({first: second, second: first}.get(c, c) for c in classes)
        for name, changed in (
            (f"{labels[0]} before {labels[1]}", classes),
            (f"{labels[1]} before {labels[0]}", swapped),
            (f"only {labels[0]}", tuple(c for c in classes if c != second)),
            (f"only {labels[1]}", tuple(c for c in classes if c != first)),
        ):
            compute = list(self.point.compute)
            compute[axis] = changed
            yield name, replace(self.point, compute=tuple(compute))

    def _fused(self) -> Iterator[ConflictRecord]:
        """Parameters' dimensions of several parts side by side, which contiguous pieces do not
        keep.
        """
        problem, space = self.context.space.problem, self.context.space
        labels: dict[str, Fused] = {}
        for fused in fused_dimensions(problem.graph):
            group_class = problem.compute_classes(fused.value)[fused.dim]
            # Decided at all, and of a parameter: activations are not stored in parts.
            if group_class in space.candidates and group_class not in space.activations:
                # Equal layers have one label, and the first of them stands for all.
                labels.setdefault(class_label(self.context, group_class), fused)
        if not labels:
            return
        now = self._outcome(
            "apart", self.context.evaluator.evaluate(space.split_classes(self.point))
        )
        best = self._best_interleaved()
        for label, fused in labels.items():
            dims = problem.graph.values[fused.value].dims
            size = dims[fused.dim] // fused.parts
            name = f"interleaved, stored as {fused.parts} x {size}"
            outcomes = (now, *([] if best is None else [self._outcome(name, best)]))
            yield ConflictRecord(
                group=label,
                with_=f"its {fused.parts} parts of {size}",
                at=f"{problem.graph.values[fused.value].dtype}{list(dims)}",
                outcome="apart",
                outcomes=outcomes,
            )

    def _best_interleaved(self) -> Estimate | None:
        """The best of a short climb on the plan's mesh, if fused dimensions were interleaved."""
        evaluator = self.context.evaluator
        old = self.context.space
        space = Space(interleaved(old.problem), old.stored_multiple)
        tables = build_tables(space.problem, evaluator.topology.platform)
        context = replace(
            self.context,
            space=space,
            # Another program: its classes and rows have other numbers, so nothing that was priced
            # is known.
            evaluator=Evaluator(
                tables, space.problem.n_classes, evaluator.topology, evaluator.kernel_profile
            ),
            meshes=(self.point.mesh,),
            pins=(),
            deadline=Deadline.never(),
            on_progress=lambda context: None,
            best=None,
            best_per_preset={},
            _seen={},
            _priced={},
        )
        # From one start and for few rounds only: this says what interleaving may come to, and is no
        # plan.
        for start in starts(context)[:1]:
            return climb(context, start, _CLIMB_ROUNDS).estimate
        return None

    def _outcome(self, name: str, estimate: Estimate) -> OutcomeRecord:
        return OutcomeRecord(
            name=name,
            step_seconds=estimate.step_seconds,
            peak_bytes=round(estimate.peak_bytes),
            fits=self.context.objective.fits(estimate),
        )

    def _record(
        self, labels: tuple[str, str], at: str, changes: dict[str, Point]
    ) -> ConflictRecord:
        chosen, outcomes = "", []
        for name, point in changes.items():
            if (point.compute, point.last_dim_classes) == (
                self.point.compute,
                self.point.last_dim_classes,
            ):
                chosen = chosen or name
            # Some changes do not divide; the plan as it is stands in the list whatever it is.
            elif not self.context.space.is_valid(point):
                continue
            estimate = self.context.evaluator.evaluate(self.context.space.split_classes(point))
            outcomes.append(self._outcome(name, estimate))
        return ConflictRecord(
            group=labels[0],
            with_=labels[1],
            at=at,
            outcome=chosen or "on several axes",
            outcomes=tuple(outcomes),
        )
