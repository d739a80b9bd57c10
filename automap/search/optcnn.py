"""`optcnn`: the least sum of seconds by dynamic programming (OptCNN: Jia et al., ICML 2018, "Exploring Hidden Dimensions in
Accelerating Convolutional Neural Networks", section 5).

    least over x of  sum over tables t of  seconds_t(x[scope of t])

In the paper a node is an operator with a configuration, an edge costs the transfers between two of them, and nodes of two
edges and parallel edges are eliminated until a graph is left that is small enough to try.  Here a node is a decision
of the space on one mesh (`automap.search.factored.variables`), tables have what kernels and collectives take by the few
decisions they depend on, and a node of any number of edges is eliminated     -> in: `automap.search.exact.eliminate`

As in the paper seconds are all that counts: memory is not asked about, and collectives do not hide behind kernels.  So a
plan may not fit, or not be the best on GPUs; the evaluator prices it as any other.  Tables that would be too large, on
meshes of two or three axes, are left out, and the plan is that of the rest; or such meshes are left to another strategy.
Where no table is left out and nothing hides, the least sum of all meshes is a lower bound of what any plan takes
                                                                              -> in: `least_sums`
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from automap.cost.backends import Habit
from automap.search.context import EQUAL, Candidate, SearchContext
from automap.search.exact.eliminate import Elimination, order_of
from automap.search.factored.cells import Rows
from automap.search.factored.model import Model
from automap.search.factored.variables import variables_of
from automap.space.point import Mesh


# Joint choices of a table's decisions; larger tables are left out.
_MOST_CHOICES = 1 << 17


@dataclass(frozen=True)
class LeastSums:
    """The plan of the least sum of each mesh that has one; `unsolved` are the meshes where a better one may be left."""

    plans: tuple[Candidate, ...]
    unsolved: tuple[Mesh, ...]


# What to do with a mesh of which a table would be too large: add up the others, or leave it to another strategy.
Partial = Literal["summed", "left"]


def optcnn(context: SearchContext) -> None:
    """The plan of the least sum of seconds on every mesh."""
    least_sums(context, "summed")


def least_sums(context: SearchContext, partial: Partial) -> LeastSums:
    """Those plans of the meshes that differ, with a bound where seconds add up."""
    model = Model(Rows(context.space, context.evaluator), context.pins, context.check_time)
    seconds = np.zeros(model.features.count)
    seconds[: model.features.value_rows] = 1.0
    adds_up = Habit.ASYNCHRONOUS not in context.evaluator.habits
    plans, bounds = list[Candidate](), dict[Mesh, float]()
    is_complete = True
    for mesh in sorted(context.distinct_meshes, key=lambda mesh: len(mesh.sizes)):
        context.check_time()
        variables = variables_of(context.space, mesh)
        if not model.is_complete(variables, _MOST_CHOICES):
            is_complete = False
            if partial == "left":
                bounds[mesh] = 0.0
                continue
        factored = model.on_mesh(variables, _MOST_CHOICES)
        tables, sizes = factored.tables(seconds), variables.sizes
        least = Elimination(tables, sizes, order_of([t.scope for t in tables], sizes))
        bounds[mesh] = least.bound if adds_up else 0.0
        plan = context.evaluate(variables.point(least.assignment()), "optcnn")
        if plan is not None:
            plans.append(plan)
    if adds_up and is_complete:
        context.raise_bound(min(bounds.values(), default=np.inf))
    best_seconds = context.fitting_seconds
    unsolved = (mesh for mesh, bound in bounds.items() if bound < best_seconds * (1 - EQUAL))
    return LeastSums(tuple(plans), tuple(unsolved))
