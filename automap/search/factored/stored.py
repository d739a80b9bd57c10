"""Along which dimensions leaves are stored, for every choice of their level and of their classes'
axes.
"""

from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from automap.search.factored.cells import Rows
from automap.search.factored.variables import Variables
from automap.space.leaves import storage_dims
from automap.space.point import StorageLevel


@dataclass(frozen=True)
class LeafStorage:
    """What the leaves of one mesh keep; remembers what it has worked out."""

    rows: Rows
    variables: Variables
    _known: dict[object, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def leaf_dims(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(dimension, whether the parameter too), [choices of `Rows.leaf_axes`..., levels,
        axes]; -1: none.
        """
        leaf = self.rows.space.leaves[number]
        candidates, none = self.rows.space.candidates, self.rows.space.problem.n_classes
        multiple = self.rows.space.stored_multiple
        leaf_variables = self.rows.leaf_axes[number]
        # A mask has a bit for each axis that the candidate is on.
        masks, levels = (
            [self.variables.masks[v] for v in leaf_variables],
            self.variables.levels[number],
        )
        holders_by_dim = tuple(
            tuple(i for i, v in enumerate(leaf_variables) if candidates[v] in (c, r))
            for c, r in zip(leaf.compute, leaf.regional)
        )
        storable = tuple(c != none for c in leaf.parameter_side)
        # Leaves of one shape that hold candidates on the same dimensions store alike, whatever
        # those are.
        key = (leaf.dims, leaf.reach, storable, leaf.imposed, holders_by_dim, tuple(masks), levels)
        if key in self._known:
            return self._known[key]
        sizes = self.variables.mesh.sizes
        # Of each set of axes, by its bits, in how many parts it splits.
        part_count = [
            prod(s for a, s in enumerate(sizes) if m >> a & 1) for m in range(1 << len(sizes))
        ]
        shape = (*map(len, masks), len(levels), len(sizes))
        dims = np.full(shape, -1, np.int8)
        is_full = np.broadcast_to(
            np.array([[x is StorageLevel.FULL for x in by_axis] for by_axis in levels]), shape
        )
        for place in product(*(range(len(choices)) for choices in masks)):
            chosen = [choices[i] for choices, i in zip(masks, place)]
            # Axes that computation splits the leaf along: it is not stored along them too.
            taken = 0
            for mask in chosen:
                taken |= mask
            parts = [prod(part_count[chosen[i]] for i in holders) for holders in holders_by_dim]
            # Levels OPTIMIZER and FULL take the same dimension, so only which axes store counts.
            dims_by_axes: dict[tuple[bool, ...], tuple[int, ...]] = {}
            for choice, by_axis in enumerate(levels):
                wanted = tuple(
                    level is not StorageLevel.REPLICATED and not taken >> a & 1
                    for a, level in enumerate(by_axis)
                )
                if wanted not in dims_by_axes:
                    kept = storage_dims(
                        leaf, self.variables.mesh.axes, wanted, parts, none, multiple
                    )
                    dims_by_axes[wanted] = tuple(-1 if d is None else d for d in kept)
                dims[(*place, choice)] = dims_by_axes[wanted]
        self._known[key] = dims, is_full
        return self._known[key]
