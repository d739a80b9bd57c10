"""Protos from outside that contradict themselves are refused by the name of the instruction."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hlo_tools.errors import HloError
from hlo_tools.graph import flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.module import Module, Shape
from hlo_tools.read.module_checks import check_module
from hlo_tools.read.operand_checks import ROWS
from hlo_tools.read.proto import decode_module
from hlo_tools.rules import RULES


PROGRAM = """
HloModule m

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }

body {
  c = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  one = s32[] constant(1)
  x = f32[4,8] get-tuple-element(c), index=1
  t = f32[4,8] tanh(x)
  j = s32[] add(i, one)
  ROOT r = (s32[], f32[4,8]) tuple(j, t)
}

test {
  c = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] constant(5)
  ROOT less = pred[] compare(i, n), direction=LT
}

twice { y = f32[4,8] parameter(0)  ROOT d = f32[4,8] add(y, y) }

ENTRY e {
  x = f32[4,8] parameter(0)
  w = f32[8,16] parameter(1)
  ids = s32[4,1] parameter(2)
  image = f32[1,8,8,2] parameter(3)
  kernel = f32[3,3,2,4] parameter(4)
  zero = f32[] constant(0)
  start = s32[] constant(0)
  carry = (s32[], f32[4,8]) tuple(start, x)
  loop = (s32[], f32[4,8]) while(carry), condition=test, body=body
  h = f32[4,8] get-tuple-element(loop), index=1
  called = f32[4,8] call(h), to_apply=twice
  product = f32[4,16] dot(called, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  total = f32[16] reduce(product, zero), dimensions={0}, to_apply=add
  spread = f32[4,16] broadcast(total), dimensions={1}
  turned = f32[16,4] transpose(spread), dimensions={1,0}
  flat = f32[64] reshape(turned)
  part = f32[32] slice(flat), slice={[0:64:2]}
  padded = f32[40] pad(part, zero), padding=3_5
  joined = f32[72] concatenate(padded, part), dimensions={0}
  rows = f32[4,16] gather(w, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,16}
  put = f32[8,16] scatter(w, ids, rows), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  seen = f32[1,8,8,4] convolution(image, kernel), window={size=3x3 pad=1_1x1_1},
    dim_labels=b01f_01io->b01f
  pooled = f32[1,4,4,4] reduce-window(seen, zero), window={size=1x2x2x1 stride=1x2x2x1},
    to_apply=add
  sorted = f32[72] sort(joined), dimensions={0}, to_apply=less2
  count = s32[4] iota(), iota_dimension=0
  cut = f32[2,8] dynamic-slice(x, start, start), dynamic_slice_sizes={2,8}
  set = f32[4,8] dynamic-update-slice(x, cut, start, start)
  ROOT all = (f32[4,16], f32[8,16], f32[1,4,4,4], f32[72], s32[4], f32[4,8])
    tuple(rows, put, pooled, sorted, count, set)
}
""".replace(
    "ENTRY e {",
    "less2 { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT l = pred[] compare(a, b), "
    "direction=LT }\n\nENTRY e {",
)


def _module() -> Module:
    return decode_module(text_to_proto(PROGRAM))


def _changed(**changes) -> Module:
    """The module with fields of the one instruction called `name` changed."""
    name = changes.pop("name")
    module = _module()
    for computation in module.computations.values():
        computation.instructions = tuple(
            replace(i, **changes) if i.name == name else i for i in computation.instructions
        )
    return module


def test_a_sound_module_is_let_pass():
    module = _module()
    check_module(module)
    assert len(flatten(module).inputs) == 5


def _without_an_operand() -> Iterator[tuple[str, tuple[int, ...]]]:
    for computation in _module().computations.values():
        for i in computation.instructions:
            for at in range(len(i.operands)):
                yield i.name, i.operands[:at] + i.operands[at + 1 :]
            yield i.name, ()


@pytest.mark.parametrize(
    ("name", "operands"), [x for x in _without_an_operand() if x[0] not in ("start",)]
)
def test_no_instruction_is_let_pass_without_an_operand(name, operands):
    module = _changed(name=name, operands=operands)
    before = {i.name: i for c in _module().computations.values() for i in c.instructions}[name]
    if (
        before.operands == operands
        or name == "cut"
        and len(operands) == 2
        and operands[0] == before.operands[0]
    ):
        return  # offsets of a dynamic slice may be one array
    if name == "set" and operands[:2] == before.operands[:2] and len(operands) == 3:
        return
    with pytest.raises(HloError, match=rf"^{name} \({before.opcode}\): "):
        check_module(module)


@pytest.mark.parametrize(
    "name",
    [
        "t",
        "product",
        "total",
        "spread",
        "turned",
        "flat",
        "part",
        "padded",
        "joined",
        "rows",
        "put",
        "seen",
        "pooled",
        "sorted",
        "cut",
        "set",
        "called",
        "loop",
        "h",
        "carry",
    ],
)
def test_no_result_of_another_shape_is_let_pass(name):
    with pytest.raises(HloError):
        check_module(_changed(name=name, shape=Shape("f32", (4, 9))))
    with pytest.raises(HloError):
        check_module(_changed(name=name, shape=Shape("f32", ())))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "h", "tuple_index": 2}, r"h \(get-tuple-element\): element 2 of 2"),
        ({"name": "h", "tuple_index": -1}, "element -1 of 2"),
        ({"name": "total", "dimensions": (7,)}, r"dimensions \[7\] of an array with 2"),
        ({"name": "total", "dimensions": (-2,)}, r"dimensions \[-2\]"),
        ({"name": "turned", "dimensions": (1, 1)}, r"dimensions \[1, 1\]"),
        ({"name": "spread", "dimensions": ()}, "0 dimensions for an operand of 1"),
        ({"name": "count", "dimensions": ()}, r"count \(iota\): 0 dimensions"),
        ({"name": "loop", "called": ()}, "1 operands and 0 computations"),
        ({"name": "called", "called": ()}, "calls 0 computations"),
        (
            {"name": "w", "parameter_number": 4},
            r"'e': its 5 parameters have the numbers \[0, 2, 3, 4\]",
        ),
        ({"name": "w", "parameter_number": -1}, "its 5 parameters"),
    ],
)
def test_attributes_out_of_range_are_named(changes, message):
    with pytest.raises(HloError, match=message):
        check_module(_changed(**changes))


def test_aliases_name_parameters_and_results_that_are_there():
    module = _module()
    check_module(replace(module, aliases=((5, 4),)))
    for alias in ((6, 0), (0, 5), (-1, 0)):
        with pytest.raises(HloError, match="is said to be in the place of parameter"):
            check_module(replace(module, aliases=(alias,)))
    with pytest.raises(HloError, match="a donated parameter is not there"):
        check_module(replace(module, donated=frozenset({9})))


def test_every_rule_has_a_row_that_checks_for_it():
    """Rules rely on what rows check; these make no demands of shapes, or were read as a dot."""
    free = {
        "matrix-vector",
        "outer-product",
        "rng",
        "rng-get-and-update-state",
        "sharding-constraint",
    }
    assert set(RULES) - set(ROWS) == free


def _doubling(n: int) -> bytes:
    """2^n negations in n + 1 computations, each of which calls the one before twice."""
    text = ["HloModule m\nc0 { p = f32[4] parameter(0) ROOT r = f32[4] negate(p) }"]
    for i in range(1, n + 1):
        text.append(
            f"c{i} {{ p = f32[4] parameter(0) a = f32[4] call(p), to_apply=c{i - 1} "
            f"ROOT b = f32[4] call(a), to_apply=c{i - 1} }}"
        )
    text.append(f"ENTRY e {{ p = f32[4] parameter(0) ROOT r = f32[4] call(p), to_apply=c{n} }}")
    return text_to_proto("\n".join(text))


def test_what_calls_make_of_a_small_program_is_known_before_it_is_made():
    check_module(decode_module(_doubling(10)))
    with pytest.raises(HloError, match="inlined, the program has over 500000 results"):
        check_module(decode_module(_doubling(30)))


def _nested_loops(n: int, trips: int) -> str:
    shape = "(s32[], f32[4])"
    text = ["HloModule m"]
    for level in range(n):
        inside = "f = f32[4] get-tuple-element(c), index=1"
        if level:
            inside = (
                f"g = f32[4] get-tuple-element(c), index=1\n s = s32[] constant(0)\n d = {shape} "
                "tuple(s, g)\n"
                f" x = {shape} while(d), condition=test{level - 1}, body=body{level - 1}\n"
                " f = f32[4] get-tuple-element(x), index=1"
            )
        text.append(
            f"body{level} {{\n c = {shape} parameter(0)\n i = s32[] get-tuple-element(c), "
            "index=0\n one = s32[] constant(1)\n"
            f" j = s32[] add(i, one)\n {inside}\n ROOT r = {shape} tuple(j, f)\n}}\n"
            f"test{level} {{\n c = {shape} parameter(0)\n i = s32[] get-tuple-element(c), index=0\n"
            f" n = s32[] constant({trips})\n ROOT l = pred[] compare(i, n), direction=LT\n}}"
        )
    text.append(
        f"ENTRY e {{\n z = s32[] constant(0)\n p = f32[4] parameter(0)\n t = {shape} tuple(z, p)\n"
        f" ROOT w = {shape} while(t), condition=test{n - 1}, body=body{n - 1}\n}}"
    )
    return "\n".join(text)


def test_trips_of_nested_loops_neither_overflow_nor_hang():
    module = decode_module(text_to_proto(_nested_loops(8, 2**31 - 1)))
    check_module(module)
    with pytest.raises(HloError, match=r"this loop's body runs \d+ times in a step"):
        flatten(module)


def test_calls_are_nested_so_deep_only():
    check_module(decode_module(text_to_proto(_nested_loops(64, 1))))
    with pytest.raises(HloError, match="calls are nested over 64 deep"):
        check_module(decode_module(text_to_proto(_nested_loops(400, 1))))


def test_bytes_of_all_results_have_a_limit():
    lines = [f"x{i} = f32[16777216,16777216] negate(x{i - 1})" for i in range(1, 70)]
    text = "HloModule m\nENTRY e { x0 = f32[16777216,16777216] parameter(0)\n"
    with pytest.raises(HloError, match="the results so far have over"):
        check_module(decode_module(text_to_proto(f"{text}{chr(10).join(lines)}\n}}")))


def test_a_program_has_so_many_instructions_at_most():
    data = text_to_proto(PROGRAM)
    count = sum(len(c.instructions) for c in _module().computations.values())
    decode_module(data, most_instructions=count)
    with pytest.raises(HloError, match=f"^{count} instructions; allowed: {count - 1}; scan over"):
        decode_module(data, most_instructions=count - 1)
