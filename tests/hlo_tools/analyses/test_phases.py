"""Forward, backward and update, on HLO whose phases are known."""

from hlo_tools.analyses.phases import Phase, after_backward, data, phases
from tests.hlo_tools.graphs import step_graph, text_graph


F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE

# A step of y = tanh(w) x with the loss sum(y), whose result is (new w, loss).
NAMED = """
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY main {
  w = f32[8] parameter(0)
  x = f32[8] parameter(1)
  scale = f32[8] multiply(x, x), metadata={op_name="jit(f)/mul"}
  t = f32[8] tanh(w), metadata={op_name="jit(f)/jvp(loss)/tanh"}
  y = f32[8] multiply(t, scale), metadata={op_name="jit(f)/jvp(loss)/mul"}
  zero = f32[] constant(0)
  loss = f32[] reduce(y, zero), dimensions={0}, to_apply=add,
    metadata={op_name="jit(f)/jvp(loss)/sum"}
  g = f32[8] multiply(scale, t), metadata={op_name="jit(f)/transpose(jvp(loss))/mul"}
  unnamed = f32[8] negate(g)
  new = f32[8] add(w, unnamed), metadata={op_name="jit(f)/add"}
  ROOT out = (f32[8], f32[]) tuple(new, loss)
}
"""


def _by_opcode(graph, by_op):
    return [(op.opcode, phase) for op, phase in zip(graph.ops, by_op)]


def test_names_say_the_phase_and_data_flow_says_it_of_the_rest():
    graph = text_graph(NAMED)
    by_op = phases(graph, {0: 0})
    assert _by_opcode(graph, by_op) == [
        ("multiply", F),  # outside of what is differentiated, and leads into it
        ("tanh", F),
        ("multiply", F),
        ("constant", F),  # without a name: as its user
        ("reduce", F),
        ("multiply", B),
        ("negate", U),
        ("add", U),
    ]
    after = after_backward(graph, by_op)
    made_after = [graph.values[v].producer for v, is_after in enumerate(after) if is_after]
    assert [graph.ops[p].opcode for p in made_after] == ["multiply", "negate", "add"]


def test_data_comes_from_arrays_that_are_no_state_and_not_through_gradients():
    graph = text_graph(NAMED)
    is_data = data(graph, phases(graph, {0: 0}), frozenset({0}))
    w, x = graph.inputs
    assert is_data[x] and not is_data[w]
    scale, tanh, y, *_, new = (op.outputs[0] for op in graph.ops)
    assert [is_data[v] for v in (scale, tanh, y, new)] == [True, False, True, False]


def test_without_a_name_that_says_transpose_the_data_flow_decides():
    def step(w, x, y):
        error = x @ w - y
        # The gradient of sum(error ** 2) / 2, by hand.
        return w - x.T @ error, (error**2).sum()

    graph = step_graph(step, (16, 4), (8, 16), (8, 4))
    result = phases(graph, {0: 0})
    dots = [phase for op, phase in zip(graph.ops, result) if op.opcode == "dot"]
    assert dots == [F, B]
    (minus,) = [i for i, op in enumerate(graph.ops) if graph.outputs[0] in op.outputs]
    assert result[minus] is U


def test_a_step_of_inference_is_all_forward():
    graph = step_graph(lambda cache, x: (cache + x,), (4,), (4,))
    assert set(phases(graph, {0: 0})) == {F}
