"""`exact`: the best plan with a proof, or the best known with a proven lower bound.

    bound = min(step of the best plan, min over meshes of bound(mesh))

Every mesh is first bounded without regard to memory (`automap.search.exact.mesh`); then they are
worked on in the order of those bounds, as long as theirs are below the best step known. Where
collectives run beside kernels bounds are not met by plans, so there greedy search makes better ones
of the best so far. The bound stands at every moment, also when time is up.

Of meshes that hold the same plans one is worked on -> in: `SearchContext.distinct_meshes`
"""

import numpy as np

from automap.search.context import SearchContext
from automap.search.exact.dual import Dual
from automap.search.exact.mesh import MeshSearch
from automap.search.exact.overlap import bounding_weights
from automap.search.factored.cells import Rows
from automap.search.factored.model import Model
from automap.search.factored.variables import mesh_variables
from automap.search.greedy import climb, greedy, starts


def exact(context: SearchContext) -> None:
    """Prove the best plan of all meshes, or bound it."""
    model = Model(Rows(context.space, context.evaluator), context.pins, context.spend)
    weights = bounding_weights(context.evaluator, model.features)
    limit = context.objective.memory_limit_bytes
    searches = [
        MeshSearch(
            context,
            model,
            Dual(context.evaluator, model.features, weights, limit),
            mesh_variables(context.space, mesh),
        )
        # Fewer axes first: their tables are small, so that some bound is there early.
        for mesh in sorted(context.distinct_meshes, key=lambda mesh: len(mesh.sizes))
    ]
    try:
        # Presets and empty points, so that there is a plan to return, and a step to beat.
        starts(context)
        for search in searches:
            context.check_time()
            search.first_bound()
        # Where collectives hide behind kernels the plans of elimination are not the best ones.
        if weights.count and context.best is not None:
            climb(context, context.best)
        # The mesh of the lowest bound may have the best plan, which then proves others by being
        # better.
        for search in sorted(searches, key=lambda s: (not s.is_complete, s.bound_seconds)):
            search.run()
        for search in searches:
            search.programme()
        if not all(search.is_proven for search in searches):
            greedy(context)
    finally:
        # Also when the budget is over: what was proven until then holds.
        context.raise_bound(min((search.bound_seconds for search in searches), default=np.inf))
