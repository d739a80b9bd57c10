"""Why a plan is as it is: its decisions, each with what the plan would cost without it.

compute   a class on axes: the dimensions of the inputs that it splits; or its small tensors, on
          none
storage   leaf classes kept split over the same axes to the same level, as one decision
reason    step and peak of the same plan with the decision's classes taken off their axes, priced
          by the same evaluator                                                  -> in: `_reason`
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from automap.plan.record import DecisionRecord
from automap.program.problem import Problem
from automap.quantities import bytes_text, seconds_text
from automap.search import SearchContext
from automap.space.leaves import LeafClass
from automap.space.point import SplitClasses
from automap.space.space import starred


@dataclass(frozen=True)
class Explained:
    """A search's context and the classes that its best plan splits."""

    context: SearchContext
    split_classes: SplitClasses

    def decisions(self) -> tuple[DecisionRecord, ...]:
        """Compute decisions in order of precedence, then storage decisions, largest leaves first."""
        return (*self._compute(), *self._whole(), *self._storage())

    def _compute(self) -> Iterable[DecisionRecord]:
        problem = self.context.space.problem
        for group_class in dict.fromkeys(c for axis in self.split_classes.classes for c in axis):
            if problem.n_compute <= group_class < problem.n_split:
                continue
            is_regional = group_class >= problem.n_split
            class_per_dim = problem.regional_classes if is_regional else problem.compute_classes
            holders, axes = (
                self._holders(class_per_dim, {group_class}),
                self._axes_with({group_class}),
            )
            if holders and axes:
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
        together: dict[tuple[tuple[str, ...], Literal["full", "optimizer"]], list[LeafClass]] = {}
        for leaf in space.leaves:
            axes = self._axes_with(set(leaf.optimizer_side) - {space.problem.n_classes})
            full = self._axes_with(set(leaf.parameter_side) - {space.problem.n_classes})
            if axes or full:
                key = (axes or full, "full" if full else "optimizer")
                together.setdefault(key, []).append(leaf)
        for (axes, level), leaves in together.items():
            classes = {c for x in leaves for c in (*x.optimizer_side, *x.parameter_side)}
            holders = self._holders(space.problem.storage_classes, classes)
            parameters = [i for leaf in leaves for i in leaf.inputs]
            first = starred(space.problem.paths[parameters[0]])
            rest = f" and {len(parameters) - 1} more" if len(parameters) > 1 else ""
            yield DecisionRecord(
                group=f"{first}{rest}",
                kind="storage",
                axes=axes,
                level=level,
                covers=tuple(space.problem.paths[i] for i in sorted({*holders, *parameters})),
                reason=self._reason(classes),
            )

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
    return space.label(group_class) or _tensor_label(space.problem, group_class)


def _tensor_label(problem: Problem, group_class: int) -> str:
    """The largest tensor that holds a class of no input, and on which dimension."""
    nodes = np.flatnonzero(problem.compute_class_of_node == group_class)
    offset = problem.linkage.node_offset
    owners = np.searchsorted(offset, nodes, side="right") - 1
    values = problem.graph.values
    largest = max(range(len(nodes)), key=lambda n: values[owners[n]].n_bytes)
    value = values[owners[largest]]
    return f"{value.dtype}{list(value.dims)}[{nodes[largest] - offset[owners[largest]]}]"
