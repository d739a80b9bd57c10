"""`optcnn`: the least sum of seconds by dynamic programming (OptCNN: Jia et al., ICML 2018,
"Exploring Hidden Dimensions in Accelerating Convolutional Neural Networks", section 5).

    least over x of  sum over tables t of  seconds_t(x[scope of t])

In the paper a node is an operator with a configuration, an edge costs the transfers between two of
them, and nodes of two edges and parallel edges are eliminated until a graph is left that is small
enough to try. Here a node is a decision of the space on one mesh
(`automap.search.factored.variables`), tables have what kernels and collectives take by the few
decisions that they depend on, and a node of any number of edges is eliminated
                                                        -> in: `automap.search.factored.eliminate`

As in the paper seconds are all that counts: memory is not asked about, and collectives do not hide
behind kernels. So a plan may not fit, or not be the best on GPUs; the evaluator prices it as any
other. Tables that would be too large, on meshes of two or three axes, are left out, and the plan is
that of the rest. Where no table is left out and nothing hides, the least sum of all meshes is a
lower bound of what any plan takes                      -> in: `Summing.on_complete_meshes`
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.search.context import EQUAL, Candidate, SearchContext
from automap.search.factored.cells import Rows
from automap.search.factored.eliminate import Elimination, elimination_order
from automap.search.factored.model import Model
from automap.search.factored.variables import mesh_variables
from automap.topology.mesh import Mesh


# Joint choices of a table's decisions; larger tables are left out.
_MOST_CHOICES = 1 << 17


@dataclass(frozen=True)
class LeastSums:
    """The plan of the least sum of each mesh that has one.

    `unsolved` are the meshes where a better one may be left, `partial` those of them of which some
    table would be too large, and none was added up yet.
    """

    plans: tuple[Candidate, ...]
    unsolved: tuple[Mesh, ...]
    partial: tuple[Mesh, ...]


@dataclass(frozen=True)
class Summing:
    """Least sums of the meshes of one search."""

    context: SearchContext

    @cached_property
    def _model(self) -> Model:
        context = self.context
        return Model(Rows(context.space, context.evaluator), context.pins, context.spend)

    @cached_property
    def _seconds(self) -> np.ndarray:
        """The features that are seconds."""
        features = self._model.features
        # Features are numbered by kind, those of seconds first; stored shapes are the first
        # of memory's.
        seconds = np.zeros(features.count)
        seconds[: features.shapes] = 1.0
        return seconds

    def is_complete(self, mesh: Mesh) -> bool:
        """Whether no table of a mesh is too large."""
        return self._model.is_complete(mesh_variables(self.context.space, mesh), _MOST_CHOICES)

    def on_mesh(self, mesh: Mesh) -> tuple[float, Candidate | None]:
        """The least sum of all tables that are not too large, and its plan."""
        self.context.check_time()
        variables = mesh_variables(self.context.space, mesh)
        # Barriers of pins are among them, infinite where a plan is not allowed.
        tables = self._model.on_mesh(variables, _MOST_CHOICES).tables(self._seconds)
        least = Elimination(
            tables,
            variables.sizes,
            elimination_order([t.scope for t in tables], variables.sizes),
            self.context.check_time,
        )
        plan = self.context.evaluate(variables.point(least.assignment()), "optcnn")
        return least.bound, plan

    def on_complete_meshes(self) -> LeastSums:
        """Those plans of the meshes that differ and whose tables are complete, with a bound where
        seconds add up.
        """
        context = self.context
        adds_up = not runs_beside(context)
        plans, bounds, partial = list[Candidate](), dict[Mesh, float](), list[Mesh]()
        # Fewer axes first: their tables are small, and a plan is there if the budget ends.
        for mesh in sorted(context.distinct_meshes, key=lambda mesh: len(mesh.sizes)):
            if not self.is_complete(mesh):
                # Nothing is proven, so whatever is found elsewhere the mesh stays unsolved.
                bounds[mesh] = 0.0
                partial.append(mesh)
                continue
            bound, plan = self.on_mesh(mesh)
            bounds[mesh] = bound if adds_up else 0.0
            if plan is not None:
                plans.append(plan)
        if adds_up and not partial:
            context.raise_bound(min(bounds.values(), default=np.inf))
        best_seconds = context.fitting_seconds
        # A mesh whose least sum is above a plan that fits has nothing better.
        unsolved = (mesh for mesh, bound in bounds.items() if bound < best_seconds * (1 - EQUAL))
        return LeastSums(tuple(plans), tuple(unsolved), tuple(partial))


def runs_beside(context: SearchContext) -> bool:
    """Whether collectives run beside kernels, so that a step is shorter than its parts' sum."""
    return context.evaluator.backend.collectives == "beside kernels"


def optcnn(context: SearchContext) -> None:
    """The plan of the least sum of seconds on every mesh."""
    summing = Summing(context)
    for mesh in summing.on_complete_meshes().partial:
        summing.on_mesh(mesh)
