"""What a constraint costs where the plan splits otherwise: one collective in closed form, or
nothing.
"""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from automap.cost.shardings import shardings
from automap.cost.shardings.imposed import ImposedRow, Places, impose
from automap.cost.tables import build_tables
from automap.cost.traffic.flows import KINDS
from automap.program import trace_step
from automap.space.space import Space
from automap.topology.mesh import Mesh
from tests.user_shardings import FOUR_BY_TWO


ROWS, INNER, COLUMNS = 16, 8, 32
RESULT_BYTES = ROWS * COLUMNS * 4
MESH = Mesh(("data", "model"), (4, 2))


def _moves(*spec, after=jnp.tanh):
    """(kind, axes, bytes) of all collectives where rows are split over data, and a product is
    constrained.
    """

    def step(weights, x):
        return after(lax.with_sharding_constraint(x @ weights, FOUR_BY_TWO(*spec))).sum()

    args = (jnp.ones((INNER, COLUMNS)), jnp.ones((ROWS, INNER)))
    problem = trace_step(jax.jit(step), args).problem
    space, tables = Space(problem), build_tables(problem, "cpu")
    rows = problem.compute_classes(problem.graph.inputs[1])[0]
    split_classes = space.split_classes(space.point(MESH, [[rows], []]))
    sharding = shardings(tables, problem.n_classes, split_classes)
    collectives = tables.collectives(sharding)
    return sorted(
        (KINDS[kind].value, tuple(n for a, n in enumerate(MESH.names) if mask >> a & 1), n_bytes)
        for kind, mask, n_bytes in zip(collectives.kind, collectives.mask, collectives.n_bytes)
    )


LOSS = ("all-reduce", ("data",), 4.0)


@pytest.mark.parametrize(
    ("spec", "moves"),
    [
        (("data",), []),
        ((("data", "model"),), [("all-gather", ("model",), RESULT_BYTES / 4)]),
        ((), [("all-gather", ("data",), RESULT_BYTES)]),
        (
            (None, "model"),
            [
                ("all-gather", ("data",), RESULT_BYTES),
                ("all-gather", ("model",), RESULT_BYTES),
            ],
        ),
        ((None, "data"), [("all-to-all", ("data",), RESULT_BYTES / 4)] * 2),
    ],
)
def test_a_constraint_costs_what_resharding_costs(spec, moves):
    """Forth to the spec and back to the rows of the tanh: what is gathered is cut after, which is
    free.
    """
    assert _moves(*spec) == sorted([*moves, LOSS])


def test_ranks_of_an_imposed_row():
    never = 100
    ranks = np.array([[0, 1, never], [0, 1, 2]])
    places = Places(fixed=(0, 2), axis_places=(("a", 2),))
    impose(ranks, [ImposedRow(1, places)], "a", never)
    assert ranks.tolist() == [[0, 1, never], [never, 1, -1]]
    impose(ranks, [ImposedRow(0, places)], "b", never)
    assert ranks.tolist() == [[never, 1, never], [never, 1, -1]]
