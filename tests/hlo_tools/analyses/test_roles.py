"""Which output is the new version of which input, and roles that need no flow of data.

Roles of state leaves are in `test_state_roles`.
"""

from hypothesis import given, strategies as st
import pytest

from hlo_tools.analyses.phases import phases
from hlo_tools.analyses.roles import Role, longest_common_run, match_state, roles
from hlo_tools.graph import flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module
from tests.hlo_tools.graphs import step_graph, text_graph


items = st.lists(st.integers(0, 3), max_size=12)


@given(items, items)
def test_a_run_is_the_longest_and_the_earliest(first, second):
    runs = [
        (-length, a, b)
        for a in range(len(first))
        for b in range(len(second))
        for length in range(1, len(first) + 1)
        if a + length <= len(first) and first[a : a + length] == second[b : b + length]
    ]
    expected = min(runs, default=(0, 0, 0))
    assert longest_common_run(first, second) == (-expected[0], *expected[1:])


def test_state_is_the_longest_run_of_equal_arrays():
    def step(x, w, b, y):
        return (x @ w).sum(), w + 1, b + y

    # The results are a number, [4, 8] and [8]: as the inputs 1 and 2.
    assert match_state(step_graph(step, (2, 4), (4, 8), (8,), (8,))) == {1: 1, 2: 2}


@pytest.mark.parametrize(("reads", "expected"), [("w", {0: 1}), ("x", {})])
def test_a_single_array_is_state_only_if_the_result_reads_it(reads, expected):
    graph = text_graph(f"""
ENTRY main {{
  x = f32[4] parameter(0)
  w = f32[8] parameter(1)
  wide = f32[8] concatenate(x, x), dimensions={{0}}
  ROOT new = f32[8] negate({"w" if reads == "w" else "wide"})
}}
""")
    assert match_state(graph) == expected


def test_donation_is_believed():
    text = """HloModule test, input_output_alias={ {0}: (1, {}, may-alias) }
ENTRY main {
  x = f32[8] parameter(0)
  w = f32[8] parameter(1)
  new = f32[8] add(w, x)
  ROOT out = (f32[8]) tuple(new)
}
"""
    assert match_state(flatten(decode_module(text_to_proto(text)))) == {0: 1}


def test_roles_that_shapes_and_types_say():
    graph = text_graph("""
ENTRY main {
  w = f32[4,8] parameter(0)
  x = f32[2,4] parameter(1)
  key = u32[2] parameter(2)
  rate = f32[] parameter(3)
  ROOT y = f32[2,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""")
    input_roles = roles(graph, phases(graph, {}), {})
    # Of inference the weight is what shares no leading size with the answer.
    assert input_roles == (Role.PARAMETER, Role.BATCH, Role.RNG, Role.CONSTANT)
    typed = roles(graph, phases(graph, {}), {}, rng_inputs=frozenset({3}))
    assert typed[3] is Role.RNG
